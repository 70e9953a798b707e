"""What hangs on an AMQP connection: links, what was asked of their termini, error conditions. Thin objects over proton's C
pointers.

Life of a link: the engine makes one when either side attaches; its listener hangs a `context` on it; it is open until one
side detaches, its session ends or its engine is freed, and after that every call on it does nothing.

Deliveries have two names. Above this module each is an integer, in the link's `account` (`broker.core.links`); here it is a
pointer of proton's. `Sender` finds the id of a pointer, for outcomes come by pointers; `Receiver` finds the pointers of ids, for
settling goes by ids. No pointer leaves `broker.amqp`.

Invariants: an incoming delivery stays unsettled until `Receiver.settle`; an outgoing one until its outcome has come: if the peer
has settled it, it is settled here at once, and otherwise by `Sender.settle`. Source: AMQP 1.0 parts 2.6 (links), 3.5 (termini).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from cproton_ffi import ffi, lib

from broker.amqp.scratch import Scratch
from broker.core import values
from broker.core.links import ACCEPTED, FAILED, MODIFIED, REJECTED, RELEASED, UNDELIVERABLE, Incoming, Outgoing, Run

NULL = ffi.NULL
assert (lib.PN_ACCEPTED, lib.PN_REJECTED, lib.PN_RELEASED, lib.PN_MODIFIED) == (ACCEPTED, REJECTED, RELEASED, MODIFIED)


class Condition(Exception):
    """An AMQP error condition for the peer: `name` (part 2.8.14 and following) and a text for people."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text


class Asked:
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


class Owner(Protocol):
    """The engine that a link belongs to, as the link knows it."""

    is_client: bool
    scratch: Scratch
    messages_out: int

    def forget(self, link: Link) -> None:
        """This side has closed the link."""


class Link:
    """One link as this side sees it. `context` is the listener's own."""

    __slots__ = ("_closing", "context", "engine", "handle", "is_sender", "name", "open", "reason")

    def __init__(self, engine: Owner, handle: Any, is_sender: bool) -> None:
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
    """A link on which messages come in. `account` numbers them; `inbox` has those that nobody has taken yet."""

    __slots__ = ("_base", "_deliveries", "account", "inbox", "partial")

    def __init__(self, engine: Owner, handle: Any) -> None:
        super().__init__(engine, handle, False)
        self.account = Incoming()
        self.inbox: list[bytes] = []
        self.partial: bytearray | None = None
        self._base = 0
        self._deliveries: list[Any] = []
        """The pointer of delivery `_base + i`; None where there is nothing to settle any more, or never was."""

    def came(self, data: bytes, delivery: Any) -> None:
        """A whole message has come; `delivery` None when its sender has settled it."""
        self.inbox.append(data)
        self._deliveries.append(delivery)

    def take(self) -> tuple[int, list[bytes]]:
        """The messages that have come, and the id of the first; the others' follow it."""
        messages, self.inbox = self.inbox, []
        return self.account.came(len(messages)), messages

    def flow(self, count: int, may_flow: bool = True) -> bool:
        """Credit for so many messages more is due to the peer: grant it, with what was held, or hold it when it `may` not."""
        granted = self.account.give_back(count, may_flow)
        if granted > 0 and self.open:
            lib.pn_link_flow(self.handle, granted)
        return granted > 0

    @property
    def credit(self) -> int:
        """Credit that the peer still has, as proton counts it: messages in the inbox have used theirs."""
        return int(lib.pn_link_credit(self.handle))

    def settle(self, first: int, count: int, outcome: int, condition: Condition | None = None) -> None:
        """Give the deliveries `first` .. `first + count - 1` their outcome and settle them; they leave as one disposition. Those
        that their sender has settled, or that are settled already, are passed over."""
        if not self.open:
            return
        deliveries = self._deliveries
        start, stop = max(first - self._base, 0), first - self._base + count
        if stop <= start:
            return
        update, settle = lib.pn_delivery_update, lib.pn_delivery_settle
        for delivery in deliveries[start:stop]:
            if delivery is not None:
                if condition is not None:
                    set_condition(lib.pn_disposition_condition(lib.pn_delivery_local(delivery)), condition)
                update(delivery, outcome)
                settle(delivery)
        if start:
            deliveries[start:stop] = [None] * (min(stop, len(deliveries)) - start)
            return
        while stop < len(deliveries) and deliveries[stop] is None:
            stop += 1
        del deliveries[:stop]
        self._base += stop


