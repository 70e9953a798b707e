"""Planned switchover (dissertation §3.10): no batch is lost, and the old primary takes up again when it comes to nothing."""

from __future__ import annotations

import pytest

from ha.core.effects import PromotionEnded, Quiesce, Resume, TermEnded, TransferEnded, WritableChanged
from ha.core.messages import Message, TimeoutNow, TransferReply, TransferRequest
from tests.ha.core.cluster import Cluster, led


def until(cluster: Cluster, kind: type) -> None:
    """Deliver, and let disks work, until a message of this kind is under way."""
    for _ in range(200):
        if any(isinstance(wire[2], kind) for wire in cluster.wires):
            return
        if cluster.wires:
            cluster.deliver()
        for node in cluster.alive:
            node.sync()
    raise AssertionError(f"no {kind.__name__} is ever sent: {cluster.states()}")


def test_promoting_a_backup_while_the_primary_is_healthy_hands_over() -> None:
    """With what was proposed a moment before brought over first."""
    cluster = led("a", "b", "c")
    cluster.propose("a", 4, settle=False)
    cluster.promote("b")
    cluster.pass_time(0.2)
    assert cluster.states() == {"a": "ready", "b": "active", "c": "ready"}
    assert cluster["b"].ends(PromotionEnded) == [PromotionEnded("promote b", True, "b is the primary of epoch 2")]
    assert cluster["b"].applied == 6
    ended = cluster["a"].ends(TransferEnded)[-1]
    assert (ended.candidate, ended.done) == ("b", True)
    assert [end.planned for end in cluster["a"].ends(TermEnded)] == [True]


def test_the_clients_become_quiet_first_and_then_the_primary_takes_no_more_proposals() -> None:
    """What consumers settle until then is in the log that the candidate gets; without an end to it, it would never be level."""
    cluster = led("a", "b", "c")
    cluster["a"].has_clients = True
    cluster.promote("b")
    assert cluster["a"].ends(Quiesce) == [Quiesce(within_s=2.5)]
    cluster.propose("a", 3)
    cluster.pass_time(0.3)
    assert cluster.states() == {"a": "active", "b": "ready", "c": "ready"}, "clients are not quiet"
    cluster.call("a", lambda replica: replica.quiesced(cluster.now), settle=False)
    assert not cluster["a"].live.writable
    assert cluster["a"].ends(WritableChanged)[-1] == WritableChanged(False)
    cluster.settle()
    assert cluster.states()["b"] == "active"
    assert cluster["b"].applied == cluster["a"].live.next_index - 1 == 5, "with the first batch of its own epoch"


def test_the_candidate_is_let_go_when_all_is_committed_and_on_the_primarys_own_disk() -> None:
    """Only then has the primary applied it, and told its clients."""
    cluster = led("a", "b", "c")
    cluster.propose("a", settle=False)
    cluster.promote("b", settle=False)
    while cluster.wires or cluster["b"].writing or cluster["c"].writing:
        for node in (cluster["b"], cluster["c"]):
            node.sync()
        if cluster.wires:
            cluster.deliver()
    assert cluster["a"].live.commit_index == cluster["a"].live.next_index - 1, "the backups are a majority"
    assert cluster.states()["a"] == "active"
    cluster.settle()
    assert cluster.states()["b"] == "active"


def passes_but_no_write_ends(cluster: Cluster, seconds: float, *stuck: str) -> None:
    """Time passes; the disks of these brokers are full, or hang."""
    until_s = cluster.now + seconds
    while cluster.now < until_s:
        cluster.tick(0.05)
        while cluster.wires or any(node.writing for node in cluster.alive if node.address not in stuck):
            if cluster.wires:
                cluster.deliver()
            for node in cluster.alive:
                if node.address not in stuck:
                    node.sync()


