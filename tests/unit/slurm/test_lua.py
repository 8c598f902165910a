"""The submit hook under a real Lua 5.1, with slurmctld's tables and a daemon that the test scripts."""

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from qtandem.core.installing import with_constants
from qtandem.core.inventory import Placed
from qtandem.core.wire import SubmitCall
from qtandem.core.wiretext import decode_text, encode_text
from qtandem.slurm.inventory import placed
from qtandem.slurm.jobs import choices

LUA = shutil.which("lua5.1")
HOOKS = Path(__file__).parents[3] / "slurm" / "hooks"
OPTION = "_SLURM_SPANK_OPTION_qpu_qpu="
SUCCESS, ERROR, INVALID, DENIED = 0, -1, 2048, 2002

pytestmark = pytest.mark.skipif(LUA is None, reason="lua5.1 is not installed")

# `socket` as the hook sees it: the clock moves by `step_s` at each operation, `answer` comes in pieces.
DRIVER = """
local clock, sent, touched = 0, "", 0
package.preload["socket"] = function() return { gettime = function() return clock end } end
package.preload["socket.unix"] = function()
  return { stream = function()
    local left = ANSWER
    local function tick() clock = clock + STEP_S; touched = touched + 1 end
    return {
      settimeout = function(_, seconds) assert(seconds > 0) end,
      connect = function(_, path) tick(); if DEAD then return nil, "Connection refused" end; return 1 end,
      send = function(_, text) tick(); sent = sent .. text; return #text end,
      receive = function(_, what)
        tick()
        if what == "*l" then
          local line, rest = left:match("^(.-)\\r\\n(.*)$")
          if not line then return nil, "timeout" end
          left = rest
          return line
        end
        local part = left:sub(1, what); left = left:sub(what + 1)
        if #part < what then return nil, "closed" end
        return part
      end,
      close = function() end,
    }
  end }
end
local said = {}
slurm = {
  SUCCESS = 0, ERROR = -1,
  log_user = function(form, ...) said[#said + 1] = string.format(form, ...) end,
  log_info = function(form, ...) string.format(form, ...) end,
  log_error = function(form, ...) string.format(form, ...) end,
}
local hook = dofile(HOOK)
local code = CALL
local function quoted(text)
  return (tostring(text):gsub("[^%w]", function(c) return string.format("%%%02X", c:byte()) end))
end
print("code", code)
print("licenses", quoted(JOB.licenses or ""))
print("admin_comment", quoted(JOB.admin_comment or ""))
print("gres", quoted(JOB.tres_per_node or ""))
print("per_task", quoted(JOB.tres_per_task or ""))
print("placed", quoted((JOB.req_nodes or "") .. "|" .. (JOB.exc_nodes or "")))
print("said", quoted(table.concat(said, "\\n")))
print("sent", quoted(sent))
print("touched", touched)
"""


def lua(value: Any) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return '"' + "".join(f"\\{byte:03d}" for byte in value.encode()) + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{lua(key)}] = {lua(part)}" for key, part in value.items()) + "}"
    return "{" + ", ".join(lua(part) for part in value) + "}"


