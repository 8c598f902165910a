"""Folders of ours where no configuration names them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_SERVICE = Path("/var/lib/qtandem")


def runtime_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Of a daemon that the user runs; without XDG_RUNTIME_DIR in /tmp, where anybody may have made it first."""
    return Path(environ.get("XDG_RUNTIME_DIR") or f"/tmp/qtandem-{os.geteuid()}") / "qtandem"  # noqa: S108


def state_folder() -> Path:
    """Of what providers keep: in XDG_STATE_HOME, else the service's where it may be written, else the user's own."""
    if os.environ.get("XDG_STATE_HOME"):
        return Path(os.environ["XDG_STATE_HOME"]) / "qtandem"
    if os.access(_SERVICE, os.W_OK) or os.geteuid() == 0:
        return _SERVICE
    return Path.home() / ".local" / "state" / "qtandem"
