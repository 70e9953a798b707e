"""Whose a message group is, by the log alone: what OWNERS records say, and what may not follow from them.

Life: `own` enters each record. `owner_at` gives the owner of a group at any batch, for the checks of what a broker
gives out: it may not have applied the newest batches. `ever` gives all owners that a group has had.

Invariants: a group is given only when it has no owner, and is freed only when it has one; the owners of a queue end with
it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from hashlib import blake2b

_DIGEST_BYTES = 16
Owner = tuple[str, ...]


def digest_of_group(group: int) -> str:
    """A group of a producer's messages as records have it."""
    return blake2b(str(group).encode(), digest_size=_DIGEST_BYTES).digest().decode("latin-1")


def hash_of(number: int, group: str, owner: Owner) -> int:
    """What a digest of a state has of an owner."""
    return hash(("owner", number, group, *owner))


class Owners:
    """See the module. What is wrong is added to `faults`."""

    def __init__(self, faults: list[str]) -> None:
        self._faults = faults
        self._found: dict[int, dict[str, list[tuple[int, Owner]]]] = {}
        """Number of a queue -> group -> since which batch it has had which owner; () for none."""

    def own(self, index: int, number: int, payload: bytes, count: int) -> int:
        """Enter a record of this batch. Returns what it adds to a digest."""
        end, added = count * _DIGEST_BYTES, 0
        owner: Owner = tuple(json.loads(payload[end:])) if payload[end:] else ()
        for at in range(0, end, _DIGEST_BYTES):
            group = payload[at : at + _DIGEST_BYTES].decode("latin-1")
            before = self.owner_at(number, group, index)
            if owner and before:
                self._faults.append(f"owner: batch {index} gives {owner} a group of queue {number} that {before} has")
            elif not (owner or before):
                self._faults.append(f"owner: batch {index} frees a group of queue {number} that nobody has")
            self._found.setdefault(number, {}).setdefault(group, []).append((index, owner))
            added += hash_of(number, group, owner) if owner else 0
            added -= hash_of(number, group, before) if before else 0
        return added

    def owner_at(self, number: int, group: str, index: int) -> Owner:
        """Whose a group is after this batch; () for nobody's."""
        found = self._found.get(number, {}).get(group, [])
        at = bisect_right(found, index, key=lambda each: each[0])
        return found[at - 1][1] if at else ()

    def ever(self, number: int, group: str) -> list[Owner]:
        """Whose it has been."""
        return [owner for _, owner in self._found.get(number, {}).get(group, []) if owner]

    def forget(self, number: int) -> int:
        """The queue is deleted. Returns what a digest loses by that."""
        found = self._found.pop(number, {})
        return sum(hash_of(number, group, each[-1][1]) for group, each in found.items() if each[-1][1])
