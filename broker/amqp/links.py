"""The links of an AMQP connection. Thin objects over proton's C pointers.

Life of a link: the engine creates it when either side attaches, and its listener stores a `context` in it. It is open until one
side detaches, its session ends or its engine is freed. After that every call on it does nothing.

Deliveries have two names. Above this module a delivery is an integer, in the link's `account` (`broker.core.links`). Here it is a
pointer of proton. `Sender` finds the id of a pointer, because outcomes arrive with pointers. `Receiver` finds the pointers of
ids, because settlement uses ids. No pointer leaves `broker.amqp`.

Invariants: an incoming delivery is unsettled until `Receiver.settle`; an outgoing one until its outcome has arrived: if the peer
has settled it, it is settled here at once, otherwise by `Sender.settle`. Source: AMQP 1.0 parts 2.6 (links), 3.5 (termini).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import add
from typing import Any, NamedTuple, Protocol

from cproton_ffi import ffi, lib

from broker.amqp.arrived_pack import ArrivedPack
from broker.amqp.asked import Asked
from broker.amqp.data import Condition, condition_text, encoded_of, put_value, set_condition, text_of
from broker.amqp.partial import Partial
from broker.amqp.scratch import SCRATCH_BYTES, Scratch
from broker.core import limits, packs, values
from broker.core.links import (
    ACCEPTED,
    FAILED,
    HELD,
    MODIFIED,
    NUMBERED,
    REJECTED,
    RELEASED,
    TRANSACTION_SHIFT,
    UNDELIVERABLE,
    Incoming,
    Outgoing,
    Run,
)
from broker.core.performatives import Refusal
from broker.core.transactions import DECLARED, TRANSACTIONAL, accepted_fields, id_fields, read_state

NULL = ffi.NULL
_MOST_STATE = (1 << TRANSACTION_SHIFT) - 1
"""States of deliveries above this are none of the standard's (part 3.4): they say nothing about the message."""
assert (lib.PN_ACCEPTED, lib.PN_REJECTED, lib.PN_RELEASED, lib.PN_MODIFIED) == (ACCEPTED, REJECTED, RELEASED, MODIFIED)


class Kept(NamedTuple):
    """The state of a numbered link: the seconds for which it is kept after its end, and the held numbers as runs (first,
    count)."""

    kept_s: int
    runs: list[tuple[int, int]]


class Standing(NamedTuple):
    """An existing source, for a client that asks for the source of its link."""

    address: str
    encoded_filters: bytes
    capabilities: tuple[str, ...]


class PartsTaker(Protocol):
    """Takes a large message in parts."""

    def part(self, data: bytes, whole: bool) -> None:
        """The next part; with the last one the message is `whole`, and has its id."""

    def aborted(self) -> None:
        """The sender has given the message up that was coming."""

    @property
    def kept_bytes(self) -> int:
        """How much of that message is kept in memory behind this."""


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


