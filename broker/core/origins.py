"""What of another store's queues has come here: so a drain that begins again puts no message on a queue twice.

Life of an origin: a drain of another store announces each of that store's queues (`broker.core.commands.OriginAdd`), and the log
gives it a number. Each batch that puts messages of it on a queue says in HELD records which ones, by the sequences that they had
there. Whoever sends them again, because it died or never heard that they were accepted, is told `accepted`, and nothing is put.
When the store is empty for good, the drain is released: what is held is forgotten, and what still comes is refused. When the
store knows that, the release is forgotten too. Each of the two steps may be asked for again without harm.

A route (broker.core.routes) has an origin for its queue at the source too, and no end. What has left that queue is forgotten run
by run, in FORGOTTEN records.

A drain is known by the identity that its store has given it when it began to leave (the setting `leaving`), and not by the
store's: who still has messages of an earlier drain in hand finds no origin for them.

Invariants: a sequence is held if and only if the batch that put its message on a queue is applied, be the message consumed since
or not; what is held of a drain only grows until the release, and what is held of a route goes when its message has left the queue
that it came from; the order in which runs come makes no difference."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from struct import Struct
from typing import Any, NamedTuple

LEAVING = "leaving"
"""The key of the setting (`broker.core.commands.Setting`) from which on a log takes no message from clients."""

MOVING, RESUMED = 0, 1
"""Of a drain's origin, as the `source_epoch` of its record: its messages are on their way, and a subscription that they come to
gives nothing out; and: all of them that can come have come, so it does."""

TRAITS_SINCE = 6
"""The machine version from which on both brokers of a drain know traits."""
_TRAITS = Struct(">QQI")
SEQUENCE_BYTES = 8
TAG_BYTES = SEQUENCE_BYTES + _TRAITS.size
"""The bytes of a tag: a sequence, alone or with traits."""


class Traits(NamedTuple):
    """What a store knows of a message beside its bytes: when it expires, from when on it may be given out (ms since 1970, 0: no
    time), and how often delivery of it has failed. In the tag of its delivery it stands behind the sequence, in 20 bytes."""

    expires_ms: int = 0
    available_ms: int = 0
    failures: int = 0

    def to_bytes(self) -> bytes:
        """For the tag."""
        return _TRAITS.pack(self.expires_ms, self.available_ms, self.failures)

    @classmethod
    def of(cls, tag: bytes) -> Traits:
        """From a tag of `TAG_BYTES`."""
        return PLAIN if tag.endswith(_NOTHING) else cls(*_TRAITS.unpack_from(tag, SEQUENCE_BYTES))


PLAIN = Traits()
"""Of most messages."""
_NOTHING = bytes(_TRAITS.size)


@dataclass(frozen=True, slots=True)
class Leave:
    """A broker that leaves: the value of the setting `leaving`.

    `drain` names this drain; `to` has the addresses that clients are sent on to, `host:port`; `released`: the target has been
    told that nothing is left, so this store never serves again. Where there are several targets, `sizes` says how many of the
    addresses each has, in their order, and `queues` to which of them the messages of a queue go, by its uuid: those that are not
    there go to the first, 0."""

    drain: str
    to: tuple[str, ...]
    since: str
    released: bool = False
    target: str = ""
    """The identity of the cluster, or of the store, that takes the messages, or those of all that do, in order, with commas
    between them: no other may, for they alone know what they hold."""
    sizes: tuple[int, ...] = ()
    queues: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Leave:
        """From a setting's value."""
        to = tuple(str(each) for each in value.get("to") or ())
        drain, since, target = (str(value.get(name) or "") for name in ("drain", "since", "target"))
        sizes = tuple(int(each) for each in value.get("sizes") or ())
        return cls(drain, to, since, bool(value.get("released")), target, sizes, value.get("queues") or {})

    def value(self) -> dict[str, Any]:
        """For the setting."""
        found = {"drain": self.drain, "to": list(self.to), "since": self.since, "released": self.released}
        several = {"sizes": list(self.sizes), "queues": dict(self.queues)} if self.sizes else {}
        return found | {"target": self.target} | several

    def addresses_for(self, queue: str) -> tuple[str, ...]:
        """The addresses of the target of this queue, by its uuid; "": of all."""
        if not (queue and self.sizes):
            return self.to
        at = self.queues.get(queue, 0)
        first = sum(self.sizes[:at])
        return self.to[first : first + self.sizes[at]]


class Held:
    """Sequences as runs, of 16 bytes each. What follows the run before it makes that longer."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._ends = array("Q")

    def __contains__(self, sequence: int) -> bool:
        at = bisect_right(self._firsts, sequence) - 1
        return at >= 0 and sequence < self._ends[at]

    @property
    def n_runs(self) -> int:
        """How many runs there are."""
        return len(self._firsts)

    @property
    def count(self) -> int:
        """How many sequences there are."""
        return sum(self._ends) - sum(self._firsts)

    def add(self, first: int, count: int) -> None:
        """These sequences too; those that are here already stay."""
        firsts, ends, end = self._firsts, self._ends, first + count
        lo, hi = bisect_left(ends, first), bisect_right(firsts, end)  # the runs that these touch
        if lo < hi:
            first, end = min(first, firsts[lo]), max(end, ends[hi - 1])
        firsts[lo:hi] = array("Q", (first,))
        ends[lo:hi] = array("Q", (end,))

    def with_runs(self, runs: Iterable[tuple[int, int]]) -> Held:
        """These sequences, and those of runs as (first, count)."""
        found = Held()
        for first, count in chain(self.runs(), runs):
            found.add(first, count)
        return found

    def remove(self, first: int, count: int) -> None:
        """These sequences no more; those that are not here do not matter."""
        firsts, ends, end = self._firsts, self._ends, first + count
        lo, hi = bisect_right(ends, first), bisect_left(firsts, end)  # the runs that these overlap
        if lo >= hi:
            return
        left = [(firsts[lo], first)] if firsts[lo] < first else []
        left += [(end, ends[hi - 1])] if ends[hi - 1] > end else []
        firsts[lo:hi] = array("Q", [each for each, _ in left])
        ends[lo:hi] = array("Q", [each for _, each in left])

    def runs(self, after: int = 0, most: int = 1 << 62) -> list[tuple[int, int]]:
        """The first `most` runs that have a sequence from `after` on, as (first, count), ascending."""
        at = bisect_right(self._ends, after)
        stop = min(len(self._firsts), at + most)
        return [(first, end - first) for first, end in zip(self._firsts[at:stop], self._ends[at:stop], strict=True)]
