"""Compiles the stand-in for libpbs, once for all tests of a process."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "libpbs.c"


@functools.cache
def _built() -> tuple[tempfile.TemporaryDirectory[str], Path] | None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    folder = tempfile.TemporaryDirectory(prefix="libpbs")
    made = Path(folder.name) / "libpbs.so.0"
    argv = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-o", str(made), str(SOURCE)]
    subprocess.run(argv, check=True, timeout=60)
    return folder, made


def libpbs() -> Path:
    """The path of the library; skips the test where there is no C compiler."""
    built = _built()
    if built is None:
        pytest.skip("there is no C compiler to build the stand-in for libpbs")
    return built[1]
