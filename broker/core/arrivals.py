"""A quick check of the messages that arrive on a link: whether they are messages, of whom, and whether they have a time.

`broker.core.message.check` steps through all sections of a message with a call for each. What usual encoders write can be
checked without these calls (`_kind_of`). And the messages of one producer mostly have the same layout: the same sections, with
the same constructors. Then a check of one of them is a check of all (`Arrivals`).

Life of a layout: a message is checked, and the places of the bytes that the check reads are noted (`_Noted`): the heads of the
sections, the constructors of some fields, the user-id, and not the body. If a later message has the same length and the same
bytes at these places, then the check would read the same bytes and come to the same result, so it is not made. The size of a
body of one text or binary is an exception: only the place where the body ends is used, so it is the length without the body that
must be the same. Functions in C cut out the bytes, for a whole batch, and look up the result. The newest layout is tried first.

Invariants: the result for each message is that of a check of this message by itself; the result of a check that finds a fault, or
that has to look closer, is not kept; a link keeps at most `MAX_LAYOUTS` layouts, each with at most `MAX_RESULTS` results, and
stops keeping any if its messages have too little in common (`_balance`).

Source: AMQP 1.0 part 3, section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from operator import itemgetter, sub
from typing import Any, SupportsIndex

from broker.core import message
from broker.core.message import HEADER, MESSAGE_ANNOTATIONS, PROPERTIES, SECTIONS_AFTER, TYPES, BadMessage
from broker.core.values import SIZE_WIDTHS, WIDTHS, Encoded

PLAIN, TIMED, ODD = 0, 1, 2
"""A message of this user that says no time; one that may say when it expires or is to be given out (broker.core.lifetimes); any
other bytes, which must be checked closer."""

MAX_LAYOUTS = 4
MAX_RESULTS = 16
MAX_PLACES = 16
MAX_PLACE_BYTES = 256
LEARNING_COSTS = 8
"""Learning from a message takes as long as checking so many messages."""
MAX_BALANCE = 128 * LEARNING_COSTS

_DELIVERY = b"x-opt-delivery-"
_TIMESTAMP_BYTES = 9
_STEPS = [
    1 + WIDTHS[kind >> 4] if kind and kind >> 4 in WIDTHS else 0x100 if SIZE_WIDTHS.get(kind >> 4) == 1 else 0
    for kind in range(256)
]
"""Constructor of a value -> its bytes; 0x100 if the next byte has the size, 0 for a value that needs a closer check."""


def _width(kind: int) -> int:
    fixed = WIDTHS.get(kind >> 4)
    return SIZE_WIDTHS[kind >> 4] if fixed is None else -fixed


_PLAIN = {
    code: {each << 8 | kind: _width(kind) for each in after for kind in TYPES.get(each, range(0x40, 0x100))}
    for code, after in SECTIONS_AFTER.items()
}
"""Section, 0 before the first -> code and constructor of the next one -> bytes of the size before its value, or minus those of a
value that has always as many."""


class _Layout:
    """Places in a message, that of the size of its body, and the results for messages with certain bytes at the places."""

    __slots__ = ("_bytes_at", "_size_at", "places", "results")

    def __init__(self, places: tuple[slice, ...], size: slice) -> None:
        self.places = places, size
        self._bytes_at: Callable[[bytes], Any] = itemgetter(*places)
        self._size_at: Callable[[bytes], bytes] = itemgetter(size)
        self.results: dict[tuple[int, Any], int] = {}
        """Length without the body, and bytes at the places -> PLAIN or TIMED."""

    def kinds(self, messages: Sequence[bytes]) -> list[int | None]:
        """The result for each message; None if there is none. Most producers send messages that are alike."""
        each = (map(len, messages), map(self._size_at, messages), map(self._bytes_at, messages))
        if all(len(set(found)) == 1 for found in each):
            return [self.results.get(self._key_of(messages[0]))] * len(messages)
        without_body = map(sub, map(len, messages), map(int.from_bytes, map(self._size_at, messages)))
        return list(map(self.results.get, zip(without_body, map(self._bytes_at, messages), strict=True)))

    def keep(self, data: bytes, kind: int) -> None:
        """This is the result for messages like this one."""
        if len(self.results) >= MAX_RESULTS:
            self.results.clear()
        self.results[self._key_of(data)] = kind

    def _key_of(self, data: bytes) -> tuple[int, Any]:
        return len(data) - int.from_bytes(self._size_at(data)), self._bytes_at(data)


class Arrivals:
    """The check of one link's messages. `names`: what they may give as their user-id; None: anything."""

    __slots__ = ("_balance", "_layouts", "_names")

    def __init__(self, names: Set[bytes] | None) -> None:
        self._names = names
        self._layouts: list[_Layout] = []
        self._balance = MAX_BALANCE
        """Checks that layouts have saved, less what they have cost. Below 0: no layout is kept any more."""

    def look(self, messages: Sequence[bytes]) -> tuple[list[int], bool]:
        """The positions of those that are not messages or are other users', in ascending order; and whether any of them may say
        when it expires or is to be given out."""
        kinds = self._by_layout(messages) if self._balance >= 0 else [self._kind_of(each) for each in messages]
        top = max(kinds, default=PLAIN)
        if top == PLAIN:
            return [], False
        return [at for at, kind in enumerate(kinds) if kind == ODD and self._has_fault(messages[at])], True

    def _by_layout(self, messages: Sequence[bytes]) -> list[int]:
        kinds: list[int | None] = []
        for layout in self._layouts:
            if not kinds:
                kinds = layout.kinds(messages)
            else:
                missed = [at for at, kind in enumerate(kinds) if kind is None]
                for at, kind in zip(missed, layout.kinds([messages[at] for at in missed]), strict=True):
                    kinds[at] = kind
            if None not in kinds:
                break
        else:
            kinds = kinds or [None] * len(messages)
            missed = [at for at, kind in enumerate(kinds) if kind is None]
            self._balance -= len(missed)
            for at in missed[:1]:
                kinds[at] = self._learn(messages[at])
            for at in missed[1:]:
                kinds[at] = self._kind_of(messages[at])
        self._balance = min(self._balance + len(messages), MAX_BALANCE)
        return kinds  # type: ignore[return-value]

    def _learn(self, data: bytes) -> int:
        self._balance -= LEARNING_COSTS
        noted = _Noted(data)
        try:
            kind = self._kind_of(noted)
        except _TooMuch:
            return self._kind_of(data)
        if kind == ODD:
            return kind
        size = _size_of_body(data)
        places = noted.places(without=size)
        known = next((layout for layout in self._layouts if layout.places == (places, size)), None)
        if known is None:
            if len(places) > MAX_PLACES:
                return kind
            known = _Layout(places, size)
            self._layouts = [known, *self._layouts[: MAX_LAYOUTS - 1]]
        known.keep(data, kind)
        return kind

    def _kind_of(self, data: bytes) -> int:
        kind = _kind_of(data)
        if kind != ODD and self._names is not None:
            user = _user_at_hand(data)
            if user is None or (user and user not in self._names):
                return ODD
        return kind

    def _has_fault(self, data: bytes) -> bool:
        return _is_malformed(data) or (self._names is not None and _is_of_others(data, self._names))


