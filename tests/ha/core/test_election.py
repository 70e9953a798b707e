"""Promotions: who wins, who is refused, and what the one who asked is told."""

from __future__ import annotations

import pytest

from ha.core.effects import PromotionEnded, SaveHardState, Send, StateChanged
from ha.core.messages import Append, Position, PreVote, Vote, VoteReply
from ha.core.settings import ReplicaSettings
from tests.ha.core.cluster import SMALL, Cluster, active_before_anybody_hears_of_it, led


def last_promotion(cluster: Cluster, address: str) -> PromotionEnded:
    return cluster[address].ends(PromotionEnded)[-1]


def test_nobody_becomes_the_primary_unasked() -> None:
    """The resource manager decides when; a broker that promoted itself would act against it."""
    cluster = Cluster("a", "b", "c")
    cluster.pass_time(30)
    assert cluster.states() == {"a": "joining", "b": "joining", "c": "joining"}
    assert not cluster.primaries


def test_a_promotion_ends_won_when_the_broker_is_active() -> None:
    """Whoever asked may send clients there at once: recovering is not enough."""
    cluster = Cluster("a", "b", "c")
    cluster.promote("a")
    node = cluster["a"]
    assert last_promotion(cluster, "a") == PromotionEnded("promote a", True, "a is the primary of epoch 1")
    states = [effect.state for effect in node.ended if isinstance(effect, StateChanged)]
    assert states[-3:] == ["joining", "recovering", "active"]
    assert node.ended.index(last_promotion(cluster, "a")) > max(
        i for i, e in enumerate(node.ended) if isinstance(e, StateChanged)
    )


def test_promoting_the_primary_again_is_harmless() -> None:
    """Several resource managers, or an impatient operator."""
    cluster = led("a", "b", "c")
    cluster.promote("a")
    assert last_promotion(cluster, "a") == PromotionEnded("promote a", True, "a is the primary of epoch 1 already")
    assert list(cluster.primaries) == [1]


def test_promotions_while_one_is_under_way_share_its_end() -> None:
    """In every stage: asking for votes, recovering, waiting for a handover."""
    cluster = Cluster("a", "b", "c")
    cluster.promote("a", settle=False)
    cluster.promote("a", settle=False)
    while cluster.states()["a"] != "recovering":
        cluster.deliver()
    cluster.promote("a", settle=False)
    cluster.settle()
    assert [ended.won for ended in cluster["a"].ends(PromotionEnded)] == [True] * 3
    cluster.pass_time(0.3)
    cluster.promote("b", settle=False)
    cluster.promote("b", settle=False)
    cluster.settle()
    assert [ended.won for ended in cluster["b"].ends(PromotionEnded)] == [True] * 2


def test_a_killed_primary_is_replaced_without_waiting_for_its_lease() -> None:
    """The broken link tells enough: fail-over takes round trips, not timeouts."""
    cluster = led("a", "b", "c")
    before = cluster.now
    cluster.crash("a")
    cluster.promote("b")
    assert cluster.now == before
    assert cluster.states() == {"b": "active", "c": "ready"}


def test_pre_votes_leave_no_trace_where_a_primary_is_heard() -> None:
    """Dissertation §9.6 and §4.2.3: a broker that lost the primary alone cannot unseat it, nor move anybody's epoch."""
    cluster = led("a", "b", "c")
    cluster.disconnect("a", "b")
    cluster.promote("b")
    cluster.pass_time(3)
    ended = last_promotion(cluster, "b")
    assert not ended.won
    assert "c refused: it hears the primary a of epoch 1; a is not connected" in ended.reason
    assert cluster["c"].live.epoch == cluster["b"].live.epoch == 1
    assert cluster.states()["a"] == "active"


