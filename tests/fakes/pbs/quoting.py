"""The node hook's own `quoted`, for tests that need nothing else of it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

NODE = Path(__file__).parents[3] / "pbs" / "hooks" / "node.py"


def _load() -> Callable[[str], str]:
    wanted = [
        part
        for part in ast.parse(NODE.read_text()).body
        if (isinstance(part, ast.FunctionDef) and part.name == "quoted")
        or (isinstance(part, ast.Assign) and getattr(part.targets[0], "id", "") == "ESCAPED")
    ]
    names: dict[str, Any] = {}
    exec(compile(ast.Module(wanted, []), str(NODE), "exec"), names)
    return cast(Callable[[str], str], names["quoted"])


quoted = _load()
