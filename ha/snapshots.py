"""Checkpoints being written, sent to backups that are too far behind, and received.

Life of a checkpoint here: `write` has it written in a thread from what was alive at one index; `send` gives a chunk of the newest
one to a backup that asks, as often as it asks; on the backup `store` takes the chunks, and with the last one the whole is
verified and put in place, ready for the core to install. A backup that asks before there is any checkpoint waits for the one that
is being written.

Invariants: one is written and one is received at a time; nothing of a received one counts before all of it was verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from broker.disk.checkpoint import Checkpoint, Receiver, read_chunk
from broker.disk.journal import Journal
from ha.core.membership import Membership
from ha.core.messages import SnapshotChunk
from ha.core.settings import MIB
from ha.outbox import Outbox

_log = Logger(namespace="ha")
CHUNK_BYTES = MIB


class Snapshots:
    """See the module."""

    def __init__(
        self, journal: Journal, folder: Path, in_thread: Callable[[Callable[[], Any]], Deferred[Any]], outbox: Outbox
    ) -> None:
        self.received: Checkpoint | None = None
        self.writing = False
        self._journal = journal
        self._folder = folder
        self._in_thread = in_thread
        self._outbox = outbox
        self._waiting: dict[str, int] = {}
        self._receiver: Receiver | None = None
        self._line: Deferred[Any] = succeed(None)

    # ---- writing

    def write(
        self,
        index: int,
        epoch: int,
        members: dict[str, Any],
        batches: Iterable[bytes],
        keep_from: int,
        done: Callable[[int], None],
    ) -> None:
        """Write a checkpoint of `index`; `done(keep_from)` when the log before that may be forgotten."""
        self.writing = True

        def written(checkpoint: Checkpoint | None, why_not: str) -> None:
            self.writing = False
            if checkpoint is None:
                _log.error("no checkpoint of batch {index} was written: {why}; the log is kept", index=index, why=why_not)
                return
            _log.info("checkpoint of batch {index} written, {nbytes} bytes", index=index, nbytes=checkpoint.nbytes)
            done(keep_from)
            waiting, self._waiting = self._waiting, {}
            for peer, reign in waiting.items():
                self.send(peer, reign, 0, 0)

        self._journal.write_checkpoint(index, epoch, members, batches, written, keep_from)

    # ---- sending

    def wait(self, peer: str, epoch: int) -> None:
        """Send to this backup once there is a checkpoint."""
        self._waiting[peer] = epoch

    def send(self, peer: str, epoch: int, index: int, offset: int) -> None:
        """Send the chunk at `offset` of the checkpoint of `index`; of the newest, from its beginning, when that one is gone."""
        checkpoint = self._journal.checkpoint
        assert checkpoint is not None
        if checkpoint.index != index:
            offset = 0

        def failed(peer: str, error: Exception) -> None:
            _log.warn(
                "a chunk of a checkpoint for {peer} could not be read: {error}; it will ask again", peer=peer, error=str(error)
            )

        nbytes = min(CHUNK_BYTES, checkpoint.nbytes - offset)
        chunk = SnapshotChunk(
            epoch, checkpoint.index, checkpoint.epoch, Membership.from_dict(checkpoint.members), offset, nbytes, checkpoint.nbytes
        )
        reading = self._in_thread(lambda: [read_chunk(checkpoint.path, offset, nbytes)])
        self._outbox.send_later(peer, chunk, reading, lambda: True, failed)

    # ---- receiving

    def store(self, chunk: SnapshotChunk, data: bytes) -> Deferred[Checkpoint | None]:
        """Keep a chunk, in the order of these calls; fires with the checkpoint when it was the last one and all is right."""
        stored: Deferred[Checkpoint | None] = Deferred()

        def begin(_: object) -> Deferred[Any]:
            return self._in_thread(lambda: self._keep(chunk, data))

        self._line.addCallback(begin)
        self._line.addCallbacks(stored.callback, stored.errback)
        return stored

    def _keep(self, chunk: SnapshotChunk, data: bytes) -> Checkpoint | None:
        if chunk.offset == 0:
            if self._receiver is not None:
                self._receiver.abort()
            self._receiver = Receiver(self._folder, chunk.total_bytes)
        if self._receiver is None:
            raise ValueError(f"a chunk at byte {chunk.offset} of a snapshot came before its beginning")
        self._receiver.write(chunk.offset, data)
        if self._receiver.received < chunk.total_bytes:
            return None
        receiver, self._receiver = self._receiver, None
        self.received = receiver.finish()
        return self.received
