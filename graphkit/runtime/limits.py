"""Limits of time and memory for a model that runs in a separate process."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HAS_MEMORY_LIMIT = sys.platform == "linux"  # elsewhere no limit counts the memory that a process allocates
SECONDS = 60.0
SECONDS_PER_GIGABYTE = 30.0  # of weights: to read them, and to multiply with them
SHARE = 4  # a model may take one part in so many of the machine's memory
LEAST_MEMORY = 1 << 30
COPIES = 3  # of its weights: as parsed, as onnxruntime keeps them, as its kernels like them
OUTPUT_SHARE = 16
LEAST_OUTPUTS = 256 << 20
MOST_INPUTS = 1 << 30
INPUTS_PER_SECOND = 32 << 20  # bytes of random numbers that a slow processor makes
SEARCH = 4


@dataclass(frozen=True)
class Limits:
    """Limits of time and memory while a model is loaded or run.

    Attributes:
        seconds: Time of one load or one run; a proof looks for sizes for so many times as long (`SEARCH`). Default: a
            minute, plus half a minute for each GB of weights, and as long as it takes to look for sizes; more where
            others keep the processors busy.
        memory: Bytes, not counting the weights. Default: a quarter of the machine's memory. Has no effect if
            `HAS_MEMORY_LIMIT` is false.
    """

    seconds: float | None = None
    memory: int | None = None

    def time(self, weights: int) -> float:
        """Return the seconds that one load or one run may take, for a model with so many bytes of weights."""
        if self.seconds is not None:
            return self.seconds
        return (SECONDS + SECONDS_PER_GIGABYTE * weights / 1e9) * waiting_factor()

    def bytes(self) -> int:
        """Return the bytes that a model may take beyond its weights."""
        return max(machine_memory() // SHARE, LEAST_MEMORY) if self.memory is None else self.memory

    def outputs(self) -> int:
        """Return the bytes that the outputs of one run may take; they are held for comparison."""
        return max(self.bytes() // OUTPUT_SHARE, LEAST_OUTPUTS)

    def inputs(self) -> int:
        """Return the bytes that the inputs of one run may take, so that making them is no longer than a run may be."""
        return MOST_INPUTS if self.seconds is None else min(MOST_INPUTS, int(self.seconds * INPUTS_PER_SECOND))

    def search(self) -> float:
        """Return the seconds after which a search for sizes at which a model runs starts no further run."""
        return math.inf if self.seconds is None else SEARCH * self.seconds


DEFAULT_LIMITS = Limits()


def waiting_factor() -> float:
    """Return how many times as long work takes because other processes wait for the processors too, at least 1."""
    waiting = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1.0, waiting / (os.cpu_count() or 1))


@cache
def machine_memory() -> int:
    """Return the bytes of memory that this machine, or the container around this process, has."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return 0
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        allowed = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return physical
    return min(physical, int(allowed)) if allowed.isdigit() else physical


def allocated_bytes() -> int:
    """Return the bytes of this process that count against its limit of memory; 0 where there is none."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if HAS_MEMORY_LIMIT and status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), 0)


def limit_memory(most: int) -> None:
    """Limit the memory this process allocates, where `HAS_MEMORY_LIMIT`; files that it maps to read do not count."""
    if sys.platform == "linux":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
