"""The status page: resources and how they are, for anybody on the network that the admin lets see it."""

from __future__ import annotations

from html import escape

from qtandem.core.verdicts import duration
from qtandem.core.wire import ResourceAnswer
from qtandem.daemons.answers import VERSION, health, resource_answer
from qtandem.daemons.context import Context

_STYLE = """
:root{color-scheme:light dark;font:15px/1.5 system-ui,sans-serif}body{margin:2rem auto;max-width:72rem;padding:0 1rem}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.35rem .75rem;border-bottom:1px solid #8884}
td.n{text-align:right;font-variant-numeric:tabular-nums}.open{color:#0a7d33}.shut{color:#b3261e}small{opacity:.75}
@media(prefers-color-scheme:dark){.open{color:#5bd68a}.shut{color:#ff8a80}}
"""
_HEADS = ("QPU", "state", "why", "free", "queue", "wait", "qubits", "waiting jobs", "seen")


def page(context: Context) -> str:
    """A self-contained page; no user and no job is named on it."""
    situation, state = context.situation(), health(context)
    rows = "".join(
        _row(resource_answer(resource, situation), context.pending.waiting(resource.name))
        for resource in context.catalog.resources.values()
    )
    heads = "".join(f'<th scope="col">{head}</th>' for head in _HEADS)
    managers = " · ".join(f"{escape(name)}: {escape(word)}" for name, word in state.publishers.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="10">'
        '<meta name="viewport" content="width=device-width"><title>qtandem</title>'
        f"<style>{_STYLE}</style></head><body><h1>QPUs</h1>"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        f"<p><small>qtandem {escape(VERSION)} · {state.leases_open} leases open · {managers or 'no manager'}"
        "</small></p></body></html>"
    )


def _row(row: ResourceAnswer, waiting: int) -> str:
    kind = "open" if row.open else "shut"
    age = "never" if row.age_s is None else f"{duration(row.age_s)} ago"
    cells = [
        f"<td>{escape(row.name)}</td>",
        f'<td class="{kind}">{"open" if row.open else escape(row.availability)}</td>',
        f"<td>{escape(row.why)}</td>",
        f'<td class="n">{row.free}/{row.slots}</td>',
        f'<td class="n">{_number(row.queue)}</td>',
        f'<td class="n">{"?" if row.wait_s is None else duration(row.wait_s)}</td>',
        f'<td class="n">{_number(row.qubits)}</td>',
        f'<td class="n">{waiting}</td>',
        f"<td>{age}</td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _number(value: int | None) -> str:
    """What the vendor does not say is not zero."""
    return "?" if value is None else str(value)
