"""What hangs on an AMQP connection: links, their termini, error conditions. Thin objects over proton's C pointers.

Life of a link: the engine makes one when either side attaches; its listener hangs a `context` on it; it is open until one
side detaches, its session ends or its engine is freed, and after that every call on it does nothing.

Invariants: an incoming delivery stays unsettled until `Receiver.settle`; an outgoing one is in `Sender.unsettled` until its
outcome has come, and is settled by `Sender.settle`. Source: AMQP 1.0 parts 2.6 (links) and 3.5 (termini).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cproton_ffi import ffi, lib

from broker.core import values

if TYPE_CHECKING:
    from broker.amqp.engine import Engine

NULL = ffi.NULL
ACCEPTED: int = lib.PN_ACCEPTED
REJECTED: int = lib.PN_REJECTED
RELEASED: int = lib.PN_RELEASED
MODIFIED: int = lib.PN_MODIFIED

# One scratch area serves all senders: they run in one thread, and nothing stays in it between calls.
_tag_number = ffi.new("uint32_t *")
_tag = ffi.new("pn_delivery_tag_t *", {"size": 4, "start": ffi.cast("char *", _tag_number)})[0]


class Condition(Exception):
    """An AMQP error condition for the peer: `name` (part 2.8.14 and following) and a text for people."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text


class Terminus:
    """What a peer asked for at one end of a link (part 3.5.3, 3.5.4)."""

    __slots__ = ("address", "coordinator", "copy", "dynamic", "exists", "filters")

    def __init__(self, pointer: Any) -> None:
        kind = lib.pn_terminus_get_type(pointer)
        self.exists = kind != lib.PN_UNSPECIFIED
        self.coordinator = kind == lib.PN_COORDINATOR
        self.address = text_of(lib.pn_terminus_get_address(pointer))
        self.dynamic = bool(lib.pn_terminus_is_dynamic(pointer))
        self.copy = lib.pn_terminus_get_distribution_mode(pointer) == lib.PN_DIST_MODE_COPY
        self.filters = map_of(lib.pn_terminus_filter(pointer))


class Link:
    """One link as this side sees it. `context` is the listener's own."""

    __slots__ = ("_closing", "context", "engine", "handle", "is_sender", "name", "open", "reason")

    def __init__(self, engine: Engine, handle: Any, is_sender: bool) -> None:
        self.engine = engine
        self.handle = handle
        self.is_sender = is_sender
        self.name = text_of(lib.pn_link_name(handle))
        self.open = True
        self.context: Any = None
        self.reason = ""
        """Why the peer, or the engine, ended it: "name: text", "" when nothing was said."""
        self._closing = False

    @property
    def source(self) -> Terminus:
        """The source that the peer named."""
        return Terminus(lib.pn_link_remote_source(self.handle))

    @property
    def target(self) -> Terminus:
        """The target that the peer named."""
        return Terminus(lib.pn_link_remote_target(self.handle))

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

    def accept(self, dynamic_address: str | None = None, max_message_size: int = 0) -> None:
        """Attach this side too, repeating the peer's termini (clients insist on it), with the address made for a dynamic one."""
        handle = self.handle
        source, target = lib.pn_link_source(handle), lib.pn_link_target(handle)
        lib.pn_terminus_copy(source, lib.pn_link_remote_source(handle))
        lib.pn_terminus_copy(target, lib.pn_link_remote_target(handle))
        if dynamic_address is not None:
            lib.pn_terminus_set_address(source if self.is_sender else target, dynamic_address.encode())
        lib.pn_link_set_snd_settle_mode(handle, lib.pn_link_remote_snd_settle_mode(handle))
        lib.pn_link_set_rcv_settle_mode(handle, lib.pn_link_remote_rcv_settle_mode(handle))
        if max_message_size:
            lib.pn_link_set_max_message_size(handle, max_message_size)
        lib.pn_link_open(handle)

    def refuse(self, condition: Condition) -> None:
        """Attach with no terminus and detach at once with an error (part 2.6.3)."""
        lib.pn_link_open(self.handle)
        self.close(condition)

    def close(self, condition: Condition | None = None) -> None:
        """Detach for good."""
        if self.open and not self._closing:
            self._closing = True
            if condition is not None:
                set_condition(lib.pn_link_condition(self.handle), condition)
            lib.pn_link_close(self.handle)
            self.engine.forget(self)


class Receiver(Link):
    """A link on which messages come in."""

    __slots__ = ("inbox", "inbox_deliveries", "partial")

    def __init__(self, engine: Engine, handle: Any) -> None:
        super().__init__(engine, handle, False)
        self.inbox: list[bytes] = []
        self.inbox_deliveries: list[Any] = []
        self.partial: bytearray | None = None

    def flow(self, credit: int) -> None:
        """Grant so much more credit."""
        if credit > 0 and self.open:
            lib.pn_link_flow(self.handle, credit)

    @property
    def credit(self) -> int:
        """Credit that the peer still has."""
        return int(lib.pn_link_credit(self.handle))

    def settle(self, deliveries: Iterable[Any], outcome: int, condition: Condition | None = None) -> None:
        """Give these deliveries their outcome and settle them; contiguous ones leave as one disposition."""
        if not self.open:
            return
        update, settle = lib.pn_delivery_update, lib.pn_delivery_settle
        if condition is None:
            for delivery in deliveries:
                update(delivery, outcome)
                settle(delivery)
        else:
            for delivery in deliveries:
                set_condition(lib.pn_disposition_condition(lib.pn_delivery_local(delivery)), condition)
                update(delivery, outcome)
                settle(delivery)