def test_a_vote_asked_while_a_primary_is_heard_is_refused_unread() -> None:
    """Dissertation §4.2.3: even its higher epoch is not taken over, or the primary would be unseated by it."""
    cluster = led("a", "b", "c")
    (reply,) = cluster["b"].live.step(cluster.now, "c", Vote(9, 99, 9))
    assert reply == Send("c", VoteReply(1, 9, False, False, "it hears the primary a of epoch 1"))
    (reply,) = cluster["a"].live.step(cluster.now, "c", Vote(9, 99, 9))
    assert reply == Send("c", VoteReply(1, 9, False, False, "it is itself the primary, of epoch 1"))


def test_a_silent_primary_holds_its_backups_only_for_its_lease() -> None:
    """SIGSTOP breaks no link."""
    cluster = led("a", "b", "c")
    stopped, cluster["a"].replica = cluster["a"].replica, None
    for _ in range(25):
        cluster.tick(0.05)
    assert cluster.states() == {"b": "joining", "c": "joining"}
    cluster["a"].replica = stopped
    cluster.wires.clear()
    cluster.promote("b")
    cluster.pass_time(0.3)
    assert cluster.states() == {"a": "ready", "b": "active", "c": "ready"}


def test_a_voter_that_sees_the_primary_die_a_moment_later_is_asked_again() -> None:
    """Two sockets do not break at the same instant: the promotion must not wait for its deadline because of that."""
    cluster = led("a", "b", "c")
    cluster["a"].crash()
    cluster.disconnect("a", "b")
    cluster.promote("b")
    assert cluster.states() == {"b": "joining", "c": "ready"}
    cluster.disconnect("a", "c")
    cluster.pass_time(2 * SMALL.heartbeat_s)
    assert cluster.states() == {"b": "active", "c": "ready"}


def test_a_voter_that_heard_the_primary_a_moment_longer_is_asked_again() -> None:
    """A silent primary's last heartbeats do not reach all at once; the promotion must not fail for that moment."""
    cluster = led("a", "b", "c")
    cluster["a"].replica = None
    cluster.tick(0.5)
    cluster["c"].receive("a", Append(1, 9, 1, 1, 2, 1, 1))
    cluster.wires.clear()
    cluster.tick(0.6)
    assert cluster.states() == {"b": "joining", "c": "ready"}
    cluster.promote("b")
    assert not cluster["b"].ends(PromotionEnded)
    cluster.pass_time(0.6)
    assert last_promotion(cluster, "b").won


def test_a_broker_that_is_behind_loses_and_is_told_whose_log_is_newer() -> None:
    """§5.4.1: whatever the resource manager believes."""
    cluster = led("a", "b", "c")
    cluster.crash("c")
    cluster.propose("a", 5)
    cluster.pass_time(0.3)
    cluster.crash("a")
    cluster.restart("c")
    cluster.promote("c")
    cluster.pass_time(3)
    ended = last_promotion(cluster, "c")
    assert not ended.won
    assert "b refused: its log is newer (epoch 1, index 6; yours ends at epoch 1, index 1)" in ended.reason
    assert "c got 1 of the 2 votes needed (pre-vote)" in ended.reason


def test_section_5_4_1_a_newer_epoch_beats_a_longer_log() -> None:
    """The longer log's tail was never committed; what the newer one holds in its place was."""
    cluster = led("a", "b", "c")
    cluster.isolate("a")
    cluster.propose("a", 9)
    cluster.promote("b")
    cluster.crash("a")
    cluster.crash("b")
    cluster.restart("a")
    cluster.promote("a")
    cluster.pass_time(3)
    reason = last_promotion(cluster, "a").reason
    assert "c refused: its log is newer (epoch 2, index 2; yours ends at epoch 1, index 10)" in reason
    cluster.promote("c")
    assert last_promotion(cluster, "c").won


def test_a_promotion_without_a_majority_is_refused_in_time() -> None:
    """And says who did not answer and who is not there."""
    cluster = led("a", "b", "c")
    cluster.crash("a")
    cluster.promote("b", settle=False)
    for _ in range(41):
        cluster.wires.clear()
        cluster.tick(0.05)
    ended = last_promotion(cluster, "b")
    assert not ended.won
    assert ended.reason == (
        "no majority within 2 s: b got 1 of the 2 votes needed (pre-vote): a is not connected; c did not answer"
    )


