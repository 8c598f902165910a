"""Slurm's constraints on features: `a&b`, `a,b`, `a|b`, parentheses; whether one node meets them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

Test = Callable[[Collection[str]], bool]
_TOKENS = re.compile(r"\s*([()&|,]|[\w.=:+/-]+)")
# Deeper than any hand writes, and far less than Python's own limit.
MOST_DEPTH = 40


class _Unreadable(Exception):
    """A form that says more than what one node has: counts, or one of several for all nodes alike."""


def parse(text: str) -> Test | None:
    """The test of a constraint; None for a form that no single node can be tested by (`a*2`, `[a|b]`) or a wrong one.

    As in Slurm, AND and OR have one rank and are read from left to right.
    """
    tokens, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKENS.match(text, at)
        if match is None:
            return None
        tokens.append(match[1])
        at = match.end()
    if not tokens:
        return lambda _: True
    try:
        test, rest = _expression(tokens, 0)
    except _Unreadable:
        return None
    return None if rest else test


def _expression(tokens: list[str], depth: int) -> tuple[Test, list[str]]:
    if depth > MOST_DEPTH:
        raise _Unreadable
    test, tokens = _term(tokens, depth)
    while tokens and tokens[0] in "&|,":
        operator, (right, rest) = tokens[0], _term(tokens[1:], depth)
        test, tokens = (_either(test, right) if operator == "|" else _both(test, right)), rest
    return test, tokens


def _term(tokens: list[str], depth: int) -> tuple[Test, list[str]]:
    if not tokens or tokens[0] in "&|,)":
        raise _Unreadable
    if tokens[0] != "(":
        name = tokens[0]
        return (lambda has: name in has), tokens[1:]
    test, rest = _expression(tokens[1:], depth + 1)
    if not rest or rest[0] != ")":
        raise _Unreadable
    return test, rest[1:]


def _both(left: Test, right: Test) -> Test:
    return lambda has: left(has) and right(has)


def _either(left: Test, right: Test) -> Test:
    return lambda has: left(has) or right(has)
