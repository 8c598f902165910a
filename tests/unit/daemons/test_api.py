from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import structlog
from aiohttp import web

from qtandem.core.facts import Availability, Observation
from qtandem.core.managers import Grant, JobState
from qtandem.core.resources import Resource
from qtandem.core.runs import Run, RunId
from qtandem.core.wire import SubmitCall
from qtandem.core.wiretext import decode_text
from qtandem.daemons import api, app, tls
from qtandem.daemons.planning import Advice
from tests.fakes.house import House

ME = os.geteuid()
QASM = {"kind": "qasm2", "program": "OPENQASM 2.0;", "shots": 10}


class Client:
    """Calls of one uid over a real socket; `uid` stands for what the kernel would say."""

    def __init__(self, house: House, path: Path) -> None:
        self.house, self.path = house, path
        self.uid, self.node = 1000, None
        self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path)))

    async def __call__(self, method: str, path: str, body: object = None, **options: object) -> tuple[int, object]:
        if body is not None and "headers" not in options:
            options["json"] = body
        elif body is not None:
            options["data"] = body
        async with self._session.request(method, f"http://q/v1/{path}", **options) as answer:  # type: ignore[arg-type]
            raw = await answer.read()
            return answer.status, json.loads(raw) if answer.content_type == "application/json" else raw.decode()

    async def get(self, path: str, **options: object) -> tuple[int, object]:
        return await self("GET", path, **options)

    async def post(self, path: str, body: object, **options: object) -> tuple[int, object]:
        return await self("POST", path, body, **options)

    async def close(self) -> None:
        await self._session.close()


