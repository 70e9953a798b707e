"""Executes the core's effects about snapshots: sends one to a backup that needs it, and stores and installs one that arrives.

Life of a snapshot that arrives: each chunk is stored, in order, and acknowledged by the core. The last one completes a
checkpoint. If the core still wants it, it replaces log and state (`InstallSnapshot`); otherwise it is left. A chunk that the
disk refuses comes again, at the pace at which the primary repeats itself: a disk that stays full costs little, and the broker
says once that it is full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.disk.checkpoint import Checkpoint
from broker.disk.durable import StorageError
from broker.disk.journal import Journal
from ha.batch_cache import BatchCache
from ha.core.effects import Effect, InstallSnapshot, LeaveSnapshot, SendSnapshot, StoreChunk
from ha.core.membership import Membership
from ha.core.messages import SnapshotChunk
from ha.core.progress import Pace
from ha.core.replica import Replica
from ha.log.applying import Applying
from ha.outbox import Peers
from ha.snapshots import Snapshots

_log = Logger(namespace="ha")


class SnapshotEffects:
    """See the module. `seconds` is the core's time, `take` executes its effects, `renew` has a checkpoint written, `stopped` says
    whether the log has stopped: then chunks that are being stored have no effect any more. `disk_refuses(text)` and `disk_takes`
    are called when the disk has refused a chunk, because it is full or too many files are open, and when it has taken one."""

    def __init__(
        self,
        replica: Replica,
        journal: Journal,
        cache: BatchCache,
        applying: Applying,
        snapshots: Snapshots,
        peers: Peers,
        seconds: Callable[[], float],
        take: Callable[[list[Effect]], None],
        renew: Callable[..., None],
        stopped: Callable[[], bool],
        disk_refuses: Callable[[str], None],
        disk_takes: Callable[[], None],
    ) -> None:
        self._replica = replica
        self._journal = journal
        self._cache = cache
        self._applying = applying
        self._snapshots = snapshots
        self._peers = peers
        self._seconds = seconds
        self._take = take
        self._renew = renew
        self._stopped = stopped
        self._disk_refuses = disk_refuses
        self._disk_takes = disk_takes

    def execute(self, effect: SendSnapshot | StoreChunk | LeaveSnapshot | InstallSnapshot, received: list[bytes]) -> None:
        """Execute one effect. `received`: the data beside the message that the core steps now."""
        match effect:
            case SendSnapshot(peer, epoch, index, offset):
                self._send(peer, epoch, index, offset)
            case StoreChunk(chunk):
                self._store(chunk, received[0])
            case LeaveSnapshot():
                self._snapshots.give_up_receiving()
            case InstallSnapshot(index, epoch, _):
                self._install(index, epoch)
            case _:
                assert_never(effect)

    # ---- sending

    def _send(self, peer: str, epoch: int, index: int, offset: int) -> None:
        """Send the chunk at `offset` of the snapshot of batch `index`, or the beginning of the newest one.

        A backup of a release that cannot read it gets the beginning only, by which it may see that its log goes as far. If it
        requests more, it gets nothing: it would fetch all of it, and again, until it is upgraded.
        """
        if index and not self._peers.reads_snapshots(peer):
            return
        if self._journal.checkpoint is None:
            self._renew()
            self._snapshots.wait(peer, epoch)
        else:
            peers = self._replica.status(self._seconds()).peers
            if any(each.address == peer and each.match_index >= index for each in peers):
                index = offset = 0  # it reported that it has that one, but lacks later batches: send the newest
            self._snapshots.send(peer, epoch, index, offset)

    def unreadable(self, peer: str) -> None:
        """A backup needs batches that cannot be read: a new checkpoint covers them."""
        self._renew(spared=0)
        self._peers.close(peer, "batches for it cannot be read, so it gets a snapshot when it reconnects")

    def end_needless(self) -> None:
        """A late request can begin a transfer to a backup that already has all of it, and that will request nothing more: end
        it."""
        sending = self._snapshots.sending
        if sending:
            peers = self._replica.status(self._seconds()).peers
            for peer in sorted(sending - {each.address for each in peers if each.progress == Pace.SNAPSHOT}):
                self._snapshots.cut_short("it is not needed any more", peer)

    # ---- receiving

    def _store(self, chunk: SnapshotChunk, data: bytes) -> None:
        """Store a chunk from the primary."""
        stored = self._snapshots.store(chunk, data, self._replica.primary)
        stored.addCallbacks(self._stored, self._failed, callbackArgs=(chunk,), errbackArgs=(chunk,))

    def _stored(self, checkpoint: Checkpoint | None, chunk: SnapshotChunk) -> None:
        if self._stopped():
            return
        self._disk_takes()
        now = self._seconds()
        if checkpoint is None:
            self._take(self._replica.chunk_stored(now, chunk.index))
        else:
            members = Membership.from_dict(checkpoint.members)
            self._take(self._replica.snapshot_stored(now, checkpoint.index, checkpoint.epoch, members))
            self._snapshots.leave_received()

    def _failed(self, failure: Failure, chunk: SnapshotChunk) -> None:
        error = failure.value
        if self._stopped():
            return
        if isinstance(error, StorageError) and not error.fatal:
            self._disk_refuses(str(error))
        else:
            _log.error("the snapshot of batch {index} cannot be kept: {why}", index=chunk.index, why=failure.getErrorMessage())
        if isinstance(error, StorageError):
            self._take(self._replica.chunk_refused(self._seconds(), chunk.index, kept=self._snapshots.keeps(chunk)))
        else:
            self._take(self._replica.snapshot_failed(self._seconds(), chunk.index))

    def _install(self, index: int, epoch: int) -> None:
        """Replace log and state by the checkpoint that was received completely."""
        checkpoint = self._snapshots.take_received()
        assert checkpoint.index == index
        self._snapshots.cut_short("another primary's snapshot replaces the log")  # its files go, also those that are being sent
        self._journal.reset(index, epoch, received=checkpoint)
        self._cache.clear(index + 1)
        self._applying.install(checkpoint)
