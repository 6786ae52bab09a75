"""The contract between lowered models and the program that runs them: the meaning and the source of each input."""

from graphkit.contract.contract import By, Contract, Method, Port, Source, State, Table, sound_axis
from graphkit.contract.reading import read_contract

__all__ = ["By", "Contract", "Method", "Port", "Source", "State", "Table", "read_contract", "sound_axis"]
