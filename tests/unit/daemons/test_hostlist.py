"""Host names that users may have written."""

from __future__ import annotations

import time

import pytest

from qtandem.daemons.hostlist import expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("c1", ("c1",)),
        ("c[1-3,07],gpu7, c2", ("c1", "c2", "c3", "c07", "gpu7")),
        ("r[1-2]n[09-10].site", ("r1n09.site", "r1n10.site", "r2n09.site", "r2n10.site")),
        ("rack-12-3000000", ("rack-12-3000000",)),
        ("@all", ("@all",)),
    ],
)
def test_names_come_in_order_and_once(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["c[", "c]", "c[]", "c[1", "c[3-1]", "c[a-b]", "c[1-2]]", ",", "a,,b", "c[1-²]"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        expand(text)


@pytest.mark.parametrize("text", ["n[1-900000000]", "n[1-400]m[1-400]", "n[1-60000],m[1-60000]", "n[1-9]" * 600])
def test_a_short_text_for_many_hosts_costs_nothing(text: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match="more than 100000 hosts"):
        expand(text)
    assert time.process_time() - began < 1.0
