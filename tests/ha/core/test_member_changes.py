"""Adding and removing members (dissertation §4.1, §4.2)."""

from __future__ import annotations

from dataclasses import replace

from ha.core.effects import MembershipEnded, PromotionEnded, StateChanged, TermEnded, TransferEnded
from ha.core.membership import Membership
from ha.core.messages import Message, SnapshotChunk
from ha.core.progress import Pace
from tests.ha.core.cluster import BATCH_BYTES, SMALL, Cluster, led, members_changes


def add(cluster: Cluster, at: str, address: str, *, settle: bool = True) -> None:
    cluster.call(at, lambda replica: replica.add_member(cluster.now, address, f"add {address}"), settle=settle)


def remove(cluster: Cluster, at: str, address: str, *, settle: bool = True) -> None:
    cluster.call(at, lambda replica: replica.remove_member(cluster.now, address, f"remove {address}"), settle=settle)


def ended(cluster: Cluster, address: str) -> MembershipEnded:
    return cluster[address].ends(MembershipEnded)[-1]


def test_the_first_primary_gives_the_cluster_its_id() -> None:
    """In the first batch of its epoch, so that every store learns it; later primaries repeat it."""
    cluster = led("a", "b", "c")
    assert {node.live.members.cluster_id for node in cluster.alive} == {"an-id"}
    cluster.promote("b")
    assert cluster["b"].live.members.cluster_id == "an-id"
    assert members_changes(cluster["c"])[0].cluster_id == ""


def test_a_new_broker_learns_as_a_learner_and_then_votes() -> None:
    """Dissertation §4.2.1: a voter with an empty log would hold up every commit."""
    cluster = led("a", "b", "c")
    cluster.propose("a", 30)
    cluster["a"].compact()
    cluster.add("d", Membership.of("abcd"))
    add(cluster, "a", "d")
    cluster.pass_time(0.3)
    assert ended(cluster, "a") == MembershipEnded("add d", True, "committed")
    seen = [members for members in members_changes(cluster["b"]) if members.role("d")]
    assert seen[0].learners == ("d",)
    assert seen[-1].voters == ("a", "b", "c", "d")
    assert cluster.states()["d"] == "ready"


def voters(cluster: Cluster) -> tuple[str, ...]:
    """Those in force at a."""
    return cluster["a"].live.members.voters


class NoChunks(Cluster):
    """While `held`, no part of a snapshot arrives; everything else does."""

    held = True

    def post(self, sender: str, receiver: str, message: Message) -> None:
        if not (self.held and isinstance(message, SnapshotChunk)):
            super().post(sender, receiver, message)


def test_a_learner_that_still_waits_for_its_snapshot_gets_no_vote_however_short_the_log_is() -> None:
    """Breaks when the first broker and an empty one are two of two: nothing is committed until the snapshot is there."""
    cluster = NoChunks("a")
    cluster.promote("a")
    cluster.propose("a", 2)
    cluster["a"].compact()
    cluster.add("d", Membership.of("ad"))
    add(cluster, "a", "d")
    cluster.pass_time(3)
    (progress,) = cluster["a"].live.status(cluster.now).peers
    assert (progress.match_index, progress.progress) == (0, Pace.SNAPSHOT)
    assert cluster["a"].live.commit_index < SMALL.ready_lag_batches
    assert voters(cluster) == ("a",)
    cluster.propose("a")
    assert cluster["a"].live.commit_index == cluster["a"].live.log.last_index
    cluster.held = False
    cluster.pass_time(1.5)
    assert voters(cluster) == ("a", "d")
    assert cluster.states()["d"] == "ready"


def test_a_learner_gets_no_vote_while_a_few_large_batches_are_missing_there() -> None:
    """Breaks when batches are counted whatever their size: 256 of them may have 16 GiB."""
    cluster = Cluster("a", settings=replace(SMALL, max_inflight_bytes=2 * BATCH_BYTES))
    cluster.promote("a")
    cluster.propose("a", 2)
    cluster.add("d", Membership.of("ad"))
    add(cluster, "a", "d", settle=False)

    def wait_for_the_disk_of_d() -> None:
        for _ in range(10):
            cluster.tick(0.05)
            while cluster.wires:
                cluster.deliver()
            cluster["a"].sync()

    wait_for_the_disk_of_d()
    assert cluster["a"].live.commit_index == 4 < SMALL.ready_lag_batches
    assert voters(cluster) == ("a",)
    cluster["d"].sync(1)
    wait_for_the_disk_of_d()
    assert voters(cluster) == ("a",)
    cluster["d"].sync(1)
    wait_for_the_disk_of_d()
    assert voters(cluster) == ("a", "d")


