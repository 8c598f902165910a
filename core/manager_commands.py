"""A manager's commands: where they are, their environment, and which of their failures mean no answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qtandem.core import commands
from qtandem.core.commands import CommandError, Result
from qtandem.core.errors import QtandemError
from qtandem.core.processes import Start, start_child

TIMEOUT_S = 20.0


class ManagerCommands:
    """Runs commands of one manager.

    `bin_dir`: where they are, PATH if empty. `unreachable`: pieces of what they print, in lower case, which say that
    the manager gave no answer. `start` starts the processes of `run`, children of this one if nothing else is said.
    """

    def __init__(
        self, bin_dir: str, env: Mapping[str, str], unreachable: tuple[str, ...], start: Start = start_child
    ) -> None:
        self._bin_dir, self._env, self._unreachable, self._start = bin_dir, dict(env), unreachable, start

    def argv(self, program: str, *arguments: str) -> list[str]:
        return [str(Path(self._bin_dir) / program) if self._bin_dir else program, *arguments]

    async def run(self, program: str, *arguments: str, stdin: str | None = None, check: bool = True) -> Result:
        """What it printed. Raises `manager-unreachable` if the manager gives no answer, `command-failed` if it refuses.

        With `check` false a refusal is a result with its exit status.
        """
        argv = self.argv(program, *arguments)
        try:
            done = await commands.run(
                argv, timeout_s=TIMEOUT_S, env=self._env, stdin=stdin, check=check, start=self._start
            )
        except CommandError as error:
            raise self._understood(error) from error
        return self._answered(done)

    def run_sync(self, program: str, *arguments: str, stdin: str | None = None, check: bool = True) -> Result:
        """As `run`, for callers without an event loop; always a child of this process."""
        argv = self.argv(program, *arguments)
        try:
            done = commands.run_sync(argv, timeout_s=TIMEOUT_S, env=self._env, stdin=stdin, check=check)
        except CommandError as error:
            raise self._understood(error) from error
        return self._answered(done)

    def _answered(self, done: Result) -> Result:
        if done.exit != 0 and self._silent(done.stderr):
            message = f"{Path(done.argv[0]).name} had no answer"
            raise QtandemError("manager-unreachable", message, cause=done.stderr.strip() or None)
        return done

    def _understood(self, error: CommandError) -> QtandemError:
        if error.exit is None or self._silent(f"{error.stderr} {error.stdout}"):
            return QtandemError("manager-unreachable", error.message, cause=error.cause)
        return error

    def _silent(self, said: str) -> bool:
        return any(words in said.lower() for words in self._unreachable)
