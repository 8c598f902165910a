"""What an LSF says of its own set-up: lsf.conf and the sections of its other files. Pure but for reading."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CONF = Path("/etc/lsf.conf")
_SETTING = re.compile(r"\s*([A-Z][A-Z0-9_]*)\s*=\s*(.*?)\s*\Z")
# Libraries and tools that LSF's own commands look for.
_PASSED = ("LSF_ENVDIR", "LSF_CONFDIR", "LSF_BINDIR", "LSF_SERVERDIR", "LSF_LIBDIR")


def conf_path(options: Mapping[str, str]) -> Path:
    """lsf.conf: in `options.envdir`, in LSF_ENVDIR, else /etc/lsf.conf."""
    folder = options.get("envdir") or os.environ.get("LSF_ENVDIR")
    return Path(folder) / "lsf.conf" if folder else CONF


def conf(path: Path) -> dict[str, str]:
    """`NAME=value` lines, quotes taken off; empty where there is no such file."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    found = (_SETTING.match(line) for line in lines if not line.lstrip().startswith("#"))
    return {match[1]: match[2].strip("\"'") for match in found if match}


def environment(path: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """What LSF's commands need in their environment, as its profile.lsf sets it."""
    env = {name: settings[name] for name in _PASSED if settings.get(name)}
    env["LSF_ENVDIR"] = str(path.parent)
    if "LSF_LIBDIR" in env:
        env["LD_LIBRARY_PATH"] = env["LSF_LIBDIR"]
    return env


@dataclass(frozen=True, slots=True)
class Section:
    """`Begin KIND … End KIND`: `values` of its `NAME = value` lines, else `rows` of its table, with the heads."""

    kind: str
    values: Mapping[str, str]
    heads: tuple[str, ...]
    rows: tuple[str, ...]

    @property
    def first_words(self) -> frozenset[str]:
        return frozenset(row.split()[0] for row in self.rows)


def sections(text: str) -> Iterator[Section]:
    """The sections of an LSF file, comments left out, continued lines (`\\`) joined."""
    kind, lines = "", list[str]()
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    for line in (line.partition("#")[0].strip() for line in joined.splitlines()):
        words = line.split()
        if len(words) == 2 and words[0].lower() == "begin":
            kind, lines = words[1], []
        elif len(words) == 2 and words[0].lower() == "end" and words[1].lower() == kind.lower():
            yield _section(kind, lines)
            kind = ""
        elif kind and line:
            lines.append(line)


def _section(kind: str, lines: list[str]) -> Section:
    if all("=" in line for line in lines):
        pairs = (line.partition("=") for line in lines)
        return Section(kind, {name.strip(): value.strip() for name, _, value in pairs}, (), ())
    heads = tuple(lines[0].split()) if lines else ()
    return Section(kind, {}, heads, tuple(lines[1:]))


def of_kind(text: str, kind: str) -> list[Section]:
    return [section for section in sections(text) if section.kind.lower() == kind.lower()]
