"""What qtandem adds to a submission, and how soon a job runs after its QPU opened, on a real Grid Engine.

The server JSV is switched on and off again and again, and submissions of each kind take turns under both. The peer of
the opening is what sites write themselves: a load sensor that asks the vendor, for a complex of its own, with Grid
Engine's default interval of load reports. Here the vendor is a page that says 0 or 1. Grid Engine sends what a sensor
said one report ago.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from statistics import median

from tests.bench import _cluster
from tests.bench.rows import Row
from tests.live.cluster import AT_REST
from tests.live.gridengine_cluster import SGE, GridEngineCluster

skip = _cluster.skip
ADDED_MS, OPENED_S = 15.0, 2.0
ROUNDS, WARM, A_ROUND = 14, 3, 5
OPENINGS, UNAIDED = 9, 5
# Grid Engine's own default.
REPORT_S = 40.0

# On and off in turn, with the same submissions. The first ones after a switch do not count: each of qmaster's threads
# starts a JSV of its own with the first submission that it gets.
LOAD = """
import json, os, re, subprocess, sys, time
rounds, warm, each, urls = json.loads(sys.argv[1])
os.makedirs("/root/conf", exist_ok=True)
text = subprocess.run(["qconf", "-sconf"], capture_output=True, text=True, check=True).stdout
def switch(value):
    with open("/root/conf/global", "w") as file:
        file.write(re.sub(r"(?m)^jsv_url .*$", "jsv_url " + value, text))
    subprocess.run(["qconf", "-Mconf", "/root/conf/global"], capture_output=True, check=True)
kinds = {"no QPU": [], "QPU": ["-l", "qpu=east"]}
took = {value: {kind: [] for kind in kinds} for value in urls}
def submit(kind):
    argv = ["qsub", "-h", "-b", "y", "-o", "/dev/null", "-e", "/dev/null", *kinds[kind], "true"]
    began = time.perf_counter()
    subprocess.run(argv, user="alice", group="alice", cwd="/home/alice", capture_output=True, check=True)
    return 1000 * (time.perf_counter() - began)
os.environ["HOME"] = "/home/alice"
for _ in range(rounds):
    for value, found in took.items():
        switch(value)
        for number in range(-warm, each):
            for kind in kinds:
                spent = submit(kind)
                if number >= 0:
                    found[kind].append(spent)
print(json.dumps(list(took.values())))
"""

# What a JSV costs whatever it does.
ACCEPTS = """#!/usr/bin/python3 -I
import sys
for line in iter(sys.stdin.readline, ""):
    word = line.split()[0]
    if word == "QUIT":
        break
    if word in ("START", "BEGIN"):
        print("STARTED" if word == "START" else "RESULT STATE ACCEPT", flush=True)
"""

VENDOR = """
import http.server
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(open("/run/vendor").read().encode())
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8099), Page).serve_forever()
"""

SENSOR = """#!/bin/sh
while read -r line; do
  [ "$line" != quit ] || exit 0
  open=$(curl -s -m 5 http://ctl:8099/)
  printf 'begin\\nglobal:peer:%s\\nend\\n' "${open:-0}"
done
"""


def rows() -> Iterator[Row]:
    with _cluster.gridengine() as site:
        yield from _submissions(site)
        yield _opening(site)


def _submissions(site: GridEngineCluster) -> Iterator[Row]:
    site.close("east")
    site.wait_sensors({"east": 0})
    url = site.sge(["sh", "-c", "SGE_SINGLE_LINE=1 qconf -sconf | sed -n 's/^jsv_url *//p'"]).check().stdout.strip()
    accepts = "/usr/local/lib/accepts"
    site.exec(site.control, ["tee", accepts], stdin=ACCEPTS).check()
    site.exec(site.control, ["chmod", "755", accepts]).check()
    urls = ["none", f"script:sgeadmin@{accepts}", url]
    argv = ["python3", "-c", LOAD, json.dumps([ROUNDS, WARM, A_ROUND, urls])]
    without, accepted, checked = json.loads(site.sge(argv, timeout=400).check().stdout)
    site.sge(["qdel", "-u", "alice"], timeout=60).check()
    for kind in without:
        bare, ours = median(without[kind]), median(checked[kind])
        yield Row(
            name=f"added to qsub by the server JSV, median of {len(checked[kind])}, {kind}",
            value=ours - bare,
            unit="ms",
            bound=ADDED_MS,
            kind="required",
            peer="qsub without a JSV",
            peer_value=bare,
            ratio=ours / bare,
        )
        least = median(accepted[kind])
        yield Row(
            name=f"the same beside a JSV that accepts all, {kind}",
            value=ours - least,
            unit="ms",
            peer="that JSV, added to qsub",
            peer_value=least - bare,
        )


def _opening(site: GridEngineCluster) -> Row:
    """At random moments, as vendors open."""
    chance = random.Random(7)
    _peer(site)
    aided = [_aided(site, chance.uniform(0, 5)) for _ in range(OPENINGS)]
    unaided = [_unaided(site, chance.uniform(0, REPORT_S)) for _ in range(UNAIDED)]
    return Row(
        name=f"opened to running, median of {OPENINGS}",
        value=median(aided),
        unit="s",
        bound=OPENED_S,
        kind="required",
        peer="a load sensor that asks the vendor",
        peer_value=median(unaided),
        ratio=median(unaided) / median(aided),
    )


def _peer(site: GridEngineCluster) -> None:
    """The complex, the vendor's page, and on one host a sensor that asks it; reports come as often as by default."""
    site.shell(site.control, f"echo 0 >/run/vendor; (setsid python3 -c '{VENDOR}' >/dev/null 2>&1 &)").check()
    text = site.sge(["qconf", "-sc"]).check().stdout
    site.exec(site.control, ["tee", "/root/complexes"], stdin=f"{text}peer peer INT <= YES JOB 0 0\n").check()
    site.sge(["qconf", "-Mc", "/root/complexes"]).check()
    host = site.workers[0]
    site.exec(host, ["tee", "/usr/local/lib/peer"], stdin=SENSOR).check()
    site.exec(host, ["chmod", "755", "/usr/local/lib/peer"]).check()
    sensors = "/usr/libexec/qtandem/gridengine/load_sensor,/usr/local/lib/peer"
    site.configure(load_sensor=sensors, load_report_time=f"00:00:{REPORT_S:.0f}", max_unheard="00:05:00")


def _aided(site: GridEngineCluster, moment: float) -> float:
    site.close("east")
    site.wait_sensors({"east": 0})
    job = site.submit("date +%s.%N", "east")
    time.sleep(moment)
    opened = site.set("east", **AT_REST)
    site.wait_state(job, "ended", within=120)
    return float(site.output(job)) - opened


def _unaided(site: GridEngineCluster, moment: float) -> float:
    site.shell(site.control, "echo 0 >/run/vendor").check()
    shown = ["env", *(f"{key}={value}" for key, value in SGE.items()), "qhost", "-F", "peer", "-h", site.workers[0]]
    site.until(lambda: site.exec(site.control, shown).stdout, lambda text: "peer=0" in text, 3 * REPORT_S, "it is shut")
    job = site.submit("date +%s.%N", args=["-l", "peer=1"])
    time.sleep(moment)
    opened = float(site.shell(site.control, "date +%s.%N; echo 1 >/run/vendor").check().stdout.split()[0])
    site.wait_state(job, "ended", within=4 * REPORT_S)
    return float(site.output(job)) - opened