def test_a_primary_whose_disk_takes_nothing_hands_over_what_the_others_have_before_it_gives_up() -> None:
    """Its own disk is waited for first, so that clients get their answers. Breaks when a full disk keeps the primary where it is:
    a switchover is called off, and a broker that stops leaves its clients to a failover.
    """
    cluster = led("a", "b", "c")
    cluster["a"].has_clients = True
    cluster.propose("a", settle=False)
    cluster.promote("b", settle=False)
    passes_but_no_write_ends(cluster, 2.5, "a")
    cluster.call("a", lambda replica: replica.quiesced(cluster.now), settle=False)
    passes_but_no_write_ends(cluster, 1.2, "a")
    assert cluster.states() == {"a": "active", "b": "ready", "c": "ready"}
    passes_but_no_write_ends(cluster, 0.5, "a")
    assert cluster.states() == {"a": "catchup", "b": "active", "c": "ready"}
    assert cluster["b"].applied == cluster["b"].live.next_index - 1
    assert [end.planned for end in cluster["a"].ends(TermEnded)] == [True]
    cluster.settle()
    assert cluster["a"].applied == cluster["b"].applied


def test_a_primary_whose_disk_takes_nothing_keeps_what_no_majority_has() -> None:
    """Then another broker could be elected without it."""
    cluster = led("a", "b", "c")
    cluster.propose("a", settle=False)
    cluster.promote("b", settle=False)
    passes_but_no_write_ends(cluster, 6.0, "a", "c")
    assert cluster.states()["a"] == "active"
    assert cluster["a"].live.writable
    (end,) = cluster["a"].ends(TransferEnded)
    told = "b has not taken over within 5 s: the disk of the primary has not taken its last batches (it may be full, or slow)"
    assert (end.done, end.reason) == (False, f"the handover was cancelled: {told}")


def test_clients_go_on_when_the_handover_is_called_off_and_their_quiet_counts_for_nothing_later() -> None:
    """Without a handover there is nothing to be quiet for."""
    cluster = led("a", "b", "c")
    cluster["a"].has_clients = True
    cluster.promote("b", settle=False)
    cluster.deliver()
    cluster.disconnect("a", "b")
    assert len(cluster["a"].ends(Resume)) == 1
    cluster.call("a", lambda replica: replica.quiesced(cluster.now))
    assert cluster["a"].live.writable
    cluster.call("b", lambda replica: replica.quiesced(cluster.now))


def test_no_learner_is_raised_while_the_primary_hands_over() -> None:
    """The change would end with the term."""
    cluster = led("a", "b", "c")
    cluster.add("d", cluster["a"].live.members)
    cluster["a"].has_clients = True
    cluster.isolate("d")
    cluster.call("a", lambda replica: replica.add_member(cluster.now, "d", "add"))
    cluster.promote("b")
    cluster.connect_all()
    cluster.pass_time(0.3)
    assert cluster["a"].live.members.learners == ("d",)
    cluster.call("a", lambda replica: replica.quiesced(cluster.now))
    cluster.pass_time(0.3)
    assert cluster["b"].live.members.voters == ("a", "b", "c", "d"), "the next primary does it"


def test_a_handover_that_comes_to_nothing_is_called_off() -> None:
    """The candidate does not answer: after transfer_timeout_s the primary serves again, and both sides are told."""
    cluster = led("a", "b", "c")
    cluster.promote("b", settle=False)
    cluster.deliver()
    cluster.wires.clear()
    for _ in range(110):
        cluster.wires = [wire for wire in cluster.wires if not isinstance(wire[2], TimeoutNow)]
        cluster.tick(0.05)
        while cluster.wires:
            if isinstance(cluster.wires[0][2], TimeoutNow):
                cluster.wires.pop(0)
            else:
                cluster.deliver()
    assert cluster.states() == {"a": "active", "b": "ready", "c": "ready"}
    assert cluster["a"].live.writable
    assert cluster["a"].ends(TransferEnded) == [
        TransferEnded("b", False, "the handover was cancelled: b has not taken over within 5 s")
    ]
    (ended,) = cluster["b"].ends(PromotionEnded)
    assert ended.reason == "the primary a does not hand over: the handover was cancelled: b has not taken over within 5 s"


def test_a_primary_that_never_answers_a_request_is_given_up_in_time() -> None:
    """The request itself got lost; heartbeats still come."""
    cluster = led("a", "b", "c")
    cluster.promote("b", settle=False)
    cluster.wires.clear()
    cluster.pass_time(5.2)
    assert cluster["b"].ends(PromotionEnded) == [
        PromotionEnded("promote b", False, "the primary a has not handed over within 5 s")
    ]


