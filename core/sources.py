"""Where a secret of the configuration comes from: a file, the service manager, or a command such as a vault's."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qtandem.core import commands
from qtandem.core.credentials import at_hand, credential, open_to_others

LONGEST = 65_536
# What tells one content of a file from another: device, inode, time of change and size.
Stamp = tuple[int, int, int, int]


class SourceError(Exception):
    """A secret cannot be had. `str()` says why and `fix` what to do; neither holds anything that was read."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(why)
        self.fix = fix


class Source(BaseModel):
    """Where one secret key comes from: exactly one of `file`, `credential` and `command`; a text is a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Path | None = Field(None, description="file of mode 0600; read again when it changes")
    credential: str = Field("", description="name of a systemd credential (`LoadCredential=NAME:...`)")
    command: tuple[str, ...] = Field(
        (), description="argv of a program, with its full path, that prints the secret; nothing it prints is logged"
    )
    refresh_s: Annotated[float, Field(gt=0)] = Field(300.0, description="the command is run again after so long")
    timeout_s: Annotated[float, Field(gt=0, le=120)] = Field(10.0, description="deadline of the command")

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _one(self) -> Source:
        if sum((self.file is not None, bool(self.credential), bool(self.command))) != 1:
            raise ValueError("name exactly one of file, credential, command")
        if self.command and not self.command[0].startswith("/"):
            raise ValueError(f"{self.command[0]!r} is not a full path")
        if "/" in self.credential:
            raise ValueError(f"{self.credential!r} is a path, not the name of a credential")
        return self


class ObserveSource(Source):
    """The same for a secret that only polling uses, such as a key that may read and not run; the rest is as above."""


def stamp(source: Source) -> Stamp | None:
    """Changes when the secret in a file may have; None where there is no file to look at."""
    path = _path(source)
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def read(source: Source) -> str:
    """The secret of a file or of the service manager; raises `SourceError`."""
    path = _path(source)
    if path is None:
        raise SourceError(
            f"no credential {source.credential!r} was handed over",
            f"Add LoadCredential={source.credential}:FILE to the service, and restart it.",
        )
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if open_to_others(found.st_mode, found.st_uid, found.st_gid):
                mode = stat.S_IMODE(found.st_mode)
                raise SourceError(f"{path} has mode {mode:04o}; others can read it", f"chmod 600 {path}")
            return _secret(str(path), file.read(LONGEST + 1).decode())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise SourceError(f"{path}: {reason}", "Name a file that the daemon can read.") from None


async def ask(source: Source) -> str:
    """What the command prints; raises `SourceError`. Its output is in no error and no log."""
    program = source.command[0]
    try:
        result = await commands.run(source.command, timeout_s=source.timeout_s)
    except commands.CommandError as error:
        how = _how(error, source.timeout_s)
        # The error holds what the command has printed, which may be the secret.
        raise SourceError(f"{program} {how}", "Run it by hand as the daemon's user.") from None
    return _secret(program, result.stdout)


def _how(error: commands.CommandError, timeout_s: float) -> str:
    if error.timed_out:
        return f"did not end within {timeout_s:g} s"
    return "cannot be started" if error.exit is None else f"ended with status {error.exit}"


def _path(source: Source) -> Path | None:
    if source.file is not None:
        return at_hand(source.file, f"secrets_{source.file.name}")
    return credential(source.credential)


def _secret(origin: str, text: str) -> str:
    """One line of text, since a secret becomes a header or a field of a form."""
    found = text.strip()
    if not found or len(found) > LONGEST or not found.isprintable():
        raise SourceError(f"{origin} gives no secret of one line", "Let it hold the secret and nothing else.")
    return found
