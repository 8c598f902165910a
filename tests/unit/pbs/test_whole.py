"""The hooks against a real daemon: from a submission to the end of the run, whatever happens in between."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qtandem.core.providers.simulator.device import SimulatedDevice
from tests.fakes.pbs.complex import FakePbsComplex
from tests.fakes.qtandemd import Qtandemd, simulator

FEZ = {"qpu_fez": 1}


class Whole:
    """One PBS, one daemon, one QPU with one slot."""

    def __init__(self, folder: Path, site: Any) -> None:
        self.site, self.complex = site, FakePbsComplex(folder / "pbs")
        with self.complex.state() as state:
            state["resources"]["qpu_fez"] = ["long", "qm"]
        self.device_folder = folder / "device"
        self.qtandemd = Qtandemd({"fez": simulator(self.device_folder)}, reap_s=1, refusal_backoff_s=20, submit_ms=5000)
        section = f'[managers.pbs]\ncluster = "lab"\nbin_dir = {json.dumps(str(self.complex.bin))}\n'
        self.qtandemd.write(section)
        self.qtandemd.start()
        folder = self.qtandemd.folder
        site.constants |= {
            "SOCKET": str(folder / "q.sock"), "NAMES": str(folder / "run" / "names"), "DEADLINE_MS": 5000,
            "RUNS": str(folder / "run" / "runs"), "BEGIN_S": 20, "CALL_S": 10, "END_S": 10,
        }  # fmt: skip
        self.until(lambda: self.open())

    def open(self) -> bool:
        with self.complex.state() as state:
            return bool(state["available"].get("qpu_fez") == 1)

    def until(self, condition: Any, seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.qtandemd.said()
            time.sleep(0.02)

    def leases(self) -> list[tuple[str, str]]:
        found = self.qtandemd.daemon.get("leases")["leases"]
        return sorted((each["owner"], each["state"]) for each in found)

    def sessions(self) -> list[str]:
        events = SimulatedDevice(self.device_folder).log()
        return [each["event"] for each in events if each["event"] in ("acquire", "release")]

    def start(self, job: str, version: int = 1) -> Any:
        """As PBS: runjob in the server, then execjob_begin on the host."""
        self.until(lambda: self.site.server("RUNJOB", FEZ, id=f"{job}.pbs", run_version=version - 1 or None).accepted)
        self.complex.become(job, job_state="R", run_version=version, exec_host="c1/0")
        return self.site.node("EXECJOB_BEGIN", FEZ, id=f"{job}.pbs", run_version=version, constants={"DOWN_S": 5})

    def end(self, job: str, version: int = 1) -> Any:
        return self.site.node("EXECJOB_END", FEZ, id=f"{job}.pbs", run_version=version, Exit_status=0)


@pytest.fixture
def whole(tmp_path: Path, site: Any) -> Iterator[Whole]:
    made = Whole(tmp_path, site)
    yield made
    made.qtandemd.close()
    shutil.rmtree(tmp_path / "device", ignore_errors=True)


@pytest.mark.timeout(120)
def test_a_jobs_way(whole: Whole) -> None:
    admitted = whole.site.queue({"qpu": "fez"})
    assert admitted.job.Resource_List.written == {"qpu_fez": 1, "qpu": "fez"}
    refused = whole.site.queue({"qpu": "fez:9"})
    assert (refused.accepted, "slots" in refused.message) == (False, True)

    whole.complex.submit("7", "qpu_fez=1")
    reserved = whole.site.server("RUNJOB", FEZ, id="7.pbs")
    assert (reserved.accepted, whole.leases()) == (True, [("run pbs:lab:7.1", "reserved")]), reserved.message
    assert whole.sessions() == [], "nodes are not allocated yet"
    begun = whole.start("7")
    assert (begun.accepted, whole.leases()) == (True, [("run pbs:lab:7.1", "held")]), begun.message

    env = whole.site.node("EXECJOB_LAUNCH", FEZ, id="7.pbs", env="PATH=/bin").environment
    assert (env["PATH"], env["QRMI_JOB_QPU_RESOURCES"], env["QTANDEM_RUN"]) == ("/bin", "fez", "pbs:lab:7.1")

    whole.complex.submit("8", "qpu_fez=1")
    busy = whole.site.server("RUNJOB", FEZ, id="8.pbs")
    assert not busy.accepted
    assert busy.job.written["Execution_Time"] > time.time()

    # The end comes twice from the host and once from the server.
    assert whole.end("7").accepted
    assert whole.end("7").accepted
    assert whole.site.server("JOBOBIT", FEZ, id="7.pbs", run_version=1, Exit_status=0).accepted
    whole.until(lambda: whole.leases() == [])
    assert whole.sessions() == ["acquire", "release"]


@pytest.mark.timeout(120)
def test_a_requeued_job_is_safe_from_the_late_end_of_its_first_run(whole: Whole) -> None:
    whole.complex.submit("7", "qpu_fez=1")
    assert whole.start("7").accepted
    # The host is lost; the server requeues the job, and it runs again before the host comes back.
    whole.complex.become("7", job_state="Q")
    again = whole.start("7", version=2)
    assert (again.accepted, whole.leases()) == (True, [("run pbs:lab:7.2", "held")]), again.message
    assert whole.end("7", version=1).accepted
    assert whole.leases() == [("run pbs:lab:7.2", "held")]
    whole.end("7", version=2)
    whole.until(lambda: whole.leases() == [])
    assert whole.sessions() == ["acquire", "release", "acquire", "release"]


@pytest.mark.timeout(120)
def test_a_start_that_the_vendor_refuses_leaves_no_lease_and_is_not_tried_again_at_once(whole: Whole) -> None:
    whole.complex.submit("7", "qpu_fez=1")
    SimulatedDevice(whole.device_folder).set(fault="500", fault_on="acquire")
    begun = whole.start("7")
    assert not begun.accepted
    whole.complex.become("7", job_state="Q")
    whole.until(lambda: whole.leases() == [])
    SimulatedDevice(whole.device_folder).set(fault="")
    again = whole.site.server("RUNJOB", FEZ, id="7.pbs", run_version=1)
    assert not again.accepted
    assert again.job.written["Execution_Time"] > time.time() + 10
    # The daemon's own delay, which also serves a job whose hook was not heard.
    whole.until(lambda: whole.complex.job("7")["job_state"] == "W")


@pytest.mark.timeout(120)
def test_a_run_whose_end_nobody_told_is_found_by_asking_pbs(whole: Whole) -> None:
    whole.complex.submit("7", "qpu_fez=1")
    assert whole.start("7").accepted
    whole.complex.become("7", job_state="F")
    whole.until(lambda: whole.leases() == [], 40.0)
    assert whole.sessions() == ["acquire", "release"]
