"""A link for outgoing messages: the messages that are sent on it, the peer's credit, and the outcomes that come back.

Life of a delivery here: `send` gives it an id and passes it to proton. When the peer has said its outcome, `came` adds it to a
run of equal outcomes, which `take_outcomes` gives to the reader. If the peer waits for it, `settle` settles the delivery.

Invariants: ids are consecutive, in the order of sending; an outcome is told once; what this side settles has an outcome, or is
released. Source: AMQP 1.0 parts 2.6.7 (flow control), 3.4 (delivery states).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from typing import Any, Protocol

from cproton_ffi import ffi, lib

from broker.amqp.data import condition_text, encoded_of
from broker.amqp.later import Later
from broker.amqp.links import Link, Owner
from broker.amqp.pieces import Piecemeal, Pieces, PieceSource
from broker.core import limits, packs
from broker.core.links import (
    ACCEPTED,
    FAILED,
    MODIFIED,
    REJECTED,
    RELEASED,
    TRANSACTION_SHIFT,
    UNDELIVERABLE,
    Outgoing,
    Run,
)
from broker.core.transactions import TRANSACTIONAL, read_state

_MOST_STATE = (1 << TRANSACTION_SHIFT) - 1
_CARRY, _SEVEN_BITS = 0x80808080, 0x7F7F7F7F
"""With the eighth bit of each byte set, a carry passes from one group of seven bits to the next."""
"""States of deliveries above this are none of the standard's (part 3.4): they say nothing about the message."""
assert (lib.PN_ACCEPTED, lib.PN_REJECTED, lib.PN_RELEASED, lib.PN_MODIFIED) == (ACCEPTED, REJECTED, RELEASED, MODIFIED)


class SendingEngine(Owner, Protocol):
    """The engine, as links for outgoing messages know it."""

    messages_out: int
    sent_bytes: int
    unsettled: int
    later: Later

    def told_nothing_new(self) -> None:
        """There was an event of a delivery that brings nothing."""


