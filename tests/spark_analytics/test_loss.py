"""Whether the primary can be lost, from rows as a report has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from spark_analytics.jobs.loss import primary_loss

MINUTE = 60_000


def asked(
    *,
    now: dict[str, str],
    records: dict[str, int] | None = None,
    steps: Mapping[str, Sequence[str | None]] | None = None,
    backlogs: dict[str, list[int]] | None = None,
    roster: dict[str, Any] | None = None,
    votes: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """The answer for backups that have these statuses and backlogs at the end, and in the four minutes before it."""
    lacks = {name: (backlogs or {}).get(name, [0] * 4) for name in now}
    rows = [
        {"backup": name, "now": status, "lag_records": (records or {}).get(name, 0), "backlog": lacks[name][-1]}
        for name, status in now.items()
    ]
    line = {name: {"status": (steps or {}).get(name, [status] * 4), "backlog": lacks[name]} for name, status in now.items()}
    timeline = {"start_ms": 0, "step_ms": MINUTE, "count": 4, "backups": line}
    return primary_loss(
        rows, timeline, [{"begin_ms": 0}], begin_ms=0, end_ms=4 * MINUTE, votes=votes or ([roster] if roster else [])
    )


def roster(*voters: str, witness: str = "", connected: bool = True, from_ms: int = 0) -> dict[str, Any]:
    """What the primary says of the votes."""
    return {"from_ms": from_ms, "voters": [*voters], "witness": witness, "witness_connected": bool(witness) and connected}


@pytest.mark.parametrize(
    "now, records, answer, said",
    [
        ({"b": "OK", "c": "OK"}, {}, "yes", "Yes"),
        ({"b": "OK", "c": "STOPPED"}, {}, "no", "No"),
        ({"b": "OK"}, {}, "no", "No"),
        ({}, {}, "no", "No"),
        ({"b": "LAGGING", "c": "GAP"}, {"b": 900, "c": 3}, "at risk", "Yes, with 3 records at risk"),
        ({"b": "OK", "c": "OK", "d": "OK", "e": "SILENT"}, {"b": 5}, "yes", "Yes"),
        ({"b": "OK", "c": "OK", "d": "REWOUND", "e": "SILENT"}, {}, "no", "No"),
        ({"b": "OK", "c": "OK", "d": "PRIMARY"}, {}, "yes", "Yes"),
        ({"b": "OK", "c": "SILENT", "d": "REMOVED", "e": "REMOVED"}, {}, "no", "No"),
    ],
)
def test_the_primary_can_be_lost_when_the_backups_are_a_majority_without_it(
    now: dict[str, str], records: dict[str, int], answer: str, said: str
) -> None:
    found = asked(now=now, records=records)
    assert (found["answer"], found["said"]) == (answer, said)


def test_what_is_at_risk_is_what_no_backup_has() -> None:
    found = asked(now={"b": "OK", "c": "OK"}, records={"b": 12, "c": 7})
    assert (found["records"], "7 records are on no backup yet" in found["why"]) == (7, True)


def test_of_a_backup_that_catches_up_it_is_not_said_that_it_holds_every_record() -> None:
    now = {"b": "OK", "c": "STALLED", "d": "LAGGING"}
    for records, holding in (({}, "hold"), ({"c": 9}, "2 of them hold"), ({"c": 2_000_000, "d": 9}, "1 of them holds")):
        found = asked(now=now, records=records)
        assert (found["answer"], found["why"]) == (
            "yes",
            f"3 of 3 backups can be reached, and {holding} every record; no other broker may fail as well.",
        )


def test_the_answer_holds_since_the_backups_that_decide_it_came_or_went() -> None:
    came = asked(now={"b": "OK", "c": "OK"}, steps={"b": ["OK"] * 4, "c": ["OK", "SILENT", "OK", "LAGGING"]})
    went = asked(now={"b": "OK", "c": "SILENT"}, steps={"b": ["OK"] * 4, "c": ["OK", "OK", "SILENT", "STOPPED"]})
    assert (came["since_ms"], went["since_ms"]) == (2 * MINUTE, 2 * MINUTE)
    assert went["away"] == [{"backup": "c", "now": "SILENT"}]
    assert went["why"] == "1 of 2 backups can be reached, and a promotion needs 2 of the 3 brokers."


def test_an_answer_that_only_the_end_of_the_last_step_gives_holds_since_this_step() -> None:
    """A step is up to hours long, and the state at its end is told from its last minutes."""
    assert asked(now={"b": "OK", "c": "OK"}, steps={"b": ["OK"] * 4, "c": [*["OK"] * 3, "REWOUND"]})["since_ms"] == 3 * MINUTE
    assert asked(now={"b": "OK", "c": "SILENT"}, steps={"b": ["OK"] * 4, "c": ["OK"] * 4})["since_ms"] == 3 * MINUTE


def test_a_witness_is_one_more_vote_while_it_is_connected() -> None:
    well = asked(now={"b": "OK"}, roster=roster("p", "b", "w", witness="w"))
    assert (well["answer"], well["members"], well["needed"], well["left"], well["witness"]) == ("yes", 3, 2, 1, True)
    assert well["why"] == (
        "1 of 1 backups can be reached, and hold every record; no other broker may fail as well. The witness is connected."
    )
    away = asked(now={"b": "OK"}, roster=roster("p", "b", "w", witness="w", connected=False))
    assert (away["answer"], away["witness"]) == ("no", False)
    assert away["why"] == (
        "1 of 1 backups can be reached, and a promotion needs 2 of the 3 brokers. The witness is not connected."
    )
    assert asked(now={"b": "STOPPED"}, roster=roster("p", "b", "w", witness="w"))["answer"] == "no"


def test_with_a_witness_a_backup_that_lacks_accepted_records_cannot_be_promoted() -> None:
    """The witness attests the primary's log, so it refuses its vote to a backup that is catching up."""
    found = asked(now={"b": "LAGGING"}, records={"b": 9}, backlogs={"b": [0, 0, 5, 3]}, roster=roster("p", "b", "w", witness="w"))
    assert (found["answer"], found["since_ms"]) == ("no", 2 * MINUTE)
    assert "none of them has all accepted records, so none of them can be promoted" in found["why"]