@pytest.fixture
async def client(tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    direct = Resource(
        "direct", "ibm-quantum-system", "direct", credentials="direct", settings={"QRMI_IBM_QS_IAM_APIKEY": "k-1"}
    )
    async with House(tmp_path, {"fez": 2, "torino": 1, "direct": direct}) as house:
        await house.observer.first_facts(["fez", "torino", "direct"], 5.0)
        runner = app.runner(app.build(house.context), 1.0)
        await runner.setup()
        assert runner.server is not None
        app.bound_connections(runner.server)
        await web.UnixSite(runner, str(short_path / "q")).start()
        made = Client(house, short_path / "q")
        monkeypatch.setattr(tls, "caller", lambda *_: tls.Caller(made.uid, made.node))
        yield made
        await made.close()
        await runner.cleanup()


def as_service(client: Client) -> None:
    client.uid = ME


async def lease(client: Client, job: str = "1", uid: int = 1000, resource: str = "fez") -> str:
    run = Run(RunId(client.house.manager.id(job)), uid, f"u{uid}", nodes=("c1",), time_limit_s=600)
    [made] = await client.house.leases.begin(run, [Grant(resource)])
    return made.id


START = {
    "manager": "fake",
    "cluster": "c",
    "job": "7",
    "uid": 1000,
    "user": "ann",
    "nodes": "c[1-2]",
    "native": "fez@q:1",
}


async def test_a_jobs_whole_way(client: Client) -> None:
    as_service(client)
    status, verdict = await client.post("submit", {"manager": "fake", "uid": 1000, "user": "ann", "request": "fez"})
    assert (status, verdict["verdict"], verdict["native"]) == (200, "admit", {"licenses": "fez@q:1"})
    status, started = await client.post("start", START)
    assert (status, started["verdict"], started["run"]) == (200, "admit", "fake:c:7.0")
    client.uid = 1000
    _, given = await client.get("runs/fake:c:7/environment")
    assert given["env"]["QRMI_JOB_QPU_RESOURCES"] == "fez"
    status, task = await client.post("tasks", {"resource": "fez", "payload": QASM})
    assert status == 200
    while task["state"] != "completed":
        _, task = await client.get(f"tasks/{task['id']}?wait=5")
    _, result = await client.get(f"tasks/{task['id']}/result")
    assert json.loads(result["text"])["counts"] == {"00": 10}
    _, log = await client.get(f"tasks/{task['id']}/logs")
    assert log["text"].startswith("log of")
    as_service(client)
    assert await client.post("end", {"manager": "fake", "cluster": "c", "job": "7", "exit_code": 0}) == (
        200,
        {"ended": 1},
    )
    client.uid = 1000
    _, used = await client.get("usage")
    [row] = used["usage"]
    assert (row["run"], row["tasks"], row["shots"], row["cost"], row["currency"]) == ("fake:c:7.0", 1, 10, 2.0, "EUR")
    assert client.house.workers.sessions() == []


@pytest.mark.parametrize("nodes", ["@local:';touch {0};'", "n[1-900000000]", "a[1-9]b[1-9]," * 200])
async def test_nodes_that_a_user_writes_run_nothing_and_take_no_time(
    client: Client, nodes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call = {"manager": "fake", "uid": 1000, "request": "fez", "nodes": nodes.format("planted")}
    status, _ = await asyncio.wait_for(client.post("submit", call), 5.0)
    assert status == 200
    assert not (tmp_path / "planted").exists()


async def test_only_hooks_name_more_nodes_than_a_moment_is_enough_for(client: Client) -> None:
    body = {"manager": "fake", "uid": 1000, "request": "fez", "nodes": "n[1-90000]"}
    answer = (await client.post("submit", body))[1]
    assert (answer["verdict"], answer["code"]) == ("reject", "bad-request")
    as_service(client)
    assert (await client.post("submit", body))[1]["verdict"] == "admit"


async def test_hooks_speak_plain_text(client: Client) -> None:
    as_service(client)
    body = "manager=fake\nuid=1000\nuser=ann\nrequest=fez%3A2\npartition=\n"
    status, text = await client.post("submit", body, headers={"Content-Type": "text/plain"})
    assert status == 200
    answer = decode_text(text)
    assert (answer["verdict"], answer["native.licenses"]) == ("admit", "fez@q:2")
    status, text = await client.post("submit", "manager=fake\nuid=x\n", headers={"Content-Type": "text/plain"})
    assert (status, decode_text(text)["code"]) == (400, "bad-request")


async def test_a_reject_is_an_answer_with_words_for_the_user(client: Client) -> None:
    as_service(client)
    status, answer = await client.post("submit", {"manager": "fake", "uid": 1000, "user": "ann", "request": "fes"})
    assert (status, answer["verdict"], answer["code"]) == (200, "reject", "unknown-resource")
    assert "fez" in answer["message"]
    _, answer = await client.post("submit", {"manager": "fake", "uid": 1000, "user": "ann"})
    assert answer["verdict"] == "none"


async def test_an_ordinary_user_reports_nothing_for_the_manager(client: Client) -> None:
    id = await lease(client)
    for path, body in (("start", START), ("end", {"manager": "fake", "job": "1"})):
        status, answer = await client.post(path, body)
        assert (status, answer["code"]) == (403, "not-authorised")
    status, answer = await client.post("submit", {"manager": "fake", "uid": 1, "request": "fez"})
    assert (status, answer["code"]) == (403, "not-yours")
    assert client.house.leases.lease(id) is not None


async def test_a_root_of_a_node_that_is_no_control_host_reports_nothing_either(client: Client) -> None:
    client.uid, client.node = 0, "c1"
    assert (await client.post("start", START))[0] == 403
    await lease(client)
    assert (await client.get("runs/fake:c:1.0/environment"))[0] == 200
    client.node = "c9"
    assert (await client.get("runs/fake:c:1.0/environment"))[0] == 403


async def test_the_words_of_an_ordinary_caller_on_who_it_is_count_for_nothing(client: Client, tmp_path: Path) -> None:
    catalog = client.house.context.configuration.catalog
    fez = catalog.resources["fez"]
    private = replace(fez, access=replace(fez.access, users=frozenset({"bob"})))
    client.house.context.configuration = replace(
        client.house.context.configuration, catalog=replace(catalog, resources={"fez": private})
    )
    body = {"manager": "fake", "uid": 1000, "user": "bob", "request": "fez"}
    assert (await client.post("submit", body))[1]["verdict"] == "reject"
    as_service(client)
    assert (await client.post("submit", body))[1]["verdict"] == "admit"


async def test_the_planner_is_asked_for_submissions_alone(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    async def advise(_manager: object, call: SubmitCall, *_: object) -> Advice:
        asked.append(call.uid)
        return Advice({"req_nodes": "n1"}, "pin:n1")

    monkeypatch.setattr(client.house.context.planning, "advise", advise)
    body = {"manager": "fake", "uid": 1000, "request": "fez", "tasks": 1 << 40, "cpus_per_task": 1 << 40}
    assert "req_nodes" not in (await client.post("submit", body))[1]["native"]
    assert asked == []
    as_service(client)
    assert (await client.post("submit", body))[1]["native"]["req_nodes"] == "n1"
    assert asked == [1000]


async def test_others_runs_tasks_and_claims_are_out_of_sight_and_reach(client: Client) -> None:
    id = await lease(client)
    _, task = await client.post("tasks", {"lease": id, "payload": QASM})
    _, claim = await client.post("claims", {"request": "torino", "name": "mine"})
    client.house.manager.add("1", JobState.RUNNING, uid=1000)
    client.uid = 1001
    assert (await client.get("leases"))[1] == {"leases": []}
    assert (await client.get("tasks"))[1] == {"tasks": []}
    assert (await client.get(f"tasks?lease={id}"))[1] == {"tasks": []}
    assert (await client.get("claims"))[1] == {"claims": []}
    assert (await client.get("usage"))[1] == {"usage": []}
    for method, path, body in (
        ("GET", "runs/fake:c:1.0/environment", None),
        ("GET", f"tasks/{task['id']}", None),
        ("GET", f"tasks/{task['id']}/result", None),
        ("GET", f"tasks/{task['id']}/logs", None),
        ("POST", f"tasks/{task['id']}/stop", {}),
        ("POST", "tasks", {"lease": id, "payload": QASM}),
        ("DELETE", f"claims/{claim['id']}", None),
    ):
        status, answer = await client(method, path, body)
        assert (status, answer["code"]) == (403, "not-yours"), path
    status, answer = await client.get("explain/1")
    assert (status, answer["code"]) == (404, "no-such-run")
    as_service(client)
    assert {row["id"] for row in (await client.get("leases"))[1]["leases"]} >= {id}
    assert (await client.get("explain/1"))[0] == 200


async def test_the_environment_has_keys_only_where_the_admin_said_direct(client: Client) -> None:
    brokered, direct = await lease(client, "1"), await lease(client, "2", resource="direct")
    _, answer = await client.get("runs/1/environment")
    env = answer["env"]
    assert env["fez_QRMI_JOB_ACQUISITION_TOKEN"] == brokered
    assert env["fez_QRMI_JOB_TIMEOUT_SECONDS"] == "600"
    assert (env["QRMI_JOB_ID"], env["QRMI_JOB_UID"], env["QRMI_LIST_DELIMITER"]) == ("1", "1000", ",")
    assert (env["QTANDEM_RUN"], answer["uid"]) == ("fake:c:1.0", 1000)
    assert not any(name.startswith("SLURM_") for name in env)
    assert answer["secret"] == []
    _, answer = await client.get("runs/fake:c:2/environment")
    assert {"direct_QRMI_IBM_QS_IAM_APIKEY", "direct_QRMI_JOB_ACQUISITION_TOKEN"} <= set(answer["secret"])
    assert "direct_QRMI_JOB_TIMEOUT_SECONDS" not in answer["secret"]
    assert answer["env"]["direct_QRMI_IBM_QS_IAM_APIKEY"] == "k-1"
    assert answer["env"]["direct_QRMI_JOB_ACQUISITION_TOKEN"] != direct
    assert "k-1" not in json.dumps((await client.get("resources"))[1])
    assert (await client.get("runs/99/environment"))[1]["code"] == "no-such-run"


async def test_an_unlimited_job_gets_the_longest_time_that_vendors_take(client: Client) -> None:
    run = Run(RunId(client.house.manager.id("5")), 1000, "ann")
    await client.house.leases.begin(run, [Grant("fez")])
    _, answer = await client.get("runs/5/environment")
    assert answer["env"]["fez_QRMI_JOB_TIMEOUT_SECONDS"] == "604800"


async def test_resources_and_facts_follow_what_is_seen(client: Client, eventually: Callable) -> None:
    _, answer = await client.get("resources")
    assert [row["name"] for row in answer["resources"]] == ["fez", "torino", "direct"]
    assert (answer["resources"][0]["open"], answer["resources"][0]["free"]) == (True, 2)
    client.house.workers.seen["fez"] = Observation(availability=Availability.PAUSED, reason="calibrating", queue=4)
    await eventually(lambda: client.house.observer.facts["fez"].availability is Availability.PAUSED)
    await asyncio.sleep(0)
    _, answer = await client.get("resources")
    assert (answer["resources"][0]["open"], answer["resources"][0]["why"]) == (False, "paused (calibrating)")
    _, answer = await client.get("facts")
    assert {fact["resource"]: fact["queue"] for fact in answer["facts"]}["fez"] == 4
    assert (await client.get("names"))[1].splitlines()[0] == "fez\tfez\t2"
    assert json.loads((await client.get("resources/fez/target"))[1]["text"]) == {"name": "fake"}
    assert (await client.get("resources/fez/metadata"))[1]["backend_name"] == "fake"
    assert (await client.get("resources/fes/target"))[0] == 404


async def test_health_is_for_everybody_and_names_what_is_wrong(client: Client) -> None:
    client.house.context.problems.append("reload refused: line 3")
    status, answer = await client.get("healthz")
    assert (status, answer["healthy"], answer["problems"]) == (200, True, ["reload refused: line 3"])


async def test_health_says_what_sensors_that_are_programs_are_to_show(client: Client) -> None:
    client.house.manager.open_slots = {"fez": 1}
    assert (await client.get("healthz"))[1]["sensors"] == {"fake": {"fez": 1}}


async def test_explain_tells_the_true_cause_of_a_pending_job(client: Client, eventually: Callable) -> None:
    house = client.house
    grants = house.manager.read_native("fez@q:1")
    house.manager.add("1", reason="Licenses", grants=grants)
    house.workers.seen["fez"] = Observation(availability=Availability.PAUSED, reason="calibrating", queue=12)
    await eventually(lambda: house.observer.facts["fez"].availability is Availability.PAUSED)
    status, answer = await client.get("explain/fake:c:1")
    assert (status, answer["state"], answer["native_reason"]) == (200, "pending", "Licenses")
    assert answer["lines"] == ["fez: paused (calibrating), queue of 12."]
    assert (await client.get("explain/1"))[1]["lines"] == answer["lines"]


async def test_explain_counts_the_slots_that_a_job_asks_for(client: Client) -> None:
    await lease(client, "2")
    client.house.manager.add("1", grants=client.house.manager.read_native("fez@q:2"))
    assert (await client.get("explain/1"))[1]["lines"] == ["fez: 1 of 2 slots free, and the job asks for 2."]


async def test_explain_tells_of_refusals_and_of_what_is_over(client: Client) -> None:
    house = client.house
    await house.context.records.refuse("fake:c:1", 0.0, 1.0, 9.0, "fez is closed: paused")
    house.manager.add("1", grants=house.manager.read_native("fez@q:1"), comment="qtandem: refused 5 times")
    lines = "\n".join((await client.get("explain/1"))[1]["lines"])
    assert "refused once, last because: fez is closed: paused" in lines
    assert "It is held. qtandem: refused 5 times" in lines
    await lease(client, "2")
    await house.leases.end(house.manager.id("2"), 0, "over")
    _, answer = await client.get("explain/2")
    assert answer["state"] == "ended"
    assert "held its QPU for" in answer["lines"][0]


async def test_explain_tells_of_a_job_that_started_too_often(client: Client) -> None:
    house = client.house
    jobs = [
        house.manager.add("1", grants=house.manager.read_native("fez@q:1")),
        house.manager.add("2", JobState.RUNNING, nodes=("c1",), grants=house.manager.read_native("fez@q:1")),
    ]
    for job in jobs:
        while not house.context.reported.wait_s(job.id):
            house.context.reported._pace.take(job.id, house.context.clock())
        assert "started too often" in "\n".join((await client.get(f"explain/{job.id.job}"))[1]["lines"])


async def test_calls_that_fail_alike_fill_no_log(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.house.manager.unreachable = True

    async def lines() -> list[int]:
        with structlog.testing.capture_logs() as said:
            for _ in range(20):
                assert (await client.get("explain/1"))[0] == 503
        return [each["more"] for each in said if each["event"] == "failed"]

    monkeypatch.setattr(app, "LINE_EACH_S", 1000.0)
    assert await lines() == [0]
    monkeypatch.setattr(app, "LINE_EACH_S", 0.0)
    assert await lines() == [19] + [0] * 19


async def test_explain_asks_the_manager_once_for_many_who_watch(client: Client) -> None:
    client.house.manager.add("1", grants=client.house.manager.read_native("fez@q:1"))
    await asyncio.gather(*(client.get("explain/1") for _ in range(20)))
    assert client.house.manager.asked == 1


async def test_claims_are_made_shared_and_ended(client: Client) -> None:
    status, claim = await client.post("claims", {"request": "fez:2", "ttl_s": 60, "name": "chain"})
    assert (status, claim["uid"], [row["state"] for row in claim["leases"]]) == (200, 1000, ["held"])
    assert (await client.post("claims", {"request": "fez:2", "name": "chain"}))[1]["id"] == claim["id"]
    status, answer = await client.post("claims", {"request": "fez"})
    assert (status, answer["code"]) == (503, "not-available")
    _, task = await client.post("tasks", {"resource": "fez", "payload": QASM})
    assert task["run"] is None
    assert (await client("DELETE", f"claims/{claim['id']}"))[1] == {"ended": True}
    assert client.house.workers.sessions() == []
    assert (await client("DELETE", f"claims/{claim['id']}"))[0] == 404


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ("{", {"Content-Type": "application/json"}, 400),
        ("[" * 60_000, {"Content-Type": "application/json"}, 400),
        ('{"manager": "fake", "uid": 1000, "requst": "fez"}', {"Content-Type": "application/json"}, 400),
        ('{"manager": "fake", "uid": -1}', {"Content-Type": "application/json"}, 400),
        ('{"manager": "other", "uid": 1000}', {"Content-Type": "application/json"}, 400),
        ('{"manager": "fake", "cluster": "d", "uid": 1000}', {"Content-Type": "application/json"}, 400),
        (b"\xff\xfe", {"Content-Type": "text/plain"}, 400),
        ("manager", {"Content-Type": "text/plain"}, 400),
    ],
)
async def test_malformed_calls_say_what_is_wrong(client: Client, body: object, headers: dict, status: int) -> None:
    got, answer = await client.post("submit", body, headers=headers)
    assert got == status
    assert "bad-request" in json.dumps(answer)


async def test_a_start_cannot_smuggle_another_id_into_its_own(client: Client) -> None:
    as_service(client)
    for job in ("7_1", "7.3", "a:b", "", "../x"):
        assert (await client.post("start", {**START, "job": job}))[0] == 400, job
    assert (await client.post("start", {**START, "nodes": "c[1-900000]"}))[0] == 400
    assert (await client.post("start", {**START, "nodes": "c[1-"}))[0] == 400


async def test_a_body_over_the_limit_is_refused(client: Client) -> None:
    await lease(client)
    big = json.dumps({"payload": {**QASM, "program": "x" * (16 * 2**20)}})
    status, answer = await client.post("tasks", big, headers={"Content-Type": "application/json"})
    assert (status, answer["code"]) == (413, "too-large")


async def test_only_who_can_execute_has_large_bodies_read(client: Client) -> None:
    large = json.dumps({"payload": {**QASM, "program": "x" * 100_000}})
    headers = {"Content-Type": "application/json"}
    status, answer = await client.post("tasks", large, headers=headers)
    assert (status, answer["code"]) == (409, "no-lease")
    for path in ("submit", "claims", "credentials"):
        assert (await client.post(path, large, headers=headers))[0] == 413

    async def in_pieces() -> AsyncIterator[bytes]:
        yield large.encode()

    for path in ("tasks", "submit"):
        assert (await client.post(path, in_pieces(), headers=headers))[0] == 413
    await lease(client)
    assert (await client.post("tasks", large, headers=headers))[0] == 200


async def test_large_bodies_of_one_user_are_taken_one_at_a_time(client: Client) -> None:
    """While one is parsed nothing else runs: others' calls get a turn between two of them."""
    await lease(client)
    payload = json.dumps({"payload": {**QASM, "x": [[] for _ in range(100_000)]}, "key": "k"})
    headers = {"Content-Type": "application/json"}
    large = [asyncio.create_task(client.post("tasks", payload, headers=headers)) for _ in range(6)]
    answered = 0
    while not all(call.done() for call in large):
        await client.get("healthz")
        answered += 1
    assert [call.result()[0] for call in large] == [200] * 6
    assert answered >= 6


@pytest.mark.parametrize("text", ['{"payload": {"kind": "\\ud800"}}', '{"payload": {"a": %s}}' % ("9" * 5000)])
async def test_json_that_cannot_be_kept_is_a_bad_request(client: Client, text: str) -> None:
    await lease(client)
    status, answer = await client.post("tasks", text, headers={"Content-Type": "application/json"})
    assert (status, answer["code"]) == (400, "bad-request")


async def test_unknown_paths_and_methods_are_errors_like_all_others(client: Client) -> None:
    assert (await client.get("nonsense"))[0] == 404
    status, answer = await client.get("submit")
    assert (status, answer["code"]) == (405, "bad-request")


async def test_a_fault_of_ours_is_answered_without_its_insides(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.house.context, "configuration", None)
    status, answer = await client.get("names")
    assert (status, answer["code"]) == (500, "internal")
    assert "NoneType" not in json.dumps(answer)


async def test_one_uid_has_a_bounded_number_of_calls(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "CALLS_PER_UID", 2)
    client.house.workers.instant = False
    _, task = await client.post("tasks", {"lease": await lease(client), "payload": QASM})
    polls = [asyncio.create_task(client.get(f"tasks/{task['id']}/logs")) for _ in range(1)]
    await asyncio.gather(*polls)
    waits = [asyncio.create_task(_patient(client, task["id"])) for _ in range(2)]
    await asyncio.sleep(0.2)
    status, answer = await client.get("healthz")
    assert (status, answer["code"], answer["retryable"]) == (429, "too-many-calls", True)
    client.uid = 1001
    assert (await client.get("healthz"))[0] == 200
    client.house.workers.finish(task["id"])
    await asyncio.gather(*waits)


async def _patient(client: Client, id: str) -> None:
    while (await client.get(f"tasks/{id}?wait=10"))[1]["state"] != "completed":
        pass


async def test_a_flood_of_headers_is_refused_and_a_slow_body_given_up(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = "".join(f"X-{number}: y\r\n" for number in range(200))
    assert b" 400 " in await _raw(client, f"GET /v1/healthz HTTP/1.1\r\nHost: q\r\n{headers}\r\n")
    long = "X-Long: " + "y" * 20_000
    assert b" 400 " in await _raw(client, f"GET /v1/healthz HTTP/1.1\r\nHost: q\r\n{long}\r\n\r\n")
    monkeypatch.setattr(api, "BODY_S", 0.1)
    slow = "POST /v1/submit HTTP/1.1\r\nHost: q\r\nContent-Length: 500\r\nContent-Type: application/json\r\n\r\n{"
    assert b" 400 " in await _raw(client, slow)


async def _raw(client: Client, text: str) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(client.path))
    writer.write(text.encode())
    await writer.drain()
    line = await asyncio.wait_for(reader.readline(), 5.0)
    writer.close()
    return line


async def test_the_public_page_and_metrics_name_no_user_and_no_job(client: Client) -> None:
    await lease(client, "4711", uid=1000)
    runner = app.runner(app.public(client.house.context), 1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/") as answer:
            page = await answer.text()
        async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
            metrics = await answer.text()
        async with session.get(f"http://127.0.0.1:{port}/v1/leases") as answer:
            assert answer.status == 404
    await runner.cleanup()
    assert "fez" in page
    assert "1/2" in page
    assert 'qtandem_resource_leased_slots{resource="fez"} 1.0' in metrics
    assert 'qtandem_resource_state{resource="fez",state="online"} 1.0' in metrics
    assert 'qtandem_leases{state="held"} 1.0' in metrics
    for text in (page, metrics):
        assert "4711" not in text
        assert "u1000" not in text


async def test_what_a_vendor_does_not_say_is_not_shown_as_zero(client: Client) -> None:
    context = client.house.context
    assert "qtandem_resource_queue{" not in (await context.metrics.text(context)).decode()


async def test_the_textfile_is_whole_and_readable(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "qtandem.prom"
    for _ in range(2):
        await client.house.context.metrics.write(client.house.context, path)
    assert path.read_text().endswith("\n")
    assert path.stat().st_mode & 0o777 == 0o644


async def test_a_chain_of_jobs_executes_on_one_claim_of_their_owner(client: Client) -> None:
    client.house.workers.instant = True
    _, claim = await client.post("claims", {"request": "fez+direct", "name": "chain"})
    _, other = await client.post("claims", {"request": "fez", "name": "other"})
    status, answer = await client.get(f"claims/{claim['id']}/environment")
    env = answer["env"]
    assert (status, env["QRMI_JOB_QPU_RESOURCES"], env["QTANDEM_CLAIM"]) == (200, "fez,direct", claim["id"])
    assert not [value for value in env.values() if value == "k-1"], "a claim gives no vendor's key"
    call = {"resource": "fez", "payload": QASM}
    assert (await client.post("tasks", call))[0] == 422
    for chosen in (claim, other):
        status, task = await client.post("tasks", {**call, "claim": chosen["id"]})
        assert (status, task["lease"]) == (200, next(x["id"] for x in chosen["leases"] if x["resource"] == "fez"))
    client.uid = 1001
    assert (await client.get(f"claims/{claim['id']}/environment"))[0] == 403
    status, answer = await client.post("tasks", {**call, "claim": claim["id"]})
    assert (status, answer["code"]) == (409, "no-lease")
