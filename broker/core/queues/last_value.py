"""The message that leaves a last value queue when another one arrives: the earlier one with the same key.

Only the primary maintains a last value queue, like a ring (see `ring`): the leaving message is dequeued in the batch of the
arriving one. So after every batch of a term, no key is on the queue twice.

Life of a view: a term begins. The keys of the existing messages are in their bodies, which are mostly not in memory.
`next_unread` is the sequence from which they must be read. The reader calls `found` for each message, and nothing is delivered
before all are read (`ready`). New messages are put as usual meanwhile. If `found` gets a message that a newer one has replaced,
it leaves then.

Proposed messages count like existing ones before they are applied. A message that a consumer has acquired leaves like any other.

Invariants: a digest of a key has the sequence of its newest message; digests of messages that have left are removed when they are
more than the others, so the size of the index is limited by the messages on the queue, and these by `limits.MAX_LAST_VALUES`.

Source: qpidd's Lvq.cpp and MessageMap.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from broker.core import limits
from broker.core.queues.keys import key_of
from broker.core.queues.ring import Held

_MIN_PRUNE = 64
_DIGEST_BYTES = 16
"""So wide that two keys never meet by chance."""


class LastValue:
    """See the module. A bound of 0 is none. Fulfils Displacing."""

    __slots__ = (
        *("_applied_bytes", "_coming_bytes", "_end", "_first", "_held", "_key", "_lane", "_leaving", "_newest", "_replaced"),
        *("_seen", "_sizes", "_unread", "max_bytes", "max_count"),
    )

    def __init__(self, held: Held, key: str, max_count: int, max_bytes: int) -> None:
        self._held = held
        self._key = key
        self._lane = held.order.lanes[0]
        self._newest: dict[bytes, int] = {}
        self._first = self._end = self._lane.next_seq
        """Of what was there before this term, and of what is proposed and not applied."""
        self._sizes: list[int] = []
        self._leaving: dict[int, int] = {}
        """Sequence -> bytes of messages that must leave and have not left yet."""
        self._seen = (-1, 0, 0)
        self._applied_bytes = self._coming_bytes = 0
        """Of the messages on the queue; and of those that are proposed, less those that must leave."""
        self._unread = self._lane.head_seq
        self._replaced: list[int] = []
        """What was there before, and is to leave before anything is given out."""
        self.max_count = max_count
        self.max_bytes = max_bytes

    # ---- what was there before

    @property
    def ready(self) -> bool:
        """Whether the keys of all messages are known, and all replaced messages have left."""
        if not self.has_read:
            return False
        if self._replaced:
            self._replaced = [sequence for sequence in self._replaced if self._lane.is_live(sequence)]
        return not self._replaced

    @property
    def has_read(self) -> bool:
        """Whether the keys of all that was there before the term are known."""
        return self._unread >= self._end

    @property
    def next_unread(self) -> int:
        """The message from which on keys are not known."""
        return self._unread

    def read_to(self, sequence: int) -> None:
        """All before this message is known, or cannot be."""
        self._unread = sequence

    def found(self, sequence: int, data: bytes) -> Sequence[int]:
        """A message that was read: one from before the term, or a later one. Returns the messages that leave because of it."""
        digest = self._digest(data)
        newest = self._newest.get(digest, -1)
        if newest == sequence:
            return ()
        if newest < sequence:
            self._newest[digest] = sequence
        gone = min(newest, sequence)
        if gone < 0 or not self._lane.is_live(gone):
            return ()
        self._leave(gone)
        self._replaced.append(gone)
        return (gone,)

    # ---- what comes

    def begin(self) -> None:
        """Messages will be put: update the view from the applied state, if that has changed (see `ring`)."""
        lane = self._lane
        seen = (lane.next_seq, lane.depth, lane.live_bytes)
        if seen != self._seen:
            self._seen = seen
            del self._sizes[: lane.next_seq - self._first]
            self._first = lane.next_seq
            self._leaving = {sequence: size for sequence, size in self._leaving.items() if self._is_there(sequence)}
            self._coming_bytes = sum(self._sizes) - sum(self._leaving.values())
            large = self._held.large.items()
            self._applied_bytes = lane.live_bytes + sum(each.nbytes - lane.size_of(sequence) for sequence, each in large)
        if len(self._newest) > 2 * (lane.depth + len(self._sizes)) + _MIN_PRUNE:
            self._newest = {digest: sequence for digest, sequence in self._newest.items() if self._is_there(sequence)}

    def put(self, sequence: int, data: bytes, nbytes: int) -> Sequence[int]:
        """A message of so many bytes gets this sequence: the one that leaves for it, if there is one."""
        digest = self._digest(data)
        before = self._newest.get(digest, -1)
        self._newest[digest] = sequence
        self._sizes.append(nbytes)
        self._coming_bytes += nbytes
        if before < 0 or not self._is_there(before):
            return ()
        self._leave(before)
        return (before,)

    def fault(self, count: int, nbytes: int, largest: int = 0) -> str:
        """See Displacing. As in qpidd, a message that would replace another one needs room as well."""
        self.begin()
        count += self._lane.depth + len(self._sizes) - len(self._leaving)
        nbytes += self._applied_bytes + self._coming_bytes
        most = min(self.max_count or limits.MAX_LAST_VALUES, limits.MAX_LAST_VALUES)
        if count > most:
            return f"it would hold {count} messages, where {most} are allowed"
        if self.max_bytes and nbytes > self.max_bytes:
            return f"it would hold {nbytes} bytes, where {self.max_bytes} are allowed"
        return ""

    def leaves(self, sequence: int) -> bool:
        """See Displacing."""
        return sequence in self._leaving

    def _leave(self, sequence: int) -> None:
        nbytes = self._size_of(sequence)
        self._leaving[sequence] = nbytes
        self._coming_bytes -= nbytes

    def _is_there(self, sequence: int) -> bool:
        """Whether this message is on the queue, or on its way."""
        return sequence >= self._first or self._lane.is_live(sequence)

    def _size_of(self, sequence: int) -> int:
        if sequence >= self._first:
            return self._sizes[sequence - self._first]
        manifest = self._held.large.get(sequence)
        return self._lane.size_of(sequence) if manifest is None else manifest.nbytes

    def _digest(self, data: bytes) -> bytes:
        return blake2b(key_of(data, self._key).encode(), digest_size=_DIGEST_BYTES).digest()
