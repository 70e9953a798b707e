"""Snapshots (§7): for a member that needs what the log no longer holds."""

from __future__ import annotations

import msgspec

from ha.core.effects import Commit, InstallSnapshot, LeaveSnapshot, MembershipChanged, Send, SendSnapshot, StoreChunk, StoreWhole
from ha.core.log import Log
from ha.core.membership import Membership
from ha.core.messages import AppendReply, Message, SnapshotChunk, SnapshotReply
from ha.core.progress import Pace
from ha.core.replica import Replica
from tests.ha.core.cluster import SMALL, Cluster
from tests.ha.core.test_replication import append, backup

ABC = Membership.of("abc")
ABCD = Membership.of("abcd")


def chunk(offset: int, *, index: int = 9, epoch: int = 2, of: int = 3, checkpoint: int = 7) -> SnapshotChunk:
    return SnapshotChunk(epoch, index, 1, ABCD, offset, 1, of, checkpoint)


def receive(replica: Replica, count: int) -> None:
    """The first chunks of the snapshot arrive, and all of them but the last of three are written."""
    for offset in range(count):
        replica.step(1.0, "a", chunk(offset))
        replica.chunk_stored(1.0, 9)


class SlowLink(Cluster):
    """While c is up, what a sends to it waits in `line` until the test lets it through."""

    def __init__(self, *addresses: str) -> None:
        self.line: list[Message] = []
        self.slow = False
        super().__init__(*addresses)

    def crash(self, address: str) -> None:
        super().crash(address)
        self.slow = True

    def post(self, sender: str, receiver: str, message: Message) -> None:
        if self.slow and (sender, receiver) == ("a", "c"):
            self.line += [message] if frozenset("ac") in self.links else []
        else:
            super().post(sender, receiver, message)

    def let_through(self, count: int = 1) -> None:
        for _ in range(count):
            self["c"].receive("a", self.line.pop(0))
            self.settle()

    def lose_chunks(self) -> int:
        """The chunks in the line are lost; returns their number."""
        before = len(self.line)
        self.line = [each for each in self.line if not isinstance(each, SnapshotChunk)]
        return before - len(self.line)


def behind(kind: type[Cluster] = Cluster) -> Cluster:
    """c has missed 20 batches, and the primary a holds them no longer."""
    cluster = kind("a", "b", "c")
    cluster.promote("a")
    cluster.pass_time(0.3)
    cluster.crash("c")
    cluster.propose("a", 20)
    cluster["a"].compact()
    return cluster


