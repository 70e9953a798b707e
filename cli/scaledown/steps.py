"""Decides what to do about the stores of brokers, from their observed state and the wanted numbers. Pure.

Brokers have numbers, their ordinals. The wanted ones are consecutive, from 0 on or from a configured start. The others
are to be removed, the highest first: their stores are orphans. Only the observed state counts. Nothing is remembered,
except when a failed step may be tried again. So the next controller decides the same, however the last one ended.

Invariants: nothing is done to an orphan while no broker is wanted, because no broker could accept its messages. The
store of a wanted broker is never opened, because its broker may be about to open it. These decisions start at most
`parallel` drains at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Do(Enum):
    """A step for a store, which may be started or is running."""

    DRAIN = "drain"
    """Drain the store, whose broker does not run."""
    STOP = "stop"
    """Stop this drain: the store is wanted."""
    CALL_OFF = "call off"
    """Cancel the drain at the broker that runs on the store again."""


@dataclass(frozen=True, slots=True)
class Store:
    """The observed state of a store. `released`: its log says that everything was moved; `leaves`: its broker answers,
    and leaves; `denies`: its broker is there, and does not let us ask whether it leaves; `work`: the running step;
    `waits`: another process has the store, or the last step failed and it is too early for another one.
    """

    ordinal: int
    released: bool = False
    leaves: bool = False
    denies: bool = False
    work: Do | None = None
    waits: bool = False


def decide(wanted: range | None, stores: Iterable[Store], parallel: int) -> list[tuple[Do, int]]:
    """The steps to begin now, each with the ordinal of its store. `wanted`: these ordinals; None if they are not known."""
    steps: list[tuple[Do, int]] = []
    if wanted is None:
        return steps
    known = sorted(stores, key=lambda store: -store.ordinal)
    drains = sum(store.work in (Do.DRAIN, Do.STOP) for store in known)
    for store in known:
        orphan = bool(wanted) and store.ordinal not in wanted
        if store.work is Do.DRAIN and not orphan:
            steps.append((Do.STOP, store.ordinal))
        elif store.work is not None or store.waits:
            continue
        elif orphan and not store.released and drains < parallel:
            drains += 1
            steps.append((Do.DRAIN, store.ordinal))
        elif store.ordinal in wanted and store.leaves:
            steps.append((Do.CALL_OFF, store.ordinal))
    return steps


def is_done(wanted: range | None, stores: Iterable[Store]) -> bool:
    """Whether everything is done: every orphan is released, also if no broker is wanted, and no wanted broker leaves, or may
    leave.
    """
    if wanted is None:
        return False
    return not any(
        store.work or (store.leaves or store.denies if store.ordinal in wanted else not store.released) for store in stores
    )