class Owner(Protocol):
    """The engine that a link belongs to, as the link knows it."""

    alive: bool
    is_client: bool
    part_bytes: int
    max_message_bytes: int
    scratch: Scratch
    messages_in: int
    messages_out: int
    sent_bytes: int
    unsettled: int

    @property
    def links(self) -> Iterable[Link]:
        """The links that are attached."""

    def hand_over(self, link: Receiver) -> None:
        """Report the arrived messages of this link, before later events."""

    def lost(self, link: Link) -> None:
        """This side is about to end the link, for its peer's fault."""

    def refuse(self, refusal: Refusal) -> None:
        """End this connection because of a fault."""

    def forget(self, link: Link) -> None:
        """This side has closed the link."""

    def answer_end(self, link: Link) -> None:
        """Answer the peer's end of the link, if that still waits for it."""

    def told_nothing_new(self) -> None:
        """There was an event of a delivery that brings nothing."""

    def feed_later(self, link: Sender) -> None:
        """This link has messages that proton is to get by the piece, when it has nothing to write."""


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
        one, or with the existing source, and corrected where this side does otherwise. `settled`: it sends everything settled."""
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
        lib.pn_link_open(handle)

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


class Receiver(Link):
    """A link for incoming messages. `account` numbers them; `inbox` has those that were not taken yet. After `take_parts`, large
    messages (larger than `limits.LARGE_PARTS` parts) are passed on in parts. `partial` is the arrived beginning of a message,
    without the `parted` bytes that were taken as parts. On a `packed` link a delivery may be a pack (`broker.core.packs`): its
    messages have ids of their own, and credit is counted in messages here too.
    """

    __slots__ = (
        "_base",
        "account",
        "deliveries",
        "gather_from",
        "inbox",
        "kept",
        "max_bytes",
        "packed",
        "parted",
        "partial",
        "parts",
        "posted",
        "to_coordinator",
        "unfinished",
        "whole_bytes",
    )

    def __init__(self, engine: Owner, handle: Any) -> None:
        super().__init__(engine, handle, False)
        self.to_coordinator = lib.pn_terminus_get_type(lib.pn_link_remote_target(handle)) == lib.PN_COORDINATOR
        """Whether its messages declare and discharge transactions."""
        self.account = Incoming()
        self.inbox: list[bytes] = []
        self.packed: packs.Credit | None = None
        """On a packed link, its credit. It is set before the first credit is given."""
        self.kept: Kept | None = None
        """The remembered deliveries of links with this name; None: none are remembered."""
        self.posted: dict[int, bytes] = {}
        """Of messages in the inbox that came in a transaction: position -> the transaction's id."""
        self.partial: Partial | None = None
        self.parts: PartsTaker | None = None
        self.parted = 0
        self.unfinished = 0
        """Bytes of its unfinished message in memory. Only the engine changes it."""
        self.max_bytes = engine.max_message_bytes
        """The largest message that is accepted."""
        self.gather_from = limits.GATHER_BYTES
        """So many bytes of a delivery that is not whole are left in proton, which takes twice as much memory for them."""
        self.whole_bytes = SCRATCH_BYTES
        """A delivery of so many bytes may be taken out of proton at once."""
        self._base = 0
        self.deliveries: list[Any] = []
        """The pointer of delivery `_base + i`, or its pack; None where there is nothing to settle any more, or never was. The
        engine's own."""

    def _answer(self, source: Any, target: Any) -> None:
        """The only state of a target is `kept` (part 3.5.4)."""
        kept, asked = self.kept, Asked(target)
        if kept is None and asked.keep_s is not None:
            lib.pn_terminus_set_durability(target, lib.PN_NONDURABLE)
            lib.pn_terminus_set_expiry_policy(target, lib.PN_EXPIRE_WITH_LINK)
            lib.pn_terminus_set_timeout(target, 0)
        if kept is None and NUMBERED in asked.capabilities:
            others = [each for each in asked.capabilities if each != NUMBERED]
            capabilities = lib.pn_terminus_capabilities(target)
            lib.pn_data_clear(capabilities)
            if others:
                put_value(capabilities, values.symbols(others))
        if kept is not None:
            lib.pn_terminus_set_durability(target, lib.PN_DELIVERIES)
            lib.pn_terminus_set_expiry_policy(target, lib.PN_EXPIRE_WITH_LINK)
            lib.pn_terminus_set_timeout(target, kept.kept_s)
            held = values.encode({values.Symbol(HELD): [number for run in kept.runs for number in run]})
            put_value(lib.pn_link_properties(self.handle), held)

    def take_whole(self, max_bytes: int) -> None:
        """Take every message whole, of up to `max_bytes`."""
        self.max_bytes = max_bytes

    def take_parts(self, parts: PartsTaker, max_bytes: int) -> None:
        """Pass large messages of up to `max_bytes` to `parts` as they arrive."""
        self.parts = parts
        self.max_bytes = max_bytes
        self.gather_from = min(limits.GATHER_BYTES, self.engine.part_bytes // 4)
        self.whole_bytes = min(SCRATCH_BYTES, limits.LARGE_PARTS * self.engine.part_bytes)

    def take(self) -> tuple[int, list[bytes]]:
        """The arrived messages, and the id of the first one; the ids are consecutive."""
        messages, self.inbox = self.inbox, []
        first = self.account.came(len(messages))
        if self.packed is not None and self.open:
            self._recount()
        return first, messages

    def tags(self, first: int, count: int) -> list[bytes]:
        """The tags of deliveries that are not settled, neither here nor by their sender (b"" of others)."""
        start = first - self._base
        assert start >= 0, "deliveries are asked for their tags before they are settled"
        if self.packed is None:
            return [b"" if each is None else _tag_of(each) for each in self.deliveries[start : start + count]]
        found: list[bytes] = []
        while len(found) < count:
            each, at = self.deliveries[start + len(found)], first + len(found)
            if isinstance(each, ArrivedPack):
                found += each.tags[at - each.first : first + count - each.first]
            else:
                found.append(b"" if each is None else _tag_of(each))
        return found

    def is_pack(self, delivery: Any) -> bool:
        """Whether this delivery, of which something has arrived, is a pack."""
        return self.packed is not None and lib.pn_delivery_tag(delivery).size == packs.TAG_BYTES

    def take_in(self, delivery: Any, data: bytes) -> None:
        """All of a delivery has arrived on a packed link: its messages go to the inbox. packs.BadPack."""
        tags, messages = packs.messages_in(data) if self.is_pack(delivery) else ([], [data])
        count = len(messages)
        self.used_credit(count)
        self.inbox += messages
        if lib.pn_delivery_settled(delivery):
            lib.pn_delivery_settle(delivery)
            self.deliveries += [None] * count
        else:
            one = ArrivedPack(delivery, self._base + len(self.deliveries), tags) if tags else delivery
            self.deliveries += [one] * count

    def used_credit(self, count: int) -> None:
        """A delivery with so many messages has arrived, which has used one credit."""
        if self.packed is not None:
            self.packed.used(count)

    def _recount(self) -> None:
        """On a packed link, so many messages may come at most for the credit that the peer has."""
        self.account.credit = self.credit * packs.CAPACITY

    def take_posted(self) -> dict[int, bytes]:
        """Which of the messages that `take` is about to give came in which transaction, by their positions."""
        posted, self.posted = self.posted, {}
        return posted

    def note_state(self, delivery: Any) -> None:
        """The next message in the inbox has a delivery state."""
        txn_id = txn_id_of(delivery)
        if txn_id is not None:
            self.posted[len(self.inbox)] = txn_id

    @property
    def coming_in(self) -> bytes | None:
        """The id of the transaction of the message whose parts are arriving; None: it has none."""
        return txn_id_of(lib.pn_link_current(self.handle)) if self.open else None

    def flow(self, count: int, may_flow: bool = True) -> bool:
        """The peer may get credit for `count` more messages: grant it, together with held credit; or hold it, if `may` is
        false."""
        granted = self.account.give_back(count, may_flow)
        if self.packed is not None and self.open:
            granted = self.packed.grant(granted, self.credit) if may_flow else 0
        if granted > 0 and self.open:
            lib.pn_link_flow(self.handle, granted)
        if self.packed is not None and self.open:
            self._recount()
        return granted > 0

    @property
    def credit(self) -> int:
        """Credit that the peer still has, as proton counts it: messages in the inbox have used theirs."""
        return int(lib.pn_link_credit(self.handle))

    def declared(self, delivery_id: int, txn_id: bytes) -> None:
        """Settle this delivery, a coordinator's, with the id of a new transaction (part 4.5.7)."""
        self.settle(delivery_id, 1, DECLARED, fields=id_fields(txn_id))

    def enlisted(self, first: int, count: int, txn_id: bytes) -> None:
        """Settle these deliveries as accepted in a transaction: its discharge decides about them (part 4.4.1)."""
        self.settle(first, count, TRANSACTIONAL, fields=accepted_fields(txn_id))

    def settle(self, first: int, count: int, outcome: int, condition: Condition | None = None, fields: bytes = b"") -> None:
        """Give the deliveries `first` .. `first + count - 1` their outcome and settle them; they leave as one disposition. Those
        that their sender has settled, or that are settled already, are passed over. `fields`: those of an outcome that is none of
        the usual ones."""
        if not self.open:
            return
        deliveries = self.deliveries
        start, stop = max(first - self._base, 0), first - self._base + count
        if stop <= start:
            return
        update, settle = lib.pn_delivery_update, lib.pn_delivery_settle
        for delivery in deliveries[start:stop] if self.packed is None else self._singles(start, stop, outcome, condition):
            if delivery is not None:
                if condition is not None:
                    set_condition(lib.pn_disposition_condition(lib.pn_delivery_local(delivery)), condition)
                if fields:
                    put_value(lib.pn_disposition_data(lib.pn_delivery_local(delivery)), fields)
                update(delivery, outcome)
                settle(delivery)
        if start:
            deliveries[start:stop] = [None] * (min(stop, len(deliveries)) - start)
            return
        while stop < len(deliveries) and deliveries[stop] is None:
            stop += 1
        del deliveries[:stop]
        self._base += stop

    def _singles(self, start: int, stop: int, outcome: int, condition: Condition | None) -> list[Any]:
        """Give messages of packs, at these positions, their outcome. Returns the deliveries among them that are not packs."""
        found: list[Any] = []
        while start < min(stop, len(self.deliveries)):
            each, end = self.deliveries[start], start + 1
            if isinstance(each, ArrivedPack):
                end = min(stop, each.end - self._base)
                each.settle(self._base + start, end - start, outcome, condition)
            else:
                found.append(each)
            start = end
        return found

    def withhold(self, first: int, count: int) -> None:
        """These messages get no outcome while the link is open. The others of their packs need not wait for them."""
        if self.packed is not None:
            for delivery_id in range(first, first + count):
                each = self.deliveries[delivery_id - self._base]
                if isinstance(each, ArrivedPack):
                    self.settle(delivery_id, 1, 0)

    def withhold_rest(self) -> None:
        """Let packs of which some messages have an outcome be settled with that, because the link is about to be closed."""
        begun = {each for each in self.deliveries if isinstance(each, ArrivedPack) and each.left < len(each.tags)}
        for pack in begun:
            for delivery_id in range(pack.first, pack.end):
                if delivery_id >= self._base and self.deliveries[delivery_id - self._base] is pack:
                    self.settle(delivery_id, 1, 0)


def _tag_of(delivery: Any) -> bytes:
    tag = lib.pn_delivery_tag(delivery)
    return bytes(ffi.buffer(tag.start, tag.size))


class _Pieces:
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


class Sender(Link):
    """A link for outgoing messages. `account` has their ids, the credit and their outcomes.

    A message larger than `limits.PIECE_BYTES` is passed to proton in pieces, as fast as the socket accepts them, and so are the
    messages after it. For each frame, proton moves all bytes that it holds of a message, so a whole message of 15 MiB would cost
    seconds. Until proton has them they use credit that it still counts, so the credit is given back only after them.
    """

    __slots__ = (
        "_counts",
        "_first_id",
        "_gives_back",
        "_ids",
        "_n_aborted",
        "_next_id",
        "_next_tag",
        "_outcome",
        "_pieces",
        "_pieces_bytes",
        "_settled",
        "_told",
        "_waiting",
        "account",
        "browses",
        "kept_s",
        "notes",
        "packed",
        "refusals",
        "retired",
        "session",
        "tags_sequences",
        "traits_of",
        "unsettled",
    )

    def __init__(self, engine: Owner, handle: Any) -> None:
        super().__init__(engine, handle, True)
        self.unsettled = 0
        """Deliveries that are not settled here, and that proton keeps."""
        self.session = lib.pn_link_session(handle)
        self.account = Outgoing()
        self.browses = False
        """Whether its messages stay where they are, for the answer to its attach."""
        self.kept_s: int | None = None
        """For how long its source exists after the link, for the answer to its attach: see `Asked.keep_s`. None: what the peer
        says."""
        self.retired: list[bytes] = []
        """The ids of the transactions that outcomes name, since `take_retired`: an outcome has the number of its own, from 1 on,
        above `TRANSACTION_SHIFT`."""
        self.notes: dict[int, bytes] = {}
        """By id of a delivery the annotations of its outcome, an encoded map, since `take_notes`."""
        self.refusals: dict[int, str] = {}
        """On a client's link: id of a rejected delivery -> the peer's reason as "name: text", until the reader removes it."""
        self._next_tag = 0
        self.tags_sequences = False
        """Whether the tag of each delivery is its sequence, in 8 bytes, most significant first: a drain's, not a client's."""
        self.traits_of: Callable[[int, int], list[bytes]] | None = None
        """With `tags_sequences`: returns the bytes after the sequence in the tags of some messages, from one on: up to 24 bytes,
        the same number for all."""
        self.packed = False
        """With `tags_sequences`: whether several messages go into one delivery (`broker.core.packs`)."""
        self._counts: dict[Any, int] = {}
        """Delivery that is a pack -> how many messages it has, until its outcome has arrived."""
        self._pieces: deque[_Pieces] = deque()
        self._pieces_bytes = 0
        self._n_aborted = 0
        """How many of `_pieces` are aborted: they take no credit."""
        self._gives_back = False
        """Whether the rest of the credit is to be given back when proton has all pieces."""
        self._ids: dict[Any, int] = {}
        """Delivery -> its id, until its outcome has arrived."""
        self._told: dict[int, list[Any]] = {}
        """First id of a run -> the deliveries of the run, which have an outcome and wait to be settled."""
        self._outcome, self._settled = ACCEPTED, True
        self._first_id = self._next_id = 0
        self._waiting: list[Any] = []
        """The run of outcomes that is not in the account yet: the ids from first to before next, all with this outcome, settled
        by the peer or not; if not, the deliveries that wait."""

    def _answer(self, source: Any, target: Any) -> None:
        """A source says whether its messages stay there, and for how long it stays itself (part 3.5.3)."""
        if self.browses:
            lib.pn_terminus_set_distribution_mode(source, lib.PN_DIST_MODE_COPY)
        elif lib.pn_terminus_get_distribution_mode(source) == lib.PN_DIST_MODE_COPY:
            lib.pn_terminus_set_distribution_mode(source, lib.PN_DIST_MODE_MOVE)
        if self.kept_s is not None:
            lib.pn_terminus_set_durability(source, lib.PN_DELIVERIES)
            lib.pn_terminus_set_expiry_policy(source, lib.PN_EXPIRE_WITH_LINK if self.kept_s else lib.PN_EXPIRE_NEVER)
            lib.pn_terminus_set_timeout(source, self.kept_s)

    @property
    def credit(self) -> int:
        """How many messages the peer takes now, less those that wait for proton; `account.credit` is the same."""
        return self._free * (packs.CAPACITY if self.packed else 1)

    @property
    def _free(self) -> int:
        """The deliveries for which there is credit; below 0: so many wait in proton for more."""
        return int(lib.pn_link_credit(self.handle)) - len(self._pieces) + self._n_aborted if self.open else 0

    @property
    def is_answered(self) -> bool:
        """Whether there is an outcome for each delivery that the peer could get so far."""
        return len(self._ids) <= max(0, -self._free)

    def flowed(self) -> None:
        """The peer's flow has arrived, with its credit and its drain flag."""
        handle, account = self.handle, self.account
        account.credit = self.credit
        account.draining = bool(lib.pn_link_get_drain(handle))
        self._gives_back = False  # there may be messages for this credit: whoever sends them answers a drain again

    @property
    def largest(self) -> int:
        """The largest message that the peer takes on this link; 0 for any size."""
        return int(lib.pn_link_remote_max_message_size(self.handle))

    def drained(self) -> None:
        """Give back the credit that nothing was there for, now or as soon as proton has all messages."""
        self._gives_back = bool(self._pieces)
        if self._gives_back:
            return
        lib.pn_link_drained(self.handle)
        self.account.credit = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes sent on this link's session that have not left the engine, and those that this link has not given to it."""
        return int(lib.pn_session_outgoing_bytes(self.session)) + self._pieces_bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes that this link has not given to the engine."""
        return self._pieces_bytes

    def send(
        self, data: bytes, offsets: Sequence[int], start: int, stop: int, sequence: int, presettled: bool, base: int = 0
    ) -> None:
        """Send the messages `start` to `stop - 1`, which are in `data` at `base` + `offsets`. `sequence` is that of the first one
        in its queue, or another key of the sender; the account keeps it until the outcome has arrived."""
        if self.packed:
            self._send_packs(data, offsets, start, stop, sequence, base)
            return
        handle, ids, number = self.handle, self._ids, self._next_tag
        delivery_new, send, advance, settle = lib.pn_delivery, lib.pn_link_send, lib.pn_link_advance, lib.pn_delivery_settle
        scratch = self.engine.scratch
        tag, tag_number = scratch.tag, scratch.tag_number
        wide = self.tags_sequences
        if wide:
            tag, wide_bytes, tags = scratch.wide_tag, scratch.wide_bytes, self._wide_tags(sequence, stop - start)
            size = tag.size = len(tags[0])
        begin = ffi.from_buffer(data) + base
        here = offsets[start]
        first = self.account.sent(sequence, stop - start, presettled)
        self.engine.messages_out += stop - start
        self.engine.sent_bytes += offsets[stop] - here
        for position, delivery_id in zip(range(start + 1, stop + 1), range(first, first + stop - start), strict=True):
            after = offsets[position]
            if wide:
                wide_bytes[0:size] = tags[position - start - 1]
            else:
                number = (number + 1) & 0xFFFFFFF
                # Seven bits a byte: some clients read tags as text.
                tag_number[0] = number & 0x7F | (number & 0x3F80) << 1 | (number & 0x1FC000) << 2 | (number & 0xFE00000) << 3
            delivery = delivery_new(handle, tag)
            if after - here > limits.PIECE_BYTES or self._pieces:
                self._pieces.append(_Pieces(delivery, data, base + here, base + after, presettled))
                self._pieces_bytes += after - here
            else:
                send(handle, begin + here, after - here)
                advance(handle)
                if presettled:
                    settle(delivery)
            if not presettled:
                ids[delivery] = delivery_id
            here = after
        self._next_tag = number
        if not presettled:
            self._keeps(stop - start)
        if self._pieces:
            self.engine.feed_later(self)

    def _keeps(self, count: int) -> None:
        """Proton keeps so many more deliveries until they are settled."""
        if self.open:
            self.unsettled += count
            self.engine.unsettled += count

    def _send_packs(self, data: bytes, offsets: Sequence[int], start: int, stop: int, sequence: int, base: int) -> None:
        """Send messages on a packed link, unsettled."""
        scratch, tags = self.engine.scratch, self._wide_tags(sequence, stop - start)
        size, largest, at = len(tags[0]), self.largest or packs.PACK_BYTES, start
        delivery_id = self.account.sent(sequence, stop - start, False)
        self.engine.messages_out += stop - start
        self.engine.sent_bytes += offsets[stop] - offsets[start]
        while at < stop:
            end = packs.fitting(offsets, at, stop, size, largest)
            here, after, piece = base + offsets[at], base + offsets[end], data
            if end - at > 1:
                piece = packs.encoded(data, offsets, at, end, base, tags[at - start : end - start])
                here, after, tag = 0, len(piece), scratch.tag
                self._next_tag = scratch.tag_number[0] = (self._next_tag + 1) & 0xFFFFFFF
            else:
                tag = scratch.wide_tag
                tag.size = size
                scratch.wide_bytes[0:size] = tags[at - start]
            delivery = lib.pn_delivery(self.handle, tag)
            self._ids[delivery] = delivery_id
            self._keeps(1)
            if end - at > 1:
                self._counts[delivery] = end - at
            if after - here > limits.PIECE_BYTES or self._pieces:
                self._pieces.append(_Pieces(delivery, piece, here, after, False))
                self._pieces_bytes += after - here
            else:
                lib.pn_link_send(self.handle, ffi.from_buffer(piece) + here, after - here)
                lib.pn_link_advance(self.handle)
            delivery_id += end - at
            at = end
        self.account.credit = self.credit
        if self._pieces:
            self.engine.feed_later(self)

    def _wide_tags(self, first: int, count: int) -> list[bytes]:
        """The tags of these sequences, with the bytes after them: all of the same length."""
        tags = [sequence.to_bytes(8, "big") for sequence in range(first, first + count)]
        return tags if self.traits_of is None else list(map(add, tags, self.traits_of(first, count)))

    def feed(self) -> bool:
        """Pass the next pieces to proton, while it holds less than one piece, and after them the answer to a drain. Returns
        whether it got any."""
        handle, pieces, fed = self.handle, self._pieces, False
        while pieces and lib.pn_session_outgoing_bytes(self.session) < limits.PIECE_BYTES:
            one = pieces[0]
            if lib.pn_link_current(handle) != one.delivery:  # the delivery was settled before the peer had received all of it
                self._drop_pieces(one.delivery)
                continue
            if one.aborted:
                self._abort(one)
                fed = True
                continue
            if one.start == one.stop and one.source is not None:
                piece = one.source.next_piece()
                if piece is None:
                    break
                one.data, one.start, one.stop = piece, 0, len(piece)
                self._pieces_bytes += len(piece)
            size = min(one.stop - one.start, limits.PIECE_BYTES)
            lib.pn_link_send(handle, ffi.from_buffer(one.data) + one.start, size)
            one.start += size
            self._pieces_bytes -= size
            if one.start == one.stop and not (one.source is not None and one.source.has_more):
                pieces.popleft()
                lib.pn_link_advance(handle)
                if one.presettled:
                    lib.pn_delivery_settle(one.delivery)
                if one.source is not None:
                    one.source.sent()
            fed = True
        if self._gives_back and not pieces:
            self.drained()
            fed = True
        return fed

    def send_pieces(self, source: PieceSource, sequence: int, presettled: bool) -> int:
        """Begin to send one message, whose pieces `source` gives. Returns its id."""
        scratch = self.engine.scratch
        tag, tag_number = scratch.tag, scratch.tag_number
        if self.tags_sequences:
            tag = scratch.wide_tag
            (found,) = self._wide_tags(sequence, 1)
            tag.size = len(found)
            scratch.wide_bytes[0 : len(found)] = found
        else:
            number = self._next_tag = (self._next_tag + 1) & 0xFFFFFFF
            tag_number[0] = number & 0x7F | (number & 0x3F80) << 1 | (number & 0x1FC000) << 2 | (number & 0xFE00000) << 3
        delivery_id = self.account.sent(sequence, 1, presettled)
        self.engine.messages_out += 1
        delivery = lib.pn_delivery(self.handle, tag)
        if not presettled:
            self._ids[delivery] = delivery_id
            self._keeps(1)
        self._pieces.append(_Pieces(delivery, b"", 0, 0, presettled, source))
        if self.packed:
            self.account.credit = self.credit
        self.engine.feed_later(self)
        return delivery_id

    def abort_pieces(self, source: PieceSource) -> bool:
        """Abort the message of this source, if it was not sent completely. Returns whether it was aborted; then it is not
        unsettled any more.
        """
        one = next((each for each in self._pieces if each.source is source), None)
        if one is None or not self.open:
            return False
        delivery_id = self._ids.pop(one.delivery, None)
        if delivery_id is not None:
            self.account.take(delivery_id, 1)
            self._keeps(-1)
        self._abort(one)
        self.account.credit = self.credit
        return True

    def _abort(self, one: _Pieces) -> None:
        """Abort this message: now if it is the current delivery, or else when it is. Proton would keep one that it has not begun
        until it works next, and until then could make it the current one and write into it after it was freed."""
        self._pieces_bytes -= one.stop - one.start
        one.source, one.data, one.start, one.stop = None, b"", 0, 0
        self._n_aborted -= one.aborted
        one.aborted = bool(lib.pn_link_current(self.handle) != one.delivery)
        self._n_aborted += one.aborted
        if not one.aborted:
            self._pieces.remove(one)
            lib.pn_delivery_abort(one.delivery)

    def _drop_pieces(self, delivery: Any) -> None:
        """This delivery is settled: if proton does not have all of it, the rest goes nowhere. Only the first that waits can be
        this one, because the peer knows none of the others."""
        one = self._pieces[0] if self._pieces else None
        if one is None or one.delivery != delivery:
            return
        self._pieces.popleft()
        self._pieces_bytes -= one.stop - one.start
        self._n_aborted -= one.aborted
        if one.source is not None:
            one.source.dropped()

    @property
    def feeds(self) -> bool:
        """Whether messages wait for proton, or the answer to a drain."""
        return (bool(self._pieces) or self._gives_back) and self.open

    def send_one(self, data: bytes, sequence: int = 0, presettled: bool = False) -> None:
        """Send one message."""
        self.send(data, (0, len(data)), 0, 1, sequence, presettled)

    def came(self, delivery: Any) -> None:
        """The peer's word on a delivery: kept for the account when it is an outcome, and the first one."""
        delivery_id = self._ids.pop(delivery, None)
        if delivery_id is None:
            self.engine.told_nothing_new()
            return
        if delivery in self._counts:
            self._pack_came(delivery, delivery_id)
            return
        settled, outcome = lib.pn_delivery_settled(delivery), lib.pn_delivery_remote_state(delivery)
        if outcome != ACCEPTED:
            if not settled and (not outcome or outcome == lib.PN_RECEIVED):
                self._ids[delivery] = delivery_id
                self.engine.told_nothing_new()
                return
            if outcome != RELEASED:
                outcome = self._outcome_of(delivery_id, delivery, outcome)
        if delivery_id != self._next_id or outcome != self._outcome or settled != self._settled:
            self._tell()
            self._first_id, self._outcome, self._settled = delivery_id, outcome, settled
        self._next_id = delivery_id + 1
        if settled:
            if self._pieces:
                self._drop_pieces(delivery)
            lib.pn_delivery_settle(delivery)
        else:
            self._waiting.append(delivery)

    def _pack_came(self, delivery: Any, first: int) -> None:
        """The peer's word on a pack, which has the messages from id `first` on. It is settled when it has an outcome."""
        settled, state = lib.pn_delivery_settled(delivery), lib.pn_delivery_remote_state(delivery)
        if not settled and (not state or state == lib.PN_RECEIVED):
            self._ids[delivery] = first
            self.engine.told_nothing_new()
            return
        remote, count = lib.pn_delivery_remote(delivery), self._counts.pop(delivery)
        if state == packs.OUTCOMES:
            try:
                found = packs.read_outcomes(encoded_of(lib.pn_disposition_data(remote)), count)
            except packs.BadPack:
                found = []  # as of a peer that says nothing: the messages are its own until the link ends
        else:
            text = condition_text(lib.pn_disposition_condition(remote)) if state == REJECTED else ""
            found = [packs.Outcome(0, count, state if state <= _MOST_STATE else RELEASED, text)]
        if self._pieces:
            self._drop_pieces(delivery)
        lib.pn_delivery_settle(delivery)
        self._keeps(-1)
        self._tell()
        for at, n_messages, outcome, text in found:
            self.account.came(first + at, n_messages, outcome, True)
            if text and self.engine.is_client:
                self.refusals.update(dict.fromkeys(range(first + at, first + at + n_messages), text))

    def take_back(self, before: int) -> None:
        """Settle the deliveries with ids below `before` that have no outcome, as released. Those that proton does not have
        completely are aborted: proton would end a settled one as if it were complete, and the peer would take its part for a
        message."""
        waiting = {each.delivery: each for each in self._pieces}
        for delivery in [each for each, delivery_id in self._ids.items() if delivery_id < before]:
            del self._ids[delivery]
            self._keeps(-1)
            one = waiting.get(delivery)
            if one is None:
                lib.pn_delivery_update(delivery, RELEASED)
                lib.pn_delivery_settle(delivery)
                continue
            if one.source is not None:
                one.source.dropped()
            self._abort(one)
        self.account.credit = self.credit

    def _tell(self) -> None:
        """Pass the last run of outcomes to the account; keep its deliveries if they wait to be settled."""
        first, count = self._first_id, self._next_id - self._first_id
        if count:
            self.account.came(first, count, self._outcome, self._settled)
            self._first_id = self._next_id
            if self._settled:
                self._keeps(-count)
            if self._waiting:
                self._told[first] = self._waiting
                self._waiting = []

    def take_outcomes(self) -> list[Run]:
        """The outcomes since the last call, as runs."""
        self._tell()
        return self.account.take_outcomes()

    def take_notes(self) -> dict[int, bytes]:
        """By delivery id the annotations of those outcomes that have some."""
        notes, self.notes = self.notes, {}
        return notes

    def take_retired(self) -> list[bytes]:
        """The ids of the transactions that the outcomes name which `take_outcomes` has given, or will now."""
        retired, self.retired = self.retired, []
        return retired

    @property
    def has_outcomes(self) -> bool:
        """Whether there are outcomes since the last `take_outcomes`."""
        return self._next_id != self._first_id or bool(self.account.outcomes)

    def _outcome_of(self, delivery_id: int, delivery: Any, outcome: int) -> int:
        remote = lib.pn_delivery_remote(delivery)
        if outcome == TRANSACTIONAL:
            txn_id, outcome = read_state(encoded_of(lib.pn_disposition_data(remote)))
            if not self.retired or self.retired[-1] != txn_id:
                self.retired.append(txn_id)
            return outcome | len(self.retired) << TRANSACTION_SHIFT
        if outcome == MODIFIED:
            note = encoded_of(lib.pn_disposition_annotations(remote))
            if note:
                self.notes[delivery_id] = note
            outcome |= FAILED if lib.pn_disposition_is_failed(remote) else 0
            outcome |= UNDELIVERABLE if lib.pn_disposition_is_undeliverable(remote) else 0
        elif outcome == REJECTED and self.engine.is_client:
            self.refusals[delivery_id] = condition_text(lib.pn_disposition_condition(remote))
        return outcome if outcome <= _MOST_STATE else RELEASED

    def settle(self, first: int, count: int, outcome: int = 0) -> None:
        """Settle a run with an outcome, completely or its beginning; `outcome` is repeated to a peer that waits for it."""
        if not self.open:
            return
        told = self._told.pop(first, None)
        if told is None:
            return  # the peer has settled it
        while len(told) < count:  # the account merges runs that were sent one after another
            told += self._told.pop(first + len(told))
        if count < len(told):
            self._told[first + count] = told[count:]
        self._keeps(-min(count, len(told)))
        update, settle = lib.pn_delivery_update, lib.pn_delivery_settle
        for delivery in told[:count]:
            if self._pieces:
                self._drop_pieces(delivery)
            if outcome:
                update(delivery, outcome)
            settle(delivery)


def _put_source(source: Any, standing: Standing) -> None:
    lib.pn_terminus_set_type(source, lib.PN_SOURCE)
    lib.pn_terminus_set_address(source, standing.address.encode())
    if standing.encoded_filters:
        put_value(lib.pn_terminus_filter(source), standing.encoded_filters)
    if standing.capabilities:
        put_value(lib.pn_terminus_capabilities(source), values.symbols(standing.capabilities))


def txn_id_of(delivery: Any) -> bytes | None:
    """The id of the transaction that a delivery's state names; None when it names none."""
    if delivery == NULL or lib.pn_delivery_remote_state(delivery) != TRANSACTIONAL:
        return None
    return read_state(encoded_of(lib.pn_disposition_data(lib.pn_delivery_remote(delivery))))[0]
