"""The messages of one sending link that go to proton by the piece, as fast as the socket accepts them.

For each frame, proton moves all bytes that it holds of a message, so a whole message of 15 MiB would cost seconds. So it gets the
next piece when it has little to write.

Life of a message here: `add` puts it at the end of the line, and `feed` passes the next piece of the first one on. It leaves the
line when proton has all of it, when its receiver has settled it before, or when it is aborted.

Invariants: proton gets the messages of a link in their order; it holds less than two pieces of a session.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from cproton_ffi import ffi, lib

from broker.core import limits


class PieceSource(Protocol):
    """The source of the pieces of a large message that is being sent."""

    @property
    def has_more(self) -> bool:
        """Whether there are further pieces."""

    def next_piece(self) -> bytes | None:
        """The next piece; None if it is not in memory yet. Then the connection is flushed again when it is."""

    def sent(self) -> None:
        """All of it is with the engine."""

    def dropped(self) -> None:
        """The peer has settled it before it had all of it."""


class Piecemeal:
    """A message that is passed to proton in pieces: `data[start:stop]` was not passed yet, and `source` gives the bytes after
    that, if there are any. When it is `aborted`, proton is told so as soon as it is the link's current delivery."""

    __slots__ = ("aborted", "data", "delivery", "presettled", "source", "start", "stop")

    def __init__(
        self, delivery: Any, data: bytes, start: int, stop: int, presettled: bool, source: PieceSource | None = None
    ) -> None:
        self.source = source
        self.delivery = delivery
        self.data = data
        self.start = start
        self.stop = stop
        self.presettled = presettled
        self.aborted = False

    @property
    def is_complete(self) -> bool:
        """Whether all of it was passed."""
        return self.start == self.stop and not (self.source is not None and self.source.has_more)


class Pieces:
    """See the module. `nbytes` are in memory and were not passed to proton; `n_aborted` messages take no credit, because they are
    aborted and have not begun."""

    __slots__ = ("_handle", "_session", "line", "n_aborted", "nbytes")

    def __init__(self, handle: Any, session: Any) -> None:
        self._handle = handle
        self._session = session
        self.line: deque[Piecemeal] = deque()
        """The messages, for looks at whether there are any: a call for each small message would take time."""
        self.nbytes = 0
        self.n_aborted = 0

    def add(self, one: Piecemeal) -> None:
        """One more message."""
        self.line.append(one)
        self.nbytes += one.stop - one.start

    def of_source(self, source: PieceSource) -> Piecemeal | None:
        """The message with this source."""
        return next((each for each in self.line if each.source is source), None)

    def feed(self) -> bool:
        """Pass the next pieces to proton, while it holds less than one piece. Returns whether it got any."""
        handle, line, fed = self._handle, self.line, False
        while line and lib.pn_session_outgoing_bytes(self._session) < limits.PIECE_BYTES:
            one = line[0]
            if lib.pn_link_current(handle) != one.delivery:  # the delivery was settled before the peer had received all of it
                self.drop(one.delivery)
                continue
            if one.aborted:
                self.abort(one)
                fed = True
                continue
            if one.start == one.stop and one.source is not None:
                piece = one.source.next_piece()
                if piece is None:
                    break
                one.data, one.start, one.stop = piece, 0, len(piece)
                self.nbytes += len(piece)
            size = min(one.stop - one.start, limits.PIECE_BYTES)
            lib.pn_link_send(handle, ffi.from_buffer(one.data) + one.start, size)
            one.start += size
            self.nbytes -= size
            if one.is_complete:
                line.popleft()
                lib.pn_link_advance(handle)
                if one.presettled:
                    lib.pn_delivery_settle(one.delivery)
                if one.source is not None:
                    one.source.sent()
            fed = True
        return fed

    def abort(self, one: Piecemeal) -> None:
        """Abort this message: now if it is the current delivery, or else when it is. Proton would keep one that it has not begun
        until it works next, and until then could make it the current one and write into it after it was freed."""
        self.nbytes -= one.stop - one.start
        one.source, one.data, one.start, one.stop = None, b"", 0, 0
        self.n_aborted -= one.aborted
        one.aborted = bool(lib.pn_link_current(self._handle) != one.delivery)
        self.n_aborted += one.aborted
        if not one.aborted:
            self.line.remove(one)
            lib.pn_delivery_abort(one.delivery)

    def drop(self, delivery: Any) -> None:
        """This delivery is settled: if proton does not have all of it, the rest goes nowhere. Only the first that waits can be
        this one, because the peer knows none of the others."""
        one = self.line[0] if self.line else None
        if one is None or one.delivery != delivery:
            return
        self.line.popleft()
        self.nbytes -= one.stop - one.start
        self.n_aborted -= one.aborted
        if one.source is not None:
            one.source.dropped()
