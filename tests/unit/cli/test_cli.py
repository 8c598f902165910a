import json
import os
import pty
import signal
import subprocess
import sys
import threading

import pytest

from qtandem.core.errors import QtandemError
from qtandem.daemons.cli import app
from tests.fakes.daemon import lease, task

QTANDEM = [sys.executable, "-m", "qtandem.daemons.cli"]
VERBS = (
    "resources explain task env usage leases claim config install uninstall doctor relay daemon demo".split()  # noqa: SIM905
)


def environ(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


def table(out: str) -> list[list[str]]:
    return [line.split("\t") for line in out.splitlines()]


def refuse(code: str, message: str = "no", **more: object):
    def answer(call):
        raise QtandemError(code, message, **more)

    return answer


def test_help_lists_all_verbs(qtandem):
    ran = qtandem("--help")
    assert ran.status == 0
    assert [verb for verb in VERBS if verb not in ran.out] == []


@pytest.mark.parametrize("group", ["task", "claim", "credentials", "config", "relay", "daemon", "plan"])
def test_each_group_has_help(qtandem, group):
    assert qtandem(group, "--help").status == 0


def test_every_reading_verb_takes_json():
    from typer.main import get_command

    def leaves(command, path=()):
        inner = getattr(command, "commands", None)
        if inner is None:
            yield path, {option for parameter in command.params for option in parameter.opts}
        for name, sub in (inner or {}).items():
            yield from leaves(sub, (*path, name))

    without = {" ".join(path) for path, options in leaves(get_command(app)) if "--json" not in options}
    assert without == {"config example", "daemon run", "daemon reload", "plan generate", "plan reproduce"}


def test_version(qtandem):
    assert qtandem("--version").out.startswith("qtandem ")


def test_a_wrong_command_line_is_status_2(qtandem):
    assert qtandem("nonsense").status == 2
    assert qtandem("resources", "--nonsense").status == 2


def test_resources(daemon, qtandem):
    head, first, second = table(qtandem("resources").out)
    assert head[:5] == ["name", "native", "type", "state", "free"]
    assert first[:5] == ["fez", "fez", "simulator", "online", "2/2"]
    assert second[:2] == ["ibm-x", "ibm_x"]
    assert second[head.index("queue")] == "-"
    assert len(table(qtandem("resources", "ibm_x").out)) == 2
    assert json.loads(qtandem("resources", "fez", "--json").out)["resources"][0]["name"] == "fez"


def test_an_unknown_name_is_one_line_and_a_remedy(daemon, qtandem):
    ran = qtandem("resources", "fes")
    assert ran.status == 3
    assert ran.out == ""
    assert ran.err.splitlines() == [
        "qtandem: There is no QPU named 'fes' [unknown-resource]",
        "  List the names with: qtandem resources",
    ]


def test_no_daemon_is_status_4(daemon, qtandem):
    daemon.stop()
    ran = qtandem("resources")
    assert ran.status == 4
    assert "cannot be reached" in ran.err


def test_explain(daemon, qtandem):
    daemon.routes["GET /explain/*"] = {
        "job": "slurm:c:7",
        "state": "pending",
        "native_reason": "Licenses",
        "resources": [],
        "lines": ["fez: paused (calibrating)."],
    }
    assert qtandem("explain", "slurm:c:7").out == "slurm:c:7: pending (Licenses)\n  fez: paused (calibrating).\n"
    assert daemon.calls[0].path == "/explain/slurm:c:7"
    assert json.loads(qtandem("explain", "7", "--json").out)["native_reason"] == "Licenses"


def test_words_of_others_cannot_command_a_terminal(daemon, qtandem):
    daemon.routes["GET /leases"] = {"leases": [lease(reason="\x1b[2Jgone\r\nnext\tcell")]}
    assert table(qtandem("leases").out)[1][-1] == "?[2Jgone next cell"


@pytest.fixture
def bell(tmp_path):
    path = tmp_path / "bell.qasm"
    path.write_text('OPENQASM 3.0;\ninclude "stdgates.inc";\n')
    return str(path)


def test_task_run_waits_and_shows_counts(daemon, qtandem, bell):
    daemon.routes["POST /tasks"] = task("queued")
    daemon.routes["GET /tasks/*"] = task("completed")
    daemon.routes["GET /tasks/*/result"] = {"text": '{"counts": {"00": 60, "11": 40}}'}
    ran = qtandem("task", "run", bell, "--resource", "fez", "--shots", "100")
    assert table(ran.out) == [["bits", "count", "share"], ["00", "60", "0.6000"], ["11", "40", "0.4000"]]
    body = daemon.called("POST", "/tasks")[0].body
    assert (body["resource"], body["payload"]["kind"], body["payload"]["shots"]) == ("fez", "qasm3", 100)
    whole = json.loads(qtandem("task", "run", bell, "--json").out)
    assert whole["counts"] == whole["result"]["counts"] == {"00": 60, "11": 40}
    assert whole["task"]["id"] == "t-1"


def test_task_run_without_waiting_prints_the_id(daemon, qtandem, bell):
    daemon.routes["POST /tasks"] = task("queued")
    assert qtandem("task", "run", bell, "--no-wait").out == "t-1\n"


def test_task_run_reads_what_qrmi_writes(daemon, qtandem, tmp_path):
    daemon.routes["POST /tasks"] = task("queued")
    path = tmp_path / "sampler.json"
    path.write_text(json.dumps({"program_id": "sampler", "parameters": {"pubs": [], "version": 2}}))
    assert qtandem("task", "run", str(path), "--no-wait").status == 0
    payload = daemon.calls[0].body["payload"]
    assert (payload["kind"], payload["program_id"]) == ("qiskit-primitive", "sampler")
    assert json.loads(payload["input"]) == {"pubs": [], "version": 2}


@pytest.mark.parametrize("text", ["{", "[]", "{\x00"])
def test_a_broken_json_payload_is_the_users_fault(daemon, qtandem, tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text("{" + text)
    ran = qtandem("task", "run", str(path))
    assert ran.status == 2
    assert "[bad-payload]" in ran.err


def test_a_missing_file(daemon, qtandem):
    ran = qtandem("task", "run", "/nowhere.qasm")
    assert ran.status == 2
    assert "/nowhere.qasm cannot be read: No such file or directory" in ran.err


def test_a_failed_task_has_the_status_of_the_vendor(daemon, qtandem):
    daemon.routes["GET /tasks/*"] = task("failed", reason="too deep")
    ran = qtandem("task", "result", "t-1")
    assert ran.status == 6
    assert "Task t-1 failed: too deep" in ran.err


def test_a_result_that_is_not_there_yet(daemon, qtandem):
    daemon.routes["GET /tasks/*"] = task("running")
    daemon.routes["GET /tasks/*/result"] = refuse("task-not-ready")
    assert qtandem("task", "result", "t-1").status == 4
    assert qtandem("task", "result", "t-1", "--wait", "--timeout", "0.05").status == 4


def test_task_verbs(daemon, qtandem):
    daemon.routes["GET /tasks/*"] = task("running", reason="busy")
    daemon.routes["GET /tasks"] = {"tasks": [task("running")]}
    daemon.routes["GET /tasks/*/logs"] = {"text": "one\ntwo\n"}
    daemon.routes["POST /tasks/*/stop"] = task("cancelled")
    assert qtandem("task", "status", "t-1").out == "running: busy\n"
    assert qtandem("task", "logs", "t-1").out == "one\ntwo\n"
    assert qtandem("task", "stop", "t-1").status == 0
    assert table(qtandem("task", "list", "--lease", "l-1").out)[1][:3] == ["t-1", "fez", "running"]
    assert daemon.calls[-1].query == {"lease": "l-1"}


def test_env_survives_any_value(daemon, qtandem, monkeypatch):
    values = {"PLAIN": "a,b", "ODD": 'it\'s $HOME `x`\n"q" \\', "_q": "", "bad-name": "x", "a;rm": "y"}
    daemon.routes["GET /runs/*/environment"] = {"run": "slurm:c:7.0", "uid": 0, "env": values}
    ran = qtandem("env", "7")
    read_back = "import os; print(repr({k: os.environ.get(k) for k in ('PLAIN', 'ODD', '_q')}))"
    shell = subprocess.run(
        ["sh", "-c", f'eval "$LINES_"; exec {sys.executable} -c "$READ"'],
        env={"LINES_": ran.out, "READ": read_back, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shell.stdout.strip() == repr({name: values[name] for name in ("PLAIN", "ODD", "_q")})
    assert "bad-name" not in ran.out
    assert "bad-name" in ran.err


@pytest.mark.parametrize(
    ("variables", "run"),
    [
        ({"QTANDEM_RUN": "slurm:c:7.1", "SLURM_JOB_ID": "7"}, "slurm:c:7.1"),
        ({"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "c"}, "slurm:c:7"),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}, "7_2"),
        ({"LOCAL_JOB_ID": "3"}, "3"),
    ],
)
def test_env_knows_the_job_around_it(daemon, qtandem, monkeypatch, variables, run):
    daemon.routes["GET /runs/*/environment"] = {"run": run, "uid": 0, "env": {"A": "1"}}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert qtandem("env").out == "export A=1\n"
    assert daemon.calls[0].path == f"/runs/{run}/environment"


def test_env_outside_a_job(daemon, qtandem):
    daemon.routes["GET /leases"] = {"leases": []}
    ran = qtandem("env")
    assert (ran.status, ran.out) == (3, "")


def test_env_in_a_shell_that_knows_nothing_of_its_job(daemon, qtandem):
    def lease(job, others=0, state="held"):
        uid = os.geteuid() + others
        return {"id": f"l{job}", "owner": f"run gridengine:lab:{job}.0", "uid": uid, "state": state, "resource": "fez"}

    daemon.routes["GET /leases"] = {"leases": [lease(1, others=77), lease(2, state="released"), lease(3), lease(3)]}
    daemon.routes["GET /runs/*/environment"] = {"run": "gridengine:lab:3.0", "uid": 0, "env": {"A": "1"}}
    assert qtandem("env").out == "export A=1\n"
    daemon.routes["GET /leases"] = {"leases": [lease(3), lease(4)]}
    ran = qtandem("env")
    assert (ran.status, ran.out) == (3, "")
    assert "gridengine:lab:3.0 | gridengine:lab:4.0" in ran.err


def test_usage(daemon, qtandem):
    row = {
        "run": "slurm:c:7.0", "user": "ann", "account": "", "resource": "fez", "slots": 1, "started_at": 0.0,
        "ended_at": 9.0, "held_s": 9.0, "tasks": 2, "shots": 300, "usage_s": None, "cost": 3.2, "currency": "USD",
    }  # fmt: skip
    daemon.routes["GET /usage"] = {"usage": [row]}
    head, first = table(qtandem("usage", "--user", "ann", "--since", "1d").out)
    assert first[head.index("shots")] == "300"
    assert first[head.index("cost")] == "3.2 USD"
    assert first[head.index("qpu_s")] == "-"
    assert set(daemon.calls[0].query) == {"user", "since"}
    assert qtandem("usage", "--since", "someday").status == 2


def test_leases_and_claims(daemon, qtandem):
    claim = {"id": "c-1", "name": "chain", "uid": 0, "expires_at": 10.0, "leases": [lease()]}
    daemon.routes["GET /leases"] = {"leases": [lease()]}
    daemon.routes["GET /claims"] = {"claims": [claim]}
    daemon.routes["POST /claims"] = claim
    daemon.routes["DELETE /claims/*"] = {}
    assert table(qtandem("leases").out)[1][:4] == ["l-1", "fez", "1", "held"]
    assert table(qtandem("claim", "list").out)[1][:3] == ["c-1", "chain", "fez:1 held"]
    assert qtandem("claim", "make", "fez:2", "--ttl", "40m", "--name", "chain").out == "c-1\n"
    assert daemon.called("POST", "/claims")[0].body == {"request": "fez:2", "name": "chain", "ttl_s": 2400.0}
    assert qtandem("claim", "end", "c-1").status == 0
    assert qtandem("claim", "make", "fez", "--ttl", "soon").status == 2


def test_daemon_status(daemon, qtandem):
    health = {"healthy": True, "version": "1", "at": 0, "publishers": {"slurm": "ok"}, "workers": 1, "leases_open": 2}
    daemon.routes["GET /healthz"] = {**health, "problems": []}
    assert "healthy" in qtandem("daemon", "status").out
    daemon.routes["GET /healthz"] = {**health, "healthy": False, "problems": ["slurmdbd is away"]}
    ran = qtandem("daemon", "status")
    assert ran.status == 5
    assert "slurmdbd is away" in ran.out


def test_an_error_from_the_daemon_keeps_its_words(daemon, qtandem):
    daemon.routes["GET /leases"] = refuse("vendor-timeout", "fez did not answer", cause="30 s", retry_after=15.0)
    ran = qtandem("leases")
    assert ran.status == 6
    assert ran.err.splitlines() == [
        "qtandem: fez did not answer [vendor-timeout]",
        "  cause: 30 s",
        "  Try again shortly; what qtandem does by itself, it tries again.",
        "  try again in 15 s",
    ]


def test_ctrl_c_stops_the_task_and_is_status_130(daemon, bell):
    waiting = threading.Event()

    def wait(call):
        waiting.set()
        threading.Event().wait(30)

    daemon.routes["POST /tasks"] = task("queued")
    daemon.routes["GET /tasks/*"] = wait
    daemon.routes["POST /tasks/*/stop"] = task("cancelled")
    process = subprocess.Popen([*QTANDEM, "task", "run", bell], env=environ(), stderr=subprocess.PIPE)
    assert waiting.wait(20)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, b"")
    assert daemon.called("POST", "/tasks/*/stop")


def test_a_reader_that_goes_away_is_no_noise(daemon):
    daemon.routes["GET /tasks/*/logs"] = {"text": "line\n" * 200_000}
    process = subprocess.Popen(
        [*QTANDEM, "task", "logs", "t"], env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(20) == 141


def test_a_terminal_gets_an_aligned_table(daemon):
    daemon.routes["GET /leases"] = {"leases": [lease()]}
    master, slave = pty.openpty()
    process = subprocess.Popen([*QTANDEM, "leases"], env=environ(TERM="dumb"), stdout=slave, stderr=slave)
    os.close(slave)
    assert process.wait(20) == 0
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert "OWNER" in shown
    assert "\t" not in shown


def test_help_imports_nothing_heavy():
    script = (
        "import sys; from qtandem.daemons import cli; cli.run(['--help']); "
        "print([m for m in ('pydantic', 'aiohttp', 'sqlalchemy', 'cryptography') if m in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], env=environ(), capture_output=True, text=True, check=True)
    assert ran.stderr.strip() == "[]"


def test_env_of_a_claim_by_name_and_in_a_job_that_was_given_it(daemon, qtandem, monkeypatch):
    daemon.routes["GET /claims/*/environment"] = {"run": "", "uid": 0, "env": {"A": "1"}}
    assert qtandem("env", "claim:c1").out == "export A=1\n"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("QTANDEM_CLAIM", "c2")
    assert qtandem("env").out == "export A=1\n"
    assert [call.path for call in daemon.calls] == ["/claims/c1/environment", "/claims/c2/environment"]


def test_ids_stay_whole_where_the_terminal_is_narrow(capsys):
    from qtandem.daemons.commands.output import print_table

    id, run, reason = "i" * 90, "slurm:lab:" + "4" * 80, "the vendor said no " * 9
    print_table(["ID", "RUN", "REASON"], [[id, run, reason]], aligned=True)
    first = capsys.readouterr().out.splitlines()[1]
    assert first.split()[:2] == [id, run]
    assert len(first) < 210
