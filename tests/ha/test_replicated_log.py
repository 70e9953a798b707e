"""The replicated log with real journals: what is committed is applied everywhere, survives kills, and nothing damaged gets in."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from twisted.logger import capturedLogs, formatEvent

from broker.core.records import MAGIC, Batch, BatchBuilder
from broker.disk import checkpoint, segments
from broker.disk.files import REAL_DISK, RealDisk
from ha.core.effects import PromotionEnded
from ha.core.messages import Append, Position, SnapshotChunk, TimeoutNow
from ha.core.settings import ReplicaSettings
from ha.log.applying import SLICE_BATCHES
from tests.broker.disk.logs import FailingSync, FullDisk, GatedDisk
from tests.ha.log_cluster import QUEUE, Broker, Ledger, Machine, bodies
from tests.ha.test_snapshots import Crowded

LARGE = bytes(70 * 1024)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()


class TestCluster:
    """Three members."""

    def test_what_the_primary_commits_all_members_apply(self, machine: Machine) -> None:
        """The same messages in the same order."""
        a, b, c = machine.cluster("a", "b", "c")
        machine.write(a, b"one", b"two", b"three")
        machine.run_until(lambda: machine.level(a, b, c))
        assert bodies(a) == bodies(b) == bodies(c) == [b"one", b"two", b"three"]
        assert {members.cluster_id for members in machine.memberships.values()} == {a.log.status().members.cluster_id} != {""}

    def test_a_killed_primary_loses_nothing_that_was_committed_and_catches_up_when_it_returns(self, machine: Machine) -> None:
        """The whole point."""
        a, b, c = machine.cluster("a", "b", "c")
        machine.write(a, *(b"before %d" % number for number in range(50)))
        held = bodies(a)
        machine.kill("a")
        ended = machine.promote("b")
        assert isinstance(ended, PromotionEnded)
        assert ended.won
        assert b.log.state == "active"
        assert bodies(b) == held
        machine.write(b, b"after")
        back = machine.start("a")
        machine.run_until(lambda: machine.level(back, b, c) and back.log.state == "ready")
        assert bodies(back) == bodies(c) == [*held, b"after"]

    def test_all_members_killed_at_once_come_back_with_everything(self, machine: Machine) -> None:
        """A power cut; whoever holds the newest log is elected."""
        a, _, _ = machine.cluster("a", "b", "c")
        machine.write(a, *(b"%d" % number for number in range(20)))
        held = bodies(a)
        for address in "abc":
            machine.kill(address)
        brokers = [machine.start(address) for address in "abc"]
        assert machine.promote("a").won
        machine.run_until(lambda: machine.level(*brokers))
        assert [bodies(each) for each in brokers] == [held] * 3

    def test_a_primary_that_was_cut_off_takes_back_what_nobody_else_has(self, machine: Machine) -> None:
        """It was never committed, so its listener never heard of it; its journal is cut and filled anew."""
        a, b, c = machine.cluster("a", "b", "c")
        machine.write(a, b"shared")
        machine.isolate("a")
        a.propose(b"mine alone")
        assert machine.promote("b").won
        machine.write(b, b"ours", b"too")
        for other in "bc":
            machine.connect("a", other)
        machine.run_until(lambda: machine.level(a, b, c) and a.log.state == "ready")
        assert bodies(a) == [b"shared", b"ours", b"too"]
        machine.kill("a")
        back = machine.start("a")
        machine.run_until(lambda: machine.level(back, b))
        assert bodies(back) == [b"shared", b"ours", b"too"]

    def test_what_was_taken_back_is_never_applied_though_the_disk_still_has_it(self, machine: Machine) -> None:
        """A restarted member reads from the journal what it has not applied; where the primary has truncated its log, the
        journal's thread may not have come to it yet. To apply what stands there would make this member unlike the others for
        good."""
        a, b, _ = machine.cluster("a", "b", "c")
        machine.write(a, b"one", b"two")
        machine.run_until(lambda: machine.level(a, b))
        machine.isolate("a")
        stale = a.propose(b"nobody else has this")
        machine.run_until(lambda: a.log.status().durable_index >= stale)
        machine.kill("a")
        machine.promote("b")
        machine.write(b, b"three", b"four")
        again = machine.start("a", "a,b,c")
        with again.log.journal._holdings._lock:  # its thread comes to nothing meanwhile
            machine.run_until(lambda: again.log.status().commit_index >= stale)
            machine.run_for(0.2)
            assert again.ledger.applied < stale
        machine.run_until(lambda: machine.level(again, b))
        assert bodies(again) == bodies(b) == [b"one", b"two", b"three", b"four"]

    def test_a_term_that_ends_is_told_before_another_primarys_batches_are(self, machine: Machine) -> None:
        """Otherwise a producer would be answered for a batch of the same index that is not its own."""
        a, b, _ = machine.cluster("a", "b", "c")
        machine.isolate("a")
        a.propose(b"mine alone")
        machine.promote("b")
        machine.write(b, b"ours")
        at = len(a.ledger.told)
        for other in "bc":
            machine.connect("a", other)
        machine.run_until(lambda: machine.level(a, b))
        told = [what for what in a.ledger.told[at:] if what in ("joining", "catchup", "ready", "batches")]
        assert told.index("batches") > 0

    def test_a_planned_switchover_loses_nothing_and_pauses_proposals(self, machine: Machine) -> None:
        """The candidate is asked; the old primary becomes its backup."""
        a, b, c = machine.cluster("a", "b", "c")
        machine.write(a, b"one")
        ended = machine.promote("b")
        assert ended.won
        assert a.ledger.told.count("quiesce") == 1
        assert not a.log.may_propose
        machine.run_until(lambda: [each.log.state for each in (a, b, c)] == ["ready", "active", "ready"])
        machine.write(b, b"two")
        machine.run_until(lambda: machine.level(a, b, c))
        assert bodies(a) == [b"one", b"two"]

    def test_what_comes_before_the_end_of_a_term_comes_before_another_broker_is_let_take_over(self, machine: Machine) -> None:
        """An address that two brokers had, one of which has let go, would be taken away here after the other one has it."""
        a, b, _ = machine.cluster("a", "b", "c")
        handed_over = a.log.requests.transfer("b")
        machine.run_until(lambda: bool(machine.ends))
        assert (machine.ends[0][:2], b.log.epoch) == (("a", "active"), a.log.epoch)
        assert TimeoutNow not in machine.ends[0][2]
        assert machine.result(handed_over).done
        machine.run_until(lambda: b.log.state == "active")
        machine.ends.clear()
        machine.isolate("b")
        machine.run_until(lambda: b.log.state != "active")
        assert [each[:2] for each in machine.ends] == [("b", "active")], "its listener has not heard of the end"

    def test_a_refused_promotion_says_why(self, machine: Machine) -> None:
        """To whoever asked."""
        machine.cluster("a", "b", "c")
        machine.kill("a")
        machine.kill("b")
        ended = machine.promote("c")
        assert not ended.won
        assert "a is not connected; b is not connected" in ended.reason

    def test_members_are_added_and_removed_and_handed_over_to_through_the_log(self, machine: Machine) -> None:
        """Each request is answered once."""
        a, b, c = machine.cluster("a", "b", "c")
        machine.write(a, b"one")
        d = machine.start("d", "abcd")
        assert machine.result(a.log.requests.add_member("d")).done
        machine.run_until(lambda: d.log.status().members.voters == ("a", "b", "c", "d") and machine.level(a, b, c, d))
        assert not machine.result(a.log.requests.add_member("d")).done
        assert machine.result(a.log.requests.remove_member("c")).done
        assert machine.result(b.log.requests.remove_member("c")).reason == "b is not the primary; a is"
        assert machine.result(a.log.requests.transfer("x")).reason == "x is not another voting member of this cluster"
        assert machine.result(a.log.requests.transfer("d")).done
        machine.run_until(lambda: d.log.state == "active")
        assert bodies(d) == [b"one"]
        assert machine.memberships["d"].voters == ("a", "b", "d")


class TestWindow:
    """How many batches may be under way."""

    def test_small_batches_overlap_and_large_ones_do_not(self, machine: Machine) -> None:
        """Under load one batch gathers while the other is under way, and so grows; when idle, four hide each other's latency."""
        a, b, c = machine.cluster("a", "b", "c")
        for _ in range(4):
            assert a.log.may_propose
            a.propose(b"small")
        assert not a.log.may_propose
        at = len(a.ledger.told)
        machine.run_until(lambda: machine.level(a, b, c))
        assert "writable" in a.ledger.told[at:]
        a.propose(LARGE)
        assert not a.log.may_propose
        machine.run_until(lambda: a.log.may_propose)

    def test_full_batches_follow_each_other_up_to_a_bound(self, machine: Machine) -> None:
        """Waiting makes none of them larger; but what comes next must not wait for too much."""
        a, _, _ = machine.cluster("a", "b", "c")
        full = bytes(1 << 20)
        taken = 0
        while a.log.may_propose:
            a.propose(full)
            taken += 1
        assert taken == 3, "a fourth would make 4 MiB"
        machine.run_until(lambda: a.log.may_propose)
        a.propose(bytes(5 << 20))
        assert not a.log.may_propose

    def test_only_an_active_primary_may_propose(self, machine: Machine) -> None:
        """Not a backup, and nobody once stopped."""
        a, b, _ = machine.cluster("a", "b", "c")
        assert (a.log.may_propose, b.log.may_propose) == (True, False)
        with pytest.raises(AssertionError, match="takes none"):
            b.propose(b"x")
        a.log.stop()
        a.log.stop()
        assert not a.log.may_propose


