"""How a cluster begins, and how it does not: blank stores, lost stores, and a beginning by force (docs/adr/0017)."""

from __future__ import annotations

import pytest

from ha.core.effects import PromotionEnded, Strange
from ha.core.messages import Append, PreVote, SnapshotChunk, Vote, VoteReply
from tests.ha.core.cluster import SMALL, Cluster, active_before_anybody_hears_of_it, led
from tests.ha.core.test_election import last_promotion

HALF_S = SMALL.campaign_timeout_s / 2


def force(cluster: Cluster, address: str, *, settle: bool = True) -> None:
    """An operator begins a new cluster with this broker, and gives up what was committed; time passes until that has an end."""
    cluster.committed.clear()
    cluster.call(address, lambda replica: replica.bootstrap(cluster.now, f"force {address}"), settle=settle)
    if settle:
        cluster.pass_time(HALF_S + 0.3)


def loaded(cluster: Cluster, *, behind: str, by: int) -> None:
    """Everything arrives and is written, but for the last `by` writes of one broker, whose disk is slow."""
    while True:
        writing = [node for node in cluster.alive if len(node.writing) > (by if node.address == behind else 0)]
        if cluster.wires:
            cluster.deliver()
        elif writing:
            for node in writing:
                node.sync(len(node.writing) - (by if node.address == behind else 0))
        else:
            return


def robbed(*lost: str) -> Cluster:
    """a, b and c have accepted messages; then all go down, and the disks of `lost` are replaced by empty ones."""
    cluster = led("a", "b", "c")
    cluster.propose("a", 9)
    cluster.pass_time(0.3)
    for address in "abc":
        cluster.crash(address)
    for address in lost:
        cluster.wipe(address)
    return cluster


def begun_anew() -> Cluster:
    """The same with a and b lost, and a new cluster begun by force on a, with messages of its own; c is still down."""
    cluster = robbed("a", "b")
    force(cluster, "a")
    assert last_promotion(cluster, "a").won
    return cluster


