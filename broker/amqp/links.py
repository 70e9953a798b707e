"""The links of an AMQP connection, as far as both directions have the same. Thin objects over proton's C pointers.

Life of a link: the engine creates it when either side attaches, and its listener stores a `context` in it. It is open until one
side detaches, its session ends or its engine is freed. After that every call on it does nothing. `broker.amqp.receiver` has the
links for incoming messages, `broker.amqp.sender` those for outgoing ones.

Deliveries have two names. Above `broker.amqp` a delivery is an integer, in the link's `account` (`broker.core.links`). Here it is
a pointer of proton. `Sender` finds the id of a pointer, because outcomes arrive with pointers. `Receiver` finds the pointers of
ids, because settlement uses ids. No pointer leaves `broker.amqp`.

Invariants: an incoming delivery is unsettled until `Receiver.settle`; an outgoing one until its outcome has arrived: if the peer
has settled it, it is settled here at once, otherwise by `Sender.settle`. Source: AMQP 1.0 parts 2.6 (links), 3.5 (termini).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from cproton_ffi import lib

from broker.amqp.asked import Asked
from broker.amqp.attach_size import attach_bytes, refusal_bytes
from broker.amqp.data import Condition, put_value, set_condition, text_of
from broker.amqp.remote import Remote
from broker.amqp.scratch import Scratch
from broker.core import values


class Standing(NamedTuple):
    """An existing source, for a client that asks for the source of its link."""

    address: str
    encoded_filters: bytes
    capabilities: tuple[str, ...]


class Owner(Protocol):
    """The engine that a link belongs to, as every link knows it."""

    alive: bool
    is_client: bool
    scratch: Scratch
    remote: Remote

    def forget(self, link: Link) -> None:
        """This side has closed the link."""

    def answer_end(self, link: Link) -> None:
        """Answer the peer's end of the link, if that still waits for it."""


