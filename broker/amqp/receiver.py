"""A link for incoming messages: what has arrived on it, its credit, and the outcomes that its deliveries get.

Life of a delivery here: it arrives, whole or in frames that are gathered (`broker.amqp.gathering`), and its message is in the
`inbox` until `take` gives it an id. It is unsettled until `settle` gives it an outcome, or its sender has settled it.

Invariants: ids are consecutive, in the order in which the messages have arrived; `deliveries` begins with an unsettled one, or is
empty. Source: AMQP 1.0 parts 2.6.12 (transfers), 3.4 (delivery states), 4.4 (transactions).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from cproton_ffi import ffi, lib

from broker.amqp.arrived_pack import ArrivedPack
from broker.amqp.asked import Asked
from broker.amqp.data import Condition, encoded_of, put_value, set_condition
from broker.amqp.links import Link, Owner
from broker.amqp.partial import Partial
from broker.amqp.scratch import SCRATCH_BYTES
from broker.core import limits, packs, values
from broker.core.links import HELD, NUMBERED, Incoming
from broker.core.performatives import Refusal
from broker.core.transactions import DECLARED, TRANSACTIONAL, accepted_fields, id_fields, read_state

NULL = ffi.NULL


class Kept(NamedTuple):
    """The state of a numbered link: the seconds for which it is kept after its end, and the held numbers as runs (first,
    count)."""

    kept_s: int
    runs: list[tuple[int, int]]


class PartsTaker(Protocol):
    """Takes a large message in parts."""

    def part(self, data: bytes, whole: bool) -> None:
        """The next part; with the last one the message is `whole`, and has its id."""

    def aborted(self) -> None:
        """The sender has given the message up that was coming."""

    @property
    def kept_bytes(self) -> int:
        """How much of that message is kept in memory behind this."""


class ReceivingEngine(Owner, Protocol):
    """The engine, as links for incoming messages know it."""

    part_bytes: int
    max_message_bytes: int
    messages_in: int

    @property
    def links(self) -> Iterable[Link]:
        """The links that are attached."""

    def hand_over(self, link: Receiver) -> None:
        """Report the arrived messages of this link, before later events."""

    def lost(self, link: Link) -> None:
        """This side is about to end the link, for its peer's fault."""

    def refuse(self, refusal: Refusal) -> None:
        """End this connection because of a fault."""


class Receiver(Link):
    """A link for incoming messages. `account` numbers them; `inbox` has those that were not taken yet. After `take_parts`, large
    messages (larger than `limits.LARGE_PARTS` parts) are passed on in parts. `partial` is the arrived beginning of a message,
    without the `parted` bytes that were taken as parts. On a `packed` link a delivery may be a pack (`broker.core.packs`): its
    messages have ids of their own, and credit is counted in messages here too.
    """

    engine: ReceivingEngine
    __slots__ = (
        "_ahead",
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

    def __init__(self, engine: ReceivingEngine, handle: Any) -> None:
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
        self._ahead = 0
        """By how much the last flow had another delivery-count than proton."""
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
            runs = kept.runs
            self._show(runs)
            while len(runs) > 1 and not self._fits(source, target):  # one is shown: with none, the client would begin at 1 again
                runs = runs[(len(runs) + 1) // 2 :]
                self._show(runs)

    def _show(self, runs: list[tuple[int, int]]) -> None:
        """Let the attach say that these numbers are held."""
        held = values.encode({values.Symbol(HELD): [number for run in runs for number in run]})
        properties = lib.pn_link_properties(self.handle)
        lib.pn_data_clear(properties)
        put_value(properties, held)

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

    def flowed(self) -> bool:
        """The peer's flow has arrived. Returns whether its delivery-count says that the peer has used credit up without messages,
        as it may (part 2.6.7). Condition, when it is lower than before, or missing: proton takes it as it is, and the credit that
        it tells the peer would be wrong from then on. One less is usual while a message is arriving: some peers count it at its
        end. The links of drains count packs, and are passed over."""
        self._ahead += int(lib.pn_link_drained(self.handle))
        if self.packed is not None or -1 <= self._ahead <= 0:
            return False
        if self._ahead < 0:
            text = f"a flow on this link has a delivery-count that is {-self._ahead} too low, or has none"
            raise Condition("amqp:invalid-field", f"{text}: count the deliveries that were sent on the link")
        self.account.passed_over(self._ahead)
        self._ahead = 0
        return True

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


def txn_id_of(delivery: Any) -> bytes | None:
    """The id of the transaction that a delivery's state names; None when it names none."""
    if delivery == NULL or lib.pn_delivery_remote_state(delivery) != TRANSACTIONAL:
        return None
    return read_state(encoded_of(lib.pn_disposition_data(lib.pn_delivery_remote(delivery))))[0]
