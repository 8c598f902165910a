"""The systemd units: what systemd itself says of them, and what the programs tell it."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from qtandem.daemons import launcher

ROOT = Path(__file__).parents[3]
UNITS = ROOT / "daemons" / "systemd"
SERVICES = {
    "qtandemd.service": "qtandem",
    "qtandem-relay.service": "qtandem",
    "qtandem-deadman@.service": "qtandem-publisher",
}
# The most that `systemd-analyze security` may say of each (0 safe, 10 open).
EXPOSURE = {
    "qtandemd.service": 1.8,
    "qtandem-relay.service": 1.6,
    "qtandem-deadman@.service": 1.7,
    "qtandem-launcher.service": 2.6,
    "qtandem-key.service": 1.3,
}


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on this machine")
    return found


def unit(name: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(UNITS / name)
    return parser


def laid_out(tmp_path: Path) -> list[Path]:
    """The units as systemd would find them. The commands need not be installed for the units to be right."""
    stand_in = shutil.which("true")
    places = []
    for path in [*UNITS.glob("*.service"), *UNITS.glob("*.socket"), *UNITS.glob("*.timer")]:
        place = tmp_path / path.name.replace("@.", "@slurm.")
        place.write_text(re.sub("^(Exec[A-Za-z]+=[+]?)[^ \n]+", rf"\1{stand_in}", path.read_text(), flags=re.MULTILINE))
        places.append(place)
    return places


def test_systemd_finds_no_fault_in_the_units(tmp_path):
    analyze = tool("systemd-analyze")
    names = [str(place) for place in laid_out(tmp_path)]
    result = subprocess.run([analyze, "verify", "--man=no", *names], capture_output=True, text=True, timeout=30)
    said = [line for line in result.stderr.splitlines() if str(tmp_path) in line or "qtandem" in line]
    assert said == []
    assert len(names) == 7


@pytest.mark.parametrize("name", EXPOSURE)
def test_no_unit_is_more_exposed_than_it_was(tmp_path, name, record_property):
    analyze = tool("systemd-analyze")
    laid_out(tmp_path)
    place = tmp_path / name.replace("@.", "@slurm.")
    line = [analyze, "security", "--offline=true", "--no-pager", str(place)]
    result = subprocess.run(line, capture_output=True, text=True, timeout=30)
    if "unrecognized option" in result.stderr:
        pytest.skip("this systemd-analyze has no --offline (it came with 250)")
    found = re.search(r"exposure level for \S+: ([\d.]+)", result.stdout)
    assert found, result.stdout + result.stderr
    record_property("exposure", found[1])
    assert float(found[1]) <= EXPOSURE[name]


def test_systemd_can_make_the_users(tmp_path):
    sysusers = tool("systemd-sysusers")
    line = [sysusers, "--dry-run", f"--root={tmp_path}", str(UNITS / "sysusers.d" / "qtandem.conf")]
    result = subprocess.run(line, capture_output=True, text=True, timeout=30)
    assert result.returncode == 0, result.stderr
    for user in ("qtandem", "qtandem-worker", "qtandem-publisher"):
        assert f"Creating user '{user}'" in result.stdout + result.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_watched_restarted_and_unprivileged(name):
    service = unit(name)["Service"]
    assert service["Type"] == "notify"
    assert service["WatchdogSec"]
    assert service["Restart"] == "always"
    assert service["User"] == SERVICES[name]
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"


def test_units_start_commands_that_the_package_has():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    commands = {unit(path.name)["Service"]["ExecStart"].split()[0] for path in UNITS.glob("*.service")}
    assert {Path(command).name for command in commands} <= set(scripts)


def test_the_launchers_socket_is_the_daemons_alone_and_its_default():
    listening = unit("qtandem-launcher.socket")["Socket"]
    assert (listening["SocketUser"], listening["SocketGroup"], listening["SocketMode"]) == ("root", "qtandem", "0660")
    assert listening["ListenSequentialPacket"] == str(launcher.SOCKET)


def test_key_and_secrets_are_handed_over_and_hidden_from_what_the_launcher_starts():
    text = (UNITS / "qtandemd.service").read_text()
    handed = dict(re.findall(r"^LoadCredential=(\S+?):(\S+)$", text, re.MULTILINE))
    assert handed == {"master.key": "/etc/qtandem/master.key", "secrets": "/etc/qtandem/secrets"}
    hidden = unit("qtandem-launcher.service")["Service"]["InaccessiblePaths"].split()
    assert {f"-{path}" for path in handed.values()} <= set(hidden)


def test_the_master_key_is_made_once(tmp_path):
    (tmp_path / "qtandem.toml").write_text(f'[daemon]\nmaster_key = "{tmp_path}/master.key"\n')
    line = [sys.executable, "-m", "qtandem.daemons.qtandemd", "--config", f"{tmp_path}/qtandem.toml", "--make-key"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".dev")}
    subprocess.run(line, env=environment, check=True, timeout=30)
    made = (tmp_path / "master.key").read_bytes()
    assert (tmp_path / "master.key").stat().st_mode & 0o777 == 0o600
    subprocess.run(line, env=environment, check=True, timeout=30)
    assert (tmp_path / "master.key").read_bytes() == made
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("qtandem.")] == ["qtandem.toml"]


def test_the_runtime_directory_keeps_what_root_puts_there():
    rows = [line.split() for line in (UNITS / "tmpfiles.d" / "qtandem.conf").read_text().splitlines()]
    modes = {row[1]: row[2:5] for row in rows if row[0] == "d"}
    assert modes["/run/qtandem"] == ["1775", "root", "qtandem"]
    assert modes["/run/qtandem/runs"] == ["0711", "root", "root"]
    assert modes["/etc/qtandem/secrets"] == ["0700", "root", "root"]


@pytest.fixture
def listening(tmp_path):
    """A service manager's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(20)
        yield listener


