"""The bodies of one queue's messages that are not in memory: read from disk ahead of the consumers, or when somebody asks.

Life of a read: the queue has delivered what is in memory, and names the messages at which its consumers have stopped
(`read_ahead`); or other work on the queue needs a body (`fetch`). The plan (broker.core.queues.reading) says which bodies follow.
The disk threads read them (broker.sessions.bodies). When they have come, the queue is dispatched again, and asks for more.
The parts of large messages are not read ahead: whoever delivers such a message reads them piece by piece (`parts_of`).

Invariants: one read ahead at a time; what a read brings is used only if the queue still has the same messages; a body that cannot
be read is given up and reported to the log, which decides whether this broker stops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from twisted.logger import Logger

from broker.core.nodes import QueueNode
from broker.core.parts import Manifest
from broker.core.queues.lane import Lane
from broker.core.queues.reading import Body, ReadAhead
from broker.sessions.bodies import BodyReader
from broker.sessions.deliveries import Parts
from broker.sessions.ledger import Ledger

_log = Logger()


class Reading(Protocol):
    """The queue."""

    node: QueueNode
    ledger: Ledger

    def letters_wanted(self) -> Collection[int]:
        """The messages that leave as dead letters and whose bodies are not in memory."""

    def dispatch(self) -> None:
        """Bodies have come: deliver them, and ask for more."""


class QueueBodies:
    """See the module."""

    __slots__ = ("_ahead", "_queue", "_reader", "unreadable")

    def __init__(self, queue: Reading, reader: BodyReader) -> None:
        self._queue = queue
        self._reader = reader
        self._ahead: ReadAhead | None = None
        self.unreadable: set[int] = set()
        """Large messages with an unreadable part: they are acquired, without a consumer."""

    def read_ahead(self, stops: set[int]) -> None:
        """Read the bodies at which consumers have stopped, those that dead letters need, and some after them."""
        messages = self._queue.node.messages
        assert messages is not None
        if self._ahead is None or self._ahead.order is not messages.order:
            self._ahead = ReadAhead(messages.order)
        ahead = self._ahead
        if not ahead.reading:
            wanted = ahead.plan(stops, self._queue.letters_wanted(), self._reader.window_bytes)
            if wanted:
                ahead.reading = True
                self._reader.read(self._queue.ledger, wanted, lambda found: self._came(ahead, wanted, found))

    def fetch(self, sequence: int) -> None:
        """Read the bodies from this message on; then the queue is dispatched."""
        self.read_ahead({sequence})

    def read(self, bodies: list[Body], came: Callable[[list[bytes | str]], None]) -> None:
        """Read these; `came` gets the bytes of each, or the text why they cannot be read. Never at once."""
        self._reader.read(self._queue.ledger, bodies, came)

    def parts_of(self, manifest: Manifest) -> Parts:
        """The parts of a large message, to be read."""
        return Parts(self._queue.ledger, self._reader, manifest)

    def lacks_parts(self, sequence: int) -> bool:
        """Whether this large message is on the queue and some of its parts are missing, which is a bug of ours."""
        node = self._queue.node
        manifest = None if node.messages is None else node.messages.large.get(sequence)
        if manifest is None or not self._queue.ledger.state.parts.missing(manifest):
            return False
        _log.error("message {sequence} of queue {name!r} lacks parts", sequence=sequence, name=node.name)
        return True

    def _came(self, ahead: ReadAhead, wanted: list[Body], found: list[bytes | str]) -> None:
        """Bodies are here: give them out, and ask for the next."""
        ahead.reading = False
        messages = self._queue.node.messages
        if messages is None or messages.order is not ahead.order:
            return
        for body, data in zip(wanted, found, strict=True):
            lane = ahead.order.lane_of(body.sequence)
            if isinstance(data, bytes):
                lane.restore(body.sequence, body.place, data, 0)
            elif lane.lies_at(body.sequence, body.place):
                self._give_up(lane, body, data)
        self._queue.dispatch()

    def _give_up(self, lane: Lane, body: Body, text: str) -> None:
        log = self._queue.ledger.log
        n = lane.give_up(body.sequence, body.place)
        what = f"{n} messages of queue {self._queue.node.name!r} from sequence {body.sequence} on cannot be delivered: {text}"
        if log is not None:
            log.rotten(body.place, what)