def test_lost_requests_are_asked_again() -> None:
    """In both rounds."""
    cluster = led("a", "b", "c")
    cluster.crash("a")
    cluster.promote("b", settle=False)
    cluster.wires.clear()
    for _ in range(3):
        cluster.tick(0.05)
    while not any(isinstance(wire[2], Vote) for wire in cluster.wires):
        cluster.deliver()
    cluster.wires.clear()
    cluster.pass_time(0.3)
    assert cluster.states() == {"b": "active", "c": "ready"}


def test_a_voter_that_connects_during_a_campaign_is_asked_at_once() -> None:
    """At a start of the whole cluster, links come up while the first promotion is under way."""
    cluster = Cluster("a", "b", "c", connect=False)
    cluster.promote("a")
    cluster.connect("a", "b")
    cluster.settle()
    cluster.connect("a", "c")
    cluster.settle()
    assert cluster.states()["a"] == "active"
    cluster.connect("b", "c")
    assert not [wire for wire in cluster.wires if isinstance(wire[2], PreVote)]


def test_of_two_promotions_at_once_one_wins_and_the_other_is_told() -> None:
    """§5.2: one vote an epoch."""
    cluster = led("p", "a", "b", "c", "d")
    cluster.crash("p")
    cluster.promote("a", settle=False)
    cluster.promote("b", settle=False)
    cluster.settle()
    cluster.pass_time(3)
    won = [address for address in "ab" if last_promotion(cluster, address).won]
    assert len(won) == 1
    assert sorted(cluster.states().values()) == ["active", "ready", "ready", "ready"]


def test_a_second_candidate_of_the_same_epoch_is_refused() -> None:
    """A vote is saved before it is given, and given once: again to the same candidate only."""
    cluster = Cluster("a", "b", "c")
    voter = cluster["c"].live
    assert voter.step(1.0, "a", Vote(1, 0, 0))[0] == SaveHardState(1, "a")
    assert voter.step(1.0, "a", Vote(1, 0, 0)) == [Send("a", VoteReply(1, 1, True, True))]
    assert voter.step(1.0, "b", Vote(1, 0, 0)) == [Send("b", VoteReply(1, 1, False, True, "it has voted for a in epoch 1"))]
    assert voter.step(1.0, "b", Vote(0, 0, 0)) == [Send("b", VoteReply(1, 0, False, True, "epoch 0 is over: c is in epoch 1"))]


def test_a_vote_given_in_the_own_epoch_ends_the_own_campaign() -> None:
    """Having voted for another, a candidate would only disturb it."""
    cluster = Cluster("a", "b", "c")
    cluster["a"].live.step(1.0, "b", Vote(1, 0, 0))
    cluster["a"].replica = None
    cluster["a"].disk.epoch, cluster["a"].disk.voted_for = 1, None
    cluster["a"].start()
    node = cluster["a"]
    node.run(node.live.promote(1.0, "mine"))
    node.run(node.live.step(1.0, "b", Vote(1, 0, 0)))
    assert node.ends(PromotionEnded)[-1] == PromotionEnded("mine", False, "b asks for votes in epoch 1")
    assert (node.disk.epoch, node.disk.voted_for) == (1, "b")


def test_an_epoch_that_a_voter_has_seen_is_passed_over_by_the_candidate() -> None:
    """A broker back from a long absence is electable at its first attempt, if its log is new enough."""
    cluster = led("a", "b", "c")
    cluster.crash("a")
    cluster["c"].disk.epoch = 7
    cluster.crash("c")
    cluster.restart("c")
    cluster.promote("b")
    assert cluster["b"].live.epoch == 8
    assert last_promotion(cluster, "b").won


