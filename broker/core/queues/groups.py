"""Queues of groups: a group's messages go to one consumer at a time, in order; several groups go to several consumers at once.

Arguments: `qpid.group_header_key` is the name of the property with a message's group (see `keys`; messages without it are one
group). With `qpid.shared_msg_group`, as in qpidd, a consumer has a group while it holds a message of it. Without, it keeps the
group until it leaves, whether it holds a message or not. With `qpid.group_owner_timeout`, see `owned`.

Life of a message here: it is in its lane like any other. When a consumer asks and no message for it is known, the next messages
are examined, and wait by group (`_look_on`). The oldest one that waits in a group which no other consumer has is claimed for the
consumer. A released message waits in its old place. A group is free again when none of its messages is acquired. An acquired
message that no consumer has, for example one that waits for its time, is `set_aside`: it is not counted for its group, and a
consumer that has had no other message of the group does not keep it for one that it was not given. While an acquired message is
about to return (`will_return`), nothing of its group goes out: the returned message is to be the first.

Invariants: a message is examined only in memory, so no message overtakes one that is being read; the first waiting message of
each group is in the heap of the consumer that may have it (`_heads` for all consumers), though an entry may be outdated: then it
is repaired when it is the next one; an entry that is there is not put a second time, so the heaps grow with the changes and not
with the looks, and where most entries are outdated, these go; at most `limits.MAX_GROUPS_WAITING` messages wait, and at most
`limits.MAX_GROUP_LOOKS` are examined in a turn. Only the primary has this state, and it ends with the term.

Source: qpidd's MessageGroupManager.cpp, which has only the shared kind; the other kind is that of ActiveMQ Artemis.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush
from typing import Any

from broker.core import limits
from broker.core.queues.blocks import Lot
from broker.core.queues.fifo import Fifo
from broker.core.queues.keys import key_of
from broker.core.queues.lane import Lane, inside
from broker.core.queues.residency import Residency

KEY, SHARED = "qpid.group_header_key", "qpid.shared_msg_group"
_LOOKS = 64
"""Messages that are looked at in one go."""
_ANY_BYTES = 1 << 62
_MIN_REBUILD = 64
_Heads = list[tuple[int, str]]


class Groups(Fifo):
    """See the module. `_of` has the group of each message that was looked at, `_held` how many of a group are acquired; `_aside`
    has the groups of those that are set aside, which `_of` and `_held` do not have."""

    __slots__ = (
        "_aside",
        "_fresh",
        "_heads",
        "_held",
        "_key",
        "_looked",
        "_looks",
        "_n_waiting",
        "_name_of",
        "_of",
        "_offered",
        "_opened",
        "_own",
        "_owner",
        "_returning",
        "_there",
        "_waiting",
        "searching",
        "shared",
    )

    def __init__(self, lane: Lane, key: str, *, shared: bool) -> None:
        super().__init__(lane)
        self._key = key
        self._name_of: Callable[[bytes, str], str] = key_of
        """The group of a message."""
        self.shared = shared
        self._there: set[object] = set()
        """Consumers that have asked and have not left."""
        self._opened = False
        self._begin()

    def _begin(self) -> None:
        self._looked = self.lane.head_seq
        self.search_on()
        self._of: dict[int, str] = {}
        self._aside: dict[int, str] = {}
        self._waiting: dict[str, list[int]] = {}
        """Group -> a heap of its messages that are not acquired; some may be removed already."""
        self._n_waiting = 0
        """Entries in all these heaps."""
        self._held: dict[str, int] = {}
        self._owner: dict[str, object] = {}
        self._fresh: set[str] = set()
        """The groups that were free before the last `acquire` and are its consumer's since."""
        self._returning: dict[str, set[int]] = {}
        """Group -> its acquired messages that are about to return. It is not offered to anybody."""
        self._heads: _Heads = []
        self._own: dict[object, _Heads] = {}
        self._offered: dict[str, tuple[int, object]] = {}
        """Group -> its entry that was put into a heap last, and whose heap that is (None: for all). It is still there, or it is
        outdated."""

    def upcoming(self) -> Iterable[tuple[Lane, int]]:
        """The one lane, and the first sequence that was not looked at yet."""
        return ((self.lane, self._looked),)

    def acquire(self, consumer: object, max_count: int, max_bytes: int) -> list[Lot]:
        """Take the oldest messages of groups that are free, or this consumer's."""
        lots: list[Lot] = []
        self._there.add(consumer)
        self._fresh.clear()
        self.absent = -1
        while max_count > 0:
            sequence, group = self._next(consumer)
            if sequence < 0:
                if self._look_on():
                    continue
                break
            lot = self.lane.lot_of(sequence)
            if lot is None:
                if not self.lane.unreadable(sequence)[0]:
                    self.absent = sequence
                    break
                self.claim(sequence, 1)
                continue
            max_bytes -= lot.nbytes
            if max_bytes < 0 and lots:
                break
            self._take(consumer, sequence, group)
            max_count -= 1
            _add(lots, lot)
        return lots

    def search_on(self) -> None:
        """A new turn has begun: `acquire` may look at further messages."""
        self._looks, self.searching = 0, False

    def _look_on(self) -> bool:
        """Examine the next messages. Returns whether there were any; if the next one is not in memory, `absent` is its
        sequence."""
        lane = self.lane
        waiting = len(self._of) + len(self._aside) - self.acquired
        if self._looked >= lane.next_seq or waiting >= limits.MAX_GROUPS_WAITING:
            return False
        self.searching = (self._looks + 1) * _LOOKS > limits.MAX_GROUP_LOOKS
        if self.searching:
            return False
        lots: list[Lot] = []
        end, absent = lane.walk(lots, self._looked, _LOOKS, _ANY_BYTES)
        for lot in lots:
            for sequence, data in enumerate(lot.messages(), lot.first_seq):
                if not self.is_acquired(sequence):
                    self._waits(sequence, self._name_of(data, self._key))
        self._looked = end
        if absent and not lots:
            passed, _ = lane.unreadable(end)
            if not passed:
                self.absent = end
                return False
            for sequence in [each for each, _ in lane.alive_from(end) if each < passed]:
                self.claim(sequence, 1)
            self._looked = passed
        self._looks += 1
        return True

    def _waits(self, sequence: int, group: str) -> None:
        """This message of this group is not acquired."""
        self._of[sequence] = group
        heappush(self._waiting.setdefault(group, []), sequence)
        self._n_waiting += 1
        if self._n_waiting > 2 * len(self._of) + _MIN_REBUILD:
            self._forget_gone()
        if self._waiting[group][0] == sequence:
            self._offer(group)

    def _forget_gone(self) -> None:
        """Most entries are of messages that have left from behind the first one of their group: keep only the others."""
        self._waiting = {}
        found = [each for each in sorted(self._of) if not self.is_acquired(each)]
        for sequence in found:
            self._waiting.setdefault(self._of[sequence], []).append(sequence)
        self._n_waiting = len(found)

    def _first(self, group: str) -> int:
        """The oldest message of a group that is not acquired; -1 if there is none."""
        waiting = self._waiting.get(group)
        while waiting:
            if waiting[0] in self._of and not self.is_acquired(waiting[0]):
                return waiting[0]
            heappop(waiting)
            self._n_waiting -= 1
        self._waiting.pop(group, None)
        return -1

    def _offer(self, group: str) -> None:
        """Put the first message of a group into the heap of the consumers that may have it, if it is not there already."""
        sequence, owner = self._first(group), self._owner.get(group)
        if sequence < 0 or group in self._returning or (owner is not None and owner not in self._there):
            self._offered.pop(group, None)
        elif self._offered.get(group) != (sequence, owner):
            self._offered[group] = sequence, owner
            self._put_head(owner, sequence, group)

    def _put_head(self, owner: object, sequence: int, group: str) -> None:
        """Put the first message of a group, which is `_offered`, into the heap of this owner (None: of all). If most entries
        there are outdated, they go: their consumer may not ask for a long time, while messages expire."""
        heads = self._heads if owner is None else self._own.setdefault(owner, [])
        heappush(heads, (sequence, group))
        names = self._offered if owner is None else self._names_of_heap(owner)
        if len(heads) > 2 * len(names) + _MIN_REBUILD:
            offered = ((each, self._offered.get(each)) for each in names)
            heads[:] = [(entry[0], each) for each, entry in offered if entry is not None and entry[1] == owner]
            heapify(heads)

    def _names_of_heap(self, owner: object) -> Collection[str]:
        """Groups among which are all that this owner's heap may have."""
        return self._offered

    def _next(self, consumer: object) -> tuple[int, str]:
        """The oldest message that this consumer may have, and its group; -1 when none is known."""
        free = self._top(self._heads, None)
        own = self._top(self._own[consumer], consumer) if consumer in self._own else (-1, "")
        return min((each for each in (free, own) if each[0] >= 0), default=(-1, ""))

    def _top(self, heads: _Heads, owner: object) -> tuple[int, str]:
        while heads:
            sequence, group = heads[0]
            if self._owner.get(group) is owner and group not in self._returning and self._first(group) == sequence:
                return sequence, group
            heappop(heads)
            self._offer(group)
        return -1, ""

    def _take(self, consumer: object, sequence: int, group: str) -> None:
        if group not in self._owner:
            self._fresh.add(group)
        self._owner[group] = consumer
        self._held[group] = self._held.get(group, 0) + 1
        super().claim(sequence, 1)
        self._offer(group)

    def claim(self, first_seq: int, count: int) -> None:
        """Acquire these messages out of order; all must be available. They do not hold their groups any more."""
        for sequence in range(first_seq, first_seq + count):
            group = self._of.pop(sequence, None)
            super().claim(sequence, 1)
            if group is not None:
                self._offer(group)

    # ---- what comes back, and what is gone

    def release(self, sequences: Iterable[int]) -> None:
        """Make acquired messages available again, in their old places. Those that are not acquired are passed over."""
        for sequence in sequences:
            if self.is_acquired(sequence):
                group, aside = self._of.get(sequence), self._aside.pop(sequence, "")
                super().release((sequence,))
                if group is not None:
                    self._let_go(group)
                self._waits(sequence, aside if group is None else group)
                self._has_returned(sequence, aside if group is None else group)

    def will_return(self, sequences: Iterable[int]) -> None:
        """These acquired messages are about to be released, set aside or removed. Others are skipped."""
        for sequence in sequences:
            if sequence in self._of and self.is_acquired(sequence):
                self._returning.setdefault(self._of[sequence], set()).add(sequence)

    def _has_returned(self, sequence: int, group: str) -> None:
        """This message of a group is not about to return any more: if it was the last one, the group goes on."""
        returning = self._returning.get(group)
        if returning is not None:
            returning.discard(sequence)
            if not returning:
                del self._returning[group]
                self._offer(group)
                self._opened = True

    def set_aside(self, sequences: Iterable[int], *, given: bool = True) -> None:
        """No consumer has these acquired messages: they do not hold their groups until they are released. Others are skipped.
        Without `given`, they are of the last `acquire`: groups that its consumer has got with these alone are free again."""
        for sequence in sequences:
            if sequence in self._of and self.is_acquired(sequence):
                group = self._aside[sequence] = self._of.pop(sequence)
                self._let_go(group, keeps=given or group not in self._fresh)
                self._has_returned(sequence, group)

    def _let_go(self, group: str, *, keeps: bool = True) -> None:
        """One message of a group is not acquired any more. `keeps`: its consumer keeps the group, if this kind of queue does."""
        self._held[group] -= 1
        if self._held[group]:
            return
        del self._held[group]
        keeps = keeps and not self.shared and self._owner[group] in self._there
        if not keeps or len(self._owner) > limits.MAX_GROUP_OWNERS:
            del self._owner[group]
            self._offer(group)
            self._opened = True

    def left(self, consumer: object) -> None:
        """This consumer has ended. Its messages are released or removed later."""
        self._there.discard(consumer)
        self._own.pop(consumer, None)
        for group in [group for group, owner in self._owner.items() if owner is consumer]:
            if group not in self._held:
                del self._owner[group]
                self._opened = True
            self._offer(group)

    def take_opened(self) -> bool:
        """Whether groups have become free since this was last asked."""
        opened, self._opened = self._opened, False
        return opened

    def remove(self, first_seq: int, count: int) -> tuple[int, int]:
        """Drop these messages for good, in whatever state. Returns how many were alive, and their bytes; again gives (0, 0)."""
        held = []
        for sequence in inside(self._aside, first_seq, first_seq + count):
            del self._aside[sequence]
        for sequence in inside(self._of, first_seq, first_seq + count):
            acquired = self.is_acquired(sequence)
            group = self._of.pop(sequence)
            if acquired:
                held.append((sequence, group))
        removed = super().remove(first_seq, count)
        for sequence, group in held:
            self._let_go(group)
            if self._returning:
                self._has_returned(sequence, group)
        return removed

    def release_all(self) -> None:
        """Make every acquired message available again: the term in which they were acquired has ended."""
        super().release_all()
        self._there.clear()
        self._begin()


def _add(lots: list[Lot], lot: Lot) -> None:
    """Put a message behind the others, into the last lot if it follows there."""
    last = lots[-1] if lots else None
    same = last is not None and (last.block is lot.block and last.data is lot.data and last.base == lot.base)
    if last is not None and same and last.stop == lot.start:
        lots[-1] = last._replace(stop=lot.stop)
    else:
        lots.append(lot)


def make(arguments: dict[str, Any], live_by_file: dict[int, int], residency: Residency) -> Groups | None:
    """The discipline of a queue with these arguments, if it is a queue of groups."""
    key = arguments.get(KEY)
    return Groups(Lane(1, live_by_file, residency), key, shared=bool(arguments.get(SHARED))) if key else None
