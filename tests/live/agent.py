"""Runs inside a cluster's host and does what the tests ask: one JSON object a line in, one out.

A `docker exec` for each command costs a tenth of a second and more; the scenarios measure less than that.
Only the standard library at start; the simulator's device is imported when a call needs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any

_OUT = threading.Lock()


def run(argv: list[str], user: str, stdin: str, timeout: float, env: dict[str, str] | None) -> dict[str, Any]:
    if user:
        argv = ["setpriv", "--reuid", user, "--regid", user, "--init-groups", "--", *argv]
        home = {"HOME": f"/home/{user}", "USER": user, "LOGNAME": user, "PATH": "/usr/local/bin:/usr/bin:/bin"}
        env = {**home, "LC_ALL": "C.UTF-8", **(env or {})}
    began = time.monotonic()
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=env,
            cwd=f"/home/{user}" if user else "/",
            check=False,
        )
        status, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as expired:
        status, out, err = 124, _text(expired.stdout), _text(expired.stderr) + f"\nno end within {timeout} s"
    except FileNotFoundError as missing:
        status, out, err = 127, "", str(missing)
    return {"status": status, "stdout": out, "stderr": err, "seconds": time.monotonic() - began, "at": time.time()}


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def device(state_dir: str) -> Any:
    from qtandem.core.providers.simulator.device import SimulatedDevice

    return SimulatedDevice(state_dir)


def answer(call: dict[str, Any]) -> dict[str, Any]:
    if call["do"] == "run":
        return run(call["argv"], call["user"], call["stdin"], call["timeout"], call["env"])
    if call["do"] == "set":
        device(call["state_dir"]).set(**call["knobs"])
        return {"at": time.time()}
    if call["do"] == "log":
        return {"log": device(call["state_dir"]).log()}
    return {"error": f"unknown call {call['do']!r}"}


def serve(line: str) -> None:
    call = json.loads(line)
    try:
        reply = answer(call)
    # Whatever fails in here must reach the test as its failure.
    except Exception as error:
        reply = {"error": f"{type(error).__name__}: {error}"}
    with _OUT:
        sys.stdout.write(json.dumps({"id": call["id"], **reply}, default=str) + "\n")
        sys.stdout.flush()


def main() -> None:
    for line in sys.stdin:
        threading.Thread(target=serve, args=(line,), daemon=True).start()


if __name__ == "__main__":
    main()
