"""What hooks leave, for a moment or for good, in folders that everybody writes to."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tests.live.cluster import Cluster, all_at_once

_WATCH = """
import os, sys, time
seen, end = set(), time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for place in ("/tmp", "/var/tmp", "/dev/shm"):
        for entry in os.scandir(place):
            try:
                seen.add((entry.stat(follow_symlinks=False).st_uid, entry.path))
            except OSError:
                pass
    time.sleep(0.001)
print("\\n".join(f"{uid} {path}" for uid, path in sorted(seen)))
"""


def of_hooks(cluster: Cluster, users: Sequence[str], seconds: float, within: float) -> dict[str, list[str]]:
    """Paths of these users by host, looked for every millisecond for so long, while six jobs with a QPU run."""
    found: dict[str, list[str]] = {}

    def watch(host: str) -> None:
        argv = ["python3", "-c", _WATCH, str(seconds)]
        found[host] = cluster.exec(host, argv, timeout=seconds + 26).check().stdout.splitlines()

    threads = [threading.Thread(target=watch, args=(host,)) for host in (cluster.control, *cluster.workers)]
    for thread in threads:
        thread.start()
    jobs = all_at_once(6, lambda number: cluster.submit("true", ("north", "east", "south")[number % 3]))
    cluster.wait_ended(jobs, within=within)
    for thread in threads:
        thread.join()
    asked = f"for u in {' '.join(users)}; do id -u $u; done"
    theirs: dict[str, list[str]] = {}
    for host, lines in found.items():
        uids = cluster.shell(host, asked).stdout.split()
        theirs[host] = [path for uid, path in (line.split(None, 1) for line in lines if line) if uid in uids]
    return theirs
