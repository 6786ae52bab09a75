"""The command line, the only part of graphkit that prints.

Exit codes: 0 for success; 1 for findings with `--strict` or `--fail-on`, what is worse than a `--baseline`, or a failed
proof; 2 for bad input or an output that cannot be written; 130 and 143 when SIGINT or SIGTERM stops the process, 141
without a word where nobody reads its output any more.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import sys

__all__ = ["app", "main"]

BROKEN_PIPE = 128 + 13  # the code of a process that SIGPIPE ends


def __getattr__(name: str) -> object:
    """Return the commands, which are imported when they are first used."""
    if name != "app":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from graphkit.cli import commands

    return getattr(commands, name)


def run() -> None:
    """Run the command line; the process then ends without freeing its objects one by one, which takes a while."""
    codes: list[int] = []
    atexit.register(_end_process, codes)  # before all others, so that it is the last to be called
    try:
        main()
    except SystemExit as error:
        if isinstance(error.code, int):
            codes.append(error.code)
        raise


def _end_process(codes: list[int]) -> None:
    """End the process at once with the code that it has, unless somebody measures it."""
    if codes and sys.getprofile() is None and sys.gettrace() is None:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()  # an error leaves the end to the interpreter
        os._exit(codes[0])


def main() -> None:
    """Run the command line."""
    gc.set_threshold(500_000)  # what is imported, and a graph, are many small objects that live as long as the process
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # what follows is imported for a tenth of a second
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, _end_stopped)
    from graphkit.cli.commands import app
    from graphkit.cli.output import make_tolerant, print_line, written_out
    from graphkit.errors import GraphkitError
    from graphkit.progress import StoppedError, raise_signals

    for stream in filter(None, (sys.stdout, sys.stderr)):
        make_tolerant(stream)
    try:
        with raise_signals(), written_out():
            app(prog_name="graphkit")
    except GraphkitError as error:
        if isinstance(error.__cause__, BrokenPipeError):  # whoever reads it has enough, as `head` does
            raise SystemExit(BROKEN_PIPE) from None
        print_line(f"Error: {error}", is_error=True)
        raise SystemExit(2) from error
    except StoppedError as error:
        sys.stderr.write(f"Error: stopped by {error} - no file is left half written\n")
        raise SystemExit(128 + error.number) from None
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG or not isinstance(error.filename, str):
            raise
        print_line(f"Error: {error.filename[:40]}...: {error.strerror} - name another file or folder", is_error=True)
        raise SystemExit(2) from error
    except MemoryError:
        sys.stderr.write("Error: memory ran out - give this process more of it; no file is left half written\n")
        raise SystemExit(2) from None


def _end_stopped(number: int, _: object) -> None:
    """End the process, which has not begun to do anything."""
    text = f"Error: stopped by {signal.Signals(number).name} - no file is left half written\n"
    if sys.stderr is not None:
        os.write(2, text.encode())
    os._exit(128 + number)
