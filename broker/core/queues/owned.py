"""Queues of groups whose owners are in the log, so that an owner keeps its groups over a failover (docs/adr/0063).

Arguments: `qpid.group_owner_timeout`, with `qpid.group_header_key` (see `groups`). A consumer is an `Owner`: the names of its
user, container and link. A group is the digest of its name, as a text of `GROUP_BYTES` characters.

Life of a group: it is free. A consumer has room and no message of its own groups, so the group is asked for (`_ask`), unless its
first message cannot be delivered now (`asked_for`, `withhold`): then its next one counts. The primary takes what was asked for
(`take_changes`) and proposes it as a record. When the record is committed (`own`), the group has its
owner on every broker, and its messages go to this owner alone. While the owner is away, they wait. The primary proposes a record
by which the group has no owner: when the owner has left in order or was away for too long (`let_go`), or when there are too many
groups (`_evict`). From the proposal to the commit the group is `_freeing`. Then it is free again.

A free group is given to nobody while messages of it are acquired: their consumer was the owner before, and its outcomes are not
committed. While a drain takes the messages, groups are everybody's (`open_to_all`).

Invariants: a message goes to a consumer only if the applied records say that this consumer owns the group, and no record is
proposed by which it does not; a group is asked for only if it is free after all records that are proposed; a consumer asks for no
more groups while those that it has asked for had as many messages as it has room for; there are at most
`limits.MAX_GROUP_OWNERS` groups with owners, asked ones included; a group with an owner and without a message here is in `_idle`,
the longest idle first. What is asked for and `_freeing` exists only on the primary, and ends with the term of the log that has
the messages; `owner_of` is the same on every broker.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from hashlib import blake2b
from heapq import heappop
from itertools import chain, islice
from typing import Any, NamedTuple

from broker.core import limits
from broker.core.queues import groups
from broker.core.queues.blocks import Lot
from broker.core.queues.fifo import Fifo
from broker.core.queues.keys import key_of
from broker.core.queues.lane import Lane, inside
from broker.core.queues.residency import Residency
from broker.core.records import GROUP_BYTES, GROUPS_AT_ONCE

TIMEOUT = "qpid.group_owner_timeout"
_EVICTED = 1024
"""Groups that become free at once when there are too many: so few that a turn stays short."""


class Owner(NamedTuple):
    """The names by which a consumer is recognised when it attaches again."""

    user: str
    container: str
    link: str

    def to_bytes(self) -> bytes:
        """As in an OWNERS record."""
        return json.dumps(self, separators=(",", ":")).encode()


def read_owners(payload: bytes, count: int) -> tuple[list[str], Owner | None]:
    """The groups in an OWNERS record, and their owner; None: they have no owner any more. ValueError when it is none."""
    end = count * GROUP_BYTES
    found = [payload[at : at + GROUP_BYTES].decode("latin-1") for at in range(0, end, GROUP_BYTES)]
    if len(payload) == end:
        return found, None
    names = json.loads(payload[end:])
    if not (isinstance(names, list) and len(names) == 3 and all(isinstance(each, str) for each in names)):
        raise ValueError(f"{payload[end:]!r:.200} is not an owner of groups")
    return found, Owner(*names)


class Owned(groups.Groups):
    """See the module."""

    __slots__ = (
        *("_asked", "_asking", "_for_all", "_freeing", "_groups", "_idle", "_news", "_room", "_sizes", "_taker", "_unwanted"),
        *("_wanted", "owner_of"),
    )

    def __init__(self, lane: Lane, key: str) -> None:
        self.owner_of: dict[str, Owner] = {}
        """Group -> owner, by the applied records."""
        self._groups: dict[Owner, tuple[Owner, dict[str, None]]] = {}
        """Owner -> the owner, as the one object that `owner_of` has, and its groups."""
        super().__init__(lane, key, shared=False)
        self._name_of = _digest_of

    def _begin(self) -> None:
        super()._begin()
        self._asked: dict[str, Owner] = {}
        """Groups that a record gives to these owners, when it is committed."""
        self._asking: Counter[Owner] = Counter()
        """How many messages waited in those of each, when they were asked for."""
        self._sizes: dict[str, int] = {}
        """How many in each of them."""
        self._freeing: set[str] = set()
        """Groups that a record frees, when it is committed."""
        self._news: list[int] = []
        """The first messages of the groups that the last `acquire` has asked for."""
        self._wanted: dict[Owner, dict[str, None]] = {}
        self._unwanted: list[str] = []
        """Groups that are `_asked` or `_freeing`, and for which no record is proposed yet."""
        self._idle = dict.fromkeys(self.owner_of)
        self._for_all = False
        self._room = 0
        """How many more messages the consumer that acquires now may get."""
        self._taker: Any = None

    # ---- whose a group is

    @property
    def owners(self) -> list[Owner]:
        """Those that have groups."""
        return list(self._groups)

    @property
    def takers(self) -> list[Owner]:
        """Those that are about to get groups."""
        return list(self._asking)

    @property
    def n_owners(self) -> int:
        """How many these are."""
        return len(self._groups)

    def has(self, owner: Owner) -> bool:
        """Whether this owner has groups, or is about to get some."""
        return owner in self._groups or self.asks(owner)

    def asks(self, consumer: Any) -> bool:
        """Whether this consumer is about to get groups."""
        return consumer in self._asking

    @property
    def n_freeing(self) -> int:
        """How many groups are about to become free."""
        return len(self._freeing)

    @property
    def frees(self) -> bool:
        """Whether groups are about to become free while messages wait: some of these may be for anybody afterwards."""
        return bool(self._freeing) and self.available > 0

    def own(self, names: Iterable[str], owner: Owner | None) -> None:
        """Apply a record: these groups have this owner from now on, or none."""
        for group in names:
            before = self.owner_of.pop(group, None)
            if before is not None:
                theirs = self._groups[before][1]
                del theirs[group]
                if not theirs:
                    del self._groups[before]
                    self._own.pop(before, None)
            if owner is None:
                self._freeing.discard(group)
            else:
                known, theirs = self._groups.setdefault(owner, (owner, {}))
                self.owner_of[group], theirs[group] = known, None
                self._ask_no_more(group)
            self._offer(group)
        self._opened = True

    def columns(self) -> list[tuple[list[bytes], bytes]]:
        """The records that give all groups to their owners: groups and owner of each."""
        found: list[tuple[list[bytes], bytes]] = []
        for owner, theirs in self._groups.values():
            names, encoded = _encoded(theirs), owner.to_bytes()
            found += [(names[at : at + GROUPS_AT_ONCE], encoded) for at in range(0, len(names), GROUPS_AT_ONCE)]
        return found

    def let_go(self, owner: Owner, most: int = limits.MAX_GROUP_OWNERS) -> bool:
        """Free groups of this owner, and those that it is about to get, by a record (see `take_changes`): at most so many.
        Returns whether there are others."""
        _, theirs = self._groups.get(owner, (owner, {}))
        coming = [each for each, whose in self._asked.items() if whose == owner] if self.asks(owner) else ()
        some = list(islice((group for group in chain(theirs, coming) if group not in self._freeing), most + 1))
        self._free(some[:most])
        return len(some) > most

    def _free(self, names: list[str]) -> None:
        self._freeing.update(names)
        self._unwanted += names
        for group in names:
            self._offer(group)

    def take_changes(self) -> list[tuple[Owner | None, list[bytes]]]:
        """The records to be proposed, in this order: an owner, or None, and the groups that are its."""
        if not (self._wanted or self._unwanted):
            return []
        changes: list[tuple[Owner | None, Iterable[str]]] = [*self._wanted.items()]
        if self._unwanted:
            changes.append((None, self._unwanted))
        self._wanted, self._unwanted = {}, []
        return [(owner, _encoded(names)) for owner, names in changes]

    def open_to_all(self, *, opened: bool) -> None:
        """Whether messages of all groups go to any consumer, and no owner is asked for: to a drain."""
        self._for_all = opened
        for group in list(self._waiting):
            self._offer(group)

    # ---- Groups

    def _place(self, group: str) -> tuple[int, Owner | None] | None:
        """The first message of a group, and whose it is (None: anybody's); None, if nobody may have it now. The owner may be
        away: its heap waits for it, so that it costs nothing when an owner comes or goes."""
        sequence = self._first(group)
        if sequence < 0 or group in self._returning:
            return None
        if self._for_all:
            return sequence, None
        if group in self._asked or group in self._freeing:
            return None
        owner = self.owner_of.get(group)
        if owner is None:
            return None if group in self._held else (sequence, None)
        return sequence, owner

    def _offer(self, group: str) -> None:
        place = self._place(group)
        if place is None:
            self._offered.pop(group, None)
        elif self._offered.get(group) != place:
            self._offered[group] = place
            self._put_head(place[1], place[0], group)
        if group not in self.owner_of or group in self._waiting or group in self._held or group in self._freeing:
            self._idle.pop(group, None)
        elif group not in self._idle:
            self._idle[group] = None
            self._opened = self._opened or len(self.owner_of) >= limits.MAX_GROUP_OWNERS  # it may make room for another group

    def _names_of_heap(self, owner: Any) -> Collection[str]:
        """Its own: it may be away, and others have any number."""
        return self._groups[owner][1]

    def _top(self, heads: list[tuple[int, str]], owner: object) -> tuple[int, str]:
        while heads:
            sequence, group = heads[0]
            if self._place(group) == (sequence, owner):
                return sequence, group
            heappop(heads)
            self._offer(group)
        return -1, ""

    def acquire(self, consumer: Any, max_count: int, max_bytes: int) -> list[Lot]:
        """Take the oldest messages of this consumer's groups. If there are none, ask for free groups."""
        self._room, self._taker = max_count, consumer
        self._news.clear()
        return super().acquire(consumer, max_count, max_bytes)

    def _next(self, consumer: Any) -> tuple[int, str]:
        if self._for_all:
            return self._top(self._heads, None)
        if consumer in self._own:
            found = self._top(self._own[consumer], consumer)
            if found[0] >= 0:
                return found
        self._ask(consumer)
        return -1, ""

    def _ask(self, consumer: Owner) -> None:
        """Ask for free groups for this consumer, the one with the oldest message first, until their messages fill its room:
        others may work on the rest. Too many are counted for a group of which messages have gone; then it asks again."""
        while self._asking[consumer] < self._room:
            sequence, group = self._top(self._heads, None)
            if sequence < 0:
                break
            if len(self.owner_of) + len(self._asked) >= limits.MAX_GROUP_OWNERS:
                self._evict()
                break
            self._asked[group] = consumer
            self._sizes[group] = size = len(self._waiting[group])
            self._asking[consumer] += size
            self._wanted.setdefault(consumer, {})[group] = None
            self._news.append(sequence)

    def _ask_no_more(self, group: str) -> None:
        """A record gives this group to its owner, or nobody asks for it any more."""
        asked = self._asked.pop(group, None)
        if asked is not None:
            self._asking[asked] -= self._sizes.pop(group)
            if not self._asking[asked]:
                del self._asking[asked]

    @property
    def asked_for(self) -> tuple[int, ...]:
        """The first message of each group that the last `acquire` has asked for."""
        return tuple(self._news)

    def withhold(self, sequences: Iterable[int]) -> None:
        """Of what is `asked_for`, these messages cannot be delivered now: they are set aside, and nobody asks for their groups on
        their account."""
        for sequence in sequences:
            group = self._aside[sequence] = self._of.pop(sequence)
            wanted = self._wanted[self._asked[group]]
            del wanted[group]
            if not wanted:
                del self._wanted[self._asked[group]]
            self._ask_no_more(group)
            Fifo.claim(self, sequence, 1)
            self._offer(group)

    def _evict(self) -> None:
        """Free the groups that have been idle for the longest time, to make room for others."""
        if not self._freeing:
            self._free(list(islice(self._idle, _EVICTED)))

    def _look_on(self) -> bool:
        return not self.asks(self._taker) and super()._look_on()

    def _take(self, consumer: object, sequence: int, group: str) -> None:
        self._room -= 1
        self._held[group] = self._held.get(group, 0) + 1
        Fifo.claim(self, sequence, 1)
        self._offer(group)

    def _let_go(self, group: str, *, keeps: bool = True) -> None:
        self._held[group] -= 1
        if not self._held[group]:
            del self._held[group]
            self._offer(group)
            if group not in self.owner_of:
                self._opened = True

    def left(self, consumer: Any) -> None:
        """This consumer has ended. Its messages are released or removed later, and its groups wait for it."""
        self._there.discard(consumer)

    def interrupt(self) -> None:
        """As `release_all`, on a broker that stops serving while the log of this queue goes on: what is proposed is still to be
        committed."""
        proposed = self._asked, self._asking, self._sizes, self._freeing, self._wanted, self._unwanted
        self.release_all()
        self._asked, self._asking, self._sizes, self._freeing, self._wanted, self._unwanted = proposed
        for group in self._freeing:
            self._idle.pop(group, None)

    def remove(self, first_seq: int, count: int) -> tuple[int, int]:
        """Drop these messages for good, in whatever state. Returns how many were alive, and their bytes; again gives (0, 0)."""
        touched = {self._of[sequence] for sequence in inside(self._of, first_seq, first_seq + count)}
        removed = super().remove(first_seq, count)
        for group in touched:
            self._offer(group)
        return removed


def _digest_of(data: bytes, key: str) -> str:
    return blake2b(key_of(data, key).encode(), digest_size=GROUP_BYTES).digest().decode("latin-1")


def _encoded(names: Iterable[str]) -> list[bytes]:
    return [each.encode("latin-1") for each in names]


def make(arguments: dict[str, Any], live_by_file: dict[int, int], residency: Residency) -> Owned | None:
    """The discipline of a queue with these arguments, if the owners of its groups are in the log."""
    return Owned(Lane(1, live_by_file, residency), arguments[groups.KEY]) if arguments.get(TIMEOUT) else None
