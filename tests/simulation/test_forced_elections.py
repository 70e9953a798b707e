"""An operator begins a cluster by force, without an absent member. The checks allow this."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.bugs import Bug
from tests.simulation.checks.consensus import Consensus
from tests.simulation.mutations import planted_bug
from tests.simulation.provoked import FORCED
from tests.simulation.world import World

VOTERS = ("a", "b", "c")


@pytest.mark.parametrize("message_links", [False, True])
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_cluster_begun_by_force_keeps_its_promises_and_takes_the_missing_member_in_later(
    seed: int, message_links: bool
) -> None:
    world = World(replace(FORCED, seed=seed, message_links=message_links))
    outcome = world.run()
    assert not outcome.violation
    assert outcome.done["bootstrap"] == 1
    assert world.operators.done["BOOTSTRAP"] == 1
    assert outcome.counts["accepted"] > 50


def test_who_goes_by_the_votes_of_blank_stores_unasked_is_noticed_in_the_same_plan() -> None:
    """A promotion alone must not count them."""
    bug = Bug("", "ha.core.election", "Campaign.count", "provisional=provisional and not self.forced", "provisional=False")
    plan = replace(FORCED, items={n: each for n, each in FORCED.items.items() if getattr(each, "kind", "") != "bootstrap"})
    with planted_bug(bug):
        outcome = World(replace(plan, seed=1)).run()
    assert outcome.violation.startswith("votes: ")


def elect(checks: Consensus, *, forced: bool, voters: dict[str, bool]) -> None:
    """`a` is asked to stand, by force or not, and is made primary by these; each says whether its vote is provisional."""
    checks.asked("a")
    if forced:
        checks.forced("a")
    checks.saved("a", 1, "a")
    for voter, provisional in voters.items():
        checks.saved(voter, 1, "a")
        checks.granted(voter, 1, "a", provisional=provisional)
    checks.announces("a", 1, primary=True, active=False, voters=VOTERS)


def test_by_force_two_blank_stores_of_three_are_enough_and_else_they_are_not() -> None:
    checks = Consensus([])
    elect(checks, forced=True, voters={"b": True})
    assert checks.faults == []
    checks = Consensus([])
    elect(checks, forced=False, voters={"b": True})
    (fault,) = checks.faults
    assert fault.startswith("votes: a is primary of epoch 1 by 0 votes that count and 2 that count only if all grant")


def test_one_of_three_is_not_enough_by_force_either() -> None:
    checks = Consensus([])
    elect(checks, forced=True, voters={})
    (fault,) = checks.faults
    assert fault.startswith("votes: a is primary of epoch 1 by 1 votes that count")


def test_force_ends_with_the_campaign_that_it_was_for() -> None:
    checks = Consensus([])
    checks.asked("a")
    checks.forced("a")
    checks.answered("a")
    elect(checks, forced=False, voters={"b": True})
    assert [fault.partition(":")[0] for fault in checks.faults] == ["votes"]
