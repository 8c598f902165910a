"""Slurm's constraints on features: `a&b`, `a,b`, `a|b`, parentheses; whether one node meets them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

Test = Callable[[Collection[str]], bool]
_TOKENS = re.compile(r"\s*([()&|,]|[\w.=:+/-]+)")
_OPERATORS = ("&", "|", ",")
# Deeper and longer than any hand writes: jobs of all users are read together, and none may hold the others up.
MOST_DEPTH, MOST_TOKENS = 40, 500


class _Unreadable(Exception):
    """A form that says more than what one node has: counts, or one of several for all nodes alike."""


def parse(text: str) -> Test | None:
    """The test of a constraint; None for a form that no single node can be tested by (`a*2`, `[a|b]`) or a wrong one.

    As in Slurm, AND and OR have one rank and are read from left to right.
    """
    text = text.rstrip()
    tokens, at = list[str](), 0
    while at < len(text):
        match = _TOKENS.match(text, at)
        if match is None or len(tokens) == MOST_TOKENS:
            return None
        tokens.append(match[1])
        at = match.end()
    if not tokens:
        return lambda _: True
    try:
        test, end = _expression(tokens, 0, 0)
    except _Unreadable:
        return None
    return test if end == len(tokens) else None


def _expression(tokens: Sequence[str], at: int, depth: int) -> tuple[Test, int]:
    """The test that begins at a token, and where it ends."""
    if depth > MOST_DEPTH:
        raise _Unreadable
    first, at = _term(tokens, at, depth)
    others: list[tuple[bool, Test]] = []
    while at < len(tokens) and tokens[at] in _OPERATORS:
        either = tokens[at] == "|"
        term, at = _term(tokens, at + 1, depth)
        others.append((either, term))

    def test(has: Collection[str]) -> bool:
        found = first(has)
        for either, term in others:
            found = found or term(has) if either else found and term(has)
        return found

    return test, at


def _term(tokens: Sequence[str], at: int, depth: int) -> tuple[Test, int]:
    if at == len(tokens) or tokens[at] in (*_OPERATORS, ")"):
        raise _Unreadable
    if tokens[at] != "(":
        name = tokens[at]
        return (lambda has: name in has), at + 1
    test, end = _expression(tokens, at + 1, depth + 1)
    if end == len(tokens) or tokens[end] != ")":
        raise _Unreadable
    return test, end + 1
