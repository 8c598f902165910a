"""QRMI's `qrmi_config.json`, read as QRMI 0.26 reads it, old names included, but entry by entry.

Form: `{"resources": [{"name", "type", "is_dynamic", "environment": {str: str}}]}`. Unknown keys are ignored
with a warning. A fault in one entry costs that entry only, where QRMI refuses the whole file.
"""

from __future__ import annotations

import difflib
import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qtandem.core.problems import Problem
from qtandem.core.providers.base import PROVIDERS, QRMI_TYPES, RETIRED_TYPES
from qtandem.core.requests import RESERVED

# Keys that QRMI cannot construct a resource without, by type.
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "ibm-quantum-system": tuple(
        f"QRMI_IBM_QS_{key}" for key in ("ENDPOINT", "IAM_ENDPOINT", "IAM_APIKEY", "SERVICE_CRN")
    ),
    "ibm-quantum-compute-service": tuple(
        f"QRMI_IBM_QCS_{key}" for key in ("ENDPOINT", "IAM_ENDPOINT", "IAM_APIKEY", "SERVICE_CRN")
    ),
    "qiskit-runtime-service": tuple(
        f"QRMI_IBM_QRS_{key}" for key in ("ENDPOINT", "IAM_ENDPOINT", "IAM_APIKEY", "SERVICE_CRN")
    ),
    "pasqal-local": ("QRMI_WARDEN_URL",),
    "alice-bob-felis": ("QRMI_AB_FELIS_API_KEY", "QRMI_AB_FELIS_BASE_ENDPOINT"),
    "iqm-server": ("QRMI_IQM_ISA_ENDPOINT", "QRMI_IQM_ISA_TOKEN"),
    "oqtopus": ("QRMI_OQTOPUS_URL", "QRMI_OQTOPUS_API_TOKEN"),
}
RENAMED_PREFIXES = {"QRMI_IBM_DA_": "QRMI_IBM_QS_"}
RENAMED_KEYS = {"QRMI_URL": "QRMI_WARDEN_URL"}
SUPERSEDED = {"qiskit-runtime-service": "ibm-quantum-compute-service"}
_KNOWN = {"name", "type", "is_dynamic", "environment"}


@dataclass(frozen=True, slots=True)
class QrmiResource:
    """One entry; `settings` hold secrets. `key` is its place in the file."""

    name: str
    type: str
    is_dynamic: bool
    settings: Mapping[str, str] = field(repr=False)
    key: str = ""


@dataclass(frozen=True, slots=True)
class QrmiFile:
    """The entries that can be used, by name, and all names that the file has, usable or not."""

    resources: Mapping[str, QrmiResource] = field(default_factory=dict)
    names: frozenset[str] = frozenset()


def read_qrmi_config(path: Path, problems: list[Problem]) -> QrmiFile:
    """Read the file; its faults are appended to `problems`. No file: no entries."""
    document = _document(path, problems)
    if document is None:
        return QrmiFile()
    entries = document.get("resources") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        problems.append(Problem(path, "resources", "is not a list", 'Write {"resources": [...]}.'))
        return QrmiFile()
    reader = _Reader(path, problems)
    for number, entry in enumerate(entries):
        reader.entry(f"resources[{number}]", entry)
    return QrmiFile(reader.usable(), frozenset(reader.names))


def _document(path: Path, problems: list[Problem]) -> Any:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(Problem(path, "", f"cannot be read: {error.strerror}", f"Check owner and mode of {path}."))
        return None
    if mode & 0o044:
        message = f"holds keys and has mode {mode:04o}; others can read it"
        problems.append(Problem(path, "", message, f"chmod 600 {path}", fatal=False))
    if text.startswith(b"\xef\xbb\xbf"):
        problems.append(Problem(path, "", "starts with a byte order mark", "Save it as UTF-8 without BOM."))
        return None
    try:
        return json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        problems.append(Problem(path, "", f"is not JSON: {error}", "Mend it there."))
        return None


