"""What LSF says of its jobs, by `bjobs`: in JSON where it has that, else by two texts that must fit each other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence

from qtandem.core.commands import CommandError, Result
from qtandem.core.manager_commands import ManagerCommands
from qtandem.lsf import records
from qtandem.lsf.records import Record

IDS_A_CALL = 200
# A job may come, go or change between two questions.
TRIES = 3
_NONE_FOUND = ("no unfinished job found", "no job found", "is not found", "no matching job found")
_NO_JSON = ("illegal option", "invalid option", "unknown option", "usage: bjobs")

Ask = Callable[[Sequence[str]], Awaitable[list[Record]]]


class Jobs:
    """Asks with `client`. Each method raises `manager-unreachable` where LSF gives no answer."""

    def __init__(self, client: ManagerCommands) -> None:
        self._client = client
        self._json: bool | None = None

    async def unfinished(self) -> list[Record]:
        """All jobs that are not over."""
        return await self._ask(())

    async def of(self, numbers: Sequence[str]) -> list[Record]:
        """The jobs (or all elements of the arrays) with these numbers that LSF knows."""
        found: list[Record] = []
        for first in range(0, len(numbers), IDS_A_CALL):
            found += await self._ask(numbers[first : first + IDS_A_CALL])
        return found

    async def _ask(self, numbers: Sequence[str]) -> list[Record]:
        if self._json is not False:
            try:
                return await self._by_json(numbers)
            except CommandError as error:
                if not _says(error, _NO_JSON):
                    raise
            self._json = False
        return await self._by_texts(numbers)

    async def _by_json(self, numbers: Sequence[str]) -> list[Record]:
        text = await self._bjobs("-json", "-o", " ".join(records.FIELDS), *numbers)
        self._json = True
        try:
            return _of(numbers, records.from_json(text)) if text.strip() else []
        except (ValueError, KeyError, TypeError):
            if len(numbers) == 1:
                return []
        if not numbers:
            said = await self._bjobs("-noheader", "-o", "jobid")
            numbers = [word for word in dict.fromkeys(said.split()) if word.isdigit()]
        return await _halves(numbers, self._by_json)

    async def _by_texts(self, numbers: Sequence[str]) -> list[Record]:
        wide = ""
        for _ in range(TRIES):
            wide, long = await asyncio.gather(self._bjobs("-w", *numbers), self._bjobs("-l", *numbers))
            try:
                return _of(numbers, records.from_texts(wide, long))
            except ValueError:
                continue
        if len(numbers) == 1:
            return []
        known = numbers or list(dict.fromkeys(re.findall(r"^(\d+)\s", wide, re.MULTILINE)))
        return await _halves(known, self._by_texts)

    async def _bjobs(self, *arguments: str) -> str:
        done = await self._client.run("bjobs", "-u", "all", *arguments, check=False)
        if done.exit != 0 and not _says(done, _NONE_FOUND):
            raise CommandError(f"bjobs ended with status {done.exit}", done.argv, done.exit, done.stdout, done.stderr)
        return done.stdout


def _of(numbers: Sequence[str], found: list[Record]) -> list[Record]:
    """What was asked for: an answer on one job could else be made to speak of another."""
    wanted = set(numbers)
    return [record for record in found if record.job in wanted] if wanted else found


async def _halves(numbers: Sequence[str], ask: Ask) -> list[Record]:
    """A job whose own words cannot be read hides itself in the end, and nobody else."""
    size = max(1, min(IDS_A_CALL, (len(numbers) + 1) // 2))
    parts = [numbers[first : first + size] for first in range(0, len(numbers), size)]
    return [record for part in parts for record in await ask(part)]


def none_found(error: CommandError) -> bool:
    """Whether a command refused since the job is not there."""
    return _says(error, _NONE_FOUND)


def _says(said: CommandError | Result, words: Sequence[str]) -> bool:
    text = f"{said.stderr} {said.stdout}".lower()
    return any(each in text for each in words)