class Link:
    """One link as this side sees it. `context` is the listener's own."""

    __slots__ = (
        *("_closing", "closed_by_peer", "context", "end_condition", "ended_by_peer", "ends_later", "engine", "handle"),
        *("is_sender", "made_address", "name", "number", "open", "reason"),
    )

    def __init__(self, engine: Owner, handle: Any, is_sender: bool) -> None:
        self.engine = engine
        self.handle = handle
        self.is_sender = is_sender
        self.name = text_of(lib.pn_link_name(handle))
        self.number = 0
        """The links of an engine have numbers, in the order in which they are attached."""
        self.open = True
        self.context: Any = None
        self.reason = ""
        """Why the peer or the engine ended it: "name: text"; "" if no reason was given."""
        self.closed_by_peer = False
        """Whether the peer has ended it for good, and not only detached."""
        self.ended_by_peer = False
        """Whether the peer has ended it for good, by itself or with its session."""
        self.ends_later = False
        """Whether the peer's end of it is answered by `answer_end`, and not at once: for its listener, when it hears of it."""
        self.end_condition: Condition | None = None
        """The content of this answer."""
        self.made_address: str | None = None
        """The address of the node that was made for it."""
        self._closing = False

    @property
    def source(self) -> Asked:
        """The source that the peer named."""
        return Asked(lib.pn_link_remote_source(self.handle))

    @property
    def target(self) -> Asked:
        """The target that the peer named."""
        return Asked(lib.pn_link_remote_target(self.handle))

    @property
    def remote_address(self) -> str:
        """The address at the peer's end, "" when it attached nothing."""
        handle = self.handle
        end = lib.pn_link_remote_target(handle) if self.is_sender else lib.pn_link_remote_source(handle)
        return text_of(lib.pn_terminus_get_address(end))

    @property
    def presettled(self) -> bool:
        """Whether the sender of this link sends everything settled."""
        if self.is_sender:
            return bool(lib.pn_link_remote_snd_settle_mode(self.handle) == lib.PN_SND_SETTLED)
        return bool(lib.pn_link_snd_settle_mode(self.handle) == lib.PN_SND_SETTLED)

    def answer_end(self) -> None:
        """Answer the peer's end of this link, which has waited for it."""
        self.engine.answer_end(self)

    def accept(
        self,
        dynamic_address: str | None = None,
        max_message_size: int = 0,
        standing: Standing | None = None,
        *,
        settled: bool = False,
    ) -> None:
        """Attach this side too. The answer repeats the peer's termini (clients require this), with the new address of a dynamic
        one, or with the existing source, and corrected where this side does otherwise. `settled`: it sends everything settled.
        Condition, and nothing is sent, when the peer does not take a frame of the answer's size."""
        handle = self.handle
        source, target = lib.pn_link_source(handle), lib.pn_link_target(handle)
        lib.pn_terminus_copy(source, lib.pn_link_remote_source(handle))
        lib.pn_terminus_copy(target, lib.pn_link_remote_target(handle))
        dynamic_address = dynamic_address or self.made_address
        if dynamic_address is not None:
            lib.pn_terminus_set_address(source if self.is_sender else target, dynamic_address.encode())
        if standing is not None:
            _put_source(source, standing)
        lib.pn_link_set_snd_settle_mode(handle, lib.PN_SND_SETTLED if settled else lib.pn_link_remote_snd_settle_mode(handle))
        if self.is_sender:  # what comes to this side is settled with its outcome: the first mode, which is the default
            lib.pn_link_set_rcv_settle_mode(handle, lib.pn_link_remote_rcv_settle_mode(handle))
        if max_message_size:
            lib.pn_link_set_max_message_size(handle, max_message_size)
        self._answer(source, target)
        self._check_size(source, target)
        lib.pn_link_open(handle)

    def check_size(self) -> None:
        """Condition, when the peer does not take frames in which the answer repeats its termini. `accept` checks this again with
        what this side adds."""
        self._check_size(lib.pn_link_remote_source(self.handle), lib.pn_link_remote_target(self.handle))

    def _fits(self, source: Any, target: Any) -> bool:
        """Whether the peer takes a frame of an attach with these termini."""
        most = self.engine.remote.max_frame
        return not most or attach_bytes(self.handle, source, target) <= most

    def _check_size(self, source: Any, target: Any) -> None:
        if not self._fits(source, target):
            most, nbytes = self.engine.remote.max_frame, attach_bytes(self.handle, source, target)
            text = f"the answer repeats the fields of this attach and may need a frame of {nbytes} bytes, but the client has set"
            advice = f"a max-frame-size of {most}: set it to {nbytes} or more, or use shorter names, filters and properties"
            raise Condition("amqp:frame-size-too-small", f"{text} {advice}")

    @property
    def is_answerable(self) -> bool:
        """Whether the peer takes a frame that refuses this link: the name is repeated in it."""
        other = lib.pn_link_target(self.handle) if self.is_sender else lib.pn_link_source(self.handle)
        most = self.engine.remote.max_frame
        return not most or refusal_bytes(self.handle, other) <= most

    def _answer(self, source: Any, target: Any) -> None:
        """Correct the termini of the answer, which are copies of the peer's."""

    def refuse(self, condition: Condition) -> None:
        """Attach with no terminus where the refused one would be, and detach at once with an error (part 2.6.3)."""
        self.attach_to_nothing()
        self.close(condition)

    def attach_to_nothing(self) -> None:
        """Attach with no terminus where this side's would be: a Detach is to follow."""
        own = lib.pn_link_source if self.is_sender else lib.pn_link_target
        lib.pn_terminus_set_type(own(self.handle), lib.PN_UNSPECIFIED)
        lib.pn_link_open(self.handle)

    def close(self, condition: Condition | None = None) -> None:
        """Detach for good."""
        if self.open and not self._closing:
            self._closing = True
            if condition is not None:
                set_condition(lib.pn_link_condition(self.handle), condition)
            lib.pn_link_close(self.handle)
            self.engine.forget(self)


def _put_source(source: Any, standing: Standing) -> None:
    lib.pn_terminus_set_type(source, lib.PN_SOURCE)
    lib.pn_terminus_set_address(source, standing.address.encode())
    if standing.encoded_filters:
        put_value(lib.pn_terminus_filter(source), standing.encoded_filters)
    if standing.capabilities:
        put_value(lib.pn_terminus_capabilities(source), values.symbols(standing.capabilities))
