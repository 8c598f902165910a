"""Options that several verbs have, and the order of verbs in a help text."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ConfigPath = Annotated[
    str, typer.Option("--config", metavar="FILE", envvar="QTANDEM_CONFIG", help="Configuration other than the site's.")
]


class OrderedGroup(TyperGroup):
    """Lists verbs as they were added, groups among them."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        wanted = [
            "resources", "explain", "task", "env", "usage", "leases", "claim",
            "config", "install", "uninstall", "doctor", "relay", "daemon", "demo",
        ]  # fmt: skip
        return [name for name in wanted if name in self.commands] + [
            name for name in self.commands if name not in wanted
        ]


def group(help: str) -> typer.Typer:
    """A verb with verbs of its own."""
    return typer.Typer(help=help, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
