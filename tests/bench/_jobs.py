"""Programs of jobs, for the tasks bench; prints how much longer than at the vendor each task took, in seconds, as JSON.

    python -m tests.bench._jobs qtandem SOCKET TASKS LEASE...
    python -m tests.bench._jobs sdk SETTINGS.json TASKS POLL_S

`qtandem` is one thread a lease, each with one task after the other, through the daemon. `sdk` is one program alone on
the vendor's own client: in a session, with the same polls as the daemon or, with POLL_S, one every so many seconds.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from pathlib import Path

from qtandem.core.client.calls import wait_for_task
from qtandem.core.client.transport import Daemon
from qtandem.daemons.drive import poll_pause_s

PROGRAM = "OPENQASM 3.0; bit[2] c;"
SHOTS = 100
# Not all the same, or the jobs would fall into step.
TAKES_S = (0.5, 1.5)


def program(takes_s: float) -> str:
    return f"{PROGRAM} // takes {takes_s:.6f} s"


def through_qtandem(socket: str, tasks: int, leases: list[str]) -> list[float]:
    daemon, took = Daemon(Path(socket)), []

    def job(lease: str) -> None:
        chance = random.Random(lease)
        for _ in range(tasks):
            takes_s = chance.uniform(*TAKES_S)
            payload = {"kind": "qasm3", "program": program(takes_s), "shots": SHOTS}
            began = time.perf_counter()
            task = daemon.post("tasks", body={"lease": lease, "payload": payload})
            done = wait_for_task(daemon, task["id"])
            assert done["state"] == "completed", done
            json.loads(daemon.get("tasks", task["id"], "result")["text"])
            took.append(time.perf_counter() - began - takes_s)

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
    chance = random.Random(0)
    for _ in range(tasks + 1):
        takes_s = chance.uniform(*TAKES_S)
        params = {"pubs": [[program(takes_s), None, SHOTS]], "version": 2, "support_qiskit": False}
        began = time.perf_counter()
        made = api.program_run(program_id="sampler", backend_name=backend, params=params, session_id=session)
        job, sent = api.program_job(made["id"]), time.perf_counter()
        while job.get(exclude_params=True)["state"]["status"] not in ("Completed", "Failed", "Cancelled"):
            time.sleep(poll_s or poll_pause_s(time.perf_counter() - sent))
        json.loads(job.results())
        took.append(time.perf_counter() - began - takes_s)
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