def test_a_candidate_that_is_cut_off_sets_the_primary_free_at_once() -> None:
    """Producers wait meanwhile. The candidate finds that it must ask for votes, and gets none."""
    cluster = led("a", "b", "c")
    cluster.promote("b", settle=False)
    cluster.deliver()
    cluster.disconnect("a", "b")
    assert cluster["a"].live.writable
    assert cluster["a"].ends(TransferEnded) == [TransferEnded("b", False, "the handover was cancelled: the link to b broke")]
    cluster.pass_time(3)
    assert "c refused: it hears the primary a" in cluster["b"].ends(PromotionEnded)[-1].reason
    assert cluster.states()["a"] == "active"


def test_a_primary_that_dies_while_it_hands_over_is_replaced_by_votes() -> None:
    """By a broken link, or by silence: the promotion goes on by itself."""
    cluster = led("a", "b", "c")
    cluster.promote("b", settle=False)
    cluster.crash("a")
    cluster.settle()
    assert cluster["b"].ends(PromotionEnded)[-1].won

    silent = led("a", "b", "c")
    silent.promote("b", settle=False)
    silent.wires.clear()
    silent["a"].replica = None
    silent.pass_time(1.3)
    assert silent["b"].ends(PromotionEnded)[-1].won


def test_a_lost_word_to_the_candidate_is_said_again() -> None:
    """With the next heartbeat."""
    cluster = led("a", "b", "c")
    cluster.promote("b", settle=False)
    until(cluster, TimeoutNow)
    cluster.wires.clear()
    cluster.pass_time(0.2)
    assert cluster.states()["b"] == "active"


def test_the_word_to_the_candidate_is_for_a_fit_one_in_the_same_epoch() -> None:
    """Late or repeated, it must not begin a campaign of its own."""
    cluster = led("a", "b", "c")
    for sender, epoch in (("c", 1), ("a", 0)):
        cluster["b"].receive(sender, TimeoutNow(epoch))
    assert cluster.states()["a"] == "active"
    assert cluster["b"].live.epoch == 1
    cluster["a"].receive("b", TimeoutNow(1))
    assert cluster.states()["a"] == "active"
    learner = cluster.add("d", cluster["a"].live.members)
    cluster["a"].run(cluster["a"].live.add_member(cluster.now, "d", "add"))
    cluster.tick(0.1)
    while learner.live.primary != "a":
        cluster.deliver()
    cluster.wires.clear()
    learner.receive("a", TimeoutNow(1))
    told = TransferReply(1, "d is not a voting member of the cluster (a, b, c)")
    assert cluster.wires == [("d", "a", told)], "a learner asks nobody for votes"


def until_handed_over(
    cluster: Cluster, candidate: str, patience_s: float | None = None, within_s: float | None = None
) -> tuple[float, TransferEnded]:
    """Have `a` hand over; the seconds that it took, and how it ended."""
    began, before = cluster.now, len(cluster["a"].ends(TransferEnded))
    cluster.call("a", lambda replica: replica.transfer(cluster.now, candidate, patience_s, within_s))
    while len(cluster["a"].ends(TransferEnded)) == before:
        cluster.pass_time(0.1)
    return cluster.now - began, cluster["a"].ends(TransferEnded)[-1]


def test_a_candidate_that_must_not_take_over_says_why_and_the_next_one_does() -> None:
    """Breaks when clients wait for a broker that has stopped applying the log, and the primary stops without a successor."""
    cluster = led("a", "b", "c")
    why = "b has stopped applying the log: batch 7 is unknown"
    cluster.call("b", lambda replica: replica.halt(cluster.now, why))
    took_s, ended = until_handed_over(cluster, "b")
    assert (took_s < 0.2, ended.done) == (True, False)
    assert ended.reason == f"the handover was cancelled: b cannot take over: {why}"
    assert cluster["a"].live.writable
    assert until_handed_over(cluster, "c")[1].done
    cluster.pass_time(0.3)
    assert cluster.states() == {"a": "ready", "b": "ready", "c": "active"}