def test_a_learner_has_no_vote() -> None:
    """Two brokers of another site copy the log. They must not make up for a voter that is down."""
    now = {"b": "OK", "c": "STOPPED", "x": "OK", "y": "OK"}
    found = asked(now=now, roster=roster("p", "b", "c"))
    assert (found["answer"], found["members"], found["needed"], found["left"]) == ("no", 3, 2, 1)
    assert found["away"] == [{"backup": "c", "now": "STOPPED"}]
    assert found["why"] == "1 of 2 voting backups can be reached, and a promotion needs 2 of the 3 voting brokers."
    alone = asked(now={"x": "OK"}, roster=roster("p"))
    assert (alone["answer"], alone["why"]) == ("no", "there is no voting backup: no other broker can be promoted.")


def test_telemetry_without_voters_counts_all_members_as_before() -> None:
    for older in (None, {"from_ms": 0, "voters": None, "witness": None, "witness_connected": None}, roster()):
        found = asked(now={"b": "OK", "c": "OK"}, roster=older)
        assert (found["answer"], found["members"], found["left"], found["witness"]) == ("yes", 3, 2, None)


@pytest.mark.parametrize("came_ms, since_ms", [(3 * MINUTE + 50_000, 3), (3 * MINUTE, 3), (2 * MINUTE + 1, 2)])
def test_a_witness_that_has_just_come_back_had_no_vote_before(came_ms: int, since_ms: int) -> None:
    votes = [roster("p", "b", "w", witness="w", connected=False), roster("p", "b", "w", witness="w", from_ms=came_ms)]
    found = asked(now={"b": "OK"}, votes=votes)
    assert (found["answer"], found["since_ms"]) == ("yes", since_ms * MINUTE)


def test_brokers_that_were_removed_had_a_vote_before() -> None:
    """Two of five are away, and then they are removed: two of four were not enough for three votes of five, and now they are. The
    other way, two that were well are removed, and one of the two that are left is away."""
    gone = {"d": "REMOVED", "e": "REMOVED"}
    votes = [roster(*"pbcde"), roster(*"pbc", from_ms=3 * MINUTE + 30_000)]
    away = {name: ["STOPPED"] * 3 + ["STOPPED"] for name in gone}
    found = asked(now={"b": "OK", "c": "OK"} | gone, steps=away, votes=votes)
    assert (found["answer"], found["since_ms"]) == ("yes", 3 * MINUTE)
    well = {name: ["OK"] * 4 for name in gone}
    found = asked(now={"b": "OK", "c": "STOPPED"} | gone, steps=well, votes=votes)
    assert (found["answer"], found["since_ms"]) == ("no", 3 * MINUTE)


def test_a_change_of_the_votes_that_changes_no_answer_does_not_shorten_it() -> None:
    votes = [roster("p", "b", "w", witness="w"), roster("p", "b", "v", witness="v", from_ms=2 * MINUTE)]
    assert asked(now={"b": "OK"}, votes=votes)["since_ms"] == 0


def test_a_last_step_in_which_no_sample_was_due_yet_changes_no_answer() -> None:
    steps = {"b": ["OK"] * 3 + [None], "c": ["STOPPED", "OK", "OK", None]}
    assert asked(now={"b": "OK", "c": "OK"}, steps=steps)["since_ms"] == MINUTE
