"""Packs: several messages of a drain in one delivery, because the protocol engine works for each delivery, not for each byte.

Life of a pack: the sender of a packed link puts consecutive messages of its queue into one delivery (`encoded`), as many as fit
(`fitting`). The receiver takes them out (`messages_in`). From then on each message has its own id and its own outcome again. When
all messages of a pack have one, the pack gets its outcome: `accepted` if all were accepted, or else the state `OUTCOMES`, which
lists them (`outcomes`). A message without an outcome is in no item of the list: the sender keeps it until the link ends.

A pack is: the number of its messages (1 byte), the bytes of a tag (1 byte), the tags, the size of each message (4 bytes, most
significant first), and the messages. The tags are what the deliveries of single messages have (`broker.core.origins`). A delivery
that is a pack has a tag of `TAG_BYTES`, which no single message has. Large messages come singly over the same link.

One credit of a packed link is for one delivery, and so for up to `CAPACITY` messages (`Credit`).

Invariants: a pack has 2 to `CAPACITY` messages in at most `PACK_BYTES`; their order is that of the queue; a list of outcomes
names each message at most once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from math import ceil
from struct import error, iter_unpack, pack, unpack_from
from typing import NamedTuple

from broker.core import values
from broker.core.limits import KIB
from broker.core.links import ACCEPTED, MODIFIED, REJECTED, RELEASED
from broker.core.origins import SEQUENCE_BYTES

CAPACITY = 64
"""Messages in a pack, at most."""
PACK_BYTES = 64 * KIB
"""Bytes of a pack, at most. Less than the smallest message that is taken in parts, however small the parts are."""
TAG_BYTES = 4
OUTCOMES = 0x7170_6964_0000_0001
"""The state of a pack whose messages have different outcomes: a descriptor outside the domain of the standard (part 1.5)."""
MAX_OUTCOMES_BYTES = 380
"""Of such a state, because its frame cannot be split, and a peer may demand frames of 512 bytes."""
_HEAD_BYTES, _SIZE_BYTES, _ITEM_BYTES = 2, 4, 4
_TEXT_HEAD_BYTES, _LEAST_TEXT_BYTES = 5, 50
_NO_TEXT = 255
_KNOWN = frozenset({ACCEPTED, REJECTED, RELEASED, MODIFIED})


class BadPack(ValueError):
    """A delivery is not a pack. The text says why."""


class Outcome(NamedTuple):
    """`n_messages` of a pack, from position `at` on, have the same outcome; `text`: why they were not accepted."""

    at: int
    n_messages: int
    outcome: int
    text: str = ""


def fitting(offsets: Sequence[int], start: int, stop: int, tag_bytes: int, largest: int) -> int:
    """Where a pack of at most `largest` bytes ends that begins with message `start`: at `stop`, which is more than `start`, or
    before it. One message alone is no pack, so it may be larger. Message i is between `offsets[i]` and `offsets[i + 1]`."""
    stop = min(stop, start + CAPACITY)
    room = min(largest, PACK_BYTES) - _HEAD_BYTES
    if offsets[stop] - offsets[start] + (stop - start) * (tag_bytes + _SIZE_BYTES) <= room:
        return stop
    ends = [each + at * (tag_bytes + _SIZE_BYTES) for at, each in enumerate(offsets[start + 1 : stop + 1], 1)]
    return start + max(1, bisect_right(ends, room + offsets[start]))


def encoded(data: bytes, offsets: Sequence[int], start: int, stop: int, base: int, tags: Sequence[bytes]) -> bytes:
    """The pack of the messages `start` to `stop - 1`, which are in `data` at `base` + `offsets`. `tags`: one for each, all of the
    same length."""
    count = stop - start
    sizes = [after - before for before, after in pairwise(offsets[start : stop + 1])]
    body = memoryview(data)[base + offsets[start] : base + offsets[stop]]
    return b"".join((bytes((count, len(tags[0]))), *tags, pack(f">{count}I", *sizes), body))


def messages_in(data: bytes) -> tuple[list[bytes], list[bytes]]:
    """The tags and the messages of a pack. BadPack."""
    if not 2 + _HEAD_BYTES <= len(data) <= PACK_BYTES:
        raise BadPack(f"a pack of messages has up to {PACK_BYTES} bytes, not {len(data)}")
    count, width = data[0], data[1]
    begin = _HEAD_BYTES + count * (width + _SIZE_BYTES)
    if not 2 <= count <= CAPACITY or width < SEQUENCE_BYTES or begin > len(data):
        raise BadPack(f"a pack has 2 to {CAPACITY} messages with a tag each: this one says {count} with tags of {width} bytes")
    at = _HEAD_BYTES + count * width
    ends = list(accumulate(unpack_from(f">{count}I", data, at), initial=begin))
    if ends[-1] != len(data):
        raise BadPack(f"the messages of a pack end at byte {ends[-1]}, and the pack at byte {len(data)}")
    tags = [data[each : each + width] for each in range(_HEAD_BYTES, at, width)]
    return tags, [data[first:end] for first, end in pairwise(ends)]


def outcomes(found: Iterable[Outcome]) -> bytes:
    """The fields of the state `OUTCOMES`, encoded. Texts are cut, and some are left out, as far as the state must be small."""
    found = list(found)
    room = MAX_OUTCOMES_BYTES - len(found) * _ITEM_BYTES - 16
    texts = list(dict.fromkeys(each.text for each in found if each.text))[: room // _LEAST_TEXT_BYTES]
    most = room // max(1, len(texts)) - _TEXT_HEAD_BYTES
    numbers = {text: at for at, text in enumerate(texts)}
    items = [(each.at, each.n_messages, each.outcome, numbers.get(each.text, _NO_TEXT)) for each in found]
    short = [text.encode()[:most].decode(errors="ignore") for text in texts]
    return values.encode([bytes(number for item in items for number in item), *short])


def read_outcomes(fields: bytes, count: int) -> list[Outcome]:
    """The outcomes that this state lists, of a pack of `count` messages. BadPack."""
    try:
        items, *texts = values.decode(fields)
        found = [
            Outcome(at, number, outcome, "" if text == _NO_TEXT else str(texts[text]))
            for at, number, outcome, text in iter_unpack("4B", memoryview(items))
        ]
    except (values.BadValue, error, ValueError, TypeError, IndexError):
        raise BadPack("the outcomes of a pack of messages cannot be read") from None
    after = 0
    for each in found:
        if each.at < after or not each.n_messages or each.outcome not in _KNOWN:
            raise BadPack("the outcomes of a pack of messages are in disorder")
        after = each.at + each.n_messages
    if after > count:
        raise BadPack(f"the outcomes of a pack of {count} messages name message {after}")
    return found


class Credit:
    """The credit of a packed link. Its receiver counts in messages (`allowed`: how many more may come), the protocol in
    deliveries. How many messages a delivery has is estimated from those that have come. If a sender begins to fill its packs,
    more may come than is allowed, up to `CAPACITY` for each credit that it has; then no credit is given until fewer may.
    """

    __slots__ = ("_each", "allowed")

    def __init__(self) -> None:
        self.allowed = 0
        self._each: float = CAPACITY

    def used(self, count: int) -> None:
        """A delivery with `count` messages has come."""
        self.allowed -= count
        self._each += (count - self._each) / 8

    def grant(self, count: int, given: int) -> int:
        """`count` more messages may come, and the sender still has credit for `given` deliveries: returns how many credits to
        add."""
        self.allowed += count
        return max(0, ceil(self.allowed / self._each) - given)
