"""Which managers' suites run here, and the images of their clusters."""

from __future__ import annotations

import fcntl
import os
import subprocess

from tests.live.hosts import ROOT


def required(*managers: str) -> bool:
    """Whether a suite that needs all of these managers must not be skipped for want of Docker."""
    return all(manager in os.environ.get("QTANDEM_REQUIRE_LIVE", "").split(",") for manager in managers)


def chosen(*managers: str) -> bool:
    """Whether it runs: QTANDEM_LIVE is `all` or a list (default: slurm); what is required always does."""
    wanted = os.environ.get("QTANDEM_LIVE", "slurm").split(",")
    return all(manager in wanted or "all" in wanted or required(manager) for manager in managers)


def build(name: str) -> str:
    """Build an image of `containers/`, one test process at a time; returns why it failed, or nothing."""
    with (ROOT / "containers/wheelhouse/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = subprocess.run([ROOT / "containers/build", name], capture_output=True, text=True, check=False)
    return f"containers/build {name}: {built.stdout[-3000:]}{built.stderr[-3000:]}" if built.returncode else ""
