"""What an installer and a doctor of any manager say: changes to make, checks made, and the record of what was done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from qtandem.core.errors import QtandemError
from qtandem.core.files import write_atomic

HOOK_PARTS = Path(__file__).parent / "hookparts"


class ChangeState(StrEnum):
    """`todo` can be applied; `manual` is for the admin's own hand; `blocked` cannot be done now, `detail` says why."""

    TODO = "todo"
    DONE = "done"
    MANUAL = "manual"
    BLOCKED = "blocked"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Change:
    """One step of an installation.

    `id` is the same in every run. `title` is one line; `detail` the lines to add, the difference or the
    reason. `optional`: what is installed works without it.
    """

    id: str
    title: str
    state: ChangeState
    detail: str = ""
    optional: bool = False

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Check:
    """One question of a doctor. `ok` None: it cannot be asked on this host. `fix` is what to type if it failed."""

    name: str
    ok: bool | None
    detail: str
    fix: str = ""

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(slots=True)
class Manifest:
    """What an installer did on this host, so that `uninstall` takes back that and nothing else.

    `files` maps each written path to the SHA-256 of what was written; `directories` are those that were made;
    `records` are the manager's own objects (its words for them) that were created.
    """

    path: Path
    files: dict[str, str] = field(default_factory=dict)
    directories: list[str] = field(default_factory=list)
    records: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """The manifest at `path`, empty if there is none; raises `bad-config` if it cannot be read."""
        try:
            body: Any = json.loads(path.read_text())
            return cls(path, dict(body["files"]), list(body["directories"]), list(body["records"]))
        except FileNotFoundError:
            return cls(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise QtandemError("bad-config", f"{path} cannot be read: {error}", remedy=f"Mend {path}.") from error

    def save(self) -> None:
        """Write it, or remove it when it has become empty."""
        if not (self.files or self.directories or self.records):
            self.path.unlink(missing_ok=True)
            return
        body = {"version": 1, "files": self.files, "directories": self.directories, "records": self.records}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, (json.dumps(body, indent=1, sort_keys=True) + "\n").encode(), 0o644)

    def owns(self, path: Path) -> bool:
        """Whether the file at `path` is as an installer left it."""
        return self.files.get(str(path)) == digest(path)


@dataclass(frozen=True, slots=True)
class Step:
    """A change and how to make it; no `act` where there is nothing to do or it is not ours to do."""

    change: Change
    act: Callable[[], None] | None = None


def run_steps(steps: Iterable[Step]) -> list[Change]:
    """Make each step that is to do; a failure is told in its own change and stops no other step."""
    out: list[Change] = []
    for step in steps:
        if step.act is None or step.change.state is not ChangeState.TODO:
            out.append(step.change)
            continue
        try:
            step.act()
            out.append(replace(step.change, state=ChangeState.DONE))
        except (QtandemError, OSError) as error:
            reason = error.one_line() if isinstance(error, QtandemError) else str(error)
            out.append(replace(step.change, state=ChangeState.FAILED, detail=reason))
    return out


def blocked(steps: Iterable[Step], reason: str) -> list[Step]:
    """The steps while `reason` keeps them from being made."""
    return [Step(replace(step.change, state=ChangeState.BLOCKED, detail=reason)) for step in steps]


