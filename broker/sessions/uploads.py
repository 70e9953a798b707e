"""Receiving large messages: each part is proposed as it arrives, and a manifest when the message is complete.

Life of an upload: the first part of a message determines its queues, and begins the upload. Every part is put into the store of
parts of each log that has one of these queues. After the last part, the queues get the manifest, and the message is accepted when
that is committed. If a message ends early, because its sender aborts it, its link ends or it gives way (see `coming`), its parts
are removed. A message that cannot be accepted is read and dropped to its end, and then gets its outcome; the parts that were
stored are removed at once.

Invariants: besides the bytes that the logs have not committed, at most one part of a message is in memory; a message is put on
every queue that it is routed to, or on none; proposed parts are named by a manifest or removed; if the term ends first, the next
primary removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.amqp.data import Condition
from broker.core import lifetimes, limits, message
from broker.core.links import REJECTED, RELEASED
from broker.core.nodes import QueueNode, Unplaced
from broker.core.parts import Manifest
from broker.core.queues.arguments import GROUP_KEY
from broker.core.records import runs_of
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.producer import Full, Producer, Refused, Upload, outcome_of
from broker.sessions.room import check_places, full_text, has_room
from broker.sessions.routing import check_stays


class Gathering:
    """A message for a terminus that accepts only complete ones: it is collected, up to `limits.GATHERED_BYTES`."""

    def __init__(self, producer: Producer, receive: Callable[[Producer, int, list[bytes]], None], what: str) -> None:
        self._producer = producer
        self._receive = receive
        self._what = what
        self._parts: list[bytes] = []
        self._nbytes = 0

    def put(self, data: bytes) -> Upload:
        """Keep it, unless it becomes too much."""
        self._nbytes += len(data)
        if self._nbytes > limits.GATHERED_BYTES:
            text = f"{self._what} takes messages of up to {limits.GATHERED_BYTES} bytes: send larger ones to a queue"
            return Refused(self._producer, REJECTED, Condition("amqp:link:message-size-exceeded", text))
        self._parts.append(data)
        return self

    def finish(self, delivery_id: int) -> None:
        """Hand it on."""
        self._receive(self._producer, delivery_id, [b"".join(self._parts)])

    def abandon(self) -> None:
        """Forget it."""
        self._parts.clear()

    @property
    def kept_bytes(self) -> int:
        """All of it."""
        return self._nbytes


class Uploading:
    """A message for queues, of which parts have come."""

    kept_bytes = 0
    """The log has them."""

    def __init__(
        self, logs: Logs, producer: Producer, queues: list[QueueNode], head: bytes, *, named: QueueNode | None = None
    ) -> None:
        """`head` is its first part, which is not put yet. `named`: the queue that the message names, if it names one. BadMessage,
        when the head does not have all before the body; Unplaced."""
        check_places(queues)
        grouped = next((queue.name for queue in queues if queue.asked.get(GROUP_KEY)), None)
        if grouped is not None:
            most = limits.LARGE_PARTS * limits.PART_BYTES
            text = f"queue {grouped!r} has groups of messages, and takes messages of up to {most} bytes"
            raise Full(text, grouped, "unavailable")
        if not message.body_begins_in(head):
            raise message.BadMessage(
                f"the sections before the body of a message as large as this must lie within its first {len(head)} bytes"
            )
        self._logs = logs
        self._producer = producer
        self._queues = queues
        self._named = named
        self._lanes = [queue.messages.order.lane_for(head) for queue in queues if queue.messages is not None]
        self._parts: dict[Ledger, list[int]] = {logs.ledger_of(queue): [] for queue in queues}
        self._nbytes = 0
        self._given_up = False
        self.counted_bytes = 0
        self.uuids = tuple(queue.uuid for queue in queues)
        self._head = head if any(queue.displacing is not None for queue in queues) else b""
        self._says = lifetimes.said(head)
        self._times: tuple[int, int] | None = None
        """The times of its expiry and delay, whatever the message says."""

    def put(self, data: bytes) -> Upload:
        """Propose one more part, unless a queue or the disk is full."""
        self._nbytes += len(data)
        full = self._fault()
        if full is not None:
            self.abandon()
            return Refused(self._producer, *full)
        for ledger, sequences in self._parts.items():
            sequences.append(ledger.put_part(data))
        return self

    def _fault(self) -> tuple[int, Condition | None] | None:
        """The outcome and the condition if it cannot be accepted now, with the parts so far; else None."""
        if self._logs.closed or self._given_up:
            return RELEASED, None
        for ledger in self._parts:
            if ledger.room.text or not ledger.serving:
                return RELEASED, None  # the message is valid: the client may send it again when there is room
        try:
            self._queues = self._still_there()
            self._logs.coming.came(self, self._nbytes)
            for queue in self._queues:
                self._check_room(queue)
        except (Unplaced, Full, LookupError) as error:
            return outcome_of(error)
        return None

    def _check_room(self, queue: QueueNode) -> None:
        """Full, when the queue has no room for what has come of this message and of others. Those that are silent give way."""
        if not has_room(queue, 1, self._nbytes):
            raise Full(full_text(queue, self._nbytes), queue.name)
        coming = self._logs.coming
        while queue.displacing is None and not has_room(queue, 1, self._nbytes + coming.beside(self, queue.uuid)):
            if not coming.make_room(queue.uuid):
                beside = coming.beside(self, queue.uuid)
                text = f"queue {queue.name!r} has incomplete messages of {beside} bytes: they count for its limit of bytes too"
                raise Full(text, queue.name)

    def _still_there(self) -> list[QueueNode]:
        """The queues of it that were not deleted meanwhile. Unplaced; LookupError, when the one that it names was."""
        by_uuid = self._logs.nodes.queue_by_uuid
        if self._named is not None:
            if by_uuid(self._named.uuid) is None:
                raise LookupError(f"queue {self._named.name!r} was deleted")
            check_stays(self._logs, self._named)
        there = [by_uuid(queue.uuid) is not None for queue in self._queues]
        if not all(there):
            self._lanes = [lane for lane, stays in zip(self._lanes, there, strict=True) if stays]
        found = [by_uuid(queue.uuid) for queue in self._queues]
        queues = [queue for queue in found if queue is not None]
        check_places(queues)
        return queues

    def finish(self, delivery_id: int) -> None:
        """The message is complete: put it on its queues."""
        full = self._fault()
        if full is not None:
            self.abandon()
            self._producer.refuse(delivery_id, *full)
            return
        if not self._queues:
            self.abandon()
            self._producer.done(delivery_id)
            return
        self._logs.coming.ended(self)
        by_ledger: dict[Ledger, list[tuple[QueueNode, int]]] = {}
        for queue, lane in zip(self._queues, self._lanes, strict=True):
            by_ledger.setdefault(self._logs.ledger_of(queue), []).append((queue, lane))
        outstanding = set(self._parts)

        def committed(ledger: Ledger) -> None:
            outstanding.discard(ledger)
            if not outstanding:
                self._producer.done(delivery_id)

        for ledger, sequences in self._parts.items():
            found = by_ledger.get(ledger)
            if found is None:
                ledger.drop_parts(runs_of(sequences))
            else:
                held, manifest = self._held(delivery_id, ledger), Manifest(self._nbytes, tuple(runs_of(sequences)))
                if not ledger.put_large(found, manifest, self._head, held=held, says=self._says, times=self._times):
                    ledger.drop_parts(manifest.ranges)
            ledger.pending.when_committed(lambda ledger=ledger: committed(ledger))  # type: ignore[misc]

    def _held(self, delivery_id: int, ledger: Ledger) -> tuple[int, Sequence[int]] | None:
        """The number of its origin in this log, and its sequence there; None for a client's message."""
        return None

    def lies_in(self, ledger: Ledger) -> bool:
        """See `coming.Incomplete`."""
        return ledger in self._parts

    def abandon(self) -> None:
        """It will not be completed: remove its parts. What still comes of it is not taken."""
        self._given_up = True
        self._logs.coming.ended(self)
        for ledger, sequences in self._parts.items():
            if sequences and ledger.serving:
                ledger.drop_parts(runs_of(sequences))
            sequences.clear()