class TestAFirstElection:
    """Among blank stores."""

    def test_all_members_of_a_new_cluster_elect_whoever_is_asked(self) -> None:
        """This is how a cluster begins; it needs no operator."""
        cluster = Cluster("a", "b", "c")
        cluster.promote("b")
        assert cluster.states()["b"] == "active"
        assert cluster["b"].live.begun_without == ()

    def test_nobody_is_elected_while_a_member_of_a_new_cluster_is_missing(self) -> None:
        """Who is missing may hold the cluster's messages: a lost disk looks like a new one. The refusal says what to do."""
        cluster = Cluster("a", "b", "c")
        cluster.crash("c")
        cluster.promote("a")
        cluster.pass_time(3)
        ended = last_promotion(cluster, "a")
        assert not ended.won
        assert (
            "All stores that answer are empty, so no broker is elected without c, which may hold messages: start c."
            in ended.reason
        )
        assert "`qpid-ha bootstrap --force -b a` begins a new cluster and gives up whatever c holds" in ended.reason
        cluster.restart("c")
        cluster.promote("a")
        assert last_promotion(cluster, "a").won

    @pytest.mark.parametrize("insist", [False, True])
    def test_a_member_that_runs_but_refuses_the_link_is_not_said_to_be_down(self, insist: bool) -> None:
        """It may be a cluster that serves, without this broker. The refusal told to start it, or to begin a new cluster."""
        cluster = Cluster("a", "b", "c")
        cluster.crash("c")
        cluster.call("a", lambda replica: replica.promote(cluster.now, "x", insist=insist, refusing={"c": "says no"}))
        cluster.pass_time(9)
        ended = last_promotion(cluster, "a")
        assert not ended.won
        assert ended.reason.endswith("c says no")
        cluster.promote("a")
        cluster.pass_time(3)
        assert "c is not connected. All stores that answer are empty" in last_promotion(cluster, "a").reason

    def test_two_lost_stores_of_three_wait_for_the_third_and_lose_nothing(self) -> None:
        """The story that decision 17 is about."""
        cluster = robbed("a", "b")
        for address in "ab":
            cluster.promote(address)
            cluster.pass_time(3)
            assert not last_promotion(cluster, address).won
        cluster.restart("c")
        cluster.promote("a")
        cluster.pass_time(3)
        assert "c refused: its log is newer" in last_promotion(cluster, "a").reason
        cluster.promote("c")
        cluster.pass_time(0.5)
        assert cluster.states() == {"a": "ready", "b": "ready", "c": "active"}
        assert cluster["a"].applied == cluster["b"].applied == 11
        assert [cluster[address].disk.cluster_id for address in "abc"] == ["an-id"] * 3

    def test_blank_stores_of_a_large_cluster_do_not_outvote_a_silent_minority(self) -> None:
        """Four of five are lost, the fifth is down."""
        cluster = led("a", "b", "c", "d", "e")
        for address in "abcde":
            cluster.crash(address)
        for address in "abcd":
            cluster.wipe(address)
        cluster.promote("a")
        cluster.pass_time(3)
        assert not last_promotion(cluster, "a").won

    def test_a_first_election_that_a_restart_cuts_short_needs_every_member_again(self) -> None:
        """Votes given, nothing committed: the stores are as blank as before."""
        cluster = Cluster("a", "b", "c")
        cluster.promote("a", settle=False)
        while cluster.states()["a"] != "recovering":
            cluster.deliver()
        for address in "abc":
            cluster.crash(address)
        for address in "ab":
            cluster.restart(address)
        cluster.promote("a")
        cluster.pass_time(3)
        assert not last_promotion(cluster, "a").won
        cluster.restart("c")
        cluster.promote("a")
        assert last_promotion(cluster, "a").won

    def test_a_damaged_store_lets_no_blank_one_win(self) -> None:
        """It knows that it held something, though not a batch of it is left."""
        cluster = robbed("a", "b")
        disk = cluster["c"].disk
        disk.floor = disk.end
        disk.log.clear()
        cluster.restart("c")
        cluster.promote("a")
        cluster.pass_time(3)
        assert "c refused: its store has lost a part and once held epoch 1, index 10" in last_promotion(cluster, "a").reason

    def test_of_two_first_promotions_at_once_one_wins_at_the_latest_when_it_is_asked_again(self) -> None:
        """Each needs the other's vote."""
        cluster = Cluster("a", "b", "c")
        cluster.promote("a", settle=False)
        cluster.promote("b", settle=False)
        cluster.settle()
        cluster.pass_time(3)
        cluster.promote("a")
        cluster.pass_time(0.3)
        assert sorted(cluster.states().values()) == ["active", "ready", "ready"]

    def test_a_replaced_disk_is_filled_while_a_primary_lives(self) -> None:
        """And its broker votes as an ordinary one afterwards."""
        cluster = led("a", "b", "c")
        cluster.wipe("c")
        cluster.pass_time(0.5)
        assert not cluster["c"].live.blank
        cluster.crash("a")
        cluster.promote("b")
        assert last_promotion(cluster, "b").won

    def test_a_replaced_disk_that_is_slower_than_the_others_is_whole_under_steady_load(self) -> None:
        """Breaks when the store has to reach the newest commit index at one instant, which never occurs while load runs."""
        cluster = led("a", "b", "c")
        cluster.propose("a", 20)
        cluster.wipe("c")
        for _ in range(20):
            cluster.propose("a", settle=False)
            loaded(cluster, behind="c", by=2)
            assert cluster["c"].live.durable_index < cluster["a"].live.commit_index
        assert not cluster["c"].disk.blank
        cluster.crash("a")
        cluster.promote("b")
        assert last_promotion(cluster, "b").won

    def test_a_replaced_disk_whose_last_write_ends_after_the_primary_failed_is_whole(self) -> None:
        """Breaks when only a backup that hears a primary looks at what it has."""
        cluster = led("a", "b", "c")
        cluster.propose("a", 2)
        cluster.wipe("c")
        loaded(cluster, behind="c", by=3)
        assert cluster["c"].live.log.last_index == cluster["a"].live.commit_index
        cluster.crash("a")
        assert cluster["c"].live.blank
        cluster.settle()
        assert not cluster["c"].disk.blank
        cluster.promote("b")
        assert last_promotion(cluster, "b").won

    def test_a_replaced_disk_is_not_whole_before_it_has_what_was_committed_when_it_came(self) -> None:
        """What it acknowledged before may be there alone, beside the primary."""
        cluster = led("a", "b", "c")
        cluster.propose("a", 20)
        cluster.wipe("c")
        loaded(cluster, behind="c", by=1)
        came_at = cluster["a"].live.commit_index
        assert cluster["c"].live.durable_index < came_at
        assert cluster["c"].live.blank

    def test_a_new_member_with_a_blank_store_learns_and_becomes_a_voter(self) -> None:
        """Its store is blank as those of a beginning are; there is a primary, so nobody asks for its vote."""
        cluster = led("a", "b", "c")
        cluster.add("d", cluster["a"].live.members)
        cluster.call("a", lambda replica: replica.add_member(cluster.now, "d", "add d"))
        cluster.pass_time(1)
        assert cluster["d"].live.members.role("d") == "voter"
        assert not cluster["d"].live.blank

    def test_a_new_store_says_that_it_is_and_a_learner_why_it_cannot_stand(self) -> None:
        """Management tells people why a broker has no primary."""
        cluster = led("a", "b")
        assert not cluster["b"].live.blank
        assert cluster["b"].live.unfit == ""
        cluster.add("d", cluster["a"].live.members)
        assert cluster["d"].live.blank
        assert cluster["d"].live.unfit == "d is not a voting member of the cluster (a, b)"


