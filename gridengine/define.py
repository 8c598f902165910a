"""Defines the complexes of QPUs in the cell: adds those that are missing, and changes nothing else.

`qconf -Mc` reads all complexes of the cell from a file, so whoever writes that file could change any of them. With a
launcher the daemon therefore has this program started, with names as its arguments, under the user who has the right.

usage: python -I -m qtandem.gridengine.define BIN_DIR NATIVE,...

The cell is that of SGE_ROOT and SGE_CELL; an empty BIN_DIR is PATH.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from qtandem.core.errors import QtandemError
from qtandem.core.resources import NATIVE
from qtandem.core.settings import ManagerSettings
from qtandem.gridengine import complexes
from qtandem.gridengine.client import Client

# Its name in the launcher's file.
PROGRAM, MODULE = "qtandem-complexes", "qtandem.gridengine.define"


def arguments(bin_dir: str, natives: Iterable[str]) -> list[str]:
    """What the interpreter is started with: nothing of its environment or folder counts."""
    return ["-I", "-m", MODULE, bin_dir, ",".join(natives)]


def add(client: Client, natives: Iterable[str]) -> list[str]:
    """Define the complexes of these QPUs, and users' own words, where they are missing; returns those."""
    text = client.run_sync("qconf", "-sc").stdout
    known = complexes.defined(text)
    missing = {key: line for key, line in complexes.definitions(natives).items() if key not in known}
    if missing:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "complexes"
            file.write_text(text.rstrip() + "\n" + "\n".join(missing.values()) + "\n")
            client.run_sync("qconf", "-Mc", str(file))
    return list(missing)


def main(given: Sequence[str]) -> int:
    bin_dir, names = given
    natives = names.split(",")
    strange = [native for native in natives if not NATIVE.fullmatch(native)]
    if strange:
        sys.stderr.write(f"{strange[0][:80]!r} is no native name of a QPU\n")
        return 2
    try:
        add(Client(ManagerSettings(bin_dir=bin_dir)), natives)
    except QtandemError as error:
        sys.stderr.write(f"{error.one_line()}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
