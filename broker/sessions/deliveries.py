"""Sending a large message: its parts are read from disk before proton needs them, and passed to it in pieces.

Life of a delivery: the subscription gets a large message. Its parts are read, `AHEAD` at a time, and wait here until proton needs
the next piece. When proton has the last piece, the delivery is `over`, and the subscription may get more messages. A delivery
ends early when the link ends, when the peer settles it before it has everything, when the message is removed (a browser's message
that another client has consumed), or when a part cannot be read.

Invariants: at most twice `AHEAD` parts are in memory; bytes are sent only if their checksum is right; an incomplete message is
never completed: its delivery is aborted (part 2.6.14), so that no peer takes it for complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker.core import message
from broker.core.parts import Manifest
from broker.core.queues.reading import Body, body_of
from broker.sessions.attach import Output
from broker.sessions.bodies import BodyReader
from broker.sessions.ledger import Ledger

AHEAD = 2
"""Parts that are read at once."""


class Parts:
    """Reads the parts of one message, in order, `AHEAD` at a time."""

    def __init__(self, ledger: Ledger, bodies: BodyReader, manifest: Manifest) -> None:
        self._ledger = ledger
        self._bodies = bodies
        self._left = deque(manifest.sequences)
        self._state = ledger.state

    @property
    def more(self) -> bool:
        """Whether parts have not been read yet."""
        return bool(self._left)

    def read(self, came: Callable[[list[bytes] | None, str], None], count: int = AHEAD) -> None:
        """Read the next ones. `came` gets them, or None and why they cannot be had: "" if they are gone. Never at once."""
        found: list[bytes | None] = []
        wanted: list[Body] = []
        sequences = [self._left.popleft() for _ in range(min(count, len(self._left)))]
        lane = self._state.parts.order.lanes[0]
        for sequence in sequences:
            lot = lane.lot_of(sequence)
            if lot is not None:  # its body is in memory only, in no file yet
                found.append(lot.messages()[0])
                continue
            body = body_of(lane, sequence)
            if body is None:
                wanted.clear()
                self._bodies.read(self._ledger, [], lambda _: came(None, ""))
                return
            found.append(None)
            wanted.append(body)
        self._bodies.read(self._ledger, wanted, lambda read: self._came(sequences, found, wanted, read, came))

    def _came(
        self,
        sequences: list[int],
        found: list[bytes | None],
        wanted: list[Body],
        read: list[bytes | str],
        came: Callable[[list[bytes] | None, str], None],
    ) -> None:
        lane = self._state.parts.order.lanes[0]
        for body, data in zip(wanted, read, strict=True):
            if isinstance(data, bytes):
                continue
            if self._ledger.state is self._state and lane.lies_at(body.sequence, body.place):
                if self._ledger.log is not None:
                    self._ledger.log.rotten(body.place, f"a part of a large message cannot be delivered: {data}")
                came(None, data)
            elif self._ledger.state is self._state and all(map(lane.is_live, sequences)):
                self._left.extendleft(reversed(sequences))  # a compaction has moved the bodies: read them again
                self.read(came, len(sequences))
            else:
                came(None, "")
            return
        rest = iter(read)
        whole = [each if each is not None else next(rest) for each in found]
        came([each for each in whole if isinstance(each, bytes)], "")


class LargeDelivery:
    """See the module. `over` is called once, when nothing more of it goes out: with None when all of it has, else with why not
    ("" when there is nothing to say). Fulfils `links.PieceSource`.
    """

    def __init__(
        self,
        parts: Parts,
        session: Output,
        noted: Callable[[bytes], bytes],
        count: int,
        left_ms: int,
        over: Callable[[str | None], None],
    ) -> None:
        self._noted = noted
        """Adds the annotations of consumers to its first part."""
        self._parts = parts
        self._session = session
        self._count = count
        """How often its delivery has failed before: its header is to say so."""
        self._left_ms = left_ms
        """How much is left of its time to live; 0: it has none."""
        self._over = over
        self._ready: deque[bytes] = deque()
        self._first = True
        self._reading = False
        self._ended = False
        self._read_on()

    def _read_on(self) -> None:
        if not self._reading and not self._ended and len(self._ready) < AHEAD and self._parts.more:
            self._reading = True
            self._parts.read(self._came)

    def _came(self, parts: list[bytes] | None, why_not: str) -> None:
        self._reading = False
        if self._ended:
            return
        if parts is None:
            self.end(why_not)
            return
        if self._first:
            self._first = False
            parts[0] = message.as_delivered(self._noted(parts[0]), self._count, self._left_ms)
        self._ready.extend(parts)
        self._session.touch()

    # ---- links.PieceSource

    def next_piece(self) -> bytes | None:
        """The next piece for proton; None if it was not read yet."""
        piece = self._ready.popleft() if self._ready else None
        self._read_on()
        return piece

    @property
    def has_more(self) -> bool:
        """Whether pieces are to come still."""
        return bool(self._ready) or self._reading or self._parts.more

    def sent(self) -> None:
        """Proton has all of it."""
        self._end(None)

    def dropped(self) -> None:
        """The peer has settled it before it had all of it."""
        self._end("")

    # ---- its subscription

    def end(self, why: str = "") -> None:
        """Stop sending it."""
        self._end(why)

    def _end(self, why: str | None) -> None:
        if not self._ended:
            self._ended = True
            self._ready.clear()
            self._over(why)
