"""Run commands in turns and keep every value: what the scripts beside this file share.

The machine is taken to be noisy. Commands run A B A B ..., so that a slow spell meets both, and ratios and
differences are taken within a round before the median is. Not for anything shorter than about a millisecond.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

__all__ = ["Memory", "Spread", "alternate", "environment", "peak_memory", "printed", "wall", "warm"]

SAMPLE_PERIOD = 0.0005
PACKAGES = ("onnx-graphkit", "onnx", "protobuf")


@dataclass(frozen=True)
class Spread:
    """The values of one command, in the order of the rounds."""

    values: tuple[float, ...]

    def over(self, other: Spread) -> Spread:
        """Divide round by round."""
        return Spread(tuple(mine / theirs for mine, theirs in zip(self.values, other.values, strict=True)))

    def minus(self, other: Spread) -> Spread:
        """Subtract round by round."""
        return Spread(tuple(mine - theirs for mine, theirs in zip(self.values, other.values, strict=True)))

    def show(self, unit: str, digits: int) -> str:
        """Write the median, then the least and the greatest value."""
        middle, low, high = statistics.median(self.values), min(self.values), max(self.values)
        return f"{middle:,.{digits}f}{unit} ({low:,.{digits}f} to {high:,.{digits}f})"


@dataclass(frozen=True)
class Memory:
    """Peaks over the life of a process, in bytes.

    Attributes:
        anonymous: RssAnon: what the process itself keeps in memory.
        resident: VmHWM: the same and the pages of mapped files, which the kernel may drop at any time.
    """

    anonymous: int
    resident: int


def alternate(samplers: Mapping[str, Callable[[], float]], rounds: int, *, warm_up: bool = True) -> dict[str, Spread]:
    """Call the samplers in turns, `rounds` times, after one round that does not count unless `warm_up` is off."""
    values: dict[str, list[float]] = {name: [] for name in samplers}
    for _ in range(rounds + warm_up):
        for name, sample in samplers.items():
            values[name].append(sample())
    return {name: Spread(tuple(taken[warm_up:])) for name, taken in values.items()}


def wall(command: Sequence[str]) -> float:
    """Return the seconds from the start of a process to its end."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def printed(command: Sequence[str]) -> float:
    """Return the number that a process prints."""
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def peak_memory(command: Sequence[str], *, quiet: bool = False, folder: Path | None = None) -> Memory | None:
    """Watch a process from outside until it ends; None where the system has no /proc (anything but Linux).

    With `quiet`, its errors are not shown either. It runs in `folder`, by default in this process's.
    """
    if not Path("/proc/self/status").is_file():
        return None
    peaks = {"RssAnon": 0, "VmHWM": 0}
    errors = subprocess.DEVNULL if quiet else None
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, cwd=folder) as process:
        while process.poll() is None:
            for field, size in _status(process.pid).items():
                peaks[field] = max(peaks.get(field, 0), size)
            time.sleep(SAMPLE_PERIOD)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Memory(peaks["RssAnon"], peaks["VmHWM"])


def _status(pid: int) -> dict[str, int]:
    """Return the sizes in a process's status; none of them when it has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(size) * 1024 for name, size, _ in fields}


def warm(path: Path) -> None:
    """Read a file once, so that the page cache has it."""
    with path.open("rb") as stream:
        while stream.read(1 << 24):
            pass


def environment() -> str:
    """Name the versions and the machine, for the line above a table."""
    software = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in PACKAGES)]
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    bytecode = "not written (a checkout is compiled at every import)" if sys.dont_write_bytecode else "cached"
    return f"{', '.join(software)}; {machine}; bytecode {bytecode}"
