"""Install the judges that anybody may use, into the folder that GRAPHKIT_JUDGES names: `make judge-test`.

One that is there with the packages of `judges.toml` stays. One that the package index does not give is left out, and
its tests are skipped; where the index has its compiler, and it cannot be installed all the same, that is our fault.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from graphkit.errors import OutputError
from graphkit.judges import JUDGES, Judge, install_judge

OPEN = ("webgpu", "openvino", "vela")  # under licences of open source, and small
PYTHON = {"vela": "3.11"}  # whose wheels of TensorFlow are of no newer Python than 3.12


def main() -> None:
    if not os.environ.get("GRAPHKIT_JUDGES"):
        sys.exit("GRAPHKIT_JUDGES names no folder - run make judge-test")
    failed = [name for name in OPEN if not _has_installed(JUDGES[name])]
    if failed:
        sys.exit(f"cannot be installed, though the package index has the compiler: {', '.join(failed)}")


def _has_installed(judge: Judge) -> bool:
    """Install a judge where it is not there as it should be; whether that went well, or nobody is to blame."""
    packages = judge.folder / "packages.txt"
    wanted = "\n".join([*judge.packages, "alone:", *judge.alone])
    if judge.version and packages.exists() and packages.read_text() == wanted:
        return True
    python = shutil.which(f"python{PYTHON[judge.name]}") if judge.name in PYTHON else sys.executable
    if python is None:
        print(f"skipped: {judge.name} needs Python {PYTHON[judge.name]}, which is not on PATH", flush=True)
        return True
    try:
        install_judge(judge.name, python)
    except OutputError as error:
        print(error, flush=True)
        if _index_has(judge.packages[0], python):
            return False
        print(f"skipped: {judge.name}: the package index does not give {judge.packages[0]}", flush=True)
        shutil.rmtree(judge.folder, ignore_errors=True)  # one of other packages says nothing
        return True
    packages.write_text(wanted)
    return True


def _index_has(package: str, python: str) -> bool:
    """Whether pip finds a package, so that the network is there."""
    folder = Path(os.environ["GRAPHKIT_JUDGES"], ".tried")
    words = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), package]
    ran = subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode
    shutil.rmtree(folder, ignore_errors=True)
    return not ran


if __name__ == "__main__":
    main()
