from qtandem.core.planner.deadline import Deadline


def test_a_part_ends_with_the_whole_and_counts_what_the_whole_is_charged() -> None:
    whole = Deadline(10, deterministic=True)
    part = whole.part(4)
    whole.charge(3)
    part.charge(0.5)
    assert (whole.spent(), part.spent()) == (3.5, 3.5)
    late = whole.part(100)
    assert late.left() == 6.5
    whole.charge(7)
    assert part.expired()
    assert late.expired()


def test_time_passes_by_the_clock_given() -> None:
    now = [0.0]
    whole = Deadline(2, clock=lambda: now[0])
    part = whole.rest()
    whole.charge(5)
    assert not whole.expired()
    now[0] = 2.0
    assert whole.expired()
    assert part.left() == 0
