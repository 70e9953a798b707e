"""The account of a link: credit, delivery ids, unsettled deliveries, and their outcomes. Integers only.

Life of a delivery to a consumer: `Outgoing.sent` numbers it and notes its message of the queue. Its outcome arrives with
`Outgoing.came`, together with those of its neighbours. `Outgoing.take` returns the queue's sequences for them, and they are not
unsettled any more. Life of a message from a producer: `Incoming.came` numbers it and takes its credit. When it has its outcome,
`Incoming.give_back` returns the credit, at once or when there is room again.

Everything is stored as runs: deliveries with consecutive ids, whose messages are consecutive too, cost the same as one. A queue
delivers lots of consecutive sequences, and clients settle ranges of ids, so there are as many runs as lots, not as messages.

Invariants: the ids of a link ascend from 0 without gaps, settled ones included; an id is unsettled from `sent` until `take` or
`take_rest`, and its sequence is returned once; `n_unsettled` is the sum of the runs; runs ascend by id, and adjacent runs that
could be one are merged.

Source: AMQP 1.0 parts 2.6.7 (credit), 2.6.12 (settling), 3.4 (outcomes). A delivery id of the protocol belongs to a session.
These ids belong to one link, and only `broker.amqp` knows their deliveries of the engine.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TypeAlias

from broker.core import limits

ACCEPTED, REJECTED, RELEASED, MODIFIED = 0x24, 0x25, 0x26, 0x27
"""Outcomes, by the low byte of their descriptors (part 3.4)."""
FAILED = 0x100
"""Added to MODIFIED: the delivery counts as one that has failed (delivery-failed)."""
UNDELIVERABLE = 0x200
"""Added to MODIFIED: the message is not to come again (undeliverable-here)."""
TRANSACTION_SHIFT = 16
"""From this bit on an outcome has the number of the transaction that it belongs to (part 4.4.2); 0: to none."""


NUMBERED = "qpid.numbered"
"""The capability of a target whose deliveries have numbers as tags, which the broker remembers (broker.sessions.numbered)."""
HELD = "qpid.held"
"""The property of such a link with the remembered numbers."""

Run: TypeAlias = tuple[int, int, int, bool]
"""Deliveries with the same outcome: the first id, how many, the outcome, and whether the peer has settled them, so that it waits
for no answer."""


def add_ids(runs: list[tuple[int, int]], first: int, count: int) -> None:
    """Put the ids `first` .. `first + count - 1` behind these runs of (first id, count), joined with the last where they follow
    it."""
    if runs:
        last_first, last_count = runs[-1]
        if last_first + last_count == first:
            runs[-1] = (last_first, last_count + count)
            return
    runs.append((first, count))


class Outgoing:
    """The account of a link that messages go out on.

    `credit`: messages that the peer takes now; the engine's owner sets it with each flow of the peer, and `sent` lowers it.
    `draining`: the peer asked to use its credit up or to give it back. `outcomes`: runs that have come since the last look.
    """

    __slots__ = ("_counts", "_ids", "_sequences", "credit", "draining", "n_unsettled", "next_id", "outcomes")

    def __init__(self) -> None:
        self.credit = 0
        self.draining = False
        self.next_id = 0
        self.n_unsettled = 0
        self.outcomes: list[Run] = []
        self._ids: list[int] = []
        self._sequences: list[int] = []
        self._counts: list[int] = []

    def room(self) -> int:
        """How many messages may be sent in this turn: limited by the credit, the unsettled deliveries, and the turns of
        others."""
        room, free = self.credit, limits.MAX_UNSETTLED_PER_LINK - self.n_unsettled
        room = min(room, free)
        if room > limits.MAX_TURN_MESSAGES:
            return limits.MAX_TURN_MESSAGES
        return room if room > 0 else 0

    @property
    def is_full(self) -> bool:
        """Whether as many deliveries are unsettled as may be: nothing goes out, for whatever credit."""
        return self.n_unsettled >= limits.MAX_UNSETTLED_PER_LINK

    def sent(self, sequence: int, count: int, settled: bool) -> int:
        """Messages `sequence` .. `sequence + count - 1` of the queue went out. Returns the id of the first."""
        first = self.next_id
        self.next_id = first + count
        self.credit -= count
        if not settled:
            self.n_unsettled += count
            counts = self._counts
            if counts and self._ids[-1] + counts[-1] == first and self._sequences[-1] + counts[-1] == sequence:
                counts[-1] += count
            else:
                self._ids.append(first)
                self._sequences.append(sequence)
                counts.append(count)
        return first

    def came(self, first: int, count: int, outcome: int, settled: bool) -> None:
        """The outcome of the deliveries `first` .. `first + count - 1` has come."""
        outcomes = self.outcomes
        if outcomes:
            last_first, last_count, last_outcome, last_settled = outcomes[-1]
            if last_outcome == outcome and last_settled == settled and last_first + last_count == first:
                outcomes[-1] = (last_first, last_count + count, outcome, settled)
                return
        outcomes.append((first, count, outcome, settled))

    def take_outcomes(self) -> list[Run]:
        """The outcomes that have come, in the order in which they came."""
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def take(self, first: int, count: int) -> list[range]:
        """Take the deliveries `first` to `first + count - 1` out of the unsettled ones. Returns their sequences; settled ones are
        skipped."""
        ids, sequences, counts = self._ids, self._sequences, self._counts
        if ids and ids[0] == first and counts[0] >= count:  # the usual case: clients settle in order
            sequence = sequences[0]
            if counts[0] == count:
                del ids[0], sequences[0], counts[0]
            else:
                ids[0], sequences[0], counts[0] = first + count, sequence + count, counts[0] - count
            self.n_unsettled -= count
            return [range(sequence, sequence + count)]
        end = first + count
        place = bisect_right(ids, first) - 1 if ids and ids[0] < first else 0
        taken: list[range] = []
        while place < len(ids) and (base := ids[place]) < end:
            n, sequence = counts[place], sequences[place]
            start = first - base if first > base else 0
            stop = end - base if end - base < n else n
            if start >= stop:
                place += 1
                continue
            taken.append(range(sequence + start, sequence + stop))
            self.n_unsettled -= stop - start
            if start == 0 and stop == n:
                del ids[place], sequences[place], counts[place]
                continue
            if start == 0:
                ids[place], sequences[place], counts[place] = base + stop, sequence + stop, n - stop
            else:
                counts[place] = start
                if stop < n:
                    ids.insert(place + 1, base + stop)
                    sequences.insert(place + 1, sequence + stop)
                    counts.insert(place + 1, n - stop)
            place += 1
        return taken

    def take_rest(self) -> list[range]:
        """The sequences of all that is unsettled, in the order of their ids. Nothing is, after this."""
        rest = self.unsettled()
        self._ids.clear()
        self._sequences.clear()
        self._counts.clear()
        self.n_unsettled = 0
        return rest

    def unsettled(self) -> list[range]:
        """The sequences of all that is unsettled."""
        return [range(sequence, sequence + count) for sequence, count in zip(self._sequences, self._counts, strict=True)]


class Incoming:
    """The account of a link that messages come in on.

    `credit`: messages that the peer may still send; below 0 when it has sent more. `held`: credit that is due to it and is kept
    back until there is room. With a window of w, `credit + held` and the messages that wait for their outcome are w together.
    """

    __slots__ = ("credit", "held", "next_id")

    def __init__(self) -> None:
        self.credit = 0
        self.held = 0
        self.next_id = 0

    def came(self, count: int) -> int:
        """So many messages have come. Returns the id of the first."""
        first = self.next_id
        self.next_id = first + count
        self.credit -= count
        return first

    def passed_over(self, count: int) -> None:
        """The peer has used credit for so many messages up without sending any: it is due again."""
        self.credit -= count
        self.held += count

    def give_back(self, count: int, may_flow: bool) -> int:
        """Credit for `count` messages is due. Returns how much to grant now: all that is due, or nothing when it `may` not."""
        self.held += count
        if not may_flow:
            return 0
        granted, self.held = self.held, 0
        self.credit += granted
        return granted
