"""Options that several verbs have, and the order of verbs in a help text."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ConfigPath = Annotated[
    str, typer.Option("--config", metavar="FILE", envvar="QTANDEM_CONFIG", help="Configuration other than the site's.")
]


VERBS = (
    *("resources", "explain", "task", "env", "usage", "leases", "claim", "credentials"),
    *("config", "install", "uninstall", "doctor", "relay", "daemon", "plan", "demo"),
)


class OrderedGroup(TyperGroup):
    """Lists verbs as `VERBS` does, groups among them."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return sorted(self.commands, key=verb_order)


def verb_order(name: str) -> int:
    return VERBS.index(name) if name in VERBS else len(VERBS)


def group(help: str) -> typer.Typer:
    """A verb with verbs of its own."""
    return typer.Typer(help=help, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
