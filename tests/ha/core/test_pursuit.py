"""A promotion that is insisted on: whoever is asked becomes the primary when a majority can be reached, or says why not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ha.core.effects import Effect, PromotionEnded
from ha.core.messages import Append, Position, PreVote, PreVoteReply, TimeoutNow, TransferReply, TransferRequest, Vote
from ha.core.pursuit import Pursuit
from ha.core.replica import Replica
from tests.ha.core.cluster import SMALL, Cluster, led
from tests.ha.core.test_handover import behind

WITHIN_S = 2.0


def insist(cluster: Cluster, address: str, *, settle: bool = True) -> None:
    """Ask this broker as an operator, or Pacemaker, does."""
    cluster.call(address, lambda replica: replica.promote(cluster.now, f"make it {address}", insist=True), settle=settle)


def last(cluster: Cluster, address: str) -> PromotionEnded:
    return cluster[address].ends(PromotionEnded)[-1]


def made_primary(cluster: Cluster, address: str) -> None:
    """In one request and in time, and the cluster is well."""
    cluster.pass_time(WITHIN_S)
    assert cluster.states()[address] == "active"
    assert [ended.won for ended in cluster[address].ends(PromotionEnded)] == [True]
    assert sorted(cluster.states().values()).count("active") == 1


def without_a_primary(*addresses: str, behind: str, count: int = 7) -> Cluster:
    """The primary is gone for good, and `behind` lacks the last of what it committed."""
    cluster = led(*addresses)
    cluster.crash(behind)
    cluster.propose(addresses[0], count)
    cluster.pass_time(0.3)
    cluster.crash(addresses[0])
    cluster.restart(behind)
    return cluster


def test_a_backup_that_is_behind_becomes_the_primary_after_a_better_one_was_and_handed_over() -> None:
    """Pacemaker's choice is never wrong: it may not know who has the newest log."""
    cluster = without_a_primary("a", "b", "c", behind="c")
    insist(cluster, "c")
    made_primary(cluster, "c")
    assert [cluster.primaries[epoch] for epoch in sorted(cluster.primaries)] == ["a", "b", "c"]
    assert max(cluster.committed) == cluster["c"].applied
    assert list(cluster["b"].live.begun_for) == ["c"]
    insist(cluster, "b")
    cluster.pass_time(WITHIN_S)
    assert (cluster.states()["b"], list(cluster["b"].live.begun_for)) == ("active", []), "this time it was handed over to"


def test_a_broker_whose_removal_is_in_its_own_log_alone_is_refused_like_others() -> None:
    """It is not a member there, and may have to stand all the same (dissertation §4.2.2)."""
    cluster = led("a", "b", "c")
    cluster.isolate("a")
    cluster.call("a", lambda replica: replica.remove_member(cluster.now, "a", "remove a"))
    cluster.pass_time(1.5)
    cluster.promote("b")
    cluster.connect("a", "c")
    cluster.promote("a")
    cluster.pass_time(0.3)
    assert "c refused: it hears the primary b of epoch 2" in last(cluster, "a").reason


def test_who_does_not_insist_is_refused_in_the_same_place() -> None:
    """A resource manager that looks for the best candidate asks that one next."""
    cluster = without_a_primary("a", "b", "c", behind="c")
    cluster.promote("c")
    cluster.pass_time(3)
    assert "b refused: its log is newer" in last(cluster, "c").reason
    assert list(cluster.primaries.values()) == ["a"]


def test_of_several_better_brokers_the_best_is_asked_to_stand() -> None:
    """A middling one would lose the votes, and time."""
    cluster = led("a", "b", "c", "d", "e")
    cluster.crash("e")
    cluster.propose("a", 2)
    cluster.crash("b")
    cluster.propose("a", 2)
    cluster.pass_time(0.3)
    cluster.crash("a")
    cluster.restart("e")
    cluster.restart("b")
    insist(cluster, "e")
    made_primary(cluster, "e")
    assert cluster.primaries[2] in ("c", "d")