class HostFiles:
    """The files and records that an installer makes on this host, noted in the manifest at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def manifest(self) -> Manifest:
        return Manifest.load(self._path)

    def owns(self, path: Path) -> bool:
        return self.manifest.owns(path)

    def step(self, path: Path, data: bytes, mode: int) -> Step:
        """Have `path` with this content and mode."""
        same = digest(path) == hashlib.sha256(data).hexdigest() and path.stat().st_mode & 0o7777 == mode
        if same and self.owns(path):
            return Step(Change(f"file:{path}", f"write {path}", ChangeState.DONE))
        detail = "" if not path.exists() else "is there already" if same else "differs from what this version installs"
        return Step(
            Change(f"file:{path}", f"write {path}", ChangeState.TODO, detail), lambda: self.write(path, data, mode)
        )

    def write(self, path: Path, data: bytes, mode: int) -> None:
        made = make_directories(path.parent)
        write_atomic(path, data, mode)
        manifest = self.manifest
        manifest.directories.extend(str(one) for one in made if str(one) not in manifest.directories)
        manifest.files[str(path)] = hashlib.sha256(data).hexdigest()
        manifest.save()

    def note(self, records: Iterable[str]) -> None:
        """Note objects that were made in the manager itself."""
        manifest = self.manifest
        manifest.records.extend(record for record in records if record not in manifest.records)
        manifest.save()

    def forget(self, record: str) -> None:
        manifest = self.manifest
        manifest.records = [other for other in manifest.records if other != record]
        manifest.save()

    def removals(self) -> list[Step]:
        """Take back files that nobody changed since, and the directories that were made for them."""
        manifest = self.manifest
        files = [self._removal(Path(name), manifest) for name in manifest.files]
        return files + [self._directory_removal(Path(name)) for name in reversed(manifest.directories)]

    def _removal(self, path: Path, manifest: Manifest) -> Step:
        identity, title = f"file:{path}", f"remove {path}"
        if path.exists() and not manifest.owns(path):
            return Step(Change(identity, title, ChangeState.MANUAL, "it was changed since; look, then remove it"))

        def remove() -> None:
            path.unlink(missing_ok=True)
            now = self.manifest
            now.files.pop(str(path), None)
            now.save()

        return Step(Change(identity, title, ChangeState.TODO), remove)

    def _directory_removal(self, path: Path) -> Step:
        def remove() -> None:
            now = self.manifest
            now.directories = [name for name in now.directories if name != str(path)]
            now.save()
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()

        return Step(Change(f"directory:{path}", f"remove {path} if it is empty", ChangeState.TODO), remove)


def digest(path: Path) -> str | None:
    """SHA-256 of a file, None if there is none or it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def make_directories(path: Path, mode: int = 0o755) -> list[Path]:
    """Make `path` and its parents; returns those that were missing, outermost first."""
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    for directory in reversed(missing):
        directory.mkdir(mode=mode)
        directory.chmod(mode)
    return missing[::-1]


def assembled(text: str, own: Path | None = None) -> str:
    """The hook with the shared parts in place of its lines `# qtandem:include NAME`.

    Parts are in `core/hookparts/`, or in `own`, the folder of the manager's hooks; a part may have parts.
    """
    lines = []
    for line in text.splitlines():
        mark, _, name = line.partition("qtandem:include ")
        if mark == "# " and name:
            part = HOOK_PARTS / name.strip()
            found = part if own is None or part.exists() else own / name.strip()
            lines.append(assembled(found.read_text(), own).rstrip("\n"))
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def with_constants(text: str, values: Mapping[str, str | int | float | Iterable[str]], language: str) -> str:
    """Set the constants of a hook file: the lines `NAME = …` between its markers `qtandem:settings` and `qtandem:end`.

    `language` is `python`, `lua` or `sh`. Raises `internal` where a constant of the file has no value.
    """
    lines = text.splitlines()
    marks = [number for number, line in enumerate(lines) if "qtandem:settings" in line or "qtandem:end" in line]
    if len(marks) != 2:
        raise QtandemError("internal", "A hook file has no settings block")
    for number in range(marks[0] + 1, marks[1]):
        name, equals, _ = lines[number].partition("=")
        key = name.replace("local ", "").strip()
        if not equals:
            continue
        if key not in values:
            raise QtandemError("internal", f"No value for the constant {key} of a hook file")
        lines[number] = f"{name}={' ' if name.endswith(' ') else ''}{_literal(values[key], language)}"
    return "\n".join(lines) + "\n"


def _literal(value: str | int | float | Iterable[str], language: str) -> str:
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        if any(ord(char) < 32 for char in value):
            raise QtandemError("bad-config", f"{value!r} holds a control character")
        if language == "sh":
            return "'" + value.replace("'", "'\\''") + "'"
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    parts = [_literal(part, language) for part in value]
    if language == "sh":
        return _literal(" ".join(value), language)
    if language == "lua":
        return "{" + ", ".join(parts) + "}"
    return "(" + "".join(f"{part}, " for part in parts).rstrip() + ")"
