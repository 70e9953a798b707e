"""Which messages of another store's queues this log has, so that a drain that begins again enqueues no message twice.

Life of an origin: a drain of another store announces each of that store's queues (`broker.core.commands.OriginAdd`), and the log
gives it a number. Each batch that enqueues messages of this origin contains HELD records with the sequences that the messages had
at the source. If a drainer sends a message again, because it restarted or did not get the outcome, it gets `accepted`, and
nothing is enqueued. When the source is empty and stays empty, the drain is released: the log forgets the sequences, and refuses
further messages. When the source has recorded this, the log forgets the release too. Both steps can be repeated without harm.

A route (broker.core.routes) also has an origin for its queue at the source, but is never released. FORGOTTEN records remove the
runs of sequences that have left that queue.

A queue of the source is named by its uuid. The messages of some queues are not in the log of the source's cluster but in the log
of one broker, and the same queue has other messages in the log of another broker. The name of such a queue also has the store
(`named`).

A drain has its own identity, which the source has created when it began to leave (the setting `leaving`). It is not the identity
of the store. So a drainer that still has messages of an earlier drain finds no origin for them.

Invariants: a sequence is held if and only if the batch that enqueued its message is applied, even if the message was consumed
since; the sequences of a drain only grow until the release; a sequence of a route is removed when its message has left the source
queue; the order in which runs arrive makes no difference."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from struct import Struct, iter_unpack
from typing import Any, NamedTuple

LEAVING = "leaving"
"""The key of the setting (`broker.core.commands.Setting`) after which a log accepts no messages from clients."""

MOVING, RESUMED = 0, 1
"""Values of `source_epoch` in the record of a drain's origin. MOVING: its messages are being moved, and their subscription here
is paused. RESUMED: all messages have arrived, and the subscription delivers."""

TRAITS_SINCE = 6
"""The first machine version in which both brokers of a drain support traits."""
_TRAITS = Struct(">QQI")
SEQUENCE_BYTES = 8
LAST_SEQUENCE = (1 << 63) - 1
"""The highest sequence that a message can have."""
TAG_BYTES = SEQUENCE_BYTES + _TRAITS.size
"""The bytes of a tag: a sequence, alone or with traits."""


def named(store: str, queue: str) -> str:
    """The name of a queue of a source, given by its uuid. `store`: the identity of the only store that has its messages, or "" if
    the log of the source's cluster has them, or the log of a single broker."""
    return f"{store}.{queue}" if store else queue


def store_and_queue(name: str) -> tuple[str, str]:
    """The two parts of such a name."""
    store, _, queue = name.rpartition(".")
    return store, queue


class Traits(NamedTuple):
    """Facts of a message that are not in its bytes: when it expires, when it may first be delivered (ms since 1970; 0: no time),
    and how many of its deliveries have failed. In the tag of its delivery they follow the sequence, in 20 bytes."""

    expires_ms: int = 0
    available_ms: int = 0
    failures: int = 0

    def to_bytes(self) -> bytes:
        """As bytes of the tag."""
        return _TRAITS.pack(self.expires_ms, self.available_ms, self.failures)


PLAIN = Traits()
"""The traits of most messages."""
_NOTHING = bytes(_TRAITS.size)


def read_tags(tags: Sequence[bytes]) -> tuple[Sequence[int], Sequence[bytes]]:
    """The sequences in these tags, and the traits after them (b"" if there are none). Nothing if the tags have no sequences or
    are of different lengths."""
    size = len(tags[0]) if tags else 0
    if size < SEQUENCE_BYTES or set(map(len, tags)) != {size}:
        return (), ()
    sequences, traits = zip(*iter_unpack(f">Q{size - SEQUENCE_BYTES}s", b"".join(tags)), strict=True)
    return sequences, traits


def traits_of(encoded: Sequence[bytes]) -> list[Traits]:
    """The traits of these messages."""
    if set(encoded) == {_NOTHING}:
        return [PLAIN] * len(encoded)
    return [PLAIN if each == _NOTHING else Traits(*_TRAITS.unpack(each)) for each in encoded]