class Hook:
    """Calls of the hook; `names` is the list that the daemon left."""

    def __init__(self, folder: Path, server: str = "qtandem") -> None:
        self.folder = folder
        self.names = folder / "names"
        self.path = folder / "qtandem.lua"
        values = {
            "CLUSTER": "lab", "SOCKET": "/run/q.sock", "NAMES": str(self.names),
            "DEADLINE_MS": 40, "TRUSTED_UIDS": ["0", "64030"], "HOOKS": str(folder), "SERVER": server,
        }  # fmt: skip
        for name in ("qtandem.lua", "qtandem_forms.lua"):
            (folder / name).write_text(with_constants((HOOKS / name).read_text(), values, "lua"))

    def __call__(
        self,
        job: dict[str, Any],
        answer: dict[str, Any] | str | None = None,
        *,
        record: dict[str, Any] | None = None,
        uid: int = 1000,
        status: int = 200,
        step_s: float = 0.001,
    ) -> dict[str, Any]:
        """The hook's return code, licences, words to the user, and what it sent; `answer` None: a dead daemon."""
        body = encode_text(answer) if isinstance(answer, dict) else answer or ""
        http = f"HTTP/1.1 {status} X\r\nContent-Type: text/plain\r\nContent-Length: {len(body.encode())}\r\n\r\n{body}"
        parts = {"main": {"flag_default": 1}, "other": {"flag_default": 0}}
        call = f"hook.submit(JOB, {lua(parts)}, {uid})"
        if record is not None:
            call = f"hook.modify(JOB, {lua(record)}, {lua(parts)}, {uid})"
        script = self.folder / "driver.lua"
        text = DRIVER.replace("CALL", call).replace("ANSWER", lua(http)).replace("STEP_S", repr(step_s))
        text = text.replace("DEAD", lua(answer is None)).replace("HOOK", lua(str(self.path)))
        script.write_text(f"JOB = {lua(job)}\n{text}")
        done = subprocess.run([str(LUA), str(script)], capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        raw = dict(line.split("\t", 1) for line in done.stdout.splitlines())
        sent = unquote(raw["sent"])
        return {
            "code": int(raw["code"]),
            "licenses": unquote(raw["licenses"]),
            "said": unquote(raw["said"]),
            "note": unquote(raw["admin_comment"]),
            "placed": unquote(raw["placed"]),
            "gres": unquote(raw["gres"]) + unquote(raw["per_task"]),
            "touched": int(raw["touched"]),
            "call": decode_text(sent.partition("\r\n\r\n")[2]),
            "head": sent.partition("\r\n\r\n")[0],
        }


@pytest.fixture
def hook(tmp_path: Path) -> Hook:
    return Hook(tmp_path)


def asking(request: str, **more: Any) -> dict[str, Any]:
    return {"spank_job_env": ["X=1", OPTION + request], "account": "physics", **more}


ADMIT = {"verdict": "admit", "native": {"licenses": "fez@qtandem:1"}}


def test_a_job_without_a_qpu_passes_without_any_io(hook: Hook) -> None:
    for job in ({}, {"licenses": "matlab:2,x@ibm:1"}, {"spank_job_env": ["_SLURM_SPANK_OPTION_other_qpu=fez"]}):
        result = hook(job)
        assert (result["code"], result["touched"]) == (SUCCESS, 0)


def test_a_request_becomes_a_licence_beside_the_users_own(hook: Hook) -> None:
    result = hook(asking("fez", licenses="matlab:2"), ADMIT)
    assert (result["code"], result["licenses"]) == (SUCCESS, "matlab:2,fez@qtandem:1")
    assert result["call"] == {
        "manager": "slurm", "cluster": "lab", "uid": "1000", "account": "physics", "partition": "main",
        "request": "fez",
    }  # fmt: skip
    assert "POST /v1/submit HTTP/1.1" in result["head"]
    assert "Connection: close" in result["head"]


def test_typed_licences_of_ours_go_to_the_daemon_and_come_back_canonical(hook: Hook) -> None:
    result = hook({"licenses": "fez@qtandem,matlab:1", "partition": "a,b", "req_nodes": "c[1-2]"}, ADMIT)
    assert (result["code"], result["licenses"]) == (SUCCESS, "matlab:1,fez@qtandem:1")
    assert (result["call"]["native"], result["call"]["partition"], result["call"]["nodes"]) == (
        "fez@qtandem", "a,b", "c[1-2]",
    )  # fmt: skip


@pytest.mark.parametrize("request_text", ["fez\nverdict=admit", "a=b&c%41", "ünï", "x" * 1000, "'; rm -rf /", "%s%d%n"])
def test_hostile_text_arrives_as_it_was_typed(hook: Hook, request_text: str) -> None:
    reject = {"verdict": "reject", "code": "unknown-resource", "message": f"no {request_text}\nsecond %s line"}
    result = hook(asking(request_text), reject)
    assert result["call"]["request"] == request_text
    assert (result["code"], result["said"]) == (INVALID, f"no {request_text}\nsecond %s line [unknown-resource]")


@pytest.mark.parametrize("licenses", ["x{}x", "{}", "fez@qtandem{}x,fez@qtandem", "{},x"])
def test_long_texts_do_not_hold_up_slurmctld(hook: Hook, licenses: str) -> None:
    for field in ({"licenses": licenses.format(" " * 400_000)}, {"licenses": "x", "tres_per_node": " " * 400_000}):
        began = time.monotonic()
        assert hook(field, ADMIT)["code"] == SUCCESS
        assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("field", ["request", "licenses", "req_nodes", "account"])
def test_what_the_daemon_would_not_read_is_not_sent(hook: Hook, field: str) -> None:
    job = asking("x" * 5000) if field == "request" else asking("fez", **{field: "fez@qtandem," * 500})
    result = hook(job, ADMIT)
    assert (result["code"], result["touched"]) == (INVALID, 0)
    assert "over 4096 characters" in result["said"]


def test_the_code_of_a_refusal_shows(hook: Hook) -> None:
    assert hook(asking("fez"), {"verdict": "reject", "code": "not-allowed", "message": "no"})["code"] == DENIED
    assert hook(asking("fez"), {"code": "bad-request", "message": "no"}, status=400)["code"] == INVALID


def test_with_a_dead_daemon_one_plain_known_name_is_taken(hook: Hook) -> None:
    hook.names.write_text("fez\tfez\t1\nibm-x\tibm_x\t2\n")
    result = hook(asking("ibm-x", licenses="matlab:1"))
    assert (result["code"], result["licenses"]) == (SUCCESS, "matlab:1,ibm_x@qtandem:1")
    assert "does not answer" in result["said"]


@pytest.mark.parametrize(
    "job",
    [
        asking("unheard"),
        asking("fez:2"),
        asking("fez+x"),
        asking("any:qubits=5"),
        asking("fez", licenses="fez@qtandem:1"),
        {"licenses": "fez@qtandem:1"},
    ],
)
def test_with_a_dead_daemon_all_else_is_refused_for_now(hook: Hook, job: dict[str, Any]) -> None:
    hook.names.write_text("fez\tfez\t1\n")
    result = hook(job)
    assert (result["code"], result["licenses"]) == (ERROR, job.get("licenses", ""))
    assert "Try again" in result["said"]


@pytest.mark.parametrize("answer", ["", "verdict", "<html>", "verdict=admit\n", "verdict=maybe\n"])
def test_a_strange_answer_is_a_refusal(hook: Hook, answer: str) -> None:
    assert hook(asking("any"), answer)["code"] != SUCCESS


def test_a_failing_daemon_is_a_dead_one(hook: Hook) -> None:
    hook.names.write_text("fez\tfez\t1\n")
    assert hook(asking("fez"), {"code": "internal", "message": "x"}, status=500)["code"] == SUCCESS
    assert hook(asking("any"), {"code": "internal", "message": "x"}, status=500)["code"] == ERROR


def test_all_steps_share_one_deadline(hook: Hook) -> None:
    result = hook(asking("any"), ADMIT, step_s=0.012)
    assert result["code"] == ERROR
    assert result["touched"] <= 4


@pytest.mark.parametrize("licenses", ["fez@qtandem|garnet@qtandem", "matlab:1|ansys:1"])
def test_a_choice_of_licences_is_refused_with_what_to_write(hook: Hook, licenses: str) -> None:
    result = hook(asking("fez", licenses=licenses), ADMIT)
    assert result["code"] == INVALID
    assert "--qpu=a/b" in result["said"]


def test_two_values_are_refused(hook: Hook) -> None:
    result = hook({"spank_job_env": [OPTION + "fez", OPTION + "garnet"]}, ADMIT)
    assert (result["code"], result["touched"]) == (INVALID, 0)


def test_a_heterogeneous_job_asks_with_its_first_component_alone(hook: Hook) -> None:
    assert hook(asking("fez", het_job_offset=0), ADMIT)["licenses"] == "fez@qtandem:1"
    assert hook(asking("fez", het_job_offset=4294967294), ADMIT)["licenses"] == "fez@qtandem:1"
    follower = hook(asking("fez", het_job_offset=1), ADMIT)
    assert (follower["code"], follower["licenses"], follower["touched"]) == (SUCCESS, "", 0)


def test_a_fault_in_the_hook_refuses_only_jobs_with_a_qpu(hook: Hook) -> None:
    head = "local function submit(job, part_list, uid)\n"
    hook.path.write_text(hook.path.read_text().replace(head, f"{head}  error('x')\n"))
    assert hook(asking("fez"), ADMIT)["code"] == ERROR
    assert hook({}, ADMIT)["code"] == SUCCESS


OWN = {"licenses": "fez@qtandem:1", "job_state": 0, "user_id": 1000, "account": "physics", "partition": "main"}


def test_changes_that_touch_no_qpu_pass_without_io(hook: Hook) -> None:
    for job, record in (
        ({"comment": "x"}, OWN),
        ({"licenses": "matlab:1"}, {"licenses": None, "job_state": 0}),
        ({"licenses": "fez@qtandem:1"}, OWN),
        ({"partition": "other"}, {"licenses": "matlab:1", "job_state": 0}),
    ):
        result = hook(job, record=record)
        assert (result["code"], result["touched"]) == (SUCCESS, 0)


def test_an_owner_changes_only_to_what_a_verdict_admits(hook: Hook) -> None:
    admitted = {"verdict": "admit", "native": {"licenses": "garnet@qtandem:2"}}
    result = hook({"licenses": "garnet@qtandem:2,matlab:1"}, admitted, record={**OWN, "job_id": 7})
    assert (result["code"], result["licenses"]) == (SUCCESS, "matlab:1,garnet@qtandem:2")
    assert (result["call"]["native"], result["call"]["job"], result["call"]["uid"]) == ("garnet@qtandem:2", "7", "1000")
    refused = hook({"licenses": "garnet@qtandem:2"}, {"verdict": "reject", "message": "no"}, record=OWN)
    assert refused["code"] == INVALID
    assert hook({"licenses": "garnet@qtandem:2"}, record=OWN)["code"] == ERROR


def test_moving_a_job_asks_again(hook: Hook) -> None:
    result = hook({"partition": "other"}, {"verdict": "reject", "message": "cannot be reached"}, record=OWN)
    assert (result["code"], result["call"]["partition"]) == (INVALID, "other")


def test_an_owner_may_drop_the_qpu_of_a_pending_job(hook: Hook) -> None:
    assert hook({"licenses": ""}, record=OWN)["code"] == SUCCESS
    assert hook({"licenses": ""}, record={**OWN, "job_state": 1})["code"] == INVALID


def test_root_and_the_service_users_need_no_verdict(hook: Hook) -> None:
    for uid in (0, 64030):
        result = hook({"licenses": "garnet@qtandem:2"}, record=OWN, uid=uid)
        assert (result["code"], result["touched"]) == (SUCCESS, 0)


@pytest.mark.parametrize(
    ("job", "request_text", "native", "left"),
    [
        ({"tres_per_node": "gres/qpu:fez"}, "fez", None, ""),
        ({"tres_per_node": "gres/qpu:fez:1"}, "fez", None, ""),
        ({"tres_per_node": "gres/gpu:2,gres/qpu:fez:2"}, "fez:2", None, "gres/gpu:2"),
        ({"tres_per_node": "gres/qpu:fez,gres/qpu:ibm-x.2"}, "fez+ibm-x.2", None, ""),
        ({"tres_per_node": "gres:qpu:fez"}, "fez", None, ""),
        (asking("fez", tres_per_node="gres/qpu:1"), "fez", None, ""),
        (asking("fez/x", tres_per_node="gres/qpu"), "fez/x", None, ""),
        (asking("fez:2", tres_per_node="gres/qpu:2"), "fez:2", None, ""),
        (asking("fez", tres_per_node="gres/qpu:fez"), "fez", "fez@qtandem:1", ""),
        ({"tres_per_node": "gres/qpu:fez", "licenses": "fez@qtandem"}, "fez", "fez@qtandem", ""),
        ({"tres_per_node": "gres/qpu:1", "licenses": "fez@qtandem"}, None, "fez@qtandem", ""),
    ],
)
def test_generic_resources_are_moved_to_the_licence(
    hook: Hook, job: dict[str, Any], request_text: str | None, native: str | None, left: str
) -> None:
    result = hook(job, ADMIT)
    assert (result["code"], result["licenses"], result["gres"]) == (SUCCESS, "fez@qtandem:1", left)
    assert (result["call"].get("request"), result["call"].get("native")) == (request_text, native)


def test_a_gpu_is_not_ours(hook: Hook) -> None:
    for gres in ("gres/gpu:1", "gres/qpux:1", "gres/gpu:qpu:1", "license/qpu:1"):
        result = hook({"tres_per_node": gres}, ADMIT)
        assert (result["code"], result["touched"], result["gres"]) == (SUCCESS, 0, gres)


@pytest.mark.parametrize(
    ("job", "word"),
    [
        ({"tres_per_node": "gres/qpu:1"}, "--qpu=NAME"),
        ({"tres_per_node": "gres/qpu"}, "--qpu=NAME"),
        (asking("fez", tres_per_node="gres/qpu:2"), "--qpu=fez:2"),
        (asking("fez:3", tres_per_node="gres/qpu:2"), "--qpu=fez:2"),
        (asking("fez", tres_per_node="gres/qpu:fez", licenses="fez@qtandem"), "--qpu=fez alone"),
        ({"tres_per_node": "gres/qpu:1,gres/qpu:fez:1"}, "--qpu=fez"),
        ({"tres_per_node": "gres/qpu:a/b"}, "--qpu=a/b"),
        ({"tres_per_node": "gres/qpu:any:qubits=5:1"}, "--qpu=any:qubits=5"),
        ({"tres_per_task": "gres/qpu:fez:1"}, "--qpu=fez"),
    ],
)
def test_generic_resources_that_cannot_be_meant_are_refused(hook: Hook, job: dict[str, Any], word: str) -> None:
    result = hook(job, ADMIT)
    assert (result["code"], result["touched"], result["licenses"]) == (INVALID, 0, job.get("licenses", ""))
    assert word in result["said"]


def test_a_batch_job_may_ask_per_task_and_its_steps_do_not_ask_again(hook: Hook) -> None:
    job = {"tres_per_task": "gres/qpu:fez:1", "script": "#!/bin/sh", "environment": {"SLURM_TRES_PER_TASK": "x"}}
    result = hook(job, ADMIT)
    assert (result["code"], result["licenses"], result["gres"]) == (SUCCESS, "fez@qtandem:1", "")


def test_choices_go_along_where_no_user_can_write(hook: Hook) -> None:
    admit = {**ADMIT, "choices": "fez/ibm-x"}
    note = "qtandem:choices=fez%2Fibm-x;pinned=fez@qtandem:1"
    assert hook(asking("fez/ibm-x"), admit)["note"] == note
    assert hook(asking("fez/ibm-x", admin_comment="the site's"), admit)["note"] == f"the site's | {note}"
    assert hook(asking("fez/ibm-x", admin_comment=f"the site's | {note}x"), admit)["note"] == f"the site's | {note}"
    assert hook(asking("fez", admin_comment="qtandem:choices=any;pinned=x"), ADMIT)["note"] == ""


def test_on_a_server_of_the_site_only_our_names_are_qpus(tmp_path: Path) -> None:
    hook = Hook(tmp_path, server="slurmdb")
    hook.names.write_text("ibm-x\tibm_x\t1\nfez\tfez\t1\n")
    admit = {"verdict": "admit", "native": {"licenses": "fez@slurmdb:1"}}
    other = hook({"licenses": "matlab@slurmdb:2"}, admit)
    assert (other["code"], other["touched"], other["licenses"]) == (SUCCESS, 0, "matlab@slurmdb:2")
    both = hook({"licenses": "matlab@slurmdb:2,fez@slurmdb"}, admit)
    assert (both["licenses"], both["call"]["native"]) == ("matlab@slurmdb:2,fez@slurmdb:1", "fez@slurmdb")
    hook.names.unlink()
    asked = hook({"licenses": "matlab@slurmdb:2"}, {"verdict": "none"})
    assert (asked["code"], asked["licenses"]) == (SUCCESS, "matlab@slurmdb:2")


def test_the_daemon_moves_pending_jobs_only(hook: Hook) -> None:
    moved = hook({"licenses": "garnet@qtandem:1"}, record=OWN, uid=64030)
    assert (moved["code"], moved["touched"]) == (SUCCESS, 0)
    late = hook({"licenses": "garnet@qtandem:1"}, record={**OWN, "job_state": 1}, uid=64030)
    assert (late["code"], late["touched"]) == (INVALID, 0)


def test_generic_resources_cannot_be_given_to_a_waiting_job(hook: Hook) -> None:
    result = hook({"tres_per_node": "gres/qpu:garnet:1"}, record=OWN)
    assert result["code"] == INVALID
    assert "licenses=" in result["said"]


UNSET, NO_LIMIT = 4294967294, 65534


def test_what_a_job_asks_of_nodes_goes_along_for_the_planner(hook: Hook) -> None:
    shape = {
        "num_tasks": 4, "cpus_per_task": 2, "min_cpus": 8, "min_nodes": 1, "min_mem_per_cpu": 512, "time_limit": 30,
        "qos": "high", "reservation": "now1", "features": "ib&gpu80", "exc_nodes": "c[3-4]", "shared": 0,
        "tres_per_node": "gres/gpu:a100:2", "tres_per_job": "gres/gpu:1",
    }  # fmt: skip
    call = hook(asking("fez", **shape), ADMIT)["call"]
    assert call == call | {
        "tasks": "4", "cpus_per_task": "2", "min_cpus": "8", "min_nodes": "1", "memory_cpu_mb": "512",
        "time_limit": "30", "qos": "high", "reservation": "now1", "features": "ib&gpu80", "excluded": "c[3-4]",
        "exclusive": "true", "gres": "gres/gpu:a100:2,gres/gpu:1",
    }  # fmt: skip
    SubmitCall.model_validate(call)
    unset = {"num_tasks": UNSET, "cpus_per_task": NO_LIMIT, "min_cpus": 1, "time_limit": UNSET, "shared": NO_LIMIT}
    call = hook(asking("fez", **unset), ADMIT)["call"]
    assert not {"tasks", "cpus_per_task", "time_limit", "exclusive"} & call.keys()


@pytest.mark.parametrize(
    "more", [{"features": "x" * 2000}, {"tres_per_task": "gres/gpu:1"}, {"exc_nodes": "c1," * 1000}, {"qos": 7}]
)
def test_what_the_planner_could_not_read_is_left_out_and_refuses_no_job(hook: Hook, more: dict[str, Any]) -> None:
    result = hook(asking("fez", num_tasks=1, **more), ADMIT)
    assert result["code"] == SUCCESS
    assert not {"tasks", "features", "excluded", "qos"} & result["call"].keys()


def test_a_pin_is_written_and_noted_where_no_user_can_write(hook: Hook) -> None:
    native = {"licenses": "fez@qtandem:1", "req_nodes": "c2"}
    result = hook(asking("fez"), {"verdict": "admit", "native": native, "placed": "pin:c2"})
    assert result["placed"] == "c2|"
    assert result["note"] == "qtandem:placed=pin%3Ac2"
    assert placed(result["note"]) == Placed("pin", ("c2",))
    native = {"licenses": "fez@qtandem:1", "exc_nodes": "c[1-3],own"}
    both = {"verdict": "admit", "native": native, "placed": "exclude:c[1-3]", "choices": "fez/x"}
    result = hook(asking("fez", exc_nodes="own", admin_comment="site"), both)
    assert result["placed"] == "|c[1-3],own"
    assert placed(result["note"]) == Placed("exclude", ("c1", "c2", "c3"))
    assert choices(result["note"]) == ("fez/x", "fez@qtandem:1")
    assert result["note"].startswith("site | ")


def test_a_forged_note_of_a_pin_is_taken_out(hook: Hook) -> None:
    forged = asking("fez", admin_comment="site | qtandem:placed=pin%3Ac9 | qtandem:choices=any;pinned=x")
    assert hook(forged, ADMIT)["note"] == "site"