class TestReceiving:
    """At the backup."""

    def test_chunks_are_asked_for_one_after_the_other_and_the_whole_is_installed(self) -> None:
        """Each when the one before is written, so that a slow disk slows the sender. The log goes on after the snapshot."""
        replica = backup(1, 1)
        assert StoreChunk(chunk(0)) in replica.step(1.0, "a", chunk(0))
        assert replica.chunk_stored(1.0, 9) == [Send("a", SnapshotReply(2, 9, 1))]
        replica.step(1.0, "a", chunk(1))
        assert replica.chunk_stored(1.0, 9) == [Send("a", SnapshotReply(2, 9, 2))]
        assert replica.step(1.0, "a", chunk(2)) == [StoreChunk(chunk(2))]
        effects = replica.snapshot_stored(1.0, 9, 1, ABCD)
        assert effects[:2] == [InstallSnapshot(9, 1, ABCD), MembershipChanged(ABCD)]
        assert Send("a", AppendReply(2, 0, True, 9, 9)) in effects
        assert (replica.commit_index, replica.next_index, replica.members) == (9, 10, ABCD)

    def test_two_checkpoints_of_one_index_and_length_are_not_mixed(self) -> None:
        """After a compaction there are two. Breaks when the second goes on where the first has ended."""
        replica = backup(1, 1)
        receive(replica, 2)
        assert replica.step(1.0, "a", chunk(2, checkpoint=8)) == [Send("a", SnapshotReply(2, 9, 0))]
        assert replica.step(1.0, "a", chunk(0, checkpoint=8)) == [StoreChunk(chunk(0, checkpoint=8))]

    def test_a_lost_store_is_whole_by_the_word_of_an_append_and_not_by_that_of_a_snapshot(self) -> None:
        """Breaks when a snapshot's own index counts as all that is committed: what this store acknowledged after it, before it
        was lost, made others believe that a majority holds it, and a vote without it would give that away."""
        replica = Replica("c", SMALL, epoch=0, voted_for=None, log=Log(ABC), blank=True)
        replica.start(0.0)
        for offset in range(3):
            replica.step(1.0, "a", msgspec.structs.replace(chunk(offset), index_epoch=2))
            replica.chunk_stored(1.0, 9)
        effects = replica.snapshot_stored(1.0, 9, 2, ABCD)
        assert StoreWhole() not in effects
        assert replica.status(1.0).state == "catchup", "how far the primary has got is not known"
        effects = replica.step(1.1, "a", append(2, (9, 2), 2, commit=11))
        effects += replica.stored(1.1, 10, 2)
        assert StoreWhole() not in effects
        effects = replica.step(1.2, "a", append(2, (10, 2), 2, commit=11)) + replica.stored(1.2, 11, 2)
        assert StoreWhole() in effects
        assert replica.status(1.2).state == "ready"

    def test_a_repeated_or_late_chunk_is_answered_with_the_one_wanted(self) -> None:
        """And never written twice, nor in the wrong place; nor answered while one is being written."""
        replica = backup()
        replica.step(1.0, "a", chunk(0))
        assert replica.step(1.0, "a", chunk(0)) == []
        replica.chunk_stored(1.0, 9)
        assert replica.step(1.0, "a", chunk(0)) == [Send("a", SnapshotReply(2, 9, 1))]
        assert replica.step(1.0, "a", chunk(2)) == [Send("a", SnapshotReply(2, 9, 1))]

    def test_the_bytes_of_two_snapshots_never_mix(self) -> None:
        """Another checkpoint, or the same index from another primary, begins at its beginning."""
        replica = backup()
        receive(replica, 1)
        assert replica.step(1.0, "a", chunk(1, index=12)) == [Send("a", SnapshotReply(2, 12, 0))]
        assert replica.chunk_stored(1.0, 9) == [], "of the one given up"
        assert Send("b", SnapshotReply(3, 9, 0)) in replica.step(1.0, "b", chunk(1, epoch=3))

    def test_a_snapshot_that_has_come_whole_is_kept_while_it_is_verified(self) -> None:
        """The primary repeats its last request meanwhile, and may have a newer one. Breaks when that takes the place of the whole
        one: a backup that verifies for longer than the primary waits never got any."""
        replica = backup()
        receive(replica, 3)
        assert replica.step(2.5, "a", chunk(0, index=12)) == []
        assert replica.step(3.5, "a", chunk(0)) == []
        assert replica.snapshot_stored(4.0, 9, 1, ABC)[0] == InstallSnapshot(9, 1, ABC)
        assert StoreChunk(chunk(0, index=12)) in replica.step(4.5, "a", chunk(0, index=12)), "then the newer one, if it is needed"
        damaged = backup()
        receive(damaged, 3)
        damaged.step(2.5, "a", chunk(0, index=12))
        assert damaged.snapshot_failed(4.0, 9) == [Send("a", SnapshotReply(2, 9, 0))]
        assert StoreChunk(chunk(0, index=12)) in damaged.step(4.5, "a", chunk(0, index=12))

    def test_a_snapshot_that_the_log_has_overtaken_is_not_installed(self) -> None:
        """§7, receiver rule 6: what follows in the log is kept, and may be acknowledged already."""
        replica = backup()
        receive(replica, 3)
        replica.step(1.0, "a", append(2, (0, 0), *[1] * 12))
        replica.stored(1.0, 12, 1)
        effects = replica.snapshot_stored(1.0, 9, 1, ABCD)
        assert not any(isinstance(effect, InstallSnapshot) for effect in effects)
        assert (replica.commit_index, replica.next_index) == (9, 13)
        assert replica.step(1.0, "a", chunk(0)) == [Send("a", AppendReply(2, 0, True, 12, 12))]
        assert replica.step(1.0, "a", chunk(0, index=11)) == [Commit(11), Send("a", AppendReply(2, 0, True, 12, 12))]

    def test_a_snapshot_that_has_not_come_whole_is_left_when_the_log_has_overtaken_it(self) -> None:
        """A backup that is a little behind may be sent one in vain: what came of it took room until the next start."""
        replica = backup()
        receive(replica, 1)
        assert LeaveSnapshot() not in replica.step(1.0, "a", append(2, (0, 0), *[1] * 8, commit=8))
        assert LeaveSnapshot() in replica.step(1.0, "a", append(2, (8, 1), 1, commit=9))
        assert replica.chunk_stored(1.0, 9) == [], "it is forgotten"
        assert LeaveSnapshot() not in replica.step(1.0, "a", append(2, (9, 1), 1, commit=10)), "once"

    def test_news_of_a_snapshot_that_nobody_waits_for_is_ignored(self) -> None:
        """The term in which it was sent is over, or another one is on its way."""
        replica = backup()
        assert replica.snapshot_stored(1.0, 9, 1, ABCD) == []
        assert replica.snapshot_failed(1.0, 9) == []
        assert replica.chunk_stored(1.0, 9) == []
        assert replica.chunk_refused(1.0, 9, kept=True) == []
        receive(replica, 1)
        assert replica.snapshot_stored(1.0, 9, 1, ABCD) == [], "not complete"
        assert replica.snapshot_stored(1.0, 8, 1, ABCD) == []
        assert replica.snapshot_failed(1.0, 8) == []
        assert replica.chunk_refused(1.0, 8, kept=False) == []
        assert replica.step(1.0, "a", chunk(1))[0] == StoreChunk(chunk(1)), "it goes on where it was"

    def test_a_damaged_snapshot_is_fetched_again(self) -> None:
        """From its beginning."""
        replica = backup()
        receive(replica, 3)
        assert replica.snapshot_failed(1.0, 9) == [Send("a", SnapshotReply(2, 9, 0))]
        assert replica.step(1.0, "a", chunk(0))[0] == StoreChunk(chunk(0))

    def test_a_chunk_that_the_disk_refuses_is_stored_when_the_primary_repeats_itself(self) -> None:
        """Breaks when a backup with a full disk asks for it all again at once, and again, as fast as the network is."""
        replica = backup()
        receive(replica, 1)
        assert replica.step(1.0, "a", chunk(1))[0] == StoreChunk(chunk(1))
        assert replica.chunk_refused(1.0, 9, kept=True) == []
        assert replica.step(2.0, "a", chunk(1))[0] == StoreChunk(chunk(1))
        assert replica.chunk_stored(2.0, 9) == [Send("a", SnapshotReply(2, 9, 2))]
        replica.step(2.0, "a", chunk(2))
        assert replica.chunk_refused(2.0, 9, kept=False) == []
        assert replica.step(3.0, "a", chunk(2)) == [Send("a", SnapshotReply(2, 9, 0))], "what came before is lost"
        assert replica.step(3.0, "a", chunk(0))[0] == StoreChunk(chunk(0))

    def test_without_a_primary_there_is_nobody_to_tell(self) -> None:
        """The link broke while the snapshot was made durable; it counts all the same."""
        replica, other, third = backup(), backup(), backup()
        third.step(1.0, "a", chunk(0))
        third.disconnected(1.0, "a")
        assert third.chunk_stored(1.0, 9) == []
        for each in (replica, other):
            receive(each, 3)
            each.disconnected(1.0, "a")
        assert replica.snapshot_stored(1.0, 9, 1, ABC) == [InstallSnapshot(9, 1, ABC)]
        assert other.snapshot_failed(1.0, 9) == []


