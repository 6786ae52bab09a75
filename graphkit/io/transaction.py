"""Put several files, or one text file, in place: all of them or none, whatever happens in between.

Files are written in a hidden folder beside their targets, and renamed at the end. Where files are replaced, the old
ones go aside first, in reverse order; then the new ones come, in order. With the data first and the models after it, a
model that stands under its name always finds the data that it was written with.

A failed run is rolled back. A killed run is rolled back from its journal by the next run for the same target:

- killed while it writes: the old files stand, the hidden folder stays;
- killed while it renames (microseconds): the old files that are aside lie in the hidden folder's `old`;
- killed after that: the new files stand, the hidden folder stays.

The folder is locked while its process lives, so that no other run removes it too early.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from graphkit.errors import OutputError
from graphkit.progress import check_stopped, hold_signals

try:
    import fcntl
except ImportError:  # Windows: there an open file cannot be removed, which serves as a lock
    fcntl = None  # type: ignore[assignment]


MARK = ".graphkit-"
MAX_NAME = 100  # bytes of the target's name in that of the hidden folder
LOCK, JOURNAL, NEW, OLD = "lock", "journal", "new", "old"


@contextlib.contextmanager
def write_all_or_none(
    targets: Sequence[Path], *, key: Path, overwrite: bool, hint: str, before: Callable[[Path], None] = lambda _: None
) -> Iterator[Callable[[Path], Path]]:
    """Give a function from a target to the place to write it; move all that was written into place at the end.

    Args:
        targets: Files in one folder, that which others refer to first.
        key: The target whose name the hidden folder has, by which a later run finds it.
        overwrite: Replace files that exist.
        hint: What a user can do where a file cannot be written.
        before: Called with the folder of what was written, before any of it is put in place.

    Raises:
        OutputError: A file exists, or cannot be written; then all is as it was before.
    """
    recover_unfinished(key)
    work, lock = key, None
    is_stuck = False
    try:
        with naming_errors(targets, hint):
            while lock is None:
                work = key.parent / f"{_folder_prefix(key)}{os.urandom(6).hex()}"
                work.mkdir(0o700)
                lock = _take_folder(work, is_ours=True)  # None: another run was quick to take it for one that was left
            (work / NEW).mkdir()
            (work / OLD).mkdir()
            yield lambda target: work / NEW / target.name
        before(work / NEW)
        with naming_errors(targets, hint), hold_signals(), _locked_folder(key.parent):
            check_stopped()
            _put_in_place(work, [target for target in targets if (work / NEW / target.name).exists()], overwrite)
    except _StuckError:
        is_stuck = True
        raise
    finally:
        if lock is not None:
            os.close(lock)
        if work is not key and not is_stuck:
            shutil.rmtree(work, ignore_errors=True)


def recover_unfinished(key: Path) -> None:
    """Undo what killed runs for the same target left unfinished; OutputError where a file cannot be put back."""
    for work in sorted(key.parent.glob(f"{glob.escape(_folder_prefix(key))}*")):
        lock = None
        with contextlib.suppress(OSError):
            lock = _take_folder(work)
        if lock is None:  # its process lives, or it is nobody's business
            continue
        try:
            with hold_signals(), _locked_folder(key.parent):
                _roll_back(work, key.parent)
        finally:
            os.close(lock)
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Make a folder and its parents, removed where the block fails. Raises OutputError where one cannot be made."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    finished = False
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{folder}: cannot be made: {error.strerror} - name another folder with -o") from error
        yield
        finished = True
    finally:
        for path in missing if not finished else ():
            with contextlib.suppress(OSError):
                path.rmdir()


class _StuckError(OutputError):
    """A file from before that cannot be put back."""


def _put_in_place(work: Path, targets: Sequence[Path], overwrite: bool) -> None:
    """Rename all new files to their targets, or none.

    Raises OSError where one cannot be renamed, OutputError where one exists that must not be replaced.
    """
    had = list[Path]()
    for target in targets if overwrite else ():
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(target.lstat().st_mode):
                raise OutputError(f"{target}: is not a regular file - name another output")
            had.append(target)
    if len(targets) == 1 and overwrite:  # which is one step
        (work / NEW / targets[0].name).replace(targets[0])
        return
    finished = False
    try:
        # which files are to come, by their numbers in the file system, so that nobody else's are touched
        numbers = {target.name: (work / NEW / target.name).stat().st_ino for target in targets}
        unfinished = work / f"{JOURNAL}.part"
        unfinished.write_text(json.dumps(numbers), encoding="utf-8")
        unfinished.replace(work / JOURNAL)
        for target in reversed(had):
            target.replace(work / OLD / target.name)
        for target in targets:
            _place_file(work / NEW / target.name, target)
        (work / JOURNAL).unlink()  # from here on the new files count
        finished = True
    finally:
        if not finished:
            _roll_back(work, targets[0].parent)


def _place_file(new: Path, target: Path) -> None:
    """Give a file a name that nothing has. Raises OutputError where something has it."""
    try:
        try:
            os.link(new, target)
        except FileExistsError:
            raise
        except OSError:  # no hard links here: take the name, then replace what has it
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            new.replace(target)
        else:
            new.unlink()
    except FileExistsError as error:
        raise OutputError(f"{target}: exists - name another output with -o, or replace it with --overwrite") from error


def _roll_back(work: Path, folder: Path) -> None:
    """Remove the new files that are in place, models before their data; then put the old ones back, data first.

    Without a journal nothing was changed, or all is done. Raises OutputError where a file cannot be put back.
    """
    if not (work / JOURNAL).exists():
        return
    try:
        numbers = json.loads((work / JOURNAL).read_text(encoding="utf-8"))
    except ValueError:  # also what is no UTF-8
        numbers = None
    if not isinstance(numbers, dict) or any(Path(name).name != name for name in numbers):
        raise _StuckError(f"{work / JOURNAL}: is no journal of graphkit's - look through {work}, then remove it")
    for name in reversed(numbers):
        with _putting_back(folder / name, work):
            if os.path.lexists(folder / name) and (folder / name).lstat().st_ino == numbers[name]:
                (folder / name).unlink()
    for name in numbers:
        with _putting_back(folder / name, work):
            old, target = work / OLD / name, folder / name
            if os.path.lexists(target) and old.exists() and old.samefile(target):  # it was killed just here
                old.unlink()
            elif os.path.lexists(old):
                _place_file(old, target)
    (work / JOURNAL).unlink()


@contextlib.contextmanager
def _putting_back(target: Path, work: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, OutputError) as error:
        reason = error.strerror if isinstance(error, OSError) else "something else stands there"
        hint = f"it is in {work / OLD}; move it, then remove that folder"
        raise _StuckError(f"{target}: the file from before cannot be put back: {reason} - {hint}") from error


def _folder_prefix(target: Path) -> str:
    """Return how the names of the hidden folders for a target begin."""
    return f".{target.name.encode('utf-8', 'replace')[:MAX_NAME].decode('utf-8', 'ignore')}{MARK}"


def _take_folder(work: Path, *, is_ours: bool = False) -> int | None:
    """Return the lock of a hidden folder, None where somebody has it, or has removed it; OSError without locks."""
    path = work / LOCK
    try:
        if fcntl is None and not is_ours:
            path.unlink(missing_ok=True)
        lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    except (FileNotFoundError, PermissionError):
        if is_ours and work.exists():
            raise
        return None
    is_taken = False
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_taken = os.path.samestat(os.fstat(lock), path.stat())
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:  # a file system without locks, where nobody can tell whether a process lives
        is_taken = is_ours
    finally:
        if not is_taken:
            os.close(lock)
    return lock if is_taken else None


@contextlib.contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Let nobody else rename in a folder meanwhile."""
    if fcntl is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a file system without locks, a folder that cannot be read
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def naming_errors(targets: Sequence[Path], hint: str) -> Iterator[None]:
    """Let errors name the file that was to be written, not the hidden one: the last target where none has its name."""
    try:
        yield
    except OSError as error:
        from graphkit.io.byte_source import shown_path  # which loads onnx

        at_fault = Path(os.fsdecode(error.filename)).name if isinstance(error.filename, (str, bytes)) else ""
        target = next((target for target in targets if target.name == at_fault), targets[-1])
        raise OutputError(f"{shown_path(target)}: cannot be written: {error.strerror or error} - {hint}") from error


def write_text(path: Path, text: str, inputs: Iterable[Path] = ()) -> None:
    """Write a text file, and put it in place when it is whole.

    Args:
        path: The file to write; an earlier one of that name is replaced.
        text: Its content, written as UTF-8.
        inputs: Files that must not be replaced.

    Raises:
        OutputError: `path` is one of the inputs, or cannot be written; then nothing has changed.
    """
    target = Path(os.path.realpath(path))  # a link stays, what it leads to is replaced
    try:
        if any(target.exists() and source.exists() and target.samefile(source) for source in inputs):
            raise OutputError(f"{path}: is an input, which is never overwritten - name another output")
        if target.is_dir():
            raise OutputError(f"{path}: is a folder - name a file in it")
        if target.exists() and not target.is_file():  # a device such as /dev/null must not be replaced
            raise OutputError(f"{path}: is not a regular file - name one, or leave the output out to print")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror} - check the folder") from error
    with (
        write_all_or_none([target], key=target, overwrite=True, hint="check the folder") as place,
        place(target).open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
    ):
        file.write(text)