def heard(listener: socket.socket, wanted: str) -> None:
    while wanted not in listener.recv(4096).decode():
        pass


def start(tmp_path, module: str, *options: str) -> subprocess.Popen[bytes]:
    (tmp_path / "qtandem.toml").write_text(
        f'[daemon]\nsocket = "{tmp_path}/q.sock"\nruntime_dir = "{tmp_path}"\ntls_dir = "{tmp_path}/tls"\n'
        f'qrmi_config = "{tmp_path}/none.json"\n[relay]\nserver = "127.0.0.1:9"\n'
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / ".dev"),
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "200000",
    }
    environment.pop("WATCHDOG_PID", None)
    line = [sys.executable, "-m", f"qtandem.daemons.{module}", "--config", f"{tmp_path}/qtandem.toml", *options]
    return subprocess.Popen(line, env=environment, stderr=subprocess.PIPE)


def test_the_relay_is_ready_alive_and_ends_on_sigterm(tmp_path, listening):
    process = start(tmp_path, "relay")
    try:
        heard(listening, "READY=1")
        assert (tmp_path / "q.sock").is_socket()
        heard(listening, "WATCHDOG=1")
        heard(listening, "WATCHDOG=1")
        process.send_signal(signal.SIGHUP)
        heard(listening, "WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        heard(listening, "STOPPING=1")
        assert process.wait(10) == 0
        assert not (tmp_path / "q.sock").exists()
    finally:
        process.kill()
        process.communicate()


def test_a_second_relay_leaves_the_first_its_socket(tmp_path, listening):
    first = start(tmp_path, "relay")
    try:
        heard(listening, "READY=1")
        second = start(tmp_path, "relay")
        _, error = second.communicate(timeout=20)
        assert second.returncode != 0
        assert b"already listens" in error
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(tmp_path / "q.sock"))
    finally:
        first.kill()
        first.communicate()


def test_a_killed_relay_leaves_nothing_in_the_way_of_the_next(tmp_path, listening):
    first = start(tmp_path, "relay")
    heard(listening, "READY=1")
    first.kill()
    first.communicate()
    assert (tmp_path / "q.sock").is_socket()
    second = start(tmp_path, "relay")
    try:
        heard(listening, "READY=1")
    finally:
        second.terminate()
        second.communicate(timeout=20)


def test_a_relay_stops_in_time_with_a_call_under_way(tmp_path, listening):
    process = start(tmp_path, "relay")
    try:
        heard(listening, "READY=1")
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(tmp_path / "q.sock"))
            caller.sendall(b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
            began = time.monotonic()
            process.terminate()
            assert process.wait(20) == 0
        assert time.monotonic() - began < 8
    finally:
        process.kill()
        process.communicate()


def test_a_host_without_a_server_is_told_which_key_to_set(tmp_path):
    (tmp_path / "qtandem.toml").write_text(f'[daemon]\nqrmi_config = "{tmp_path}/none.json"\n')
    line = [sys.executable, "-m", "qtandem.daemons.relay", "--config", f"{tmp_path}/qtandem.toml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".dev")}
    result = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=30)
    assert result.returncode == 5
    assert "relay.server" in result.stderr


def test_the_dead_man_is_ready_and_alive(tmp_path, listening):
    process = start(tmp_path, "deadman", "--manager", "slurm")
    try:
        heard(listening, "READY=1")
        heard(listening, "WATCHDOG=1")
        process.terminate()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()