class Sender(Link):
    """A link for outgoing messages. `account` has their ids, the credit and their outcomes.

    A message larger than `limits.PIECE_BYTES` is passed to proton in pieces (`broker.amqp.pieces`), and so are the messages after
    it. Until proton has them they use credit that it still counts, so the credit is given back only after them.
    """

    engine: SendingEngine
    __slots__ = (
        "_counts",
        "_first_id",
        "_gives_back",
        "_ids",
        "_next_id",
        "_next_tag",
        "_outcome",
        "_pieces",
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

    def __init__(self, engine: SendingEngine, handle: Any) -> None:
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
        """The last number that was a tag: seven bits a byte, because some clients read tags as text."""
        self.tags_sequences = False
        """Whether the tag of each delivery is its sequence, in 8 bytes, most significant first: a drain's, not a client's."""
        self.traits_of: Callable[[int, int], list[bytes]] | None = None
        """With `tags_sequences`: returns the bytes after the sequence in the tags of some messages, from one on: up to 24 bytes,
        the same number for all."""
        self.packed = False
        """With `tags_sequences`: whether several messages go into one delivery (`broker.core.packs`)."""
        self._counts: dict[Any, int] = {}
        """Delivery that is a pack -> how many messages it has, until its outcome has arrived."""
        self._pieces = Pieces(handle, self.session)
        """The messages that go to proton by the piece."""
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
        return int(lib.pn_link_credit(self.handle)) - len(self._pieces.line) + self._pieces.n_aborted if self.open else 0

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
        """Give back the credit that nothing was there for, now or as soon as proton has written all messages. If a message waits
        for the session's window when it is told, proton says nothing, and does not do so later."""
        self._gives_back = self._holds_messages
        if self._gives_back:
            self.engine.later.add(self)
            return
        lib.pn_link_drained(self.handle)
        self.account.credit = 0

    @property
    def _holds_messages(self) -> bool:
        """Whether messages of this link are not written completely."""
        return self.open and (bool(self._pieces.line) or lib.pn_link_queued(self.handle) > 0)

    @property
    def buffered_bytes(self) -> int:
        """Bytes sent on this link's session that have not left the engine, and those that this link has not given to it."""
        return int(lib.pn_session_outgoing_bytes(self.session)) + self._pieces.nbytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes that this link has not given to the engine."""
        return self._pieces.nbytes

    def send(
        self, data: bytes, offsets: Sequence[int], start: int, stop: int, sequence: int, presettled: bool, base: int = 0
    ) -> None:
        """Send the messages `start` to `stop - 1`, which are in `data` at `base` + `offsets`. `sequence` is that of the first one
        in its queue, or another key of the sender; the account keeps it until the outcome has arrived."""
        if self.packed:
            self._send_packs(data, offsets, start, stop, sequence, base)
            return
        handle, engine, line, wide = self.handle, self.engine, self._pieces.line, self.tags_sequences
        delivery_new, send, advance = lib.pn_delivery, lib.pn_link_send, lib.pn_link_advance
        scratch = engine.scratch
        tag, tag_number, number = scratch.tag, scratch.tag_number, self._next_tag
        if wide:
            tag, wide_bytes, tags = scratch.wide_tag, scratch.wide_bytes, self._wide_tags(sequence, stop - start)
            size = tag.size = len(tags[0])
        begin = ffi.from_buffer(data) + base
        here = offsets[start]
        first = self.account.sent(sequence, stop - start, presettled)
        engine.messages_out += stop - start
        engine.sent_bytes += offsets[stop] - here
        for delivery_id, after in enumerate(offsets[start + 1 : stop + 1], first):
            if wide:
                wide_bytes[0:size] = tags[delivery_id - first]
            else:
                tag_number[0] = number = (number | _CARRY) + 1 & _SEVEN_BITS
            delivery = delivery_new(handle, tag)
            if after - here > limits.PIECE_BYTES or line:
                self._pieces.add(Piecemeal(delivery, data, base + here, base + after, presettled))
            else:
                send(handle, begin + here, after - here)
                advance(handle)
                if presettled:
                    lib.pn_delivery_settle(delivery)
            if not presettled:
                self._ids[delivery] = delivery_id
            here = after
        self._next_tag = number
        if not presettled:
            self._keeps(stop - start)
        if line:
            self.engine.later.add(self)

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
                self._next_tag = scratch.tag_number[0] = (self._next_tag | _CARRY) + 1 & _SEVEN_BITS
            else:
                tag = scratch.wide_tag
                tag.size = size
                scratch.wide_bytes[0:size] = tags[at - start]
            delivery = lib.pn_delivery(self.handle, tag)
            self._ids[delivery] = delivery_id
            self._keeps(1)
            if end - at > 1:
                self._counts[delivery] = end - at
            if after - here > limits.PIECE_BYTES or self._pieces.line:
                self._pieces.add(Piecemeal(delivery, piece, here, after, False))
            else:
                lib.pn_link_send(self.handle, ffi.from_buffer(piece) + here, after - here)
                lib.pn_link_advance(self.handle)
            delivery_id += end - at
            at = end
        self.account.credit = self.credit
        if self._pieces.line:
            self.engine.later.add(self)

    def _wide_tags(self, first: int, count: int) -> list[bytes]:
        """The tags of these sequences, with the bytes after them: all of the same length."""
        tags = [sequence.to_bytes(8, "big") for sequence in range(first, first + count)]
        return tags if self.traits_of is None else list(map(add, tags, self.traits_of(first, count)))

    def feed(self) -> bool:
        """Pass the next pieces to proton, and after them the answer to a drain. Returns whether it got any."""
        fed = self._pieces.feed()
        if self._gives_back and not self._holds_messages:
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
            tag_number[0] = self._next_tag = (self._next_tag | _CARRY) + 1 & _SEVEN_BITS
        delivery_id = self.account.sent(sequence, 1, presettled)
        self.engine.messages_out += 1
        delivery = lib.pn_delivery(self.handle, tag)
        if not presettled:
            self._ids[delivery] = delivery_id
            self._keeps(1)
        self._pieces.add(Piecemeal(delivery, b"", 0, 0, presettled, source))
        if self.packed:
            self.account.credit = self.credit
        self.engine.later.add(self)
        return delivery_id

    def abort_pieces(self, source: PieceSource) -> bool:
        """Abort the message of this source, if it was not sent completely. Returns whether it was aborted; then it is not
        unsettled any more.
        """
        one = self._pieces.of_source(source)
        if one is None or not self.open:
            return False
        delivery_id = self._ids.pop(one.delivery, None)
        if delivery_id is not None:
            self.account.take(delivery_id, 1)
            self._keeps(-1)
        self._pieces.abort(one)
        self.account.credit = self.credit
        return True

    @property
    def feeds(self) -> bool:
        """Whether messages wait for proton, or the answer to a drain."""
        return (bool(self._pieces.line) or self._gives_back) and self.open

    def send_one(self, data: bytes, sequence: int = 0, presettled: bool = False) -> None:
        """Send one message."""
        self.send(data, (0, len(data)), 0, 1, sequence, presettled)

    def came(self, delivery: Any) -> None:
        """The peer's word on a delivery: kept for the account when it is an outcome, and the first one."""
        delivery_id = self._ids.pop(delivery, None)
        if delivery_id is None:
            self.engine.told_nothing_new()
            return
        if self._counts and delivery in self._counts:
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
            if self._pieces.line:
                self._pieces.drop(delivery)
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
        if self._pieces.line:
            self._pieces.drop(delivery)
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
        waiting = {each.delivery: each for each in self._pieces.line}
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
            self._pieces.abort(one)
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
            if self._pieces.line:
                self._pieces.drop(delivery)
            if outcome:
                update(delivery, outcome)
            settle(delivery)
