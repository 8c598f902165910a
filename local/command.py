"""The queue of one machine from a shell: `python -m qtandem.local.command run|submit|list|wait|cancel|hold|release`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from qtandem.core.client.transport import Daemon
from qtandem.core.errors import QtandemError
from qtandem.local.gate import Gate
from qtandem.local.manager import CLUSTER, default_folder, prepared
from qtandem.local.queue import LocalQueue
from qtandem.local.runner import Runner
from qtandem.local.store import Row, State


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.action(arguments))
    except QtandemError as error:
        print("qtandem-local: " + "\n  ".join(error.lines()), file=sys.stderr)
        return error.kind.exit_code
    except KeyboardInterrupt:
        return 130


def _run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder = prepared(arguments.state_dir)
    runner = Runner(folder, Gate(Daemon(arguments.socket), arguments.cluster), limit=arguments.limit)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, runner.stop)
        await runner.run()

    asyncio.run(serve())
    return 0


def _submit(arguments: argparse.Namespace) -> int:
    if not arguments.command:
        raise QtandemError(
            "bad-request", "No script is named", remedy="Write: submit [--qpu REQUEST] SCRIPT [ARGUMENT ...]"
        )
    script = Path(arguments.command[0])
    if not script.exists() and shutil.which(script) is None:
        raise QtandemError("bad-request", f"{script} is no file here and no command in PATH", remedy="Mend the path.")
    direct = os.access(script, os.X_OK) or not script.exists()
    command = [*([] if direct else ["/bin/sh"]), *([str(script.absolute())] if script.exists() else [str(script)])]
    queue = _queue(arguments)
    job = queue.submit(
        [*command, *arguments.command[1:]],
        arguments.qpu,
        name=arguments.name or script.name,
        account=arguments.account,
        output=arguments.output,
        time_limit_s=arguments.time,
        can_requeue=not arguments.no_requeue,
    )
    print(queue.full_id(job))
    return _ended(queue.wait(job)) if arguments.wait else 0


def _list(arguments: argparse.Namespace) -> int:
    for row in _queue(arguments).jobs():
        if arguments.all or not row.state.final:
            print(f"{row.id}\t{row.name}\t{row.user}\t{row.native or '-'}\t{row.state}\t{row.reason}")
    return 0


def _wait(arguments: argparse.Namespace) -> int:
    queue = _queue(arguments)
    return max(_ended(queue.wait(job)) for job in arguments.job)


def _each(verb: str) -> object:
    def act(arguments: argparse.Namespace) -> int:
        queue = _queue(arguments)
        for job in arguments.job:
            getattr(queue, verb)(job)
        return 0

    return act


def _ended(row: Row) -> int:
    return 0 if row.state is State.COMPLETED else 1


def _queue(arguments: argparse.Namespace) -> LocalQueue:
    return LocalQueue(arguments.state_dir, arguments.cluster, daemon=Daemon(arguments.socket))


def _job(text: str) -> int:
    """The number in `7` or `local:CLUSTER:7`."""
    number = text.rpartition(":")[2]
    if not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a job id")
    return int(number)


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--state-dir", type=Path, default=default_folder(), help="the queue's folder")
    common.add_argument("--cluster", default=CLUSTER)
    common.add_argument("--socket", type=Path, default=None, help="the daemon's socket")
    parser = argparse.ArgumentParser(prog="qtandem-local", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    run = verbs.add_parser("run", parents=[common], help="run jobs until SIGTERM")
    run.add_argument("--limit", type=int, default=None, help="most jobs at once")
    run.set_defaults(action=_run)

    submit = verbs.add_parser("submit", parents=[common], help="queue a script and print its job id")
    submit.add_argument("--qpu", default="", metavar="REQUEST", help="for example ibm_fez or any:qubits=100")
    submit.add_argument("--name", default="")
    submit.add_argument("--account", default=None)
    submit.add_argument("--output", type=Path, default=None, help="file for stdout and stderr; %%j is the job id")
    submit.add_argument("--time", type=int, default=None, metavar="SECONDS", help="time limit")
    submit.add_argument("--no-requeue", action="store_true")
    submit.add_argument("--wait", action="store_true", help="return when the job has ended, 1 if it failed")
    submit.add_argument("command", nargs=argparse.REMAINDER, metavar="SCRIPT [ARGUMENT ...]")
    submit.set_defaults(action=_submit)

    listing = verbs.add_parser("list", parents=[common], help="jobs: id, name, user, QPUs, state, reason")
    listing.add_argument("--all", action="store_true", help="ended ones too")
    listing.set_defaults(action=_list)

    actions = {"cancel": "end jobs", "hold": "keep pending jobs from starting", "release": "let held jobs start"}
    for verb, text in actions.items():
        sub = verbs.add_parser(verb, parents=[common], help=text)
        sub.add_argument("job", type=_job, nargs="+")
        sub.set_defaults(action=_each(verb))
    wait = verbs.add_parser("wait", parents=[common], help="until the jobs have ended; 1 if one failed")
    wait.add_argument("job", type=_job, nargs="+")
    wait.set_defaults(action=_wait)
    return parser


if __name__ == "__main__":
    sys.exit(main())