def test_a_backup_far_behind_a_healthy_primary_is_waited_for() -> None:
    """The laggiest of all, while everybody is connected."""
    cluster = behind(9)
    insist(cluster, "b", settle=False)
    made_primary(cluster, "b")
    assert list(cluster.primaries.values()) == ["a", "b"]


def test_a_damaged_store_that_must_not_stand_for_election_becomes_the_primary_when_it_is_mended() -> None:
    """Whether a primary is there or not."""
    for gone in (False, True):
        cluster = led("a", "b", "c")
        cluster.propose("a", 6)
        cluster.pass_time(0.2)
        cluster.crash("c")
        cluster["c"].disk.floor = cluster["c"].disk.end
        del cluster["c"].disk.log[3:]
        cluster.restart("c")
        if gone:
            cluster.crash("a")
        assert cluster["c"].live.unfit
        insist(cluster, "c", settle=False)
        made_primary(cluster, "c")


def test_a_damaged_store_that_nobody_can_mend_says_so() -> None:
    """All others are gone, or lack the same."""
    cluster = led("a", "b", "c")
    cluster.propose("a", 6)
    cluster.pass_time(0.2)
    for address in "ac":
        cluster.crash(address)
    cluster["c"].disk.floor = cluster["c"].disk.end
    del cluster["c"].disk.log[3:]
    cluster.crash("b")
    cluster.restart("c")
    insist(cluster, "c")
    cluster.pass_time(SMALL.campaign_timeout_s)
    found = last(cluster, "c").reason
    assert "this broker's store has lost a part" in found
    assert "a is not connected; b is not connected" in found


def test_damaged_stores_of_new_brokers_that_have_nothing_end_the_request_at_once() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.crash("c")
    cluster["c"].disk.floor = Position(1, 5)
    cluster["c"].disk.blank = False
    cluster["c"].disk.epoch = 1
    cluster.restart("c")
    insist(cluster, "c")
    assert "no other broker was elected first" in last(cluster, "c").reason


@pytest.mark.parametrize("first", ["promotion", "primary"])
def test_a_handover_to_somebody_else_is_waited_for_and_then_undone(first: str) -> None:
    """Demote there, promote here: Pacemaker does not wait between the two for all brokers to know."""
    cluster = led("a", "b", "c")
    if first == "promotion":
        cluster.promote("b", settle=False)
    else:
        cluster.call("a", lambda replica: replica.transfer(cluster.now, "b"), settle=False)
    insist(cluster, "c", settle=False)
    made_primary(cluster, "c")
    assert list(cluster.primaries.values()) == ["a", "b", "c"]


def test_two_that_insist_are_both_served_in_turn_and_then_it_is_quiet() -> None:
    """Each moves the primary once: no two requests can make it go back and forth."""
    cluster = led("a", "b", "c")
    insist(cluster, "b", settle=False)
    insist(cluster, "c", settle=False)
    cluster.pass_time(3)
    assert (last(cluster, "b").won, last(cluster, "c").won) == (True, True)
    assert len(cluster.primaries) == 3
    cluster.pass_time(10)
    assert len(cluster.primaries) == 3


def test_who_insists_outlives_the_epoch_that_somebody_else_began() -> None:
    """Also in the midst of asking for votes, which another one gets."""
    cluster = led("a", "b", "c")
    cluster.crash("a")
    insist(cluster, "b", settle=False)
    cluster.promote("c", settle=False)
    cluster.wires.sort(key=lambda wire: wire[0] != "c")
    made_primary(cluster, "b")
    assert last(cluster, "b").won


def test_two_that_ask_for_votes_at_once_do_not_end_each_other() -> None:
    """Each votes for itself in the same epoch, and neither has a majority."""
    cluster = led("a", "b", "c", "d")
    for address in "ad":
        cluster.crash(address)
    cluster.restart("d")
    for address in "bc":
        insist(cluster, address, settle=False)
    for _ in range(80):
        if sum(isinstance(wire[2], Vote) for wire in cluster.wires) >= 4:
            break
        cluster.deliver()
    cluster.pass_time(3)
    assert (last(cluster, "b").won, last(cluster, "c").won) == (True, True)


