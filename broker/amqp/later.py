"""What proton gets when it has nothing to write: the next pieces of large messages, and the states that a client has asked for.

Life of a link here: `add` notes a sending link with messages that go by the piece, and it is fed each time until none are left.
`asked` notes a link on which the client sends, whose state the client has asked for (`Door.asked`), and the door notes the
channels of sessions (`Door.asked_of`). Each state is told once, by a flow that leaves when all earlier output has been written,
however often it was asked for. proton tells the links of the flows in a `push`, but not which of them ask; so if one asks, all of
them are answered.

Invariant: a session is here as long as proton has it, by the channel on which the client has begun it.
"""

from __future__ import annotations

from typing import Any, Protocol

from cproton_ffi import lib

from broker.amqp.links import Link
from broker.core import limits

_LOCAL_UNINIT = lib.PN_LOCAL_UNINIT
_STATES_BYTES = 1024
"""After so many bytes of flows that a client has asked for, these are written: proton makes none while its buffer is full."""


class Fed(Protocol):
    """A sending link with messages that go by the piece."""

    @property
    def feeds(self) -> bool:
        """Whether anything waits for proton."""

    def feed(self) -> bool:
        """Give proton the next pieces. Returns whether it got any."""


class Later:
    """See the module. `channels` are those of the sessions whose states are asked for; the door adds to them."""

    __slots__ = ("_asked", "_channels", "_fed", "_sessions", "_transport")

    def __init__(self, transport: Any, channels: set[int]) -> None:
        self._transport = transport
        self._channels = channels
        self._fed: dict[Fed, None] = {}
        self._asked: dict[Link, None] = {}
        self._sessions: dict[int, Any] = {}

    def add(self, link: Fed) -> None:
        """This link has messages that proton is to get by the piece."""
        self._fed[link] = None

    def asked(self, link: Link) -> None:
        """The client has asked for the state of this link."""
        self._asked[link] = None

    def forget(self, link: Link) -> None:
        """This link has ended: nobody is told its state."""
        self._asked.pop(link, None)

    def begun(self, channel: int, session: Any) -> None:
        """The client has begun this session on this channel."""
        self._sessions[channel] = session

    def session_gone(self, session: Any) -> None:
        """The client has ended this session."""
        self._sessions = {channel: each for channel, each in self._sessions.items() if each != session}

    def clear(self) -> None:
        """The engine ends."""
        self._fed.clear()
        self._asked.clear()
        self._sessions.clear()

    @property
    def waits(self) -> bool:
        """Whether anything is to be given to proton."""
        return bool(self._fed or self._asked or self._channels)

    def feed(self, pending: int) -> bool:
        """Give proton what is next, unless its output is closed (`pending` < 0). Returns whether it got anything."""
        if pending < 0 or not (self._fed or self._asked or self._channels):
            return False
        fed = bool(self._asked or self._channels) and self._say_states()
        for link in list(self._fed):
            if link.feeds:
                fed |= link.feed()
            else:
                del self._fed[link]
        return fed

    def _say_states(self) -> bool:
        """Let proton say what the client has asked for. When a session's window is set, even to the same size, proton sends a
        flow, and names in it a receiving link whose credit was given, even if that was 0: the first of several, so one flow is
        made after the other. Returns whether there is output now."""
        for link in list(self._asked):
            if link.open and lib.pn_link_state(link.handle) & _LOCAL_UNINIT:
                continue  # its attach is answered first
            del self._asked[link]
            if link.open:
                lib.pn_link_flow(link.handle, 0)
                lib.pn_session_set_incoming_capacity(lib.pn_link_session(link.handle), limits.SESSION_WINDOW_BYTES)
                if lib.pn_transport_pending(self._transport) > _STATES_BYTES:
                    break
        for channel in self._channels:
            if channel in self._sessions:
                lib.pn_session_set_incoming_capacity(self._sessions[channel], limits.SESSION_WINDOW_BYTES)
        self._channels.clear()
        return bool(lib.pn_transport_pending(self._transport) > 0)
