"""Checkpoints that are written, sent to backups that are too far behind, and received.

Life of a checkpoint here: `write` has it written in a thread from the live state at one index. `send` gives a chunk of the
newest checkpoint, and of the files that it lists, to a backup for each request; each file is verified before its first chunk.
On the backup, `store` takes the chunks; with the last one the whole checkpoint is verified and put in place, so that the core
can install it. Chunks that come while a snapshot replaces the log wait until the old log is dropped. A backup that asks before
there is any checkpoint waits for the one in progress.

Invariants: at most one checkpoint is written and one received at a time. However long a verification before a chunk takes, it
holds up no other message for the backup, heartbeats among them. No part of a received checkpoint counts before all of it is
verified. The files of a checkpoint that is being sent stay until its last byte has left, or until the transfer is cut short
because the backup no longer needs it or is unreachable, or because a snapshot replaces this log. If it fails because too many
files are open, this is not damage: it goes on when the core repeats its request. If a file is damaged whose messages no other
broker has, this is logged once and shown as `obstacle`, and no snapshot is complete before a checkpoint does without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from broker.core.records import BadBatch
from broker.disk.bodies import file_of
from broker.disk.checkpoint import Checkpoint
from broker.disk.durable import NO_DESCRIPTORS
from broker.disk.journal import Journal
from broker.disk.transfer import Receiver, RottenBodies, Source
from ha.core.membership import Membership
from ha.core.messages import SnapshotChunk
from ha.core.settings import MIB
from ha.log.damage import Verdict
from ha.outbox import Outbox, exception_of

_log = Logger(namespace="ha")
CHUNK_BYTES = MIB


class _Transfer:
    __slots__ = ("began_s", "index", "nbytes")

    def __init__(self, index: int, nbytes: int, began_s: float) -> None:
        self.index = index
        self.nbytes = nbytes
        self.began_s = began_s


class Transfers:
    """The snapshots in transfer, sent or received, so that telemetry reports the beginning and end of each one.

    `note` takes the events: `broker.telemetry.TelemetryWriter.event` defines the fields.
    """

    def __init__(self, seconds: Callable[[], float], note: Callable[..., None]) -> None:
        self._seconds = seconds
        self._note = note
        self._by_peer: dict[str, _Transfer] = {}

    def begin(self, peer: str, epoch: int, index: int, nbytes: int) -> None:
        """A transfer to or from this member begins; if it is already in progress, the call changes nothing."""
        known = self._by_peer.get(peer)
        if known is not None and (known.index, known.nbytes) == (index, nbytes):
            return
        self.cut_short("another snapshot took its place", peer)
        self._by_peer[peer] = _Transfer(index, nbytes, self._seconds())
        self._note("snapshot_begin", epoch=epoch, peer=peer, index=index, nbytes=nbytes)

    def end(self, peer: str, detail: str | None = None) -> None:
        """The last byte has left, or the whole snapshot is installed; or the transfer failed, with the reason in `detail`."""
        known = self._by_peer.pop(peer, None)
        if known is not None:
            took_ms = (self._seconds() - known.began_s) * 1000
            self._note("snapshot_end", peer=peer, index=known.index, nbytes=known.nbytes, duration_ms=took_ms, detail=detail)

    def cut_short(self, why: str, peer: str | None = None) -> None:
        """The transfer with this member is cut short; without a member, all transfers."""
        for each in list(self._by_peer) if peer is None else [peer]:
            self.end(each, f"cut short: {why}")


class _Sending:
    """A source, and the number of its chunks being read, so that its files are not closed while a thread reads them."""

    __slots__ = ("_ended", "_reading", "checking", "source")

    def __init__(self, source: Source) -> None:
        self.source = source
        self.checking = False
        """The files that begin in the next chunk are being verified; a repetition of the request changes nothing."""
        self._reading = 0
        self._ended = False

    def begin(self) -> None:
        """A thread begins to read."""
        self._reading += 1

    def done(self, found: Any) -> Any:
        """A thread has finished its read, or failed."""
        self._reading -= 1
        self._close_if_over()
        return found

    def end(self) -> None:
        """No more chunks will be requested."""
        self._ended = True
        self._close_if_over()

    def _close_if_over(self) -> None:
        if self._ended and not self._reading:
            self.source.close()


class Snapshots:
    """See the module."""

    def __init__(
        self,
        journal: Journal,
        folder: Path,
        in_thread: Callable[[Callable[[], Any]], Deferred[Any]],
        outbox: Outbox,
        renew: Callable[[], None],
        judge: Callable[[int, str], Verdict],
        transfers: Transfers,
    ) -> None:
        """`renew` has a checkpoint written, unless one is already being written. `judge(place, text)` is called for a file that
        is damaged here.
        """
        self.transfers = transfers
        self.writing = False
        self._received: Checkpoint | None = None
        self._source = ""
        self._journal = journal
        self._folder = folder
        self._in_thread = in_thread
        self._outbox = outbox
        self._renew = renew
        self._judge = judge
        self._damaged: tuple[int, str] | None = None
        """The file that cannot be sent and that no other broker has, and the text about it."""
        self._waiting: dict[str, int] = {}
        self._sending: dict[str, _Sending] = {}
        self._receiver: Receiver | None = None
        self._line: Deferred[Any] = succeed(None)

    # ---- writing

    def write(
        self,
        index: int,
        epoch: int,
        members: dict[str, Any],
        batches: Iterable[bytes],
        alive: Iterable[int],
        keep_from: int,
        done: Callable[[int | None], None],
    ) -> None:
        """Write a checkpoint of `index`, with bodies in the files `alive`. `done(keep_from)` is called when the log before
        that index may be deleted, `done(None)` if the checkpoint could not be written.
        """
        self.writing = True

        def written(checkpoint: Checkpoint | None, why_not: str) -> None:
            self.writing = False
            if checkpoint is None:
                _log.error("no checkpoint of batch {index} was written: {why}; the log is kept", index=index, why=why_not)
                done(None)
                return
            _log.info("checkpoint of batch {index} written, {nbytes} bytes", index=index, nbytes=checkpoint.nbytes)
            done(keep_from)
            waiting, self._waiting = self._waiting, {}
            for peer, term in waiting.items():
                self.send(peer, term, 0, 0)

        self._journal.write_checkpoint(index, epoch, members, batches, written, keep_from, alive)

    # ---- sending

    def wait(self, peer: str, epoch: int) -> None:
        """Send to this backup as soon as there is a checkpoint."""
        self._waiting[peer] = epoch

    def send(self, peer: str, epoch: int, index: int, offset: int) -> None:
        """Send the chunk at `offset` of the checkpoint of `index`. If that one no longer exists, send the newest from its
        beginning.

        A damaged checkpoint is replaced first: otherwise the backup would find the damage and request it again, for ever.
        """
        sending = self._sending.get(peer)
        if sending is not None and sending.checking:
            return
        if sending is None or sending.source.checkpoint.index != index:
            self._stop_sending(peer)
            try:
                sending = self._sending[peer] = _Sending(self._journal.source())
            except (OSError, BadBatch) as error:  # it is lost, damaged, or being replaced now, or too many files are open
                self._renew_for(peer, epoch, error)
                return
        source, checkpoint = sending.source, sending.source.checkpoint
        if checkpoint.index != index:
            offset = 0
        nbytes = min(CHUNK_BYTES, source.nbytes - offset)

        def checked(_: None) -> None:
            sending.checking = False
            if self._sending.get(peer) is not sending:
                return  # it was cut short meanwhile
            sending.begin()
            reading = self._in_thread(lambda: [source.read(offset, nbytes)]).addBoth(sending.done)
            if offset + nbytes == source.nbytes:
                reading.addCallback(self._last_one_leaves, peer)
            self._outbox.send_later(peer, chunk, reading, lambda: True, failed)

        def failed(peer: str, error: Exception) -> None:
            if self._sending.get(peer) is not sending:
                return  # it was cut short, and the files may belong to another log by now
            self._stop_sending(peer)
            if isinstance(error, RottenBodies):
                verdict = self._judge(error.place, str(error))
                if verdict is Verdict.KEPT:
                    self._obstructed(file_of(error.place), str(error))
                if verdict is not Verdict.NEEDLESS:
                    return
            if self._journal.checkpoint is not checkpoint:
                return  # a newer one has replaced it, and the backup requests that
            self._renew_for(peer, epoch, error)

        members = Membership.from_dict(checkpoint.members)
        chunk = SnapshotChunk(epoch, checkpoint.index, checkpoint.epoch, members, offset, nbytes, source.nbytes, source.identity)
        if offset == 0:
            self.transfers.begin(peer, epoch, checkpoint.index, source.nbytes)
        sending.checking = True
        sending.begin()
        checking = self._in_thread(lambda: source.check(offset, nbytes)).addBoth(sending.done)
        checking.addCallbacks(checked, lambda failure: failed(peer, exception_of(failure)))

    def _renew_for(self, peer: str, epoch: int, error: Exception) -> None:
        """The checkpoint cannot be sent: have a new one written, unless the core's next attempt may succeed with this one."""
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
            _log.error("no snapshot is sent to {peer} now, which asks again: {error}", peer=peer, error=str(error))
            return
        _log.error("{why}; {peer}, which needs a checkpoint, gets a new one", peer=peer, why=str(error))
        self.wait(peer, epoch)
        self._renew()

    def _obstructed(self, file: int, text: str) -> None:
        """A file that the newest checkpoint lists is damaged, and no connected broker has its messages. This is logged once,
        however often the core repeats its request.
        """
        if self._damaged is None or self._damaged[0] != file:
            text = (
                f"{text}; no connected broker has the messages in this file, and none can get a copy of this log: start a broker "
                "that has them, or else purge them from their queues (qpid-config purge)"
            )
            self._damaged = file, text
            _log.error("{text}", text=text)

    @property
    def obstacle(self) -> str:
        """Why no other broker can get a copy of this log; "" if it can, as far as is known."""
        checkpoint = self._journal.checkpoint
        if self._damaged is None or checkpoint is None:
            return ""
        file, text = self._damaged
        return text if any(each.number == file for each in checkpoint.files.in_use) else ""

    @property
    def sending(self) -> set[str]:
        """The backups to which snapshots are being sent."""
        return set(self._sending)

    def sent_index(self, peer: str) -> int:
        """The index of the checkpoint that is being sent to this backup; 0 if there is none."""
        sending = self._sending.get(peer)
        return 0 if sending is None else sending.source.checkpoint.index

    def cut_short(self, why: str, peer: str | None = None) -> None:
        """The transfers to and from this member are cut short; without a member, all transfers."""
        if peer is None:
            self._damaged = None
        for each in list(self._sending) if peer is None else [peer]:
            self._stop_sending(each)
        self.transfers.cut_short(why, peer)

    def _stop_sending(self, peer: str) -> None:
        sending = self._sending.pop(peer, None)
        if sending is not None:
            sending.end()

    def _last_one_leaves(self, found: list[bytes], peer: str) -> list[bytes]:
        self._damaged = None
        self.transfers.end(peer)
        self._stop_sending(peer)
        return found

    # ---- receiving

    def store(self, chunk: SnapshotChunk, data: bytes, source: str) -> Deferred[Checkpoint | None]:
        """Keep a chunk, in the order of the calls, and not while a log is being dropped. Fires with the checkpoint if it was the
        last chunk and all is right. `source` is the member that has sent it.
        """
        if source != self._source:
            self.transfers.cut_short(f"{source} sends one", self._source)
            self._source = source
        self.transfers.begin(source, chunk.epoch, chunk.index, chunk.total_bytes)
        stored: Deferred[Checkpoint | None] = Deferred()

        def begin(_: object) -> Deferred[Any]:
            may: Deferred[None] = Deferred()
            self._journal.when_dropped(lambda: may.callback(None))
            return may.addCallback(lambda _: self._in_thread(lambda: self._keep(chunk, data)))

        self._line.addCallback(begin)
        self._line.addCallbacks(stored.callback, stored.errback)
        return stored

    def _keep(self, chunk: SnapshotChunk, data: bytes) -> Checkpoint | None:
        if chunk.offset == 0:
            if self._receiver is not None:
                self._receiver.abort()
            self._receiver = Receiver(self._folder, chunk.total_bytes, disk=self._journal.disk)
        if self._receiver is None:
            raise ValueError(f"a chunk at byte {chunk.offset} of a snapshot came before its beginning")
        written = self._receiver.received - chunk.offset  # more than 0 if the disk has refused the rest of this chunk before
        self._receiver.write(chunk.offset + max(written, 0), data[max(written, 0) :])
        if self._receiver.received < chunk.total_bytes:
            return None
        receiver, self._receiver = self._receiver, None
        self._received = receiver.finish()
        return self._received

    def keeps(self, chunk: SnapshotChunk) -> bool:
        """Whether everything before this chunk, which the disk has refused, is kept, so that it is enough to store it again."""
        return self._receiver is not None and self._receiver.keeps(chunk.offset)

    def take_received(self) -> Checkpoint:
        """The checkpoint that was received completely, to be installed now."""
        found, self._received = self._received, None
        assert found is not None, "no snapshot was received"
        self.transfers.end(self._source)
        return found

    def leave_received(self) -> None:
        """Do not install the checkpoint that was received completely, if it is not yet installed."""
        if self._received is not None:
            self._journal.leave(self.take_received())

    def give_up_receiving(self) -> None:
        """The log no longer needs a snapshot: drop the received part, with chunks that still wait. If the sender continues, the
        transfer begins again."""

        def abort() -> None:
            receiver, self._receiver = self._receiver, None
            if receiver is not None:
                receiver.abort()

        self._line.addCallback(lambda _: None if self._receiver is None else self._in_thread(abort))