def test_what_others_and_late_candidates_say_calls_off_no_handover() -> None:
    """Only the candidate may, once it was told to take over, in this epoch."""
    cluster = led("a", "b", "c")
    cluster["a"].receive("b", TransferReply(1, "late"))
    cluster["a"].has_clients = True
    cluster.promote("b")
    for sender, epoch in (("b", 1), ("c", 1), ("b", 0)):
        cluster["a"].receive(sender, TransferReply(epoch, "not told yet, another one, or of a former term"))
    cluster.call("a", lambda replica: replica.quiesced(cluster.now), settle=False)
    until(cluster, TimeoutNow)
    cluster["a"].receive("c", TransferReply(1, "another one"))
    cluster["a"].receive("b", TransferReply(0, "of a former term"))
    cluster.settle()
    assert cluster.states()["b"] == "active"


class DeafCandidate(Cluster):
    """No word to take over reaches `b`."""

    def post(self, sender: str, receiver: str, message: Message) -> None:
        if not (receiver == "b" and isinstance(message, TimeoutNow)):
            super().post(sender, receiver, message)


def test_a_candidate_that_says_nothing_has_as_long_as_the_primary_is_patient() -> None:
    """A member of an older release that must not take over keeps silent: the next one is to have time left."""
    cluster = DeafCandidate("a", "b", "c")
    cluster.promote("a")
    cluster.pass_time(0.3)
    took_s, ended = until_handed_over(cluster, "b", patience_s=0.5)
    assert (0.4 < took_s < 0.8, ended.done) == (True, False)
    assert ended.reason == "the handover was cancelled: b has not taken over within 0.5 s"
    assert until_handed_over(cluster, "c")[1].done


def test_the_last_candidate_has_no_more_than_the_time_that_is_left() -> None:
    """Breaks when clients are without a primary for longer than a switchover may take, because an earlier candidate said
    nothing."""
    cluster = DeafCandidate("a", "b", "c")
    cluster.promote("a")
    cluster.pass_time(0.3)
    took_s, ended = until_handed_over(cluster, "b", within_s=2.0)
    assert (1.9 < took_s < 2.3, ended.done) == (True, False)
    assert ended.reason == "the handover was cancelled: b has not taken over within 2 s"
    assert cluster["a"].ends(Quiesce)[-1] == Quiesce(1.0)
    assert until_handed_over(cluster, "c", within_s=2.0)[1].done


def test_a_candidate_that_stays_behind_is_given_up_after_half_of_the_time_that_is_left() -> None:
    cluster = behind(9)
    cluster.call("a", lambda replica: replica.transfer(cluster.now, "b", within_s=1.0), settle=False)
    for _ in range(12):
        cluster.tick(0.05)
        cluster.wires = [wire for wire in cluster.wires if wire[1] != "b" or not getattr(wire[2], "entries", ())]
        while cluster.wires:
            cluster.deliver()
    text = "the handover was cancelled: b catches up, and is 9 batches (900 bytes) behind after 0.5 s"
    assert cluster["a"].ends(TransferEnded) == [TransferEnded("b", False, text)]


def test_a_request_to_hand_over_that_reaches_a_backup_is_refused_with_the_primarys_name() -> None:
    """The candidate believed an old primary."""
    cluster = led("a", "b", "c")
    cluster.wires.clear()
    cluster["b"].receive("c", TransferRequest(1))
    assert cluster.wires == [("b", "c", TransferReply(1, "b is not the primary; a is", later=True))]
    cluster.isolate("b")
    cluster.call("b", lambda replica: replica.transfer(cluster.now, "c"))
    assert cluster["b"].ends(TransferEnded) == [TransferEnded("c", False, "b is not the primary")]


@pytest.mark.parametrize(
    "candidate, reason",
    [
        ("a", "a is not another voting member of this cluster"),
        ("x", "x is not another voting member of this cluster"),
        ("c", "c is not connected to the primary"),
    ],
)
def test_an_unsuitable_candidate_is_refused_without_a_pause(candidate: str, reason: str) -> None:
    """Producers must not wait for a handover that cannot succeed."""
    cluster = led("a", "b", "c", "d", "e")
    cluster.crash("c")
    cluster.call("a", lambda replica: replica.transfer(cluster.now, candidate), settle=False)
    assert cluster["a"].ends(TransferEnded) == [TransferEnded(candidate, False, reason)]
    assert cluster["a"].live.writable


