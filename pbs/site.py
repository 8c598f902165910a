"""What a PBS says of its own set-up: pbs.conf, sched_config, and the lists of qmgr. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from qtandem.core.hosts import among

CONF = Path("/etc/pbs.conf")
_LINE = re.compile(r'\s*resources\s*:\s*"([^"]*)"')


def conf(path: Path) -> dict[str, str]:
    """`NAME=value` lines of pbs.conf; empty where there is none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.strip().partition("=") for line in lines if not line.lstrip().startswith("#"))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def scheduled(sched_config: str) -> tuple[str, ...]:
    """The resources that the scheduler looks at."""
    for line in sched_config.splitlines():
        match = _LINE.match(line)
        if match:
            return tuple(part.strip() for part in match[1].split(",") if part.strip())
    return ()


def scheduled_line(sched_config: str, more: Iterable[str]) -> str:
    """The line for sched_config that has the resources of the present one, and ours."""
    have = list(scheduled(sched_config))
    return f'resources: "{", ".join([*have, *(name for name in more if name not in have)])}"'


def listed(text: str, kind: str) -> dict[str, dict[str, str]]:
    """The objects in qmgr's `list KIND`: `Hook NAME` or `Resource NAME` with indented `key = value` lines."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == kind and not line[:1].isspace():
            current = found.setdefault(words[1], {})
        elif " = " in line:
            key, _, value = line.strip().partition(" = ")
            current[key] = value.strip().strip('"')
        elif line.startswith("\t"):
            # A long value goes on in the next line.
            current[next(reversed(current), "")] = current.get(next(reversed(current), ""), "") + line.strip()
    return found


def words(text: str) -> set[str]:
    """The items of a quoted comma list."""
    return {part.strip() for part in text.strip('"').split(",") if part.strip()}


def is_server(settings: Mapping[str, str], control_hosts: Iterable[str], host: str) -> bool:
    """Whether pbs_server runs on this host, by pbs.conf or by the configuration's control_hosts."""
    known = [settings.get(key, "") for key in ("PBS_SERVER", "PBS_PRIMARY", "PBS_SECONDARY", "PBS_SERVER_HOST_NAME")]
    return among(host, (*known, *control_hosts))
