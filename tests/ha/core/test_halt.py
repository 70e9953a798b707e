"""A member that must not apply its log: it stores and votes, and leads nobody."""

from __future__ import annotations

from ha.core.effects import PromotionEnded, State, TermEnded
from tests.ha.core.cluster import Cluster

WHY = "c cannot apply its log: batch 7 is unknown"


def test_a_halted_member_acknowledges_what_it_stores_and_its_disk_counts() -> None:
    """Otherwise two members of an older release would stop a cluster of three."""
    cluster = Cluster("a", "b", "c")
    cluster.promote("a")
    cluster.call("c", lambda replica: replica.halt(cluster.now, WHY))
    cluster.crash("b")
    cluster.propose("a", 3)
    assert cluster["a"].live.commit_index == cluster["a"].live.log.last_index
    assert cluster["c"].live.state is State.READY


def test_a_halted_member_votes_and_is_refused_as_primary_with_its_reason() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.promote("a")
    cluster.propose("a", 2)
    cluster.call("c", lambda replica: replica.halt(cluster.now, WHY))
    cluster.promote("c")
    (ended,) = cluster["c"].ends(PromotionEnded)
    assert (ended.won, ended.reason) == (False, WHY)
    cluster.crash("a")
    cluster.pass_time(2.0)
    cluster.promote("b")
    assert cluster.states()["b"] == "active", "c's vote is the second of the two that are needed"


def test_a_primary_that_is_halted_steps_down_so_that_another_can_be_promoted() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.promote("a")
    cluster.call("a", lambda replica: replica.halt(cluster.now, WHY))
    (ended,) = cluster["a"].ends(TermEnded)
    assert ended.reason == WHY
    assert cluster.states()["a"] != "active"
    cluster.pass_time(2.0)
    cluster.promote("b")
    assert cluster.states()["b"] == "active"


def test_a_handover_to_a_halted_member_is_not_taken() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.promote("a")
    cluster.call("c", lambda replica: replica.halt(cluster.now, WHY))
    cluster.call("a", lambda replica: replica.transfer(cluster.now, "c"))
    cluster.pass_time(1.0)
    assert cluster.states()["c"] != "active"


def test_a_campaign_under_way_ends_when_its_candidate_is_halted() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.isolate("c")
    cluster.promote("c", settle=False)
    cluster.call("c", lambda replica: replica.halt(cluster.now, WHY))
    (ended,) = cluster["c"].ends(PromotionEnded)
    assert (ended.won, ended.reason) == (False, WHY)