class _Reader:
    def __init__(self, path: Path, problems: list[Problem]) -> None:
        self.path = path
        self.problems = problems
        self.entries: dict[str, QrmiResource] = {}
        self.twice: set[str] = set()
        self.names: set[str] = set()

    def usable(self) -> dict[str, QrmiResource]:
        return {name: entry for name, entry in self.entries.items() if name not in self.twice}

    def fault(self, key: str, message: str, fix: str, *, fatal: bool = True) -> None:
        self.problems.append(Problem(self.path, key, message, fix, fatal))

    def entry(self, key: str, entry: Any) -> None:
        if not isinstance(entry, dict):
            self.fault(key, "is not an object", 'Write {"name", "type", "environment"}.')
            return
        name = entry.get("name")
        if not isinstance(name, str) or not name.strip() or name in RESERVED:
            self.fault(f"{key}.name", f"{name!r} is not a name", "Give it a name of its own; not any or claim.")
            return
        if name in self.names:
            self.twice.add(name)
            self.fault(f"{key}.name", f"{name!r} is there twice; neither is used", "Rename one of them.")
            return
        self.names.add(name)
        for unknown in sorted(set(entry) - _KNOWN):
            self.fault(f"{key}.{unknown}", "is not a key of QRMI's file; it is ignored", "Take it out.", fatal=False)
        kind = self._type(key, entry.get("type"))
        settings = self._environment(key, kind, entry.get("environment")) if kind else None
        dynamic = entry.get("is_dynamic", False)
        if not isinstance(dynamic, bool):
            self.fault(f"{key}.is_dynamic", f"{dynamic!r} is not true or false", "Write true or false without quotes.")
            return
        if kind and settings is not None:
            self.entries[name] = QrmiResource(name, kind, dynamic, settings, key)

    def _type(self, key: str, kind: Any) -> str | None:
        known = [*QRMI_TYPES, *(name for name in PROVIDERS if name in QRMI_TYPES)]
        if kind in QRMI_TYPES:
            if kind in SUPERSEDED:
                fix = f"Write {SUPERSEDED[kind]}, and QRMI_IBM_QCS_ in its keys."
                self.fault(f"{key}.type", f"{kind} is the old name", fix, fatal=False)
            if kind not in PROVIDERS:
                fix = "Jobs that ask for it are refused until one is there."
                self.fault(f"{key}.type", f"{kind} has no provider in this version", fix, fatal=False)
            return str(kind)
        if isinstance(kind, str) and kind in RETIRED_TYPES:
            self.fault(f"{key}.type", f"{kind} was retired", f"Write {RETIRED_TYPES[kind]}.")
        elif isinstance(kind, str) and kind.lower() in QRMI_TYPES:
            self.fault(f"{key}.type", f"{kind} is written in the wrong case", f"Write {kind.lower()}.")
        else:
            near = difflib.get_close_matches(str(kind), known, n=1)
            fix = f"Did you mean {near[0]}?" if near else f"The types are {', '.join(QRMI_TYPES)}."
            self.fault(f"{key}.type", f"{kind!r} is not a type", fix)
        return None

    def _environment(self, key: str, kind: str, environment: Any) -> dict[str, str] | None:
        if not isinstance(environment, dict):
            self.fault(f"{key}.environment", "is missing", "Write the keys of its type, or {}.")
            return None
        out: dict[str, str] = {}
        good = True
        for variable, value in environment.items():
            where = f"{key}.environment.{variable}"
            if not isinstance(value, str):
                self.fault(where, f"has a {type(value).__name__}; QRMI takes strings only", "Put it in quotes.")
                good = False
                continue
            out[self._current(where, variable, environment)] = value
        for missing in [name for name in REQUIRED.get(kind, ()) if name not in out]:
            self.fault(f"{key}.environment.{missing}", f"is missing for {kind}", self._hint(missing, out))
            good = False
        return out if good else None

    def _current(self, where: str, variable: str, environment: Mapping[str, Any]) -> str:
        """The name that a variable has today; the old one loads with a warning."""
        renamed = RENAMED_KEYS.get(variable)
        for old, new in RENAMED_PREFIXES.items():
            if variable.startswith(old):
                renamed = new + variable.removeprefix(old)
        if renamed is None or renamed in environment:
            return variable
        self.fault(where, "is the old name", f"Write {renamed}.", fatal=False)
        return renamed

    def _hint(self, missing: str, present: Mapping[str, str]) -> str:
        tail = missing.rpartition("QRMI_IBM_QCS_")[2]
        for name in present:
            if missing.startswith("QRMI_IBM_QCS_") and name == f"QRMI_IBM_QRS_{tail}":
                return f"{name} was renamed to {missing} with the type."
        near = difflib.get_close_matches(missing, list(present), n=1, cutoff=0.9)
        return f"Is {near[0]} meant?" if near else f"Add {missing}."
