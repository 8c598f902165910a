"""How tests are shared out among test processes (`-n N --dist loadgroup`).

A file goes to one process as a whole: what it imports and what its fixtures start is there once. `live/` has groups of
its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Each of these tests starts processes of its own and takes seconds: the next one goes to whoever is free.
APART = {"test_demo", "test_discovery", "test_kill", "test_machine", "test_proxy", "test_qtandemd", "test_whole"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in APART or item.path.is_relative_to(HERE / "live"):
            continue
        params = item.callspec.params if hasattr(item, "callspec") else {}
        rig = params.get("rig", "") if item.path.is_relative_to(HERE / "contract") else ""
        item.add_marker(pytest.mark.xdist_group(f"{item.path.relative_to(HERE)}{rig}"))
