"""Total-queue accounting: compares sent and received messages one by one, when the queues are empty at the end.

The terms are those of Jepsen's total-queue checker. There are multisets of attempts (enqueues that were begun),
enqueues (those that were acknowledged) and dequeues. A message that was dequeued but never attempted is **unexpected**.
A message that was attempted, but dequeued more often than attempted, is **duplicated**. A message that was acknowledged
and never dequeued is **lost**. A message that was dequeued although the outcome of its enqueue is unknown is
**recovered**. Only the first three are faults.

A dequeue here is a consumer's accept that the broker has confirmed, or an accept that was sent and never confirmed,
because the broker may have got it. Several of those for one message are one dequeue, because a consumer without a
confirmation may get the message again. Some messages are not lost although nobody consumed them: those on a queue that
need not be empty; those that were deleted with their queue, or with the disk of the one broker that kept them; and
those that expired, were rejected or failed too often and have their dead letter. The committed logs show which these
are, message by message. A queue that may drop messages by its own policy need not deliver all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from tests.simulation.checks.book import Book
from tests.simulation.history import History, Key, Outcome


@dataclass
class Totals:
    """What the accounting comes to."""

    attempts: int = 0
    acknowledged: int = 0
    dequeued: int = 0
    lost: list[Key] = field(default_factory=list)
    duplicated: list[Key] = field(default_factory=list)
    recovered: list[Key] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        """What is wrong, in sentences."""
        return [
            *(f"lost: {key} was accepted, and no consumer ever took it" for key in self.lost),
            *(f"duplicated: {key} was taken off its queue more often than it was sent" for key in self.duplicated),
            *(f"unexpected: {text}" for text in self.unexpected),
        ]


def account(history: History, book: Book | None = None, left: Collection[Key] = ()) -> Totals:
    """Count everything that clients have seen, but what is `left` on its queue. The others must have been emptied by then."""
    book = Book() if book is None else book
    totals = Totals(unexpected=list(history.unexpected))
    attempts: Counter[Key] = Counter()
    enqueues: Counter[Key] = Counter()
    dequeues: Counter[Key] = Counter()
    elsewhere = set(left)
    for key, note in history.notes.items():
        attempts[key] += note.attempts * (note.outcome is not Outcome.REFUSED)
        enqueues[key] += note.outcome is Outcome.ACCEPTED or key in book.letters
        if (note.rejected or note.over_limit or note.expired) and key in book.dequeued:
            elsewhere.add(key)
        dequeues[key] += max(note.settled, min(note.taken, 1))
    unexpected = [key for key in dequeues - attempts if not attempts[key]]
    totals.unexpected += [f"{key} was refused, and taken off its queue nevertheless" for key in unexpected]
    totals.duplicated = [key for key in dequeues - attempts if attempts[key]]
    totals.lost = [
        key for key in enqueues - dequeues if key not in elsewhere and key not in book.gone and key.queue not in history.lossy
    ]
    totals.recovered = list((dequeues & attempts) - enqueues)
    totals.attempts, totals.acknowledged, totals.dequeued = attempts.total(), enqueues.total(), dequeues.total()
    return totals
