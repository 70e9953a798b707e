"""When a backup is expected: worked out from terms, rosters and what was sampled, without Spark."""

from __future__ import annotations

from typing import Any

from spark_analytics.transforms import expected
from spark_analytics.transforms.expected import Segment, Term, within


def term(epoch: int, begin_ms: int, end_ms: int, *, is_last: bool = False, has_roster: bool = False) -> Term:
    """A primary's time, sampled every second in the middle of the second."""
    return {
        "epoch": epoch,
        "begin_ms": begin_ms,
        "end_ms": end_ms,
        "next_ms": None if is_last else end_ms,
        "last_said_ms": end_ms - 1,
        "first_interval_ms": 1000,
        "interval_ms": 1000,
        "has_roster": has_roster,
    }


def seen(backup: str, from_ms: int, to_ms: int, *, epoch: int = 1, queue: str | None = None) -> dict[str, Any]:
    return {"epoch": epoch, "backup": backup, "queue": queue, "from_ms": from_ms, "to_ms": to_ms}


def roster(from_ms: int, to_ms: int | None, *queues: str, epoch: int = 1) -> dict[str, Any]:
    return {"epoch": epoch, "backups": ["b"], "queues": [*queues], "from_ms": from_ms, "to_ms": to_ms}


def changes(rosters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of one primary as rows of `lines.rosters`."""
    queues: set[str] = set()
    rows = []
    for one in rosters:
        now = {*one["queues"]}
        rows.append({"cluster": "c", "primary": "p"} | one | {"added": sorted(now - queues), "removed": sorted(queues - now)})
        queues = now
    return rows


def segments(looks: list[dict[str, Any]], rosters: list[dict[str, Any]], terms: list[Term]) -> list[Segment]:
    return expected.segments(looks, changes(rosters), terms)


def test_without_a_roster_a_backup_is_expected_from_its_first_sample_to_the_end_of_the_term() -> None:
    found = segments([seen("b", 2500, 4500)], [], [term(1, 500, 10_000, is_last=True)])
    assert found == [Segment("b", None, 2000, 10_000, 1000)]


def test_a_roster_that_leaves_a_queue_out_ends_its_being_expected() -> None:
    told = [roster(500, 5200, "q"), roster(5200, None)]
    found = segments([seen("b", 500, 9500, queue="q")], told, [term(1, 500, 10_000, is_last=True, has_roster=True)])
    assert {*found} == {Segment("b", None, 0, 10_000, 1000), Segment("b", "q", 0, 5000, 1000)}


def test_what_is_sampled_and_on_no_roster_is_expected_while_it_is_sampled() -> None:
    told = [roster(500, None)]
    found = segments([seen("c", 2500, 6500)], told, [term(1, 500, 10_000, is_last=True, has_roster=True)])
    assert {*found} == {Segment("b", None, 0, 10_000, 1000), Segment("c", None, 2000, 6000, 1000)}


def test_what_is_sampled_before_the_first_roster_of_the_span_is_expected_from_its_first_sample() -> None:
    """Rosters come every 30 s, and a span may begin between two of them."""
    told = [roster(6400, None, "q")]
    looks = [seen("b", 2500, 9500), seen("b", 3500, 9500, queue="q")]
    found = segments(looks, told, [term(1, 2500, 10_000, is_last=True, has_roster=True)])
    assert {*found} == {Segment("b", None, 2000, 10_000, 1000), Segment("b", "q", 3000, 10_000, 1000)}


def test_what_an_earlier_roster_left_out_is_expected_from_the_roster_that_names_it() -> None:
    told = [roster(500, 5200), roster(5200, None, "q")]
    found = segments([seen("b", 4500, 9500, queue="q")], told, [term(1, 500, 10_000, is_last=True, has_roster=True)])
    assert {*found} == {Segment("b", None, 0, 10_000, 1000), Segment("b", "q", 5000, 10_000, 1000)}


def test_a_change_of_primary_breaks_nothing_and_a_time_as_the_primary_does() -> None:
    terms = [term(1, 500, 4500), term(2, 4500, 8500), term(3, 8500, 11_501, is_last=True)]
    both = [seen("c", begin, begin + 3000, epoch=epoch) for epoch, begin in ((1, 500), (2, 4500), (3, 8500))]
    apart = [seen("b", begin, begin + 3000, epoch=epoch) for epoch, begin in ((1, 500), (3, 8500))]
    assert segments([*both, *apart], [], terms) == [
        Segment("c", None, 0, 12_000, 1000),
        Segment("b", None, 0, 4000, 1000),
        Segment("b", None, 8000, 12_000, 1000),
    ]


def test_an_interval_that_has_just_begun_at_the_end_is_not_expected_and_one_whose_sample_is_due_is() -> None:
    for end_ms, until_ms in ((9600, 10_000), (9200, 9000), (9501, 10_000)):
        (found,) = segments([seen("b", 500, 9500)], [], [term(1, 500, end_ms, is_last=True)])
        assert found.to_ms == until_ms, end_ms


def test_an_interval_in_which_the_span_ends_before_its_sample_is_due_is_not_expected() -> None:
    """The newest sample was in the interval before: of this one, there may be none yet."""
    for end_ms, until_ms in ((10_100, 10_000), (10_400, 10_000), (10_500, 10_000), (10_740, 10_000), (10_760, 11_000)):
        one = term(1, 500, end_ms, is_last=True) | {"last_said_ms": 9500}
        (found,) = segments([seen("b", 500, 10_500)], [], [one])
        assert found.to_ms == until_ms, end_ms


def test_no_interval_that_begins_after_the_end_is_expected_wherever_samples_are_in_their_intervals() -> None:
    """At 3 s a writer samples in the first of the three seconds, and a first sample may come late, in the next second."""
    for begin_ms, interval_ms, until_ms in ((500, 3000, 9000), (1100, 1000, 9000), (100, 100, 9000), (2500, 5000, 10_000)):
        one = term(1, begin_ms, 9000, is_last=True) | {"first_interval_ms": interval_ms, "interval_ms": interval_ms}
        (found,) = segments([seen("b", begin_ms, 9000)], [], [one])
        assert found.to_ms == until_ms, (begin_ms, interval_ms)


def test_segments_of_a_shorter_interval_stay_within_the_steps_of_the_longest_one() -> None:
    its = [Segment("b", None, 9000, 21_000, 3000), Segment("c", None, 10_000, 20_000, 5000), Segment("d", None, 6000, 9000, 3000)]
    found = within(its, 10_500, 19_900, interval_ms=5000)
    assert found == [Segment("b", None, 10_000, 20_000, 3000), Segment("c", None, 10_000, 20_000, 5000)]


def test_a_backup_that_leaves_and_comes_back_is_expected_for_the_queues_of_that_time() -> None:
    told = [
        roster(500, 3500, "q", "r"),
        roster(3500, 6500, "q", "r") | {"backups": ["c"]},
        roster(6500, None, "q", "s") | {"backups": ["b", "c"]},
    ]
    found = segments([], told, [term(1, 500, 10_000, is_last=True, has_roster=True)])
    assert {*found} == {
        *(Segment("b", queue, 0, 3000, 1000) for queue in (None, "q", "r")),
        *(Segment("b", queue, 6000, 10_000, 1000) for queue in (None, "q", "s")),
        *(Segment("c", queue, 3000, 10_000, 1000) for queue in (None, "q")),
        Segment("c", "r", 3000, 6000, 1000),
        Segment("c", "s", 6000, 10_000, 1000),
    }


def test_queues_that_come_and_go_each_second_are_each_expected_in_their_own_and_the_others_all_along() -> None:
    told = [roster(500 + 1000 * n, 1500 + 1000 * n, "q", "r", f"reply{n}") for n in range(60)]
    found = segments([], told, [term(1, 500, 60_000, is_last=True, has_roster=True)])
    assert {*found} == {
        *(Segment("b", queue, 0, 60_000, 1000) for queue in (None, "q", "r")),
        *(Segment("b", f"reply{n}", 1000 * n, 1000 * n + 1000, 1000) for n in range(60)),
    }


def test_where_no_primary_says_anything_there_is_no_term() -> None:
    assert expected.terms([], end_ms=10_000) == []