class TestABeginningByForce:
    """`qpid-ha bootstrap --force`."""

    def test_it_makes_a_primary_without_the_silent_member_and_names_it(self) -> None:
        """It waits for everybody's answer first."""
        cluster = robbed("a", "b")
        force(cluster, "a", settle=False)
        cluster.settle()
        assert cluster.states()["a"] == "joining"
        cluster.pass_time(HALF_S + 0.3)
        assert cluster.states() == {"a": "active", "b": "ready"}
        assert last_promotion(cluster, "a") == PromotionEnded(
            "force a", True, "a is the primary of epoch 1, begun anew without c"
        )
        assert cluster["a"].live.begun_without == ("c",)
        assert cluster["a"].disk.cluster_id == cluster["b"].disk.cluster_id == "id-2"

    def test_a_later_takeover_does_not_repeat_whom_it_was_begun_without(self) -> None:
        """Breaks when the history of the new lineage names what the old one gave up."""
        cluster = robbed("a", "b")
        force(cluster, "a")
        cluster.pass_time(HALF_S + 0.3)
        assert list(cluster["a"].live.begun_without) == ["c"]
        cluster.crash("b")
        cluster.pass_time(2.0)
        cluster["a"].disk.change_cluster("new")
        cluster.call("a", lambda replica: replica.take_over(cluster.now, "takeover", "new"))
        assert last_promotion(cluster, "a") == PromotionEnded("takeover", True, "a is the primary of epoch 2")
        assert list(cluster["a"].live.begun_without) == []

    def test_it_begins_at_once_when_all_members_are_there(self) -> None:
        """There is nobody to wait for, and nothing is given up."""
        cluster = Cluster("a", "b", "c")
        cluster.call("a", lambda replica: replica.bootstrap(cluster.now, "force a"))
        assert cluster.states()["a"] == "active"
        assert list(cluster["a"].live.begun_without) == []

    def test_a_member_that_answers_and_holds_data_forbids_it(self) -> None:
        """Only silence is overruled, though a and b would be a majority."""
        cluster = robbed("a", "b")
        cluster.restart("c")
        force(cluster, "a")
        ended = last_promotion(cluster, "a")
        assert not ended.won
        assert "c refused: its log is newer" in ended.reason

    def test_a_member_that_comes_while_it_waits_forbids_it_too(self) -> None:
        """An operator may be hasty."""
        cluster = robbed("a", "b")
        cluster.call("a", lambda replica: replica.bootstrap(cluster.now, "force a"))
        cluster.pass_time(HALF_S / 2)
        cluster.restart("c")
        cluster.pass_time(3)
        assert not last_promotion(cluster, "a").won

    def test_it_needs_a_majority_all_the_same(self) -> None:
        """Without one, two halves could begin two clusters."""
        cluster = robbed("a", "b")
        cluster.crash("b")
        force(cluster, "a")
        cluster.pass_time(3)
        ended = last_promotion(cluster, "a")
        assert not ended.won
        assert ended.reason.endswith("b is not connected; c is not connected")

    def test_of_two_at_once_one_leads_at_the_most(self) -> None:
        """Votes and epochs hold: two operators, or one who is hasty, cannot make two primaries."""
        cluster = robbed("a", "b", "c")
        for address in "ab":
            force(cluster, address, settle=False)
        cluster.settle()
        cluster.pass_time(3)
        assert list(cluster.states().values()).count("active") <= 1
        if "active" not in cluster.states().values():
            force(cluster, "b")
        assert list(cluster.states().values()).count("active") == 1

    def test_a_second_one_while_the_first_leads_is_refused(self) -> None:
        """By the backup that hears the primary, and by the primary itself."""
        cluster = begun_anew()
        force(cluster, "b")
        assert "b hears the primary a of epoch 1" in last_promotion(cluster, "b").reason
        force(cluster, "a")
        assert last_promotion(cluster, "a") == PromotionEnded("force a", False, "a is the primary of epoch 1")

    def test_a_store_with_data_is_not_bootstrapped(self) -> None:
        """A new cluster on top of its messages would hide them."""
        cluster = robbed("a", "b")
        cluster.restart("c")
        force(cluster, "c")
        assert last_promotion(cluster, "c").reason == (
            "the store of c is not new: it holds data of cluster an-id; use `qpid-ha promote`"
        )
        replica = cluster["c"].replica
        assert replica is not None
        assert replica.obstacle_to_bootstrap(cluster.now) == last_promotion(cluster, "c").reason

    def test_a_store_that_was_damaged_before_it_joined_a_cluster_is_none_either(self) -> None:
        """It is whole, and knows no cluster: whatever it is, it is not new."""
        cluster = Cluster("a", "b")
        cluster["a"].crash()
        cluster["a"].disk.blank = False
        cluster.restart("a")
        force(cluster, "a")
        assert last_promotion(cluster, "a").reason == "the store of a is not new: it holds data; use `qpid-ha promote`"

    def test_a_store_that_does_not_know_whether_its_first_batch_was_committed_is_none_either(self) -> None:
        """Breaks when the new cluster gets the id that this batch names: the first primary would follow it, and lose what it
        has accepted.
        """
        cluster = active_before_anybody_hears_of_it()
        cluster.crash("b")
        cluster.connect("a", "c")
        cluster.settle()
        cluster.propose("a", 9)
        cluster.crash("a")
        cluster.wipe("c")
        cluster["b"].start()
        cluster.connect("b", "c")
        assert (cluster["b"].disk.blank, cluster["b"].disk.cluster_id) == (True, "")
        force(cluster, "b")
        assert last_promotion(cluster, "b").reason == (
            "the store of b is not new: it holds the beginning of cluster an-id; use `qpid-ha promote`, or, to give that "
            "cluster up, start b with an empty --data-dir"
        )
        cluster.restart("a")
        cluster.promote("a")
        assert last_promotion(cluster, "a").won
        cluster.pass_time(0.3)
        assert cluster["b"].applied == 11

    def test_it_replaces_a_promotion_that_waits_in_vain(self) -> None:
        """The resource manager asks again and again; an operator need not find the gap."""
        cluster = robbed("a", "b")
        cluster.promote("a", settle=False)
        force(cluster, "a")
        assert [ended.won for ended in cluster["a"].ends(PromotionEnded)] == [False, True]
        assert cluster["a"].ends(PromotionEnded)[0].reason == "an operator begins a new cluster with this broker"

    def test_a_candidate_that_loses_votes_to_another_is_told(self) -> None:
        """In the second round a refusal ends it as well."""
        cluster = Cluster("a", "b", "c")
        cluster.crash("c")
        cluster.call("a", lambda replica: replica.bootstrap(cluster.now, "force a"))
        cluster.now += HALF_S + 0.01
        cluster["a"].run(cluster["a"].live.tick(cluster.now))
        cluster["a"].receive("b", VoteReply(1, 1, False, True, "it has voted for c in epoch 1"))
        assert "b refused: it has voted for c in epoch 1" in last_promotion(cluster, "a").reason