def test_a_broker_that_has_just_come_waits_for_the_primary_that_others_hear() -> None:
    """Its first link is not the one to the primary: the others refuse it their votes, which is no reason to give up."""
    cluster = led("a", "b", "c")
    cluster.isolate("c")
    cluster.connect("b", "c")
    insist(cluster, "c")
    cluster.pass_time(0.5)
    assert not cluster["c"].ends(PromotionEnded)
    cluster.connect_all()
    made_primary(cluster, "c")


def test_a_broker_without_a_link_to_the_healthy_primary_is_told_so() -> None:
    """Nothing could be handed over to it."""
    cluster = led("a", "b", "c")
    cluster.disconnect("a", "c")
    insist(cluster, "c")
    cluster.pass_time(SMALL.campaign_timeout_s + 0.1)
    assert "b refused: it hears the primary a of epoch 1; a is not connected" in last(cluster, "c").reason
    assert cluster.states()["a"] == "active"


def test_without_a_majority_the_missing_members_are_named() -> None:
    cluster = without_a_primary("a", "b", "c", behind="c")
    cluster.crash("b")
    insist(cluster, "c")
    cluster.pass_time(SMALL.campaign_timeout_s + 0.1)
    assert last(cluster, "c").reason == (
        "no majority within 2 s: c got 1 of the 2 votes needed (pre-vote): a is not connected; b is not connected"
    )


@pytest.mark.parametrize(
    "spoil, reason",
    [
        (lambda replica: replica.halt(100.0, "its state differs"), "b was asked to be elected first: its state differs"),
        (None, "b was asked to be elected first: "),
    ],
)
def test_why_the_better_broker_was_not_elected_is_told(spoil: Callable[[Replica], list[Effect]] | None, reason: str) -> None:
    """It stops at a batch that it must not apply, or nobody answers it in time."""
    cluster = without_a_primary("a", "b", "c", behind="c")
    if spoil is not None:
        cluster.call("b", spoil)
        insist(cluster, "c")
    else:
        insist(cluster, "c", settle=False)
        while not any(isinstance(wire[2], TransferRequest) for wire in cluster.wires):
            cluster.deliver()
        cluster.wires.clear()
        cluster["c"].receive("b", TransferReply(1, "nobody votes for it"))
        cluster["c"].receive("a", TransferReply(1, "a was not asked"))
    cluster.pass_time(SMALL.campaign_timeout_s + 0.1)
    assert reason in last(cluster, "c").reason
    assert "a was not asked" not in last(cluster, "c").reason


def test_a_broker_that_was_asked_to_stand_says_when_it_is_not_elected() -> None:
    """And the one that asked goes on to its own end."""
    cluster = led("a", "b", "c", "d", "e")
    for address in "cde":
        cluster.isolate(address)
    cluster.crash("c")
    cluster.connect("a", "d")
    cluster.propose("a", 3)
    cluster.crash("a")
    cluster.crash("e")
    cluster.connect("b", "d")
    cluster.wires.clear()
    cluster["b"].receive("d", TransferRequest(1, stand=cluster["b"].live.epoch))
    cluster["b"].receive("d", TransferRequest(1, stand=cluster["b"].live.epoch))
    cluster.wires.clear()
    cluster.tick(SMALL.campaign_timeout_s + 0.1)
    (reply,) = [wire[2] for wire in cluster.wires if isinstance(wire[2], TransferReply)]
    assert reply.reason.startswith("no majority within 2 s: b got 1 of the 3 votes needed")
    assert not reply.later


def test_an_old_request_to_stand_does_nothing() -> None:
    """Nobody becomes the primary who was not asked to in this epoch, nor while a primary is heard."""
    cluster = led("a", "b", "c")
    cluster.wires.clear()
    cluster["b"].receive("c", TransferRequest(1, stand=0))
    cluster["b"].receive("c", TransferRequest(1, stand=1))
    replies = [wire[2] for wire in cluster.wires]
    assert replies == [
        TransferReply(1, "b is not the primary; a is", later=True),
        TransferReply(1, "it hears the primary a of epoch 1", later=True),
    ]
    cluster.promote("b", settle=False)
    cluster["b"].receive("a", TransferReply(1, "later", later=True))
    assert last(cluster, "b").reason == "the primary a does not hand over: later", "who does not insist is told at once"


