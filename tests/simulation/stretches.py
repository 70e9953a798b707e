"""Dequeues and counts for messages that have already left, between those of messages that have not: runs with gaps.

A record about a message that has left its queue does nothing (`broker.core.state`). Real brokers write such a record
rarely, if ever. But a log may contain it, and a run of consecutive messages in one record may have such messages in its
middle. So in some simulations primaries repeat records.

Life of a repetition: a broker collects the messages of one batch that are to be dequeued or counted. If all messages
between two of them have left, `repeated` adds them, so that one record covers all of them.

Invariant: an added message was removed from its queue by a batch that this broker has applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from broker.sessions.ledger import Ledger

MOST = 64
"""So many messages between two others are looked at; where there are more, nothing is added."""


def between(sequences: Iterable[int], is_gone: Callable[[int], bool]) -> list[int]:
    """What lies between two of these and is gone, wherever all between those two is."""
    found: list[int] = []
    for before, after in pairwise(sorted(set(sequences))):
        gap = range(before + 1, after)
        if 0 < len(gap) <= MOST and all(map(is_gone, gap)):
            found += gap
    return found


@contextmanager
def repeated(is_gone: Callable[[Ledger, int, int], bool]) -> Iterator[None]:
    """While this lasts, ledgers repeat themselves. `is_gone(ledger, queue number, sequence)`."""
    dequeue, count = vars(Ledger)["dequeue"], vars(Ledger)["count"]

    def gaps(ledger: Ledger, number: int, sequences: Iterable[int]) -> list[int]:
        return between(sequences, lambda sequence: is_gone(ledger, number, sequence))

    def dequeues(ledger: Ledger, number: int, sequences: Iterable[int], *waits: Any) -> None:
        dequeue(ledger, number, sequences, *waits)
        gathered = ledger.pending.builder.dequeues_for(number)
        if len(gathered) > 1:
            gathered += gaps(ledger, number, gathered)

    def counts(ledger: Ledger, number: int, sequence: int) -> None:
        count(ledger, number, sequence)
        for each in gaps(ledger, number, ledger.pending.builder._counts.get(number, ())):
            ledger.pending.builder.count(number, each)

    Ledger.dequeue, Ledger.count = dequeues, counts  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        Ledger.dequeue, Ledger.count = dequeue, count  # type: ignore[method-assign]