def test_a_learner_does_not_count() -> None:
    """Neither its disk for a commit nor its silence against the majority; and it cannot be handed over to."""
    cluster = led("a", "b")
    add(cluster, "a", "d")
    cluster.propose("a", 3)
    assert cluster["a"].live.commit_index == 5
    cluster.pass_time(3)
    assert cluster.states()["a"] == "active"
    status = cluster["a"].live.status(cluster.now)
    assert [(peer.address, peer.role) for peer in status.peers] == [("b", "voter"), ("d", "learner")]
    cluster.call("a", lambda replica: replica.transfer(cluster.now, "d"))
    assert cluster["a"].ends(TransferEnded)[-1].reason == "d is not another voting member of this cluster"


def test_a_change_is_in_force_from_when_it_is_appended() -> None:
    """§4.1: a removed voter does not count for the commit of its own removal."""
    cluster = led("a", "b", "c")
    cluster.crash("c")
    cluster.crash("b")
    remove(cluster, "a", "c")
    assert cluster["a"].live.members.voters == ("a", "b")
    assert cluster["a"].live.commit_index == 1
    cluster.restart("b")
    cluster.settle()
    assert ended(cluster, "a") == MembershipEnded("remove c", True, "committed")


def test_a_change_that_is_truncated_is_in_force_no_more() -> None:
    """The primary was cut off; those who elected another know nothing of it."""
    cluster = led("a", "b", "c")
    cluster.isolate("a")
    remove(cluster, "a", "c")
    cluster.promote("b")
    cluster.connect_all()
    cluster.pass_time(0.3)
    assert cluster["a"].live.members.voters == ("a", "b", "c")
    assert [members.voters for members in members_changes(cluster["a"])][-3:] == [("a", "b"), ("a", "b", "c"), ("a", "b", "c")]
    reason = ended(cluster, "a").reason
    assert not ended(cluster, "a").done
    assert reason.endswith("ask the next primary what its members are")


def test_one_change_at_a_time_and_none_before_the_primary_is_active() -> None:
    """The correction of 2015: two changes of two primaries could else make two disjoint majorities."""
    cluster = Cluster("a", "b", "c")
    cluster.promote("a", settle=False)
    while cluster.states()["a"] != "recovering":
        cluster.deliver()
    add(cluster, "a", "d", settle=False)
    assert "has not committed a batch of its own epoch" in ended(cluster, "a").reason
    cluster.settle()
    cluster.pass_time(0.3)
    add(cluster, "a", "d", settle=False)
    remove(cluster, "a", "c", settle=False)
    assert ended(cluster, "a") == MembershipEnded("remove c", False, "another change of members is not committed yet; try again")
    cluster.call("a", lambda replica: replica.transfer(cluster.now, "b"), settle=False)
    assert cluster["a"].ends(TransferEnded)[-1].reason == "a change of members is not committed yet; try again"
    cluster.settle()
    cluster.call("a", lambda replica: replica.transfer(cluster.now, "b"), settle=False)
    remove(cluster, "a", "c", settle=False)
    assert ended(cluster, "a").reason == "the primary is handing over to b"


def test_an_impossible_change_is_refused_with_its_reason() -> None:
    """On a backup, with the primary's name."""
    cluster = led("a", "b", "c")
    add(cluster, "a", "b")
    assert ended(cluster, "a") == MembershipEnded("add b", False, "b is a member already")
    remove(cluster, "a", "x")
    assert ended(cluster, "a").reason == "x is not a member of this cluster (a, b, c)"
    add(cluster, "b", "x")
    assert ended(cluster, "b") == MembershipEnded("add x", False, "b is not the primary; a is")


def test_a_removed_primary_steps_down_once_its_removal_is_committed() -> None:
    """Dissertation §4.2.2: until then it leads a cluster that it does not count in."""
    cluster = led("a", "b", "c")
    remove(cluster, "a", "a")
    assert ended(cluster, "a") == MembershipEnded("remove a", True, "committed")
    assert cluster["a"].ends(StateChanged)[-1].state == "joining"
    assert cluster["a"].ends(TermEnded) == [TermEnded("a has been removed from the cluster", planned=True)]
    cluster.promote("a")
    assert cluster["a"].ends(PromotionEnded)[-1].reason == "a is not a voting member of the cluster (b, c)"
    cluster.pass_time(1.5)
    cluster.promote("b")
    cluster.pass_time(0.3)
    assert cluster.states() == {"a": "joining", "b": "active", "c": "ready"}


def test_a_broker_that_is_being_removed_may_have_to_stand_once_more() -> None:
    """Dissertation §4.2.2: with its removal uncommitted, and in its log alone, nobody else can be elected by its peer."""
    cluster = led("a", "b")
    cluster.crash("b")
    remove(cluster, "a", "a")
    cluster.crash("a")
    cluster.restart("a")
    cluster.restart("b")
    cluster.promote("b")
    cluster.pass_time(3)
    assert "a refused: its log is newer" in cluster["b"].ends(PromotionEnded)[-1].reason
    cluster.promote("a")
    cluster.pass_time(0.3)
    assert cluster["a"].ends(PromotionEnded)[-1].reason == "a has been removed from the cluster"
    cluster.pass_time(1.2)
    cluster.promote("b")
    assert cluster.states()["b"] == "active"
    assert cluster["b"].live.members.voters == ("b",)