class TestTwoClusters:
    """A member of the old cluster comes back to members of a new one."""

    @pytest.mark.parametrize("compacted", [False, True])
    def test_neither_takes_anything_from_the_other(self, compacted: bool) -> None:
        """c keeps its messages, whether its log begins with them or with a checkpoint; the new cluster goes on."""
        cluster = begun_anew()
        if compacted:
            cluster["c"].disk.checkpoint = cluster["c"].disk.base = (9, 1, cluster["c"].disk.checkpoint[2].named("an-id"))
            del cluster["c"].disk.log[:9]
        held = list(cluster["c"].disk.log)
        cluster["c"].start()
        for other in "ab":
            cluster.connect(other, "c")
        cluster.settle_unchecked()
        for _ in range(30):
            cluster.tick(0.05)
            cluster.settle_unchecked()
        assert cluster["c"].disk.log == held
        assert cluster.states() == {"a": "active", "b": "ready", "c": "joining"}
        assert cluster["c"].ends(Strange)[-1] == Strange("a", "id-2")

    def test_a_link_that_is_older_than_the_new_id_lets_nothing_through(self) -> None:
        """The id of a blank broker is not known when its link opens, and its first heartbeat still has none."""
        cluster = robbed("a", "b")
        cluster.restart("c")
        replica = cluster["c"].live
        for message in (
            Append(9, 1, 0, 0, 1, 0, 0, (), ""),
            Append(9, 0, 0, 0, 1, 0, 0, (), "id-2"),
            SnapshotChunk(9, 5, 2, replica.members.named("id-2"), 0, 1, 3),
        ):
            (effect,) = replica.step(cluster.now, "a", message)
            assert isinstance(effect, Strange)
        assert (replica.epoch, replica.log.last_index) == (1, 10)

    def test_votes_are_refused_unread(self) -> None:
        """The longer log of another cluster is not a newer one, and its epoch is none of ours."""
        cluster = robbed("a", "b")
        cluster.restart("c")
        replica = cluster["c"].live
        text = "it belongs to cluster an-id, you to cluster id-2"
        (vote,) = replica.step(cluster.now, "a", Vote(9, 99, 8, False, "id-2"))
        assert (vote.message.granted, vote.message.reason, replica.epoch) == (False, text, 1)  # type: ignore[union-attr]
        (vote,) = replica.step(cluster.now, "a", PreVote(9, 1, 99, 8, "id-2"))
        assert (vote.message.granted, vote.message.reason) == (False, text)  # type: ignore[union-attr]

    def test_a_primary_of_an_older_release_is_followed(self) -> None:
        """It does not say to which cluster it belongs; links are refused by the id as before."""
        cluster = led("a", "b")
        replica = cluster["b"].live
        replica.step(cluster.now, "a", Append(1, 7, 1, 1, 2, 1, 1))
        assert (replica.primary, str(replica.state)) == ("a", "ready")
