"""Programs of jobs, for the tasks bench; prints how long each task took, in seconds, as JSON.

    python -m tests.bench._jobs qtandem SOCKET TASKS LEASE...
    python -m tests.bench._jobs sdk SETTINGS.json TASKS POLL_S

`qtandem` is one thread a lease, each with one task after the other, through the daemon. `sdk` is one program alone on
the vendor's own client: in a session, with the same polls as the daemon or, with POLL_S, one every so many seconds.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from qtandem.core.client.calls import wait_for_task
from qtandem.core.client.transport import Daemon
from qtandem.daemons.drive import poll_pause_s

PROGRAM = "OPENQASM 3.0; bit[2] c;"
SHOTS = 100


def through_qtandem(socket: str, tasks: int, leases: list[str]) -> list[float]:
    daemon, took = Daemon(Path(socket)), []

    def job(lease: str) -> None:
        for number in range(tasks):
            began = time.perf_counter()
            payload = {"kind": "qasm3", "program": f"{PROGRAM} // {lease} {number}", "shots": SHOTS}
            task = daemon.post("tasks", body={"lease": lease, "payload": payload})
            done = wait_for_task(daemon, task["id"])
            assert done["state"] == "completed", done
            json.loads(daemon.get("tasks", task["id"], "result")["text"])
            took.append(time.perf_counter() - began)

    threads = [threading.Thread(target=job, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def through_sdk(path: str, tasks: int, poll_s: float) -> list[float]:
    from qiskit_ibm_runtime.api.rest.runtime import Runtime
    from qiskit_ibm_runtime.api.session import RetrySession

    from qtandem.core.providers.ibm.http import IamAuth
    from qtandem.core.providers.ibm.settings import Account

    settings = json.loads(Path(path).read_text())
    account = Account(settings["ENDPOINT"], settings["IAM_ENDPOINT"], settings["SERVICE_CRN"], settings["IAM_APIKEY"])
    api = Runtime(RetrySession(base_url=f"{account.endpoint}", auth=IamAuth(account)))
    backend, took = settings["backend"], []
    session = api.runtime_session().create(backend=backend, max_time=3600, mode="dedicated")["id"]
    for number in range(tasks + 1):
        began = time.perf_counter()
        params = {"pubs": [[f"{PROGRAM} // {number}", None, SHOTS]], "version": 2, "support_qiskit": False}
        made = api.program_run(program_id="sampler", backend_name=backend, params=params, session_id=session)
        job, sent = api.program_job(made["id"]), time.perf_counter()
        while job.get(exclude_params=True)["state"]["status"] not in ("Completed", "Failed", "Cancelled"):
            time.sleep(poll_s or poll_pause_s(time.perf_counter() - sent))
        json.loads(job.results())
        took.append(time.perf_counter() - began)
    # The first opens the connection.
    return took[1:]


def main() -> None:
    kind, where, tasks, *rest = sys.argv[1:]
    if kind == "qtandem":
        took = through_qtandem(where, int(tasks), rest)
    else:
        took = through_sdk(where, int(tasks), float(rest[0]))
    print(json.dumps(took))


if __name__ == "__main__":
    main()