class TestCatchUp:
    """Backups that were away."""

    @pytest.fixture
    def small(self, tmp_path: Path) -> Iterator[Machine]:
        settings = ReplicaSettings(max_append_bytes=8 * 1024, max_inflight_bytes=32 * 1024)
        made = Machine(tmp_path, settings, checkpoint_bytes=48 * 1024)
        yield made
        made.close()

    def test_what_is_no_longer_in_memory_is_read_from_the_journal(self, machine: Machine) -> None:
        """A restarted primary has nothing in memory."""
        a, b, c = machine.cluster("a", "b", "c")
        machine.kill("c")
        machine.write(a, *(b"%d" % number * 50 for number in range(60)))
        machine.kill("a")
        machine.run_until(lambda: b.log.state == "joining")
        machine.kill("b")
        b = machine.start("b")
        back = machine.start("c")
        assert machine.promote("b").won
        machine.run_until(lambda: machine.level(b, back) and back.log.state == "ready")
        assert len(bodies(back)) == 60
        del c

    def test_a_long_log_of_small_batches_is_passed_on_in_slices(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        """Breaks when a member that has restarted applies the creation of thousands of queues in one turn: for seconds it answers
        nobody, and it does not vote."""
        slices: list[int] = []
        on_committed = Ledger.on_committed

        def told(ledger: Ledger, batches: list[Batch]) -> None:
            slices.append(len(batches))
            on_committed(ledger, batches)

        a, _, c = machine.cluster("a", "b", "c")
        machine.write(a, *(b"%d" % number for number in range(3 * SLICE_BATCHES)))
        machine.run_until(lambda: machine.level(a, c))
        machine.kill("c")
        monkeypatch.setattr(Ledger, "on_committed", told)
        back = machine.start("c")
        machine.run_until(lambda: machine.level(a, back) and back.log.state == "ready")
        assert bodies(back) == bodies(a)
        assert max(slices) == SLICE_BATCHES

    def test_a_backup_that_needs_what_was_dropped_gets_a_snapshot(self, small: Machine) -> None:
        """And goes on from there, and can itself be started from it."""
        a, b, _ = small.cluster("a", "b", "c")
        small.kill("c")
        for number in range(60):
            small.write(a, b"%02d" % number * 1500)
            builder = BatchBuilder()
            builder.dequeues_for(1).append(number + 1)
            small.run_until(lambda: a.log.may_propose)
            a.log.propose(builder)
        small.run_until(lambda: a.log.journal.figures.checkpoint_index > 2 and a.log.status().first_index > 2)
        small.write(a, b"kept", b"too")
        back = small.start("c")
        small.run_until(lambda: small.level(a, b, back) and back.log.state == "ready")
        assert back.ledger.resets
        assert bodies(back) == bodies(a) == [b"kept", b"too"]
        small.write(a, b"more")
        small.run_until(lambda: small.level(a, back))
        small.kill("c")
        again = small.start("c")
        small.run_until(lambda: small.level(a, again) and again.log.state == "ready")
        assert bodies(again) == [b"kept", b"too", b"more"]

    def test_a_snapshot_larger_than_a_chunk_arrives_whole(self, tmp_path: Path) -> None:
        """Several chunks, each asked for by the backup."""
        big = Machine(tmp_path, checkpoint_bytes=1024 * 1024)
        a, b, _ = big.cluster("a", "b", "c")
        big.kill("c")
        for number in range(30):
            big.write(a, b"%02d" % number * 50_000)
            builder = BatchBuilder()
            builder.count(1, 1)
            big.run_until(lambda: a.log.may_propose)
            a.log.propose(builder)
        big.run_until(lambda: a.log.journal.figures.checkpoint_index > 2 or not big.turn())
        back = big.start("c")
        big.run_until(lambda: big.level(a, b, back))
        assert bodies(back) == bodies(a)
        big.close()


class TestBadInput:
    """Nothing of a message that cannot be right is stored; the link is closed, and the text says what was wrong."""

    def corrupt(self, machine: Machine, address: str) -> tuple[str, Append, bytes]:
        """The next Append with batches that is under way to this member, taken off the wire."""
        for wire in machine.wires:
            if wire[1] == address and isinstance(wire[2], Append) and wire[3]:
                machine.wires.remove(wire)
                return wire[0], wire[2], wire[3]
        raise AssertionError("no batch is under way")

    def test_a_batch_with_a_wrong_checksum_is_refused_and_later_stored_whole(self, machine: Machine) -> None:
        """One flipped bit, in memory or on the way."""
        a, b, c = machine.cluster("a", "b", "c")
        a.propose(b"precious")
        sender, append, payload = self.corrupt(machine, "b")
        before = b.log.status().last_index
        b.log.receive(sender, append, payload[:-1] + bytes([payload[-1] ^ 1]))
        assert b.log.status().last_index == before
        assert b.log.bad_batches == 1
        ((peer, reason),) = b.closed
        assert peer == "a"
        assert "checksum" in reason
        assert f"batch {append.first}" in reason
        machine.disconnect("a", "b")
        machine.connect("a", "b")
        machine.run_until(lambda: machine.level(a, b, c))
        assert bodies(b) == [b"precious"]

    def test_batches_that_are_not_those_announced_are_refused(self, machine: Machine) -> None:
        """Fewer, others, torn, or no batches at all."""
        a, b, _ = machine.cluster("a", "b", "c")
        a.propose(b"precious")
        sender, append, payload = self.corrupt(machine, "b")
        for message, data in (
            (append, b""),
            (append, payload[:60]),
            (append, b"no batch at all, but long enough to be the header of one, as it seems"),
            (msgspec.structs.replace(append, last=append.last + 1), payload),
            (
                msgspec.structs.replace(append, prev_index=append.prev_index + 1, first=append.first + 1, last=append.last + 1),
                payload,
            ),
        ):
            b.log.receive(sender, message, data)
        assert b.log.bad_batches == len(b.closed) == 5
        assert b.log.status().last_index == append.prev_index

    def test_a_chunk_that_is_not_what_it_says_is_refused(self, machine: Machine) -> None:
        """By its size, or by its place in the snapshot."""
        a, b, _ = machine.cluster("a", "b", "c")
        members = a.log.status().members
        b.log.receive("a", SnapshotChunk(1, 9, 1, members, 0, 10, 10), b"too short")
        b.log.receive("a", SnapshotChunk(1, 9, 1, members, 8, 10, 10), b"ten bytes!")
        assert [reason for _, reason in b.closed] == [
            "a snapshot chunk of 9 bytes came where 10 were announced",
            "10 bytes at 8 are not part of a snapshot of 10 bytes",
        ]

    def test_a_damaged_snapshot_is_not_installed_and_is_asked_for_again(self, machine: Machine) -> None:
        """The whole is checked before any of it counts."""
        a, b, _ = machine.cluster("a", "b", "c")
        members = a.log.status().members
        b.log.receive("a", SnapshotChunk(1, 99, 1, members, 0, 10, 10), b"ten bytes!")
        machine.write(a, b"still fine")
        machine.run_until(lambda: machine.level(a, b))
        assert not b.ledger.resets


def without_c_and_restarted(machine: Machine) -> tuple[Broker, Broker]:
    """Primary and backup of three, which have written two messages since c was killed, and hold none of them in memory."""
    a, b, _ = machine.cluster("a", "b", "c")
    machine.kill("c")
    machine.write(a, b"one", b"two")
    machine.kill("a")
    machine.kill("b")
    a, b = machine.start("a"), machine.start("b")
    assert machine.promote("a").won
    machine.run_until(lambda: machine.level(a, b))
    return a, b


def rot(machine: Machine, address: str) -> None:
    """One bit flips in every batch that lies in a broker's segments."""
    for _, path in segments.listed(REAL_DISK, machine.folder / address / "cluster"):
        data = bytearray(path.read_bytes())
        at = data.find(MAGIC)
        while at >= 0:
            data[at + 30] ^= 1
            at = data.find(MAGIC, at + 1)
        with path.open("r+b") as file:
            file.write(data)


class TestRot:
    """Batches that were whole on disk when the broker started, and are not when they are read."""

    def test_a_committed_batch_that_cannot_be_read_stops_the_broker(self, machine: Machine) -> None:
        """It must not go on as if it had applied it; its next start finds the damage and has it fetched from the others."""
        a, _, _ = machine.cluster("a", "b", "c")
        machine.write(a, b"one", b"two")
        machine.kill("a")
        a = machine.start("a", connect=False)
        rot(machine, "a")
        assert machine.promote("b").won
        for other in "bc":
            machine.connect("a", other)
        machine.run_until(lambda: bool(a.ledger.errors))
        ((text, fatal),) = a.ledger.errors
        assert fatal
        assert "a committed batch cannot be read back" in text
        assert "is damaged at byte" in text
        assert bodies(a) == []

    def test_a_batch_that_cannot_be_applied_stops_the_broker(self, machine: Machine) -> None:
        """What comes after it would be applied to a state that no other member has."""
        a, b, _ = machine.cluster("a", "b", "c")
        b.ledger.applied += 1  # as if it had lost its way
        machine.write(a, b"one")
        machine.run_until(lambda: bool(b.ledger.errors))
        assert b.ledger.errors[-1][1], "it is fatal"
        told = len(b.ledger.told)
        machine.write(a, b"two")
        machine.run_for(0.5)
        assert len(b.ledger.told) == told

    def test_a_backup_that_needs_a_rotten_batch_gets_a_snapshot_instead(self, machine: Machine) -> None:
        """What the batches did is alive in the primary's memory; a checkpoint of it brings the backup level."""
        a, b = without_c_and_restarted(machine)
        rot(machine, "a")
        c = machine.start("c")
        machine.run_until(lambda: bool(a.closed))
        machine.run_until(lambda: a.log.status().first_index > 2)
        machine.disconnect("a", "c")
        machine.connect("a", "c")
        machine.run_until(lambda: machine.level(a, b, c))
        assert bodies(c) == [b"one", b"two"]
        assert c.ledger.resets

    def test_the_only_store_of_a_cluster_is_not_given_up_for_one_damaged_body(self, machine: Machine) -> None:
        """Breaks when it stops to fetch everything from another broker: at its next start it would delete all messages."""
        (a,) = machine.cluster("a")
        machine.write(a, b"one")
        a.log.rotten(0, "a body is damaged")
        machine.write(a, b"two")
        assert (bodies(a), a.ledger.errors) == ([b"one", b"two"], [])

    @pytest.mark.parametrize("damaged", ["a", "b"])
    def test_a_member_gives_up_its_store_for_a_damaged_body_that_another_one_has(self, machine: Machine, damaged: str) -> None:
        a, b, _ = machine.cluster("a", "b", "c")
        machine.write(a, b"one")
        machine.run_until(lambda: machine.level(a, b))
        machine.brokers[damaged].log.rotten(0, "a body is damaged")
        ((text, fatal),) = machine.brokers[damaged].ledger.errors
        assert fatal
        assert "fetches everything from another one" in text

    @pytest.mark.parametrize("damage", ["rotten", "gone"])
    def test_a_backup_that_needs_a_damaged_checkpoint_gets_a_new_one(self, machine: Machine, damage: str) -> None:
        """Fetched as it is, it would be refused, and asked for again, for ever."""
        a, b, _ = machine.cluster("a", "b", "c")
        machine.kill("c")
        machine.write(a, b"one", b"two")
        written = machine.folder / "a" / "cluster"
        a.log.retention.checkpoint(spared=0)
        machine.run_until(lambda: a.log.journal.checkpoint is not None and a.log.status().first_index > 2)
        (path,) = checkpoint.listed(REAL_DISK, written)
        if damage == "gone":
            path.unlink()
        else:
            data = path.read_bytes()
            path.write_bytes(data[:-40] + bytes((data[-40] ^ 1,)) + data[-39:])
        c = machine.start("c")
        machine.run_until(lambda: machine.level(a, b, c))
        assert bodies(c) == [b"one", b"two"]


class TestTooManyOpenFiles:
    """A shortage of descriptors ends some time, and nothing is damaged by it."""

    def test_a_member_that_cannot_open_its_log_waits_and_then_applies_all_of_it(self, machine: Machine) -> None:
        """Breaks when it stops, or passes over what it could not read."""
        disk = machine.disks["a"] = Crowded()
        a, b, _ = machine.cluster("a", "b", "c")
        machine.write(a, b"one", b"two")
        machine.kill("a")
        a = machine.start("a", connect=False)
        disk.full = True
        assert machine.promote("b").won
        for other in "bc":
            machine.connect("a", other)
        machine.write(b, b"three")
        machine.run_until(lambda: a.log.status().commit_index == b.log.status().commit_index)
        with capturedLogs() as logs:
            machine.run_for(5.0)
        said = [event for event in logs if "waits until it can be read" in (formatEvent(event) or "")]
        assert (bodies(a), a.ledger.errors) == ([], [])
        assert len(said) <= 1, "once, not at each attempt"
        disk.full = False
        machine.run_until(lambda: machine.level(a, b))
        assert bodies(a) == [b"one", b"two", b"three"]

    def test_a_backup_that_is_behind_gets_its_batches_when_the_primary_can_open_its_log_again(self, machine: Machine) -> None:
        """Breaks when the primary writes a checkpoint instead, with the same shortage, and ends the link."""
        disk = machine.disks["a"] = Crowded()
        a, b = without_c_and_restarted(machine)
        disk.full = True
        c = machine.start("c")
        machine.run_for(5.0)
        assert (a.closed, a.ledger.errors, a.log.journal.checkpoint) == ([], [], None)
        disk.full = False
        machine.run_until(lambda: machine.level(a, b, c))
        assert bodies(c) == [b"one", b"two"]
        assert c.ledger.resets == []


class SlowSegments(GatedDisk):
    """A disk that keeps segments waiting for their sync; votes are saved at once."""

    def sync(self, fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(segments.SUFFIX):
            super().sync(fd)
        else:
            RealDisk.sync(self, fd)


class TestDisk:
    """A disk that refuses, or is slow."""

    def test_a_promotion_is_answered_when_the_primary_serves_however_slow_its_own_disk_is(self, machine: Machine) -> None:
        """Breaks when the answer comes as soon as the others hold its first batch: whoever asked would find it recovering."""
        disk = machine.disks["a"] = SlowSegments()
        a, b, c = (machine.start(address, "abc") for address in "abc")
        disk.gate.clear()
        asked = a.log.requests.promote()
        machine.run_until(lambda: a.log.status().commit_index == b.log.status().last_index == c.log.status().last_index == 1)
        machine.run_for(0.1)
        assert (a.log.state, asked.called) == ("recovering", False)
        disk.gate.set()
        assert machine.result(asked).won
        assert a.log.state == "active"

    def test_a_primary_with_a_full_disk_hands_over_what_the_others_have_and_comes_back(self, machine: Machine) -> None:
        """Breaks when its own disk is waited for until the switchover is called off."""
        disk = machine.disks["a"] = FullDisk()
        a, b, c = machine.cluster("a", "b", "c")
        disk.full.set()
        a.propose(b"one")
        machine.run_until(lambda: bool(a.ledger.errors))
        assert machine.promote("b").won
        assert bodies(b) == [b"one"]
        assert a.log.status().durable_index < a.log.status().last_index
        disk.full.clear()
        machine.run_until(lambda: machine.level(a, b, c))
        assert [bodies(each) for each in (a, b, c)] == [[b"one"]] * 3

    def test_a_backup_is_told_when_its_full_disk_takes_writes_again(self, machine: Machine) -> None:
        """Breaks when only a primary is told: the backup went on saying that its disk was full, until it was one."""
        disk = machine.disks["b"] = FullDisk()
        a, b, _ = machine.cluster("a", "b", "c")
        disk.full.set()
        machine.write(a, b"one")
        machine.run_until(lambda: bool(b.ledger.errors))
        assert "writable" not in b.ledger.told
        disk.full.clear()
        machine.run_until(lambda: machine.level(a, b))
        assert b.ledger.told.count("writable") == 1

    def test_a_full_disk_stops_proposals_until_there_is_room(self, machine: Machine) -> None:
        """Nothing is lost, and the broker goes on by itself."""
        disk = machine.disks["a"] = FullDisk()
        (a,) = machine.cluster("a")
        disk.full.set()
        a.propose(b"waits")
        machine.run_until(lambda: bool(a.ledger.errors))
        assert not a.log.may_propose
        ((text, fatal),) = a.ledger.errors
        assert not fatal
        assert "make room" in text
        disk.full.clear()
        machine.run_until(lambda: a.log.may_propose and machine.level(a))
        assert bodies(a) == [b"waits"]

    def test_a_broker_with_a_full_disk_that_is_elected_says_so_and_serves_when_there_is_room(self, machine: Machine) -> None:
        """Breaks when it says that it looks for a primary until it has on its disk what others hold, which may be never."""
        disk = machine.disks["b"] = FullDisk()
        a, b, _ = machine.cluster("a", "b", "c")
        disk.full.set()
        machine.write(a, b"beyond")
        machine.run_until(lambda: b.log.status().commit_index == a.log.status().commit_index)
        machine.kill("a")
        asked = b.log.requests.promote()
        machine.run_for(1.0)
        assert (b.log.state, asked.called, bodies(b)) == ("recovering", False, [])
        disk.full.clear()
        assert machine.result(asked).won
        assert (b.log.state, bodies(b)) == ("active", [b"beyond"])

    def test_a_failed_sync_is_fatal(self, machine: Machine) -> None:
        """What the disk holds is unknown: the broker must stop, and nothing more counts."""
        disk = machine.disks["a"] = FailingSync()
        (a,) = machine.cluster("a")
        disk.broken.set()
        a.propose(b"unknown")
        machine.run_until(lambda: bool(a.ledger.errors))
        assert a.ledger.errors[0][1]
        machine.run_for(0.5)
        assert bodies(a) == []
        assert not a.log.may_propose

    def test_a_vote_that_could_not_be_saved_is_not_given_either_when_it_is_asked_for_again(self, machine: Machine) -> None:
        """The process lives on for a moment, in which the candidate may ask again; its next life would know of no vote."""
        disk = machine.disks["b"] = FailingSync()
        _, b, c = machine.cluster("a", "b", "c")
        machine.kill("a")
        disk.broken.set()
        assert not machine.promote("c").won
        assert b.ledger.errors[0][1]
        assert c.log.state != "active"

    def test_a_batch_that_is_written_anew_is_not_acknowledged_for_its_first_writing(self, machine: Machine) -> None:
        """Two elections while the disk's report is on its way: the batch is taken back, and comes again as it was."""

        disk = machine.disks["b"] = SlowSegments()
        _, b, _ = machine.cluster("a", "b", "c")
        machine.isolate("b")
        status, journal = b.log.status(), b.log.journal
        at, index = Position(status.last_epoch, status.last_index), status.last_index + 1

        def comes(sender: str, epoch: int, batch_epoch: int) -> None:
            builder = BatchBuilder()
            builder.messages_for(QUEUE, 1).append(b"perhaps")
            data = builder.seal(batch_epoch, index, 1)
            b.log.receive(sender, Append(epoch, 0, at.index, at.epoch, index, index, status.commit_index), data)

        comes("a", at.epoch, at.epoch)
        while journal.figures.last_index < index:
            threading.Event().wait(0.001)
        disk.gate.clear()
        comes("c", at.epoch + 1, at.epoch + 1)
        comes("a", at.epoch + 2, at.epoch)
        machine.run_for(0.1)
        assert (b.log.status().last_index, b.log.status().durable_index) == (index, at.index)
        disk.gate.set()
        machine.run_until(lambda: b.log.status().durable_index == index)


def test_the_lag_of_a_silent_backup_grows_and_that_of_a_level_one_is_zero(machine: Machine) -> None:
    """Silence is the worst lag there is, and not a gap."""
    a, b, c = machine.cluster("a", "b", "c")
    machine.disconnect("a", "c")
    machine.write(a, b"one", b"two")
    machine.run_for(2.0)
    lag = a.log.lag()
    assert (lag["b"].lag_records, lag["b"].lag_bytes, lag["b"].lag_ms, lag["b"].state) == (0, 0, 0.0, "ready")
    assert lag["c"].lag_records == 2
    assert lag["c"].lag_bytes > 0
    assert lag["c"].lag_ms >= 2000
    assert not lag["c"].connected
    assert b.log.lag() == {}
    del c


def test_a_broker_that_is_the_primary_again_counts_no_age_from_its_former_term(machine: Machine) -> None:
    """Another primary has proposed what the backup lacks. Breaks when the backup is said to be behind by that primary's whole
    term, or not at all."""
    a, b, c = machine.cluster("a", "b", "c")
    machine.write(a, b"one", b"two")
    assert machine.result(a.log.requests.transfer("b")).done
    machine.run_until(lambda: b.log.state == "active")
    machine.clock.advance(3600)
    machine.write(b, b"an hour later")
    machine.run_until(lambda: machine.level(a, b, c))
    machine.isolate("c")
    since_s = machine.clock.seconds()
    machine.write(b, b"missed")
    assert machine.result(b.log.requests.transfer("a")).done
    machine.run_until(lambda: a.log.state == "active")
    machine.run_for(2.0)
    lag = a.log.lag()
    away_ms = 1000 * (machine.clock.seconds() - since_s)
    assert lag["b"].lag_ms == 0.0
    assert lag["c"].lag_records > 0
    assert 2000 <= lag["c"].lag_ms <= away_ms
    status = a.log.status()
    ages_ms = [a.log.progress.age_ms(index, machine.clock.seconds()) for index in range(1, status.last_index + 1)]
    assert 0 < min(ages_ms) <= max(ages_ms) <= away_ms, "at least since the term began"


def test_brokers_that_stood_still_together_go_on_as_before(machine: Machine) -> None:
    """As on a machine that is too busy. Breaks when a primary that wakes up gives up before it has read what its backups say, or
    they leave it: without a resource manager nobody would ever be promoted again."""
    a, b, c = machine.cluster("a", "b", "c")
    before = [broker.ledger.states[-1] for broker in (a, b, c)]
    machine.clock.advance(60)
    machine.write(a, b"one")
    machine.run_for(2.0)
    assert [broker.ledger.states[-1] for broker in (a, b, c)] == before


def test_a_clusters_id_is_told_only_when_it_is_committed(machine: Machine) -> None:
    """A member that kept an id which no majority ever had could never join the cluster that the next primary founds."""
    first, second, _ = (machine.start(address, "abc") for address in "abc")
    ended = first.log.requests.promote()
    machine.run_until(lambda: second.log.status().last_index == 1)
    assert second.log.status().members.cluster_id
    assert second.log.status().commit_index == 0
    assert machine.cluster_ids == {"a": {""}, "b": {""}, "c": {""}}
    machine.run_until(lambda: ended.called and second.log.status().commit_index == 1)
    assert machine.cluster_ids["a"] == machine.cluster_ids["b"] == {"", first.log.status().members.cluster_id}
