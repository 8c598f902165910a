import pytest

pytest.importorskip("ortools", reason="the planner's tests need the extra `planner`")
pytest.importorskip("numba", reason="the planner's tests need the extra `planner`")
pytest.importorskip("highspy", reason="the planner's tests need the extra `planner`")