class TestSending:
    """At the primary."""

    def test_a_backup_far_behind_gets_a_snapshot_and_then_the_rest(self) -> None:
        """Also when batches are proposed meanwhile."""
        cluster = behind()
        cluster.restart("c")
        cluster.propose("a", 3, settle=False)
        cluster.pass_time(0.3)
        assert cluster.states()["c"] == "ready"
        assert cluster["c"].applied == cluster["a"].applied == 24
        assert cluster["c"].disk.base[0] == 21

    def test_a_lost_chunk_is_sent_again_after_a_while(self) -> None:
        """The receiver's disk may be slow: not with every heartbeat. Heartbeats go on meanwhile."""
        cluster = behind()
        cluster.restart("c")
        while not any(isinstance(wire[2], SnapshotChunk) for wire in cluster.wires):
            cluster.deliver()
        cluster.wires.clear()
        cluster.pass_time(0.5)
        assert cluster.states() == {"a": "active", "b": "ready", "c": "catchup"}
        cluster.pass_time(0.7)
        assert cluster.states()["c"] == "ready"

    def test_a_chunk_is_not_repeated_while_it_may_be_on_its_way(self) -> None:
        """On a slow link a chunk takes longer than a lost one is waited for, and what is sent after it waits behind it. Breaks
        when each second brings a copy: the link was full of them, and the snapshot never ended."""
        cluster = behind(SlowLink)
        assert isinstance(cluster, SlowLink)
        cluster.restart("c")
        chunks, came_s, most = 0, cluster.now, 0
        while cluster.states().get("c") != "ready":
            while cluster.line and (not isinstance(cluster.line[0], SnapshotChunk) or cluster.now >= came_s + 3.0):
                if isinstance(cluster.line[0], SnapshotChunk):
                    chunks, came_s = chunks + 1, cluster.now
                cluster.let_through()
            cluster["c"].run(cluster["c"].live.heard(cluster.now, "a"))
            most = max(most, sum(isinstance(each, SnapshotChunk) for each in cluster.line))
            cluster.pass_time(0.05)
            assert cluster.now < 150.0
        assert (chunks, most) == (3, 1)

    def test_a_lost_chunk_is_repeated_a_while_after_a_later_heartbeat_was_answered(self) -> None:
        cluster = behind(SlowLink)
        assert isinstance(cluster, SlowLink)
        cluster.restart("c")
        cluster.pass_time(0.3)
        while not any(isinstance(each, SnapshotChunk) for each in cluster.line):
            cluster.let_through()
        cluster.lose_chunks()
        cluster.pass_time(4.0)
        assert not cluster.lose_chunks(), "no heartbeat was answered"
        repeated_s = cluster.now
        while not any(isinstance(each, SnapshotChunk) for each in cluster.line):
            cluster.let_through(len(cluster.line))
            cluster.pass_time(0.05)
        assert 0.9 < cluster.now - repeated_s < 1.3

    def test_a_repeated_answer_does_not_double_the_stream(self) -> None:
        """Each answer leads to one chunk; a repeated one to none, or streams would multiply."""
        cluster = behind()
        cluster.restart("c")
        while not any(isinstance(wire[2], SnapshotReply) for wire in cluster.wires):
            if cluster.wires:
                cluster.deliver()
            cluster["c"].sync()
        reply = next(wire[2] for wire in cluster.wires if isinstance(wire[2], SnapshotReply))
        replica = cluster["a"].live
        assert replica.step(cluster.now, "c", reply) == [SendSnapshot("c", 1, reply.index, reply.next_offset)]
        assert replica.step(cluster.now, "c", reply) == []
        assert replica.step(cluster.now, "b", reply) == [], "b is fed from the log"

    def test_compaction_overtakes_what_a_backup_was_to_be_sent(self) -> None:
        """The batches that wait for room in the link are gone: it gets the checkpoint."""
        cluster = Cluster("a", "b", "c")
        cluster.promote("a")
        cluster.pass_time(0.3)
        cluster.wires.clear()
        cluster.propose("a", 12, settle=False)
        to_c = [wire for wire in cluster.wires if wire[1] == "c"]
        cluster.wires = [wire for wire in cluster.wires if wire[1] != "c"]
        cluster.settle()
        cluster["a"].compact()
        cluster.wires = to_c
        cluster.settle()
        cluster.pass_time(0.3)
        assert (cluster["c"].applied, cluster["c"].disk.base[0]) == (13, 13)

    def test_the_primary_itself_takes_no_snapshot(self) -> None:
        """News of one from the time when it was a backup comes too late."""
        cluster = behind()
        replica = cluster["a"].live
        assert replica.snapshot_stored(cluster.now, 99, 1, ABC) == []
        assert replica.snapshot_failed(cluster.now, 99) == []
        assert replica.chunk_stored(cluster.now, 99) == []
        assert replica.chunk_refused(cluster.now, 99, kept=True) == []
        assert replica.status(cluster.now).peers[0].progress == Pace.REPLICATE
