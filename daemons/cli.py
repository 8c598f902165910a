"""The command `qtandem`: the composition root of what people type.

Exit codes: 0, those of `core/errors.py`, 2 for a wrong command line, 130 after Ctrl-C.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from qtandem.core.errors import QtandemError
from qtandem.daemons.commands import (
    claim,
    config,
    credentials,
    daemon,
    demo,
    env,
    explain,
    install,
    leases,
    plan,
    relay,
    resources,
    task,
    usage,
)
from qtandem.daemons.commands.options import OrderedGroup

app = typer.Typer(
    name="qtandem",
    cls=OrderedGroup,
    help="Quantum processors as resources of the workload manager.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("resources")(resources.resources)
app.command("explain")(explain.explain)
app.add_typer(task.app, name="task")
app.command("env")(env.env)
app.command("usage")(usage.usage)
app.command("leases")(leases.leases)
app.add_typer(claim.app, name="claim")
app.add_typer(credentials.app, name="credentials")
app.add_typer(config.app, name="config")
app.command("install")(install.install)
app.command("uninstall")(install.uninstall)
app.command("doctor")(install.doctor)
app.add_typer(relay.app, name="relay")
app.add_typer(daemon.app, name="daemon")
app.add_typer(plan.app, name="plan")
app.command("demo")(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"qtandem {version('qtandem')}")
        except PackageNotFoundError:
            print("qtandem (not installed)")
        raise typer.Exit


@app.callback()
def _everywhere(
    socket: Annotated[
        str, typer.Option(metavar="PATH", help="The daemon's socket; default: QTANDEM_SOCKET, else the site's.")
    ] = "",
    _shown: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if socket:
        os.environ["QTANDEM_SOCKET"] = socket


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The command `qtandem`; ends the process."""
    signal.signal(signal.SIGINT, _interrupted)
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit status; what goes wrong is said on stderr."""
    stdout = sys.stdout
    try:
        app(list(argv), prog_name="qtandem")
    except SystemExit as end:
        # Typer has put a wrapper in its place if it met a pipe without a reader.
        return _flushed(end.code) if sys.stdout is stdout else _pipe_closed()
    except QtandemError as error:
        print_error(error)
        return error.kind.exit_code
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        return _pipe_closed()
    return 0


def print_error(error: QtandemError) -> None:
    """Say an error on stderr, the remedy below it."""
    first, *others = error.lines()
    print("\n".join([f"qtandem: {first}", *(f"  {line}" for line in others if line)]), file=sys.stderr)


def _flushed(code: object) -> int:
    try:
        sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        return _pipe_closed()
    return code if isinstance(code, int) else 0 if code is None else 1


def _pipe_closed() -> int:
    """Whoever read our output has gone: end without a word, as other tools do."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 128 + signal.SIGPIPE


def _interrupted(number: int, frame: object) -> None:  # noqa: ARG001
    raise SystemExit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