class Sender(Link):
    """A link on which messages go out."""

    __slots__ = ("_next_tag", "outcomes", "session", "unsettled")

    def __init__(self, engine: Engine, handle: Any) -> None:
        super().__init__(engine, handle, True)
        self.session = lib.pn_link_session(handle)
        self.unsettled: dict[Any, Any] = {}
        """Delivery -> the listener's key for it, in the order of sending."""
        self.outcomes: list[tuple[Any, Any, int, bool]] = []
        """(delivery, key, outcome, settled by the peer) that have come since the last look."""
        self._next_tag = 0

    @property
    def credit(self) -> int:
        """How many messages the peer takes now."""
        return int(lib.pn_link_credit(self.handle)) if self.open else 0

    @property
    def draining(self) -> bool:
        """Whether the peer asked to use its credit up or give it back."""
        return bool(lib.pn_link_get_drain(self.handle))

    def drained(self) -> None:
        """Give back the credit that nothing was there for."""
        lib.pn_link_drained(self.handle)

    @property
    def buffered_bytes(self) -> int:
        """Bytes sent on this link's session that have not left the engine."""
        return int(lib.pn_session_outgoing_bytes(self.session))

    def send(
        self, data: bytes, offsets: Sequence[int], start: int, stop: int, keys: Iterable[Any], presettled: bool, base: int = 0
    ) -> None:
        """Send messages `start` .. `stop - 1` that lie in `data` at `base` + `offsets`. `keys` come back with their outcomes."""
        handle, unsettled, number = self.handle, self.unsettled, self._next_tag
        delivery_new, send, advance, settle = lib.pn_delivery, lib.pn_link_send, lib.pn_link_advance, lib.pn_delivery_settle
        begin = ffi.from_buffer(data) + base
        here = offsets[start]
        for position, key in zip(range(start + 1, stop + 1), keys, strict=True):
            after = offsets[position]
            number = (number + 1) & 0xFFFFFFF
            # Seven bits a byte: some clients read tags as text.
            _tag_number[0] = number & 0x7F | (number & 0x3F80) << 1 | (number & 0x1FC000) << 2 | (number & 0xFE00000) << 3
            delivery = delivery_new(handle, _tag)
            send(handle, begin + here, after - here)
            advance(handle)
            if presettled:
                settle(delivery)
            else:
                unsettled[delivery] = key
            here = after
        self._next_tag = number

    def send_one(self, data: bytes, key: Any = None, presettled: bool = False) -> None:
        """Send one message."""
        self.send(data, (0, len(data)), 0, 1, (key,), presettled)

    @staticmethod
    def refusal(delivery: Any) -> str:
        """What the peer said when it rejected this delivery, as "name: text"."""
        return condition_text(lib.pn_disposition_condition(lib.pn_delivery_remote(delivery)))

    def settle(self, deliveries: Iterable[Any], outcome: int = 0) -> None:
        """Settle deliveries whose outcome has come; `outcome` is repeated to a peer that waits for it."""
        if not self.open:
            return
        update, settle = lib.pn_delivery_update, lib.pn_delivery_settle
        for delivery in deliveries:
            if outcome:
                update(delivery, outcome)
            settle(delivery)


def set_condition(pointer: Any, condition: Condition) -> None:
    """Write an error condition into proton's own."""
    lib.pn_condition_set_name(pointer, condition.name.encode())
    lib.pn_condition_set_description(pointer, condition.text.encode())


def condition_text(pointer: Any) -> str:
    """A peer's error condition as "name: description", "" when there is none."""
    if not lib.pn_condition_is_set(pointer):
        return ""
    name, text = text_of(lib.pn_condition_get_name(pointer)), text_of(lib.pn_condition_get_description(pointer))
    return f"{name}: {text}" if text else name


def text_of(pointer: Any) -> str:
    """A C string, "" for NULL."""
    return "" if pointer == NULL else ffi.string(pointer).decode("utf-8", "replace")


def map_of(data: Any) -> dict[Any, Any]:
    """The map that a peer's data holds, {} when it holds something else; Condition when it is none (text that is not UTF-8)."""
    size = lib.pn_data_encoded_size(data)
    if size <= 0:
        return {}
    encoded = bytearray(size)
    lib.pn_data_encode(data, ffi.from_buffer(encoded), size)
    try:
        found = values.decode(encoded)
    except values.BadValue as error:
        raise Condition("amqp:decode-error", f"a property or filter cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}


def put_value(data: Any, encoded: bytes) -> None:
    """Make proton's data hold a value, given as its bytes."""
    taken = lib.pn_data_decode(data, ffi.from_buffer(encoded), len(encoded))
    assert taken == len(encoded), f"proton takes {taken} of the {len(encoded)} bytes of a value"
