"""The contract between lowered models and the program that runs them: the meaning and the source of each input."""

from graphkit.deploy.contract.contract_reader import read_contract
from graphkit.deploy.contract.host_contract import By, Contract, Method, Port, Source, State, Table, sound_axis

__all__ = ["By", "Contract", "Method", "Port", "Source", "State", "Table", "read_contract", "sound_axis"]