def test_a_request_to_stand_from_an_epoch_that_is_over_begins_no_campaign() -> None:
    """Nor when no primary is heard: who asked then may have been answered long ago, and nobody asks now."""
    cluster = led("a", "b", "c")
    cluster.disconnect("a", "b")
    cluster.disconnect("a", "c")
    cluster.wires.clear()
    cluster["b"].receive("c", TransferRequest(0, stand=0))
    assert cluster.wires == [("b", "c", TransferReply(1, "b is not the primary", later=True))]
    cluster.wires.clear()
    cluster["b"].receive("c", TransferRequest(1, stand=1))
    assert [type(wire[2]) for wire in cluster.wires] == [PreVote], "this epoch's is another matter"


def test_a_request_to_stand_comes_to_nothing_while_a_handover_is_awaited() -> None:
    """The primary has just fallen silent, and this member still waits for it."""
    cluster = led("a", "b", "c")
    cluster.promote("b", settle=False)
    cluster.wires.clear()
    cluster.now += 1.1
    cluster["b"].receive("c", TransferRequest(1, stand=1))
    assert cluster.wires == []


def test_the_word_to_stand_is_said_again_when_it_was_lost() -> None:
    """Once a heartbeat, and not with each answer."""
    cluster = without_a_primary("a", "b", "c", behind="c")
    insist(cluster, "c", settle=False)
    asked = 0
    for _ in range(60):
        before = len(cluster.wires)
        cluster.wires = [wire for wire in cluster.wires if not isinstance(wire[2], TransferRequest)]
        asked += before - len(cluster.wires)
        if asked >= 3:
            break
        if cluster.wires:
            cluster.deliver(keep=isinstance(cluster.wires[0][2], PreVoteReply) and not asked)
        else:
            cluster.tick(0.05)
    assert asked >= 3
    assert cluster.now - 100 > 2 * SMALL.heartbeat_s
    made_primary(cluster, "c")


def test_time_may_pass_while_the_first_batch_of_the_new_epoch_is_on_its_way() -> None:
    """The request ends when the broker is active; until then there is nothing to try."""
    cluster = Cluster("a", "b", "c")
    insist(cluster, "a", settle=False)
    while cluster.states()["a"] != "recovering":
        cluster.deliver()
    cluster.tick(0.05)
    assert not cluster["a"].ends(PromotionEnded)
    made_primary(cluster, "a")


def test_who_is_let_go_and_loses_the_votes_tries_again() -> None:
    """Its votes were late: the old primary has stepped down, and nobody else is asked."""
    cluster = led("a", "b", "c")
    insist(cluster, "b", settle=False)
    while not any(isinstance(wire[2], TimeoutNow) for wire in cluster.wires):
        if cluster.wires:
            cluster.deliver()
        else:
            cluster.settle()
    while any(isinstance(wire[2], TimeoutNow) for wire in cluster.wires):
        cluster.deliver()
    cluster["b"].receive("a", Vote(3, 99, 9, transfer=True))
    cluster.pass_time(3)
    assert cluster.states()["b"] == "active"
    assert last(cluster, "b").won


def test_what_does_not_pass_ends_the_request() -> None:
    """A learner, a stranger, a store that is another cluster's: asking again would not help."""
    cluster = led("a", "b", "c")
    learner = cluster.add("d", cluster["a"].live.members)
    cluster["a"].run(cluster["a"].live.add_member(cluster.now, "d", "add"))
    cluster.tick(0.1)
    while learner.live.primary != "a":
        cluster.deliver()
    learner.run(learner.live.promote(cluster.now, "make it d", insist=True))
    assert learner.ends(PromotionEnded)[-1].reason == "d is not a voting member of the cluster (a, b, c)"

    cluster = led("a", "b", "c")
    cluster["b"].run(cluster["b"].live.halt(cluster.now, "its state differs"))
    insist(cluster, "b")
    assert last(cluster, "b").reason == "its state differs"