def test_a_higher_epoch_among_the_votes_ends_a_campaign() -> None:
    """§5.1."""
    cluster = led("a", "b", "c")
    cluster.crash("a")
    cluster.promote("b", settle=False)
    while cluster["b"].live.epoch == 1:
        cluster.deliver()
    cluster["b"].receive("c", VoteReply(9, 2, False, False, "epoch 2 is over"))
    assert last_promotion(cluster, "b") == PromotionEnded("promote b", False, "epoch 9 has begun, says c")
    cluster["b"].receive("c", VoteReply(9, 2, True))
    assert cluster.states()["b"] == "joining"


def test_a_candidate_that_meets_the_primary_gives_up() -> None:
    """Its promotion was asked for because nobody knew that there is one."""
    cluster = led("p", "a", "b", "c", "d")
    cluster.crash("p")
    cluster.disconnect("a", "b")
    cluster.promote("a", settle=False)
    cluster.promote("b", settle=False)
    cluster.settle()
    cluster.connect("a", "b")
    cluster.settle()
    cluster.pass_time(3)
    assert sorted(last_promotion(cluster, address).won for address in "ab") == [False, True]


def test_a_broker_that_is_no_voter_is_not_promoted() -> None:
    """A learner has not caught up; a stranger's own log does not know it."""
    cluster = led("a", "b", "c")
    cluster.add("d", cluster["a"].live.members)
    cluster.promote("d")
    assert last_promotion(cluster, "d").reason == "d is not a voting member of the cluster (a, b, c)"


def test_a_cluster_of_one_elects_itself_when_asked() -> None:
    """--ha-cluster yes with one address: still by promotion only."""
    cluster = Cluster("a")
    assert cluster.states() == {"a": "joining"}
    cluster.promote("a")
    assert cluster.states() == {"a": "active"}


def test_a_standalone_log_is_its_own_primary_from_the_start() -> None:
    """Through every restart, in a new epoch each time."""
    cluster = Cluster("a", settings=ReplicaSettings(standalone=True))
    assert cluster.states() == {"a": "recovering"}
    cluster.settle()
    assert cluster.states() == {"a": "standalone"}
    cluster.propose("a", 3)
    cluster.crash("a")
    cluster.restart("a")
    cluster.settle()
    assert (cluster.states(), cluster["a"].live.epoch, cluster["a"].applied) == ({"a": "standalone"}, 2, 5)