class Sender(Link):
    """A link on which messages go out. `account` has their ids, its credit and what came of them."""

    __slots__ = ("_ids", "_next_tag", "_told", "_told_last", "account", "refusals", "session")

    def __init__(self, engine: Owner, handle: Any) -> None:
        super().__init__(engine, handle, True)
        self.session = lib.pn_link_session(handle)
        self.account = Outgoing()
        self.refusals: dict[int, str] = {}
        """On a client's link: what the peer said when it rejected a delivery, as "name: text", until somebody takes it away."""
        self._next_tag = 0
        self._ids: dict[Any, int] = {}
        """Delivery -> its id, until its outcome has come."""
        self._told: dict[int, list[Any]] = {}
        """First id of a run -> the deliveries of the run, whose outcomes have come and which wait to be settled."""
        self._told_last: tuple[Run | None, list[Any]] = (None, [])

    @property
    def credit(self) -> int:
        """How many messages the peer takes now, as proton counts it; `account.credit` is the same."""
        return int(lib.pn_link_credit(self.handle)) if self.open else 0

    def flowed(self) -> None:
        """The peer's flow has come: what it takes now, and whether it drains."""
        handle, account = self.handle, self.account
        account.credit = lib.pn_link_credit(handle)
        account.draining = bool(lib.pn_link_get_drain(handle))

    def drained(self) -> None:
        """Give back the credit that nothing was there for."""
        lib.pn_link_drained(self.handle)
        self.account.credit = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes sent on this link's session that have not left the engine."""
        return int(lib.pn_session_outgoing_bytes(self.session))

    def send(
        self, data: bytes, offsets: Sequence[int], start: int, stop: int, sequence: int, presettled: bool, base: int = 0
    ) -> None:
        """Send messages `start` .. `stop - 1` that lie in `data` at `base` + `offsets`. `sequence` is the first one's in its
        queue, or what else its sender knows it by; the account keeps it until its outcome has come."""
        handle, ids, number = self.handle, self._ids, self._next_tag
        delivery_new, send, advance, settle = lib.pn_delivery, lib.pn_link_send, lib.pn_link_advance, lib.pn_delivery_settle
        scratch = self.engine.scratch
        tag, tag_number = scratch.tag, scratch.tag_number
        begin = ffi.from_buffer(data) + base
        here = offsets[start]
        first = self.account.sent(sequence, stop - start, presettled)
        self.engine.messages_out += stop - start
        for position, delivery_id in zip(range(start + 1, stop + 1), range(first, first + stop - start), strict=True):
            after = offsets[position]
            number = (number + 1) & 0xFFFFFFF
            # Seven bits a byte: some clients read tags as text.
            tag_number[0] = number & 0x7F | (number & 0x3F80) << 1 | (number & 0x1FC000) << 2 | (number & 0xFE00000) << 3
            delivery = delivery_new(handle, tag)
            send(handle, begin + here, after - here)
            advance(handle)
            if presettled:
                settle(delivery)
            else:
                ids[delivery] = delivery_id
            here = after
        self._next_tag = number

    def send_one(self, data: bytes, sequence: int = 0, presettled: bool = False) -> None:
        """Send one message."""
        self.send(data, (0, len(data)), 0, 1, sequence, presettled)

    def came(self, delivery: Any) -> None:
        """The peer's word on a delivery: told to the account when it is an outcome, and the first one."""
        delivery_id = self._ids.get(delivery)
        if delivery_id is None:
            return
        settled, outcome = lib.pn_delivery_settled(delivery), lib.pn_delivery_remote_state(delivery)
        if not (settled or (outcome and outcome != lib.PN_RECEIVED)):
            return
        del self._ids[delivery]
        if outcome != ACCEPTED:
            outcome = self._outcome_of(delivery_id, delivery, outcome)
        run = self.account.came(delivery_id, outcome, settled)
        if settled:
            lib.pn_delivery_settle(delivery)
        else:
            last, told = self._told_last
            if last is not run:
                self._told[run.first] = told = []
                self._told_last = (run, told)
            told.append(delivery)

    def _outcome_of(self, delivery_id: int, delivery: Any, outcome: int) -> int:
        remote = lib.pn_delivery_remote(delivery)
        if outcome == MODIFIED:
            outcome |= FAILED if lib.pn_disposition_is_failed(remote) else 0
            outcome |= UNDELIVERABLE if lib.pn_disposition_is_undeliverable(remote) else 0
        elif outcome == REJECTED and self.engine.is_client:
            self.refusals[delivery_id] = condition_text(lib.pn_disposition_condition(remote))
        return outcome

    def settle(self, first: int, count: int, outcome: int = 0) -> None:
        """Settle a run whose outcome has come, whole or from its beginning; `outcome` is repeated to a peer that waits for it."""
        if not self.open:
            return
        told = self._told.pop(first, None)
        if told is None:
            return  # the peer has settled it
        if self._told_last[1] is told:
            self._told_last = (None, [])
        if count < len(told):
            self._told[first + count] = told[count:]
        update, settle = lib.pn_delivery_update, lib.pn_delivery_settle
        for delivery in told[:count]:
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