class _TooMuch(Exception):
    """The check reads more bytes of a message than a layout may have. To note them all would take long: a message may have
    hundreds of thousands of sections."""


class _Noted(bytes):
    """A message that notes which of its bytes are read. _TooMuch."""

    read: set[int]

    def __new__(cls, data: bytes) -> _Noted:
        self = super().__new__(cls, data)
        self.read = set()
        return self

    def __getitem__(self, at: Any) -> Any:
        self._note(range(*at.indices(len(self))) if isinstance(at, slice) else (at % len(self),))
        return super().__getitem__(at)

    def find(self, sub: Any, start: SupportsIndex | None = None, end: SupportsIndex | None = None, /) -> int:
        """That of bytes; it reads all that it is told to search."""
        self._note(range(*slice(start, end).indices(len(self))))
        return super().find(sub, start, end)

    def _note(self, places: Sequence[int]) -> None:
        if len(places) <= MAX_PLACE_BYTES:
            self.read.update(places)
        if max(len(self.read), len(places)) > MAX_PLACE_BYTES:
            raise _TooMuch

    def places(self, without: slice) -> tuple[slice, ...]:
        """What was read, as runs, in ascending order."""
        read = self.read.difference(range(without.start, without.stop))
        first = sorted(at for at in read if at - 1 not in read)
        last = sorted(at for at in read if at + 1 not in read)
        return tuple(slice(start, end + 1) for start, end in zip(first, last, strict=True))


