"""What docs/planner.md says about parameters and objectives is what the code has."""

from dataclasses import fields
from pathlib import Path

from qtandem.core.planner.generate import PRESETS, Parameters
from qtandem.core.planner.objective import OBJECTIVES
from qtandem.core.planner.solve import ENGINES

PAGE = (Path(__file__).parents[3] / "docs" / "planner.md").read_text()


def test_the_page_names_every_parameter_family_and_engine() -> None:
    for name in (*(f.name for f in fields(Parameters)), *PRESETS, *ENGINES):
        assert f"`{name}`" in PAGE, name


def test_the_page_has_the_weights_of_every_objective() -> None:
    for goal in OBJECTIVES.values():
        weights = (goal.alpha, goal.beta, goal.lam, goal.delta, goal.theta)
        assert f"| `{goal.name}` | {' | '.join(f'{w:g}' for w in weights)} |" in PAGE
