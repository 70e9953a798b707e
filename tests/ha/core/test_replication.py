"""Replication: what goes to a backup, what counts as committed, and what state everybody says to be in."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ha.core.effects import (
    Commit,
    Effect,
    Send,
    SendEntries,
    State,
    StateChanged,
    StoreEntries,
    TermEnded,
    TruncateLog,
    WritableChanged,
)
from ha.core.log import Log
from ha.core.membership import Membership
from ha.core.messages import Append, AppendReply, Entry, Position, PreVoteReply, SnapshotReply, TransferReply, VoteReply
from ha.core.progress import Pace, Progress
from ha.core.replica import Replica
from ha.core.settings import ReplicaSettings
from tests.ha.core.cluster import BATCH_BYTES, SMALL, Cluster, led

ABC = Membership.of("abc")


def backup(*epochs: int, epoch: int = 0) -> Replica:
    """A backup c of a and b whose log holds entries of these epochs."""
    log = Log(ABC)
    for index, each in enumerate(epochs, 1):
        log.append(Entry(index, each, BATCH_BYTES))
    replica = Replica("c", SMALL, epoch=max([epoch, *epochs]), voted_for=None, log=log)
    replica.start(0.0)
    return replica


def append(epoch: int, prev: tuple[int, int], *epochs: int, commit: int = 0, round_number: int = 0) -> Append:
    """An Append of entries of these epochs after index and epoch `prev`."""
    entries = tuple(Entry(prev[0] + number, each, BATCH_BYTES) for number, each in enumerate(epochs, 1))
    return Append(epoch, round_number, *prev, prev[0] + 1, prev[0] + len(epochs), commit, entries)


def reply_of(effects: Sequence[Effect]) -> AppendReply:
    (reply,) = [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, AppendReply)]
    return reply


class TestBackup:
    """§5.3: consistency check, conflict resolution, commit index."""

    def test_batches_are_acknowledged_when_they_are_on_disk_and_not_before(self) -> None:
        """An acknowledgement is a promise that a power cut must not break."""
        replica = backup()
        effects = replica.step(1.0, "a", append(1, (0, 0), 1, 1))
        assert StoreEntries(1, 2) in effects
        assert not [effect for effect in effects if isinstance(effect, Send)]
        assert reply_of(replica.stored(1.1, 1, 1)) == AppendReply(1, 0, True, 1, 2)
        assert reply_of(replica.stored(1.2, 2, 1)) == AppendReply(1, 0, True, 2, 2)

    def test_a_heartbeat_is_answered_at_once_even_when_the_disk_hangs(self) -> None:
        """The primary must not lose its majority because a disk is slow."""
        replica = backup()
        replica.step(1.0, "a", append(1, (0, 0), 1, 1))
        assert reply_of(replica.step(1.1, "a", append(1, (2, 1), round_number=7))) == AppendReply(1, 7, True, 0, 2)

    def test_what_is_here_already_is_not_written_again(self) -> None:
        """Repeated and overlapping messages are harmless."""
        replica = backup(1, 1)
        assert reply_of(replica.step(1.0, "a", append(1, (0, 0), 1, 1))).match_index == 2
        effects = replica.step(1.0, "a", append(1, (1, 1), 1, 1))
        assert StoreEntries(3, 3) in effects
        assert TruncateLog(2) not in effects

    def test_a_divergent_tail_is_cut_before_the_new_one_is_stored(self) -> None:
        """Figure 7: entries that an earlier primary never committed. Stale news of the disk about them is ignored."""
        replica = backup(1, 2, 2)
        effects = replica.step(1.0, "a", append(3, (1, 1), 3))
        assert effects.index(TruncateLog(2)) < effects.index(StoreEntries(2, 2))
        assert replica.stored(1.0, 3, 2) == []
        assert reply_of(replica.stored(1.0, 2, 3)).match_index == 2
        assert replica.stored(1.0, 2, 3) == [], "old news"

    def test_a_gap_is_refused_with_a_hint_that_skips_whole_epochs(self) -> None:
        """§5.3: one round trip an epoch, not one a batch."""
        replica = backup(1, 1, 1, 2, 2, 2)
        reply = reply_of(replica.step(1.0, "a", append(5, (9, 5), 5)))
        assert (reply.accepted, reply.prev_index, reply.hint_index, reply.hint_epoch) == (False, 9, 6, 2)
        reply = reply_of(replica.step(1.0, "a", append(5, (6, 1), 5)))
        assert (reply.hint_index, reply.hint_epoch) == (3, 1)
        assert reply.reason == "its log ends at epoch 2, index 6 and has no entry 6 of epoch 1"

    def test_only_what_is_known_to_be_the_primarys_is_committed(self) -> None:
        """§5.3, the last rule for followers: the commit index may lie beyond what this message has verified."""
        replica = backup(1, 2, 2)
        assert Commit(1) in replica.step(1.0, "a", append(3, (1, 1), commit=3, round_number=1))
        assert replica.commit_index == 1

    def test_an_append_from_before_the_commit_index_needs_no_look_at_the_log(self) -> None:
        """§5.4.3: it agrees there, even where the log is compacted."""
        replica = backup(1, 1, 1)
        replica.step(1.0, "a", append(1, (3, 1), commit=3, round_number=1))
        replica.compacted(4)
        assert reply_of(replica.step(1.0, "a", append(1, (0, 0), round_number=2))).received_index == 3
        assert StoreEntries(4, 4) in replica.step(1.0, "a", append(1, (1, 1), 1, 1, 1))

    def test_a_committed_batch_is_never_taken_back(self) -> None:
        """A primary that asks for it has broken a promise; going on would spread that."""
        replica = backup(1, 1, 1)
        replica.step(1.0, "a", append(1, (3, 1), commit=3, round_number=1))
        with pytest.raises(AssertionError, match="entry 3 is committed"):
            replica._member.truncate(3)

    def test_an_older_epoch_is_refused_and_told_so(self) -> None:
        """§5.1: a primary that was paused learns that it is none any more."""
        replica = backup(epoch=5)
        reply = reply_of(replica.step(1.0, "a", append(4, (0, 0), 4)))
        assert (reply.epoch, reply.accepted, reply.reason) == (5, False, "epoch 4 is over: c is in epoch 5")
        assert replica.primary == ""


class TestStates:
    """joining, catchup, ready: what a resource manager chooses by."""

    def test_a_backup_that_lacks_what_is_committed_is_in_catchup(self) -> None:
        """Until it is on its disk, not merely received."""
        replica = backup()
        effects = replica.step(1.0, "a", append(1, (0, 0), 1, 1, commit=1))
        assert StateChanged(State.CATCHUP, 1, "a") in effects
        assert StateChanged(State.READY, 1, "a") in replica.stored(1.0, 2, 1)

    def test_a_ready_backup_stays_ready_while_it_is_a_little_behind(self) -> None:
        """A state that flickered with every batch would be of no use; one that never changed would lie."""
        replica = backup()
        replica.step(1.0, "a", append(1, (0, 0), round_number=1))
        assert replica.state == "ready"
        replica.step(1.0, "a", append(1, (0, 0), *[1] * 6, commit=5))
        assert replica.state == "ready"
        replica.step(1.0, "a", append(1, (6, 1), commit=6, round_number=2))
        assert replica.state == "catchup"
        replica.stored(1.0, 6, 1)
        assert replica.state == "ready"

    def test_under_load_it_is_enough_to_reach_what_was_committed_a_moment_ago(self) -> None:
        """Dissertation §4.2.1: the commit index moves while the disk works, so the very last one may never be reached."""
        replica = backup()
        replica.step(1.0, "a", append(1, (0, 0), 1, 1, 1, 1, commit=2))
        replica.step(1.0, "a", append(1, (4, 1), commit=4, round_number=1))
        replica.stored(3.0, 2, 1)
        assert replica.state == "catchup", "that took two seconds"
        replica.step(3.0, "a", append(1, (4, 1), *[1] * 4, commit=8))
        replica.stored(3.5, 4, 1)
        assert replica.state == "ready"

    def test_a_backup_that_loses_its_primary_is_joining(self) -> None:
        """By a broken link at once, by silence after election_s; and it finds back within the same epoch."""
        cluster = led("a", "b", "c")
        cluster.disconnect("a", "c")
        assert cluster.states()["c"] == "joining"
        cluster.connect("a", "c")
        cluster.settle()
        assert cluster.states()["c"] == "ready"
        cluster.disconnect("b", "c")
        assert cluster.states()["c"] == "ready"

    def test_news_of_the_disk_while_no_primary_is_known_is_not_sent_to_nobody(self) -> None:
        """The reply would go to the empty address."""
        replica = backup()
        replica.step(1.0, "a", append(1, (0, 0), 1))
        replica.disconnected(1.0, "a")
        assert replica.stored(1.0, 1, 1) == []


class TestLargeMessages:
    """A message takes longer to come than the time after which silence is judged."""

    def test_a_primary_in_the_midst_of_a_message_is_not_silent(self) -> None:
        """Neither for its backup, nor that one for it: both hear bytes, though nothing whole comes either way."""
        cluster = led("a", "b")
        for _ in range(20):
            cluster.tick(0.2)
            cluster.wires.clear()
            cluster.call("b", lambda replica: replica.heard(cluster.now, "a"))
        assert cluster.states() == {"a": "active", "b": "ready"}

    def test_without_a_byte_it_is(self) -> None:
        """The same, and nothing comes at all."""
        cluster = led("a", "b")
        for _ in range(6):
            cluster.tick(0.2)
            cluster.wires.clear()
        assert cluster.states() == {"a": "joining", "b": "joining"}

    def test_bytes_of_somebody_else_say_nothing_of_the_primary(self) -> None:
        """Nor do they make anybody the primary."""
        cluster = led("a", "b", "c")
        for _ in range(6):
            cluster.tick(0.2)
            cluster.wires.clear()
            assert not [each for each in cluster["b"].live.heard(cluster.now, "c") if isinstance(each, Send)]
        assert cluster.states()["b"] == "joining"
        assert not cluster["a"].live.heard(cluster.now, "b")


class TestPrimary:
    """Counting and sending."""

    def test_a_batch_is_committed_when_a_majority_has_it_on_disk_the_own_disk_included(self) -> None:
        """§5.3; and a primary's own disk counts no more than another (dissertation §10.2.1)."""
        cluster = led("a", "b", "c")
        cluster.crash("c")
        cluster.propose("a", settle=False)
        cluster.deliver()
        cluster["b"].sync()
        while cluster.wires:
            cluster.deliver()
        assert cluster["a"].live.commit_index == 1
        cluster["a"].sync()
        assert cluster["a"].live.commit_index == 2

    def test_two_backups_commit_what_the_primarys_own_disk_does_not_hold_yet(self) -> None:
        """A slow disk of the primary slows nobody."""
        cluster = led("a", "b", "c")
        cluster.propose("a", settle=False)
        while cluster.wires:
            cluster.deliver()
        for address in "bc":
            cluster[address].sync()
        while cluster.wires:
            cluster.deliver()
        assert (cluster["a"].live.commit_index, cluster["a"].disk.end.index) == (2, 1)

    def test_section_5_4_2_an_entry_of_an_earlier_epoch_is_committed_only_below_one_of_the_own(self) -> None:
        """Figure 8: a majority that holds an old entry does not make it safe."""
        replica = backup(1, 1)
        for peer in "ab":
            replica.connected(0.0, peer)
        replica.promote(0.0, "please")
        replica.step(0.0, "a", PreVoteReply(1, 1, True))
        replica.step(0.0, "a", VoteReply(2, 2, True))
        replica.propose(0.0, 1, 1, ABC.named("an-id"))
        replica.stored(0.0, 3, 2)
        replica.step(0.0, "a", AppendReply(2, 1, True, 2, 2))
        replica.step(0.0, "b", AppendReply(2, 1, True, 2, 2))
        assert replica.commit_index == 0
        assert Commit(3) in replica.step(0.0, "a", AppendReply(2, 0, True, 3, 3))

    def test_batches_are_sent_without_waiting_up_to_the_bounds(self) -> None:
        """Dissertation §10.2.1; but a backup that does not answer must not fill the memory of the links."""
        cluster = led("a", "b", "c")
        cluster.wires.clear()
        cluster.propose("a", 30, settle=False)
        sent = [wire[2] for wire in cluster.wires if wire[1] == "b"]
        assert sum(len(each.entries) for each in sent if isinstance(each, Append)) == SMALL.max_inflight_batches
        cluster.settle()
        assert cluster["b"].disk.end.index == 31

    def test_a_backup_that_is_behind_gets_several_batches_in_one_message(self) -> None:
        """At most max_append_bytes, unless one batch alone is larger."""
        cluster = led("a", "b", "c")
        cluster.crash("b")
        cluster.propose("a", 30)
        cluster.restart("b")
        cluster.wires.clear()
        cluster.connect("a", "b")
        cluster["a"].run(cluster["a"].live.step(cluster.now, "b", AppendReply(1, 1, True, 1, 1)))
        sizes = [len(wire[2].entries) for wire in cluster.wires if isinstance(wire[2], Append) and wire[2].entries]
        assert sizes == [3, 3, 3]

    def test_a_backup_with_another_history_is_brought_back_epoch_by_epoch(self) -> None:
        """Figure 7, both ways: entries missing and entries too many."""
        cluster = led("a", "b", "c")
        cluster.isolate("a")
        cluster.propose("a", 6)
        cluster.promote("b")
        cluster.propose("b", 4)
        cluster.connect_all()
        cluster.pass_time(0.5)
        assert cluster.states() == {"a": "ready", "b": "active", "c": "ready"}
        assert cluster["a"].disk.log == cluster["b"].disk.log

    def test_lost_batches_are_noticed_by_the_next_heartbeat(self) -> None:
        """Links do not lose messages while they last; if one did, the backup would not stay behind."""
        cluster = led("a", "b", "c")
        cluster.propose("a", 3, settle=False)
        cluster.wires.clear()
        cluster.pass_time(0.3)
        assert cluster["b"].applied == 4

    def test_stale_refusals_do_not_throw_a_backup_back(self) -> None:
        """A refusal that comes late, or twice, is about what has been settled since."""
        cluster = led("a", "b", "c")
        cluster.propose("a", 5)
        replica = cluster["a"].live
        assert replica.step(cluster.now, "b", AppendReply(1, 0, False, 0, 0, prev_index=3, hint_index=1, hint_epoch=1)) == []
        cluster.crash("b")
        cluster.restart("b")
        cluster.wires.clear()
        stale = AppendReply(1, 0, False, 0, 0, prev_index=2, hint_index=1, hint_epoch=1)
        assert replica.step(cluster.now, "b", stale) == []

    def test_a_word_from_before_a_loss_does_not_keep_a_backup_behind(self) -> None:
        """A member dies, loses acknowledged batches and comes back; what it had said before reaches the primary last of all."""
        cluster = led("a", "b", "c")
        cluster.propose("a", 5)
        cluster.crash("b")
        del cluster["b"].disk.log[3:]
        cluster["b"].disk.floor = Position(1, 6)
        cluster.restart("b")
        cluster.disconnect("a", "b")
        cluster.connect("a", "b")
        cluster["a"].live.step(cluster.now, "b", AppendReply(1, 0, True, 6, 6))
        cluster.pass_time(0.5)
        assert cluster.states()["b"] == "ready"
        assert cluster["b"].disk.log == cluster["a"].disk.log
        assert cluster["b"].disk.floor is None

    def test_a_hung_majority_ends_the_term(self) -> None:
        """Check-quorum (dissertation §6.2): nobody is served by a primary that can commit nothing."""
        cluster = led("a", "b", "c")
        cluster.isolate("a")
        cluster.pass_time(0.9)
        assert cluster.states()["a"] == "active"
        cluster.pass_time(0.3)
        assert cluster.states()["a"] == "joining"
        assert not cluster["a"].live.writable
        assert cluster["a"].ends(StateChanged)[-1] == StateChanged(State.JOINING, 1, "")
        assert cluster["a"].ends(WritableChanged)[-1] == WritableChanged(False)
        assert cluster["a"].ends(TermEnded) == [TermEnded("a heard from 1 of 3 members only within 1 s", planned=False)]

    def test_one_backup_is_majority_enough(self) -> None:
        """Of three."""
        cluster = led("a", "b", "c")
        cluster.crash("c")
        cluster.pass_time(5)
        assert cluster.states() == {"a": "active", "b": "ready"}

    def test_a_primary_that_sees_a_higher_epoch_steps_down_before_it_does_anything_else(self) -> None:
        """What follows in the same list of effects is another primary's: the edge must know by then."""
        cluster = led("a", "b", "c")
        effects = cluster["a"].live.step(cluster.now, "b", append(2, (1, 1), 2, commit=2))
        kinds = [type(effect).__name__ for effect in effects]
        assert kinds.index("StateChanged") < kinds.index("StoreEntries") < kinds.index("Commit")
        (ended,) = [effect for effect in effects if isinstance(effect, TermEnded)]
        assert ended == TermEnded("epoch 2 has begun, says b", planned=False)

    def test_a_second_primary_of_the_same_epoch_is_refused(self) -> None:
        """It cannot be; a broker of some other cluster at this address could say so all the same."""
        cluster = led("a", "b", "c")
        reply = reply_of(cluster["a"].live.step(cluster.now, "b", append(1, (0, 0), 1)))
        assert not reply.accepted
        assert cluster.states()["a"] == "active"

    def test_only_the_primary_proposes_and_only_while_it_may(self) -> None:
        """The broker has to ask first."""
        cluster = led("a", "b", "c")
        with pytest.raises(AssertionError, match="on a backup"):
            cluster["b"].live.propose(cluster.now, 1, 1)
        with pytest.raises(AssertionError, match="was asked for"):
            cluster["a"].live.propose(cluster.now, 1, 1, ABC)
        cluster.promote("b", settle=False)
        cluster.deliver()
        with pytest.raises(AssertionError, match="takes none"):
            cluster["a"].live.propose(cluster.now, 1, 1)

    def test_replies_of_strangers_and_to_former_primaries_are_ignored(self) -> None:
        """They may be under way when members change or a term ends."""
        cluster = led("a", "b", "c")
        for message in (AppendReply(1, 1, True, 9, 9), SnapshotReply(1, 1, 1), TransferReply(1, "no")):
            for address, sender in (("a", "x"), ("b", "a"), ("a", "b")):
                cluster[address].receive(sender, message)
        cluster["a"].run(cluster["a"].live.connected(cluster.now, "x"))
        cluster["a"].run(cluster["a"].live.disconnected(cluster.now, "x"))
        cluster.settle()
        assert cluster.states() == {"a": "active", "b": "ready", "c": "ready"}
        assert cluster["a"].live.commit_index == 1


