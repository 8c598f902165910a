"""Secrets that the service manager hands to a service: systemd's LoadCredential, readable by that service alone."""

from __future__ import annotations

import os
from pathlib import Path


def credential(name: str) -> Path | None:
    """The file that was handed over as `name`, None without one."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    file = Path(folder or "/", name)
    return file if folder and file.exists() else None


def at_hand(file: Path, name: str) -> Path:
    """The file itself where it can be read, so that a reload takes up a new one, else what was handed over."""
    return file if os.access(file, os.R_OK) else credential(name) or file


def open_to_others(mode: int, owner: int, group: int) -> bool:
    """Whether others than the owner can read a secret file.

    systemd shows the access list entry of a credential as group bits of a file of root:root.
    """
    return bool(mode & 0o7777 & ~(0o740 if owner == group == 0 else 0o700))
