"""Encryption at rest of vendor tokens, with a key that only the daemon's account can read."""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import stat
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from qtandem.core.credentials import open_to_others
from qtandem.core.errors import QtandemError

_KEY_BYTES, _NONCE_BYTES = 32, 12


class Cipher:
    """AES-256-GCM. Each text is bound to a `label`, so that a sealed text cannot be moved to another row."""

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)

    def __repr__(self) -> str:
        return "Cipher(...)"

    def seal(self, text: str, label: str) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, text.encode(), label.encode())

    def unseal(self, sealed: bytes, label: str) -> str:
        """The text again; raises `bad-config` when it was sealed with another key or label."""
        try:
            return self._aead.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], label.encode()).decode()
        except InvalidTag:
            raise QtandemError(
                "bad-config",
                "The master key does not fit the database",
                remedy="Restore the master key that the database was made with.",
            ) from None


def load(path: Path) -> Cipher:
    """The cipher of the key file, which is made (mode 0600) when it is absent.

    Raises `bad-config` for a file that cannot be read, that others can read, or that holds no key.
    """
    try:
        _create(path)
        with path.open("rb") as file:
            _check_mode(path, os.fstat(file.fileno()))
            text = file.read(1024)
    except OSError as error:
        remedy = f"See owner and mode of {path} and its folder; daemon.master_key names another place."
        raise QtandemError(
            "bad-config", f"The master key {path} cannot be read", cause=error.strerror or str(error), remedy=remedy
        ) from error
    return Cipher(_decode(path, text))


def _create(path: Path) -> None:
    """Write a new key through a link, so that no reader ever sees half of one."""
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(base64.b64encode(secrets.token_bytes(_KEY_BYTES)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink()


def _check_mode(path: Path, status: os.stat_result) -> None:
    if open_to_others(status.st_mode, status.st_uid, status.st_gid):
        mode = stat.S_IMODE(status.st_mode)
        raise QtandemError(
            "bad-config",
            f"The master key {path} is open to others (mode {mode:04o})",
            remedy=f"chmod 0600 {path}",
        )


def _decode(path: Path, text: bytes) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != _KEY_BYTES:
        raise QtandemError(
            "bad-config",
            f"{path} does not hold a master key ({_KEY_BYTES} bytes in base64)",
            remedy="Restore the key; where nothing was leased yet, remove the file and a new one is made.",
        )
    return key