def test_the_status_tells_how_far_each_backup_is() -> None:
    """Telemetry and `qpid-ha query` show these."""
    cluster = Cluster("a", "b", "c", settings=ReplicaSettings())
    cluster.promote("a")
    cluster.pass_time(0.3)
    cluster.disconnect("a", "c")
    cluster.propose("a", 3)
    cluster.now += 0.25
    status = cluster["a"].live.status(cluster.now)
    b, c = status.peers
    assert (status.state, status.primary, status.last_index, status.commit_index, status.durable_index) == (
        "active",
        "a",
        4,
        4,
        4,
    )
    assert (b.address, b.role, b.connected, b.progress, b.match_index, b.lag_bytes) == ("b", "voter", True, "replicate", 4, 0)
    assert (c.connected, c.match_index, c.lag_batches, c.lag_bytes) == (False, 1, 3, 3 * BATCH_BYTES)
    assert c.lag_records == sum(entry.n_records for entry in cluster["a"].disk.log[1:])
    assert b.round_trip_s == 0.0
    assert c.last_heard_s > 0.2
    assert cluster["a"].live.durable_index == status.durable_index
    own = cluster["b"].live.status(cluster.now)
    assert (own.state, own.primary, own.peers, own.writable) == ("ready", "a", (), False)


def test_sends_of_batches_follow_what_was_saved() -> None:
    """Save before send: a proposal's StoreEntries is begun before its bytes leave (§5, Figure 2)."""
    cluster = led("a", "b", "c")
    effects = cluster["a"].live.propose(cluster.now, 1, 1)
    assert [type(effect) for effect in effects] == [StoreEntries, SendEntries, SendEntries]