def _size_of_body(data: bytes) -> slice:
    """The place of the size of the last section, if that is a text or binary, which ends the message; otherwise an empty place.
    `data` is a message that `_kind_of` takes."""
    position, end = 0, len(data)
    while True:
        kind = data[position + 3]
        width = _width(kind)
        position += 4
        place = slice(position, position + max(width, 0))
        position = position - width if width <= 0 else place.stop + int.from_bytes(data[place])
        if position == end:
            return place if kind < 0xC0 else slice(0, 0)


def malformed(messages: Sequence[bytes]) -> list[int]:
    """The positions of those that `message.check` refuses, in ascending order."""
    return [at for at, data in enumerate(messages) if _kind_of(data) == ODD and _is_malformed(data)]


def _is_malformed(data: Encoded) -> bool:
    try:
        message.check(data)
    except BadMessage:
        return True
    return False


def _kind_of(data: bytes) -> int:
    """Whether `check` takes it, if that can be seen without a call for each section, and whether it may say a time."""
    position, rules, end, found = 0, _PLAIN[0], len(data), PLAIN
    try:
        while position < end:
            if data[position] or data[position + 1] != 0x53:
                return ODD
            code = data[position + 2]
            kind = data[position + 3]
            width = rules[code << 8 | kind]
            position += 4
            if width <= 0:
                position -= width
            else:
                size = data[position] if width == 1 else int.from_bytes(data[position : position + 4], "big")
                if kind >= 0xC0:
                    if size < width:  # too small to hold its own count of items
                        return ODD
                    if code <= PROPERTIES and _may_say_a_time(data, code, width, position, size):
                        found = TIMED
                position += width + size
            rules = _PLAIN[code]
    except (IndexError, KeyError):
        return ODD
    return found if position == end > 0 else ODD


def _may_say_a_time(data: bytes, code: int, width: int, position: int, size: int) -> bool:
    """Whether this section has, or may have, a field or annotation about expiry or delay. Its size is at `position`, in `width`
    bytes. IndexError when it is cut off."""
    if code == MESSAGE_ANNOTATIONS:
        return data.find(_DELIVERY, position, position + width + size) >= 0
    if code not in (HEADER, PROPERTIES):
        return False
    wanted = message.TTL_FIELD if code == HEADER else message.EXPIRY_FIELD
    end = position + width + size
    count = data[position + 1] if width == 1 else int.from_bytes(data[position + 4 : position + 8], "big")
    if count <= wanted:
        return False
    if count == message.EXPIRY_FIELD + 2 and data[end - _TIMESTAMP_BYTES] == 0x83 and data[end - 2 * _TIMESTAMP_BYTES] != 0x83:
        return False  # Qpid JMS writes exactly this: creation-time is the last field, and the field before it is null
    position += 2 * width
    for _ in range(wanted):
        step = _STEPS[data[position]]
        if step <= 0:
            return True
        position += step if step < 0x100 else 2 + data[position + 1]
    return data[position] != 0x40


def of_others(messages: Sequence[bytes], names: Set[bytes]) -> list[int]:
    """The positions of the messages that name another user: their user-id is not empty and not among `names`, or it cannot be
    read. In ascending order. Messages that `check` refuses may or may not be among them."""
    found = []
    for at, data in enumerate(messages):
        user = _user_at_hand(data)
        foreign = _is_of_others(data, names) if user is None else user != b"" and user not in names
        if foreign:
            found.append(at)
    return found


def _is_of_others(data: Encoded, names: Set[bytes]) -> bool:
    try:
        return message.is_of_others(data, names)
    except BadMessage:
        return True


def _user_at_hand(data: bytes) -> bytes | None:
    """Its user-id as most encoders write it, b"" when there is none; None when only `message.user_id` can tell."""
    position = 0
    try:
        while data[position + 1] == 0x53:
            code, kind = data[position + 2], data[position + 3]
            if code > PROPERTIES:
                return b""
            position += 4
            if kind == 0x45:
                continue
            width = 1 if kind < 0xD0 else 4
            start = position + 2 * width
            end = position + width + int.from_bytes(data[position : position + width], "big")
            if code == PROPERTIES:
                if int.from_bytes(data[position + width : start], "big") <= message.USER_ID_FIELD:
                    return b""
                step = _STEPS[data[start]]
                start += step if step < 0x100 else 2 + data[start + 1]
                if step <= 0 or start >= end or data[start] not in (0x40, 0xA0):
                    return None
                if data[start] == 0x40:
                    return b""
                stop = start + 2 + data[start + 1]
                return bytes(data[start + 2 : stop]) if stop <= end else None
            position = end
    except IndexError:
        return b""
    return None
