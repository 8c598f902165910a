"""Manual pages from the commands, the command lines' parsers, and the models of the configuration."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel
from reference import sections

from qtandem.core import requests
from qtandem.core.errors import EXIT_BUG, EXIT_LATER, EXIT_REFUSED, EXIT_SITE, EXIT_USAGE, EXIT_VENDOR
from qtandem.core.settings import Settings
from qtandem.daemons import cli, deadman, launcher, qtandemd, relay
from qtandem.daemons.commands.options import verb_order

EXITS = {
    0: "Done.",
    EXIT_BUG: "A fault in qtandem.",
    EXIT_USAGE: "The command line, a request or a payload cannot be read.",
    EXIT_REFUSED: "Refused: not there, not allowed, or impossible.",
    EXIT_LATER: "Not now: try again.",
    EXIT_SITE: "The site's configuration or installation is at fault.",
    EXIT_VENDOR: "The vendor failed, or the task did.",
    130: "Interrupted.",
}
# Options that most verbs have, told once.
COMMON = {"json": "--json", "config": "--config FILE"}
OPTIONS = {
    "--socket PATH": "The daemon's socket; default: QTANDEM_SOCKET, else the site's.",
    "--version": "Show the version and exit.",
    "-h, --help": "Of the command or of a verb.",
    "--install-completion, --show-completion": "Completion of verbs and options for the shell that calls: install it "
    "for this user, or print it.",
    COMMON["json"]: "With a verb: print JSON.",
    COMMON["config"]: "With a verb that reads the configuration: another file than the site's.",
}
VARIABLES = {
    "QTANDEM_SOCKET": "The daemon's socket.",
    "QTANDEM_CONFIG": "Configuration file for tools that users call; hooks and services do not read it.",
    "QTANDEM_RUN": "The run that a job is, set in the job.",
    "QRMI_JOB_QPU_RESOURCES, QRMI_JOB_QPU_TYPES": "Names and types of the job's QPUs, set in the job.",
}
FILES = {
    "/etc/qtandem/qtandem.toml": "The site's configuration; without root ~/.config/qtandem/qtandem.toml.",
    "/etc/qtandem/qrmi_config.json": "QRMI's configuration, read if it is there.",
    "/etc/qtandem/master.key": "The key that encrypts tokens at rest; made when it is missing.",
    "/etc/qtandem/tls": "Certificates of daemon and relay.",
    "/var/lib/qtandem/qtandem.db": "Leases, runs and accounting.",
    "/run/qtandem/qtandem.sock": "Where hooks, jobs and tools reach the daemon or the relay.",
}


def commands() -> Iterator[str]:
    yield from _head("qtandem", 1, "quantum processors as resources of the workload manager")
    yield from [".SH SYNOPSIS", r".B qtandem", r"[\fB\-\-socket\fR \fIPATH\fR] \fIVERB\fR [\fIOPTION\fR ...]"]
    yield ".SH DESCRIPTION"
    yield from _text(
        "Shows QPUs and the jobs that wait for them, executes tasks on a lease that is held, and looks after the "
        "daemon. Every verb asks the daemon over its socket. Tables go to a terminal, tab-separated lines elsewhere."
    )
    yield from _list("OPTIONS", OPTIONS)
    yield ".SH VERBS"
    for path, function in _functions(cli.app):
        yield from _verb(path, function)
    yield ".SH REQUESTS"
    yield "What\n.B \\-\\-qpu\ntakes:\n.PP\n.nf"
    yield from (_escape(line) for line in inspect.cleandoc(requests.__doc__ or "").splitlines()[2:5])
    yield ".fi\n.PP"
    yield from _text("Keys and their one direction:")
    for key, (direction, _) in requests._KEYS.items():
        yield f".br\n.B {_escape(key)}\n{_escape(direction)}"
    yield ".PP"
    yield from _text(f"by ranks what would do: {', '.join(requests.RANKINGS)}.")
    yield from _exits(*EXITS)
    yield from _list("ENVIRONMENT", VARIABLES)
    yield from _list("FILES", FILES)
    yield from _see("qtandemd(8)", "qtandem-relay(8)", "qtandem.toml(5)")


def daemon() -> Iterator[str]:
    yield from _service(
        "qtandemd",
        "the daemon of qtandem",
        qtandemd.parser(),
        "Watches the configured QPUs, keeps the sensors of the workload managers as the QPUs are, gives verdicts on "
        "jobs, reserves, acquires and releases, and executes tasks. One a site, on a service node, as the user "
        "qtandem. Logs are JSON lines on standard error.",
        {
            "SIGHUP": "Read the configuration again; a wrong one is refused and the last good one stays in force.",
            "SIGTERM, SIGINT": "Stop. Leases stay as they are; the next start takes them up.",
        },
    )
    yield from _see("qtandem(1)", "qtandem-relay(8)", "qtandem.toml(5)")


def relaying() -> Iterator[str]:
    yield from _service(
        "qtandem-relay",
        "the daemon's socket on every other host",
        relay.parser(),
        "Passes calls of local hooks, jobs and tools on to qtandemd over mutual TLS, and vouches for the uid of the "
        "caller that the kernel told. Keeps the names of the QPUs and the daemon's heartbeat as files for submit "
        "hooks and the dead-man. Enrol the host first: qtandem relay enrol.",
        {"SIGHUP": "Read the certificate again.", "SIGTERM, SIGINT": "Stop."},
    )
    yield from _see("qtandem(1)", "qtandemd(8)", "qtandem.toml(5)")


def closing() -> Iterator[str]:
    yield from _service(
        "qtandem-deadman",
        "closes the sensors of a workload manager while qtandemd is silent",
        deadman.parser(),
        "Runs on the host of the manager. When it has seen no heartbeat for timing.deadman_s it closes all QPUs there, "
        "and keeps at it until the manager has confirmed. It needs neither daemon nor relay for that, never opens, and "
        "touches no running job. Usually started by the timer qtandem-deadman@MANAGER.timer, or with --once by cron.",
        {"SIGTERM, SIGINT": "Stop."},
        EXIT_LATER,
    )
    yield from _see("qtandem(1)", "qtandemd(8)", "qtandem.toml(5)")


def launching() -> Iterator[str]:
    yield from _service(
        "qtandem-launcher",
        "starts the workers and the managers' commands of qtandemd under users of their own",
        launcher.parser(),
        "The one part of qtandem that stays root, on the daemon's host, where daemon.launcher is set. It answers the "
        "user qtandem alone, and starts only what /etc/qtandem/launcher.toml says; qtandem install MANAGER --apply "
        "writes that file, and trust.md has its keys. It is read at the start.",
        {"SIGTERM": "Stop. What it has started goes on."},
    )
    yield from _see("qtandem(1)", "qtandemd(8)", "qtandem.toml(5)")


def configuration() -> Iterator[str]:
    yield from _head("qtandem.toml", 5, "configuration of qtandem")
    yield ".SH DESCRIPTION"
    yield from _text(
        "What QRMI's qrmi_config.json has no place for. TOML; unknown keys are refused. Secrets are named by file, "
        "never written here. Start from: qtandem config example. Check with: qtandem config check."
    )
    for path, model, rows in sections("", Settings):
        yield f".SH {_escape(f'[{path}]' if path else 'TOP LEVEL').upper() if not path else _escape(f'[{path}]')}"
        yield from _text(_summary(model) if path else "")
        for row in rows:
            yield f".TP\n.B {_escape(row.key)}"
            default = f" Default: {row.default}." if row.default not in ("", "none", '""') else ""
            meaning = row.meaning[:1].upper() + row.meaning[1:]
            yield _escape(f"{meaning}.{default}")
    yield from _list("FILES", FILES)
    yield from _see("qtandem(1)", "qtandemd(8)")


def _summary(model: type[BaseModel]) -> str:
    return inspect.cleandoc(model.__doc__ or "")


def _functions(app: typer.Typer, path: str = "") -> Iterator[tuple[str, Callable[..., object]]]:
    """Every verb with its function, in the order of the help."""
    found: list[tuple[str, Any]] = []
    for command in app.registered_commands:
        assert command.callback is not None
        found.append((command.name or command.callback.__name__, command.callback))
    for group in app.registered_groups:
        found.append((str(group.name), group.typer_instance))
    for name, each in sorted(found, key=lambda pair: 0 if path else verb_order(pair[0])):
        if isinstance(each, typer.Typer):
            own = each.registered_callback
            if own is not None and own.invoke_without_command and own.callback is not None:
                yield f"{path}{name}", own.callback
            yield from _functions(each, f"{path}{name} ")
        else:
            yield f"{path}{name}", each


def _verb(path: str, function: Callable[..., object]) -> Iterator[str]:
    hints = get_type_hints(function, include_extras=True)
    arguments: list[tuple[str, str]] = []
    options: list[tuple[str, str]] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if hints[name] is typer.Context:
            continue
        kind, info = _annotated(hints[name])
        if isinstance(info, typer.models.ArgumentInfo):
            shown = info.metavar or name.upper()
            arguments.append((shown, info.help or ""))
        elif name not in COMMON:
            options.append((_option(name, kind, info, parameter.default), info.help or ""))
    words = [rf"\fB{_escape('qtandem ' + path)}\fR", r"[\fIOPTION\fR ...]" if options else ""]
    words += [rf"\fI{_escape(shown)}\fR" for shown, _ in arguments]
    yield ".SS " + " ".join(filter(None, words))
    yield from _text(inspect.cleandoc(function.__doc__ or ""))
    for shown, help in [*arguments, *options]:
        if help:
            yield f".TP\n.B {_escape(shown)}\n{_escape(help)}"


def _annotated(hint: Any) -> tuple[Any, Any]:
    assert get_origin(hint) is Annotated
    kind, info, *_ = get_args(hint)
    return kind, info


def _option(name: str, kind: Any, info: Any, default: object) -> str:
    declared = list(info.param_decls or ())
    dashed = f"--{name.replace('_', '-')}"
    if kind is bool:
        return ", ".join(declared) if declared else f"{dashed}, --no-{dashed[2:]}" if default else dashed
    return f"{', '.join(declared) or dashed} {info.metavar or name.upper()}"


def _service(
    name: str, what: str, parser: argparse.ArgumentParser, text: str, signals: dict[str, str], *exits: int
) -> Iterator[str]:
    yield from _head(name, 8, what)
    yield from [".SH SYNOPSIS", rf".B {_escape(name)}"]
    for action in parser._actions:
        if action.dest != "help":
            words = rf"\fB{_escape(action.option_strings[0])}\fR"
            words += "" if action.nargs == 0 else rf" \fI{_metavar(action)}\fR"
            yield words if action.required else f"[{words}]"
    yield ".SH DESCRIPTION"
    yield from _text(text)
    yield ".SH OPTIONS"
    for action in parser._actions:
        if action.dest != "help":
            value = "" if action.nargs == 0 else f" {_metavar(action)}"
            yield f".TP\n.B {_escape(', '.join(action.option_strings))}{value}\n{_escape(action.help or '')}"
    yield from _list("SIGNALS", signals)
    yield from _exits(*sorted({0, EXIT_BUG, EXIT_USAGE, EXIT_SITE, *exits}))
    yield from _list("FILES", FILES)


def _metavar(action: argparse.Action) -> str:
    return str(action.metavar or action.dest.upper())


def _exits(*codes: int) -> Iterator[str]:
    yield from _list("EXIT STATUS", {str(code): EXITS[code] for code in codes})


def _head(name: str, section: int, what: str) -> Iterator[str]:
    yield r".\" generated by docs/generate.py; edit the source that it reads"
    yield f'.TH {name.upper()} {section} "" "qtandem" ""'
    yield f".SH NAME\n{_escape(name)} \\- {_escape(what)}"


def _list(title: str, entries: dict[str, str]) -> Iterator[str]:
    yield f".SH {title}"
    for name, meaning in entries.items():
        yield f".TP\n.B {_escape(name)}\n{_escape(meaning)}"


def _see(*pages: str) -> Iterator[str]:
    yield ".SH SEE ALSO"
    yield ",\n".join(f".BR {_escape(page.partition('(')[0])} ({page.partition('(')[2]}" for page in pages).replace(
        "),\n", ") ,\n"
    )


def _text(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        if paragraph.strip():
            yield f"{_escape(' '.join(paragraph.split()))}\n.PP"


def _escape(text: str) -> str:
    """Text that roff shows as it is."""
    shown = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{shown}" if shown.startswith((".", "'")) else shown
