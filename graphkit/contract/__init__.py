"""The contracts of lowered models and of bundles with the program that runs them: the source of each input."""

from graphkit.contract.bundle_contract import (
    BundleContract,
    BundledWith,
    BundleMethod,
    BundlePort,
    Feed,
    Length,
    LengthChange,
    StateTensor,
)
from graphkit.contract.contract_files import read_contract
from graphkit.contract.host_contract import (
    By,
    Contract,
    Generation,
    LoweredWith,
    Method,
    Port,
    Source,
    State,
    Table,
    sound_axis,
)

__all__ = [
    "BundleContract", "BundleMethod", "BundlePort", "BundledWith", "By", "Contract", "Feed", "Generation",
    "Length", "LengthChange", "LoweredWith", "Method", "Port", "Source", "State", "StateTensor", "Table",
    "read_contract", "sound_axis",
]  # fmt: skip
