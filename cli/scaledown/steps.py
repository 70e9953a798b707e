"""What is to be done about the stores of brokers, from what is seen of them and which are wanted. Pure.

Brokers have numbers, their ordinals. Those that are wanted follow one another, from 0 on or from where somebody says. The
others are to go, highest first: their stores are orphans. What is seen is all that counts: nothing is remembered but when a
step that has failed may be tried again. So whoever looks next, after whatever end of the last one, decides the same.

Invariants: nothing is done to an orphan when no broker is wanted, for nobody could take its messages; the store of a broker
that is wanted is never opened, for its broker may be about to; no more than `parallel` drains are under way by what is decided
here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Do(Enum):
    """What may be done about a store, or is under way."""

    DRAIN = "drain"
    """Drain the store, whose broker does not run."""
    STOP = "stop"
    """End that drain: the store is wanted."""
    CALL_OFF = "call off"
    """Call the drain off at the broker that runs on the store again."""


@dataclass(frozen=True, slots=True)
class Store:
    """What is seen of a store. `released`: its log says that all of it was moved; `leaves`: its broker answers, and leaves;
    `work`: what is under way; `waits`: something has it, or the last step has failed: it is not time for another."""

    ordinal: int
    released: bool = False
    leaves: bool = False
    work: Do | None = None
    waits: bool = False


def decide(wanted: range | None, stores: Iterable[Store], parallel: int) -> list[tuple[Do, int]]:
    """The steps to begin now, each with the ordinal of its store. `wanted`: these ordinals; None: it is not known which."""
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
    """Whether nothing is left to be done: every orphan is released, and no broker that is wanted leaves."""
    if wanted is None:
        return False
    return not any(
        store.work or (store.leaves if store.ordinal in wanted else bool(wanted) and not store.released) for store in stores
    )