@pytest.mark.parametrize("current", [False, True])
def test_a_refusal_of_what_was_acknowledged_counts_only_as_an_answer_to_the_newest_heartbeat(current: bool) -> None:
    """A late one speaks of a log that has grown since; the newest one of a log that has lost its end."""
    log = Log(Membership.of("ab"))
    for index in range(1, 9):
        log.append(Entry(index, 1, BATCH_BYTES))
    progress = Progress("b", 1, 0.0, connected=True)
    assert progress.accepted(AppendReply(1, 1, True, 6, 6), log)
    assert (
        progress.refused(AppendReply(1, 2, False, 0, 0, prev_index=6, hint_index=3, hint_epoch=1), log, current=current)
        is current
    )
    assert (progress.match_index, progress.pace) == ((0, Pace.PROBE) if current else (6, Pace.REPLICATE))


def test_a_refusal_counts_for_nothing_while_a_snapshot_is_on_its_way() -> None:
    """The member says so of each heartbeat until it has the snapshot; to probe would begin it anew."""
    progress = Progress("b", 9, 0.0, connected=True)
    progress.send_snapshot(0.0, 0)
    refusal = AppendReply(1, 2, False, 0, 0, prev_index=8)
    assert not progress.refused(refusal, Log(Membership.of("ab")), current=True)
    assert progress.pace is Pace.SNAPSHOT
