"""The last reports on tasks that have ended: nothing changes them any more, so no vendor is asked again."""

from __future__ import annotations

from collections import OrderedDict

from qtandem.core.providers.base import TaskReport

MOST = 1000


class Ended:
    """Those of one provider, the newest ones."""

    def __init__(self, most: int = MOST) -> None:
        self._reports: OrderedDict[str, TaskReport] = OrderedDict()
        self._most = most

    def get(self, task: str) -> TaskReport | None:
        return self._reports.get(task)

    def keep(self, task: str, report: TaskReport) -> None:
        self._reports[task] = report
        while len(self._reports) > self._most:
            self._reports.popitem(last=False)