@dataclass(frozen=True, slots=True)
class Leave:
    """A broker that leaves: the value of the setting `leaving`.

    `drain` is the identity of this drain. `to` are the addresses to which clients are redirected, `host:port`. `released`: the
    target knows that no message is left, so this store never serves again. With several targets, `sizes` is the number of
    addresses of each target, in order, and `queues` maps the uuid of a queue to the number of its target. Other queues go to
    target 0."""

    drain: str
    to: tuple[str, ...]
    since: str
    released: bool = False
    target: str = ""
    """The identity of the target (a cluster or a store), or the identities of all targets, in order, separated by commas. No
    other broker may be the target, because only these know which messages they have."""
    sizes: tuple[int, ...] = ()
    queues: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Leave:
        """Read a setting's value."""
        to = tuple(str(each) for each in value.get("to") or ())
        drain, since, target = (str(value.get(name) or "") for name in ("drain", "since", "target"))
        sizes = tuple(int(each) for each in value.get("sizes") or ())
        return cls(drain, to, since, bool(value.get("released")), target, sizes, value.get("queues") or {})

    def value(self) -> dict[str, Any]:
        """As the value of the setting."""
        found = {"drain": self.drain, "to": list(self.to), "since": self.since, "released": self.released}
        several = {"sizes": list(self.sizes), "queues": dict(self.queues)} if self.sizes else {}
        return found | {"target": self.target} | several

    def addresses_for(self, queue: str) -> tuple[str, ...]:
        """The addresses of the target of this queue, given by its uuid; "" for the addresses of all targets."""
        if not (queue and self.sizes):
            return self.to
        at = self.queues.get(queue, 0)
        first = sum(self.sizes[:at])
        return self.to[first : first + self.sizes[at]]


class Held:
    """A set of sequences, stored as runs of 16 bytes each. Adjacent runs are merged."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._ends = array("Q")

    def __contains__(self, sequence: int) -> bool:
        at = bisect_right(self._firsts, sequence) - 1
        return at >= 0 and sequence < self._ends[at]

    def covered(self, first: int, count: int) -> tuple[int, int]:
        """The first stretch of these `count` sequences that is present: how many it has, and how many missing ones are before it.
        (0, `count`) if none is present."""
        at, stop = bisect_right(self._ends, first), first + count
        if at == len(self._firsts) or self._firsts[at] >= stop:
            return 0, count
        begin = max(self._firsts[at], first)
        return min(self._ends[at], stop) - begin, begin - first

    @property
    def n_runs(self) -> int:
        """The number of runs."""
        return len(self._firsts)

    @property
    def count(self) -> int:
        """The number of sequences."""
        return sum(self._ends) - sum(self._firsts)

    def add(self, first: int, count: int) -> None:
        """Add these sequences; some may be present already. Those that no message can have are left out: a log of an earlier
        release may name them."""
        firsts, ends, end = self._firsts, self._ends, min(first + count, LAST_SEQUENCE + 1)
        if first >= end:
            return
        lo, hi = bisect_left(ends, first), bisect_right(firsts, end)  # the runs that the new one touches
        if lo < hi:
            first, end = min(first, firsts[lo]), max(end, ends[hi - 1])
        firsts[lo:hi] = array("Q", (first,))
        ends[lo:hi] = array("Q", (end,))

    def with_runs(self, runs: Iterable[tuple[int, int]]) -> Held:
        """A copy with these runs added, each as (first, count)."""
        found = Held()
        for first, count in chain(self.runs(), runs):
            found.add(first, count)
        return found

    def remove(self, first: int, count: int) -> None:
        """Remove these sequences; some may be missing."""
        firsts, ends, end = self._firsts, self._ends, first + count
        lo, hi = bisect_right(ends, first), bisect_left(firsts, end)  # the runs that overlap with it
        if lo >= hi:
            return
        left = [(firsts[lo], first)] if firsts[lo] < first else []
        left += [(end, ends[hi - 1])] if ends[hi - 1] > end else []
        firsts[lo:hi] = array("Q", [each for each, _ in left])
        ends[lo:hi] = array("Q", [each for _, each in left])

    def runs(self, after: int = 0, most: int = 1 << 62) -> list[tuple[int, int]]:
        """The first `most` runs that contain a sequence of `after` or more, as (first, count), ascending."""
        at = bisect_right(self._ends, after)
        stop = min(len(self._firsts), at + most)
        return [(first, end - first) for first, end in zip(self._firsts[at:stop], self._ends[at:stop], strict=True)]
