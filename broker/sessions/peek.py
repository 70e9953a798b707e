"""Messages of a queue for the manager of the queue, by their sequences, without changing them (as in Azure Service Bus).

Life of a request: it contains the first sequence and the number of messages. The live messages from there on are listed in the
order of their sequences, even if a consumer holds them. Bodies that are not in memory are read. The answer contains each message
as its next consumer would get it, and the sequence where the next request continues.

Invariants: the queue does not change; an answer has at most `MOST` messages, and about `limits.PAGE_BYTES` of them; a message
that is too large for it is listed without its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.core import limits, message
from broker.core.queues.lane import Lane
from broker.core.queues.reading import Body, ReadAhead
from broker.core.state import Messages
from broker.sessions.queue_terminus import QueueTerminus

OPERATION = "PEEK"
MOST = 100
"""Messages in an answer."""
SHOWN_BYTES = 64 * 1024
"""A larger message is listed without its bytes."""


def asked_of(body: Mapping[str, Any]) -> tuple[int, int]:
    """The sequence from which on, and the number of messages that a request's body asks for. ValueError."""
    first, count = body.get("from", 0), body.get("count", MOST)
    if type(first) is not int or first < 0:
        raise ValueError(f"`from` must be the sequence of a message, not {first!r}")
    if type(count) is not int or not 1 <= count <= MOST:
        raise ValueError(f"`count` must be a number of messages from 1 to {MOST}, not {count!r}")
    return first, count


def peek(queue: QueueTerminus, first: int, count: int, done: Callable[[dict[str, Any]], None]) -> None:
    """List messages from this sequence on. `done` gets the body of the answer, now or later. It is not called if the broker stops
    serving before that."""
    messages = queue.node.messages
    assert messages is not None, "who asks has looked"
    found, behind = _listed(messages, first, count)
    wanted = [
        sequence
        for sequence, nbytes in found
        if nbytes <= SHOWN_BYTES and messages.order.lane_of(sequence).lot_of(sequence) is None
    ]

    def answer() -> None:
        items = [_item(queue, messages, sequence, nbytes) for sequence, nbytes in found]
        done({"items": items} | ({} if behind is None else {"next": behind}))

    bodies = ReadAhead(messages.order).alone(wanted)
    if not bodies:
        answer()
        return

    def came(read: list[bytes | str]) -> None:
        if queue.node.messages is not messages:
            return  # a snapshot has replaced the messages: this broker does not serve any more
        for body, data in zip(bodies, read, strict=True):
            if isinstance(data, bytes):
                _restore(messages.order.lane_of(body.sequence), body, data)
        answer()

    queue.bodies.read(bodies, came)


def _restore(lane: Lane, body: Body, data: bytes) -> None:
    lane.restore(body.sequence, body.place, data, 0)


def _listed(messages: Messages, first: int, count: int) -> tuple[list[tuple[int, int]], int | None]:
    """Sequence and bytes of the messages to be shown, and the sequence that follows; None at the end. A large one counts with all
    of its parts, and takes no room."""
    found: list[tuple[int, int]] = []
    room = limits.PAGE_BYTES
    for lane in messages.order.lanes:
        for sequence, nbytes in lane.alive_from(first):
            large = messages.large.get(sequence)
            size = nbytes if large is None else large.nbytes
            if len(found) == count or room <= 0:
                return found, sequence
            room -= size if size <= SHOWN_BYTES else 0
            found.append((sequence, size))
    return found, None


def _item(queue: QueueTerminus, messages: Messages, sequence: int, nbytes: int) -> dict[str, Any]:
    """A message in an answer. If it has left the queue meanwhile, the answer says so."""
    order, delays = messages.order, messages.delays
    lane = order.lane_of(sequence)
    lot = lane.lot_of(sequence) if nbytes <= SHOWN_BYTES else None
    failures = lane.delivery_count(sequence)
    state = "ready"
    if not lane.is_live(sequence):
        state = "gone"
    elif delays is not None and delays.is_waiting(sequence):
        state = "delayed"
    elif order.is_acquired(sequence):
        state = "acquired"
    data = None
    if lot is not None:
        noted = messages.noted(sequence, lot.messages()[0])
        data = message.as_delivered(noted, failures, queue.due.left_ms(messages, sequence))
    return {"sequence": sequence, "bytes": nbytes, "state": state, "failures": failures, "message": data}