def test_a_request_ends_in_the_end_with_what_stood_in_its_way_last() -> None:
    """A primary that will hand over in a moment, for ever."""
    cluster = led("a", "b", "c")
    insist(cluster, "c", settle=False)
    for _ in range(75):
        cluster.tick(0.1)
        while cluster.wires:
            if isinstance(cluster.wires[0][2], TransferRequest):
                cluster.wires.pop(0)
                cluster["c"].receive("a", TransferReply(1, "in a moment", later=True))
            else:
                cluster.deliver()
    assert last(cluster, "c").reason == "the primary a does not hand over: in a moment"


def test_a_member_that_is_away_may_still_come_in_time() -> None:
    """The one that is there refuses for its damaged store, and has no newer log to offer."""
    cluster = led("a", "b", "c")
    cluster.propose("a", 3)
    cluster.pass_time(0.2)
    for address in "abc":
        cluster.crash(address)
    cluster["b"].disk.floor = Position(1, 99)
    for address in "bc":
        cluster.restart(address)
    insist(cluster, "c")
    cluster.pass_time(0.5)
    assert not cluster["c"].ends(PromotionEnded)
    cluster.restart("a")
    made_primary(cluster, "c")


def test_a_member_is_asked_to_stand_once_a_heartbeat_and_another_one_at_once() -> None:
    """Each answer to a pre-vote would bring another request otherwise."""
    pursuit = Pursuit(10.0, 7.0, 0.1)
    assert [pursuit.may_ask(now, member) for now, member in ((10, "b"), (10.05, "b"), (10.06, "c"), (10.2, "c"))] == [
        True,
        False,
        True,
        True,
    ]
    newer = {"b": PreVoteReply(3, 1, False, end_index=9, end_epoch=3), "c": PreVoteReply(3, 1, False, end_index=5, end_epoch=4)}
    assert pursuit.best_of(newer, Position(3, 8)) == "c"
    assert pursuit.refused("c", "no") is True
    assert pursuit.refused("b", "it was asked before, not now") is False
    assert (pursuit.best_of(newer, Position(3, 8)), pursuit.best_of(newer, Position(3, 9))) == ("b", "")


@pytest.mark.parametrize("how", ["its link breaks", "it is silent"])
def test_a_damaged_store_does_not_stand_when_the_primary_that_was_to_hand_over_is_gone(how: str) -> None:
    """What it has lost was committed with its help, and the broker that votes for it lacks that as well."""
    cluster = led("a", "b", "c")
    cluster.isolate("b")
    cluster.propose("a", 3)
    cluster.crash("c")
    cluster["c"].disk.floor = cluster["c"].disk.end
    del cluster["c"].disk.log[1:]
    cluster.restart("c")
    cluster.disconnect("a", "b")
    cluster.wires.clear()
    heartbeat = Append(1, 9, 0, 0, 1, 0, 1, cluster_id="an-id")
    cluster.call("c", lambda replica: replica.step(cluster.now, "a", heartbeat), settle=False)
    insist(cluster, "c", settle=False)
    cluster.wires.clear()
    if how == "its link breaks":
        cluster.crash("a")
        cluster.settle()
    else:
        cluster["a"].crash()
    cluster.pass_time(SMALL.campaign_timeout_s + SMALL.transfer_timeout_s)
    assert "this broker's store has lost a part" in last(cluster, "c").reason
    assert cluster.states() == {"b": "joining", "c": "joining"}


def test_a_witness_that_is_insisted_on_says_no_whether_a_primary_is_there_or_not() -> None:
    cluster = led("a", "b", "w", witness="w")
    for _ in range(2):
        insist(cluster, "w")
        assert last(cluster, "w").reason == "w is a witness: it votes, stores no messages, and is never the primary"
        cluster.crash("a")