def behind(count: int) -> Cluster:
    """`a` leads five, and what it has proposed last has not gone out to `b`."""
    cluster = led("a", "b", "c", "d", "e")
    for _ in range(count):
        cluster.propose("a", settle=False)
        cluster.wires = [wire for wire in cluster.wires if wire[1] != "b"]
    while cluster.wires:
        cluster.deliver()
    for node in cluster.alive:
        node.sync()
    return cluster


def test_a_candidate_that_is_behind_is_waited_for_while_producers_go_on() -> None:
    """Their pause is for the last few batches alone, however many it lacks."""
    cluster = behind(9)
    cluster["a"].has_clients = True
    cluster.promote("b", settle=False)
    cluster.deliver()
    assert (cluster["a"].ends(Quiesce), cluster["a"].live.writable) == ([], True)
    cluster.pass_time(0.3)
    assert cluster["a"].ends(Quiesce) == [Quiesce(2.5)], "b is near enough"
    cluster.call("a", lambda replica: replica.quiesced(cluster.now))
    assert cluster["b"].ends(PromotionEnded)[-1].won


def test_a_candidate_that_stays_behind_is_given_up_with_how_far_without_a_pause() -> None:
    """Half of transfer_timeout_s: the other half is for the switchover itself."""
    cluster = behind(9)
    cluster.promote("b", settle=False)
    for _ in range(60):
        cluster.tick(0.05)
        cluster.wires = [wire for wire in cluster.wires if wire[1] != "b" or not getattr(wire[2], "entries", ())]
        while cluster.wires:
            cluster.deliver()
    assert (cluster["a"].ends(Quiesce), cluster["a"].ends(Resume)) == ([], [])
    text = "the handover was cancelled: b catches up, and is 9 batches (900 bytes) behind after 2.5 s"
    assert cluster["a"].ends(TransferEnded) == [TransferEnded("b", False, text)]
    (ended,) = cluster["b"].ends(PromotionEnded)
    assert ended.reason == f"the primary a does not hand over: {text}"


def test_one_handover_at_a_time_and_none_before_the_primary_is_active() -> None:
    """Asking again for the one under way changes nothing."""
    cluster = Cluster("a", "b", "c")
    cluster.promote("a", settle=False)
    while cluster.states()["a"] != "recovering":
        cluster.deliver()
    cluster.call("a", lambda replica: replica.transfer(cluster.now, "b"))
    assert "has not committed a batch of its own epoch" in cluster["a"].ends(TransferEnded)[-1].reason
    for candidate in "bbc":
        cluster["a"].run(cluster["a"].live.transfer(cluster.now, candidate))
    assert cluster["a"].ends(TransferEnded)[1:] == [TransferEnded("c", False, "the primary is handing over to b already")]


def test_of_two_backups_asking_for_the_primary_one_gets_it() -> None:
    """The other is told, and the cluster serves."""
    cluster = led("a", "b", "c")
    cluster.promote("b", settle=False)
    cluster.promote("c", settle=False)
    cluster.settle()
    cluster.pass_time(0.3)
    assert cluster.states() == {"a": "ready", "b": "active", "c": "ready"}
    (ended,) = cluster["c"].ends(PromotionEnded)
    assert not ended.won


def test_a_candidate_that_loses_the_votes_leaves_no_primary_but_no_harm() -> None:
    """It had been let go, so the old primary has stepped down; the resource manager promotes again."""
    cluster = led("a", "b", "c")
    cluster.promote("b", settle=False)
    until(cluster, TimeoutNow)
    while any(isinstance(wire[2], TimeoutNow) for wire in cluster.wires):
        cluster.deliver()
    cluster.isolate("b")
    cluster.pass_time(3)
    assert not cluster["b"].ends(PromotionEnded)[-1].won
    cluster.connect_all()
    cluster.pass_time(1.2)  # c has heard the old primary, and is loyal for so long
    cluster.promote("c")
    cluster.pass_time(0.5)
    assert cluster.states()["c"] == "active"
    assert sorted(cluster.states().values()) == ["active", "ready", "ready"]
