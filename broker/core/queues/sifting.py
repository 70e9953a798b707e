"""Messages that a discipline has picked and that no consumer may get: they are removed from the lots for delivery.

A removed message stays acquired, without a consumer, until the code that removed it releases it or takes it off its queue. The
discipline hears which messages these are (`Discipline.set_aside`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from broker.core.queues.blocks import Lot


def without(lots: Iterable[Lot], unfit: Callable[[int], bool]) -> list[Lot]:
    """The lots without the messages whose sequences are `unfit`; lots without such messages are the same objects."""
    fit: list[Lot] = []
    for lot in lots:
        base, start = lot.block.first_seq, lot.start
        for position in range(lot.start, lot.stop):
            if unfit(base + position):
                if start < position:
                    fit.append(lot._replace(start=start, stop=position))
                start = position + 1
        if start == lot.start:
            fit.append(lot)
        elif start < lot.stop:
            fit.append(lot._replace(start=start))
    return fit


def removed(lots: Iterable[Lot], fit: Iterable[Lot]) -> Iterator[int]:
    """The sequences of the messages that are in these lots and not in those that are `fit`."""
    kept = {sequence for lot in fit for sequence in range(lot.first_seq, lot.first_seq + lot.n_messages)}
    for lot in lots:
        yield from (sequence for sequence in range(lot.first_seq, lot.first_seq + lot.n_messages) if sequence not in kept)