class TestLostStores:
    """A store that forgot what it acknowledged must not help to elect somebody who lacks it."""

    def test_a_blank_store_does_not_vote_a_commit_away(self) -> None:
        """a and c hold the commit, b does not. c's disk is replaced, a is down: b must not win with c's vote."""
        cluster = led("a", "b", "c")
        cluster.disconnect("a", "b")
        cluster.propose("a", 3)
        cluster.crash("a")
        cluster.crash("c")
        cluster.nodes["c"] = type(cluster["c"])(cluster, "c", cluster["b"].live.members, SMALL)
        cluster.connect_all()
        cluster.promote("b")
        cluster.pass_time(3)
        ended = last_promotion(cluster, "b")
        assert not ended.won
        assert "c has an empty store, so its vote counts only if all members vote; a is not connected" in ended.reason
        cluster.restart("a")
        cluster.promote("a")
        cluster.pass_time(0.3)
        assert cluster.states()["a"] == "active", "b votes for a"
        assert cluster["c"].applied == 5
        assert not cluster["c"].disk.blank

    def test_a_cluster_whose_first_primary_died_young_can_elect_again(self) -> None:
        """Nobody but the dead primary knows that its first batch was committed; all of them together can tell."""
        cluster = active_before_anybody_hears_of_it()
        cluster.crash("a")
        cluster.promote("b")
        assert not cluster["b"].ends(PromotionEnded)
        cluster.restart("a")
        cluster.promote("b")
        cluster.pass_time(0.3)
        assert cluster.states() == {"a": "ready", "b": "active", "c": "ready"}

    def test_the_only_store_that_lost_its_tail_says_what_a_person_can_do(self) -> None:
        """Nobody else can tell whether another broker has that tail, one that was removed or added meanwhile."""
        cluster = led("a")
        cluster.propose("a", 3)
        cluster.pass_time(0.3)
        cluster.crash("a")
        disk = cluster["a"].disk
        disk.floor = disk.end
        del disk.log[2:]
        cluster.restart("a")
        cluster.promote("a")
        cluster.pass_time(0.3)
        assert last_promotion(cluster, "a").reason == (
            "this broker's store has lost a part: it once held epoch 1, index 4 and now ends at epoch 1, index 2; no other "
            "member stores this log: bring that part back, or, to go on without it, stop this broker, delete the file floor in "
            "the folder cluster of its --data-dir, and start it again"
        )

    def test_a_store_that_lost_its_tail_neither_stands_nor_votes_for_less(self) -> None:
        """It knows what it held: the floor. Once it holds that again, it is a voter like others."""
        cluster = led("a", "b", "c")
        cluster.disconnect("a", "b")
        cluster.propose("a", 3)
        cluster.crash("a")
        cluster.crash("c")
        disk = cluster["c"].disk
        held = disk.floor = disk.end
        del disk.log[1:]
        cluster.restart("c")
        cluster.promote("b")
        cluster.pass_time(3)
        assert "c refused: its store has lost a part and once held epoch 1, index 4" in last_promotion(cluster, "b").reason
        cluster.promote("c")
        assert "it once held epoch 1, index 4 and now ends at epoch 1, index 1" in last_promotion(cluster, "c").reason
        cluster.restart("a")
        cluster.promote("a")
        cluster.pass_time(0.3)
        assert disk.end > held
        cluster.crash("a")
        cluster.promote("c")
        assert last_promotion(cluster, "c").won

    def test_a_floor_that_the_log_has_passed_is_forgotten_at_the_start(self) -> None:
        """The broker was killed between the last batch and the note of it."""
        cluster = led("a", "b", "c")
        cluster.crash("b")
        cluster["b"].disk.floor = Position(1, 1)
        cluster.restart("b")
        assert cluster["b"].disk.floor is None


@pytest.mark.parametrize("epoch, commit_index, text", [(0, 0, "older than its log's"), (1, 9, "before the checkpoint at 9")])
def test_a_store_that_contradicts_itself_is_our_own_bug(epoch: int, commit_index: int, text: str) -> None:
    """The journal's recovery must never hand out such a thing."""
    from ha.core.replica import Replica

    cluster = led("a")
    with pytest.raises(AssertionError, match=text):
        Replica("a", SMALL, epoch=epoch, voted_for=None, log=cluster["a"].live.log, commit_index=commit_index)


def test_silence_counts_from_the_last_word_of_a_primary() -> None:
    """From then on nobody can have served, as far as this member knows: the gap of a failover begins there, and not when it
    was noticed."""
    cluster = Cluster("a", "b", "c")
    assert cluster["b"].live.silence_s(cluster.now) is None, "it has heard of none"
    cluster.promote("a")
    cluster.pass_time(0.3)
    last_word = cluster.now - (cluster["b"].live.silence_s(cluster.now) or 0.0)
    assert last_word >= cluster.now - cluster.settings.heartbeat_s
    cluster["a"].replica = None
    cluster.pass_time(1.5)
    assert cluster["b"].live.primary == ""
    cluster.promote("b")
    assert cluster["b"].live.silence_s(cluster.now) == pytest.approx(cluster.now - last_word)


def test_a_primary_that_steps_down_was_the_last_to_serve_as_far_as_it_knows() -> None:
    cluster = led("a", "b", "c")
    cluster.isolate("a")
    cluster.pass_time(0.9)
    assert cluster.states()["a"] == "active"
    cluster.pass_time(0.5)
    assert cluster.states()["a"] == "joining"
    assert (cluster["a"].live.silence_s(cluster.now) or 0.0) < 0.5
