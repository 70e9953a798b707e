"""The log as the core sees it: the epoch and size of each entry, and the membership in force.

Life of a log: it begins after a base entry (index 0, or the end of a snapshot). It grows by `append`, loses a divergent
tail by `truncate` (§5.3), loses its front by `compact` when a checkpoint covers it, and is replaced by `restore` when a
snapshot is installed (§7).

Invariants: indexes are consecutive. Epochs never fall from one entry to the next, so they are kept as ranges. Sizes are
kept as running totals, so the bytes and records between any two positions cost two look-ups. An entry costs 16 bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

from ha.core.membership import Membership
from ha.core.messages import Entry


class Log:
    """The entries after `base_index`, whose own epoch is `base_epoch`; `members` are in force at the base."""

    __slots__ = (
        "_bytes_to",
        "_epochs",
        "_memberships",
        "_records_to",
        "_starts",
        "base_index",
        "last_epoch",
        "last_index",
        "members",
    )

    def __init__(
        self, members: Membership, snapshot_index: int = 0, snapshot_epoch: int = 0, members_index: int | None = None
    ) -> None:
        self.restore(snapshot_index, snapshot_epoch, members, members_index)

    def restore(self, index: int, epoch: int, members: Membership, members_index: int | None = None) -> None:
        """Forget every entry, and continue after this one, which a snapshot covers or a witness attests.
        `members_index`: the index of the membership, if it is known.
        """
        self.base_index = self.last_index = index
        self.last_epoch = epoch
        self._starts = [index]
        self._epochs = [epoch]
        self._bytes_to = array("Q", (0,))
        self._records_to = array("Q", (0,))
        self._memberships = [(index if members_index is None else members_index, members)]
        self.members = members
        """The membership in force: the last one in the log, committed or not (dissertation §4.1)."""

    @property
    def first_index(self) -> int:
        """The index of the oldest retained entry, or of the next entry if there is none."""
        return self.base_index + 1

    @property
    def members_index(self) -> int:
        """The index of the entry that brought `members` into force, or the base."""
        return self._memberships[-1][0]

    def members_at(self, index: int) -> Membership:
        """The membership in force once the entry at `index` is the last one; for a snapshot that ends there."""
        return self.membership_at(index)[1]

    def membership_at(self, index: int) -> tuple[int, Membership]:
        """The same, and the index of the entry that brought it into force, or the base."""
        return next((item for item in reversed(self._memberships) if item[0] <= index), self._memberships[0])

    def append(self, entry: Entry) -> None:
        """Add the next entry."""
        assert entry.index == self.last_index + 1, f"entry {entry.index} cannot follow entry {self.last_index}"
        assert entry.epoch >= self.last_epoch, f"entry {entry.index} of epoch {entry.epoch} cannot follow epoch {self.last_epoch}"
        if entry.epoch != self.last_epoch:
            self._starts.append(entry.index)
            self._epochs.append(entry.epoch)
            self.last_epoch = entry.epoch
        self.last_index = entry.index
        self._bytes_to.append(self._bytes_to[-1] + entry.nbytes)
        self._records_to.append(self._records_to[-1] + entry.n_records)
        if entry.members is not None:
            self._memberships.append((entry.index, entry.members))
            self.members = entry.members

    def truncate(self, from_index: int) -> None:
        """Remove the entry at `from_index` and all after it. A membership among them is no longer in force."""
        assert self.base_index < from_index <= self.last_index, (
            f"entry {from_index} is not in {self.first_index}..{self.last_index}"
        )
        del self._bytes_to[from_index - self.base_index :]
        del self._records_to[from_index - self.base_index :]
        while self._starts[-1] >= from_index:
            self._starts.pop()
            self._epochs.pop()
        while self._memberships[-1][0] >= from_index:
            self._memberships.pop()
        self.members = self._memberships[-1][1]
        self.last_index = from_index - 1
        self.last_epoch = self._epochs[-1]

    def compact(self, first_index: int) -> None:
        """Forget the entries before `first_index`, if they are still there."""
        base = min(first_index - 1, self.last_index)
        dropped = base - self.base_index
        if dropped <= 0:
            return
        kept = bisect_right(self._starts, base) - 1
        del self._starts[:kept]
        del self._epochs[:kept]
        self._starts[0] = base
        del self._bytes_to[:dropped]
        del self._records_to[:dropped]
        in_force = self.members_at(base)
        self._memberships = [(base, in_force), *(item for item in self._memberships if item[0] > base)]
        self.base_index = base

    def epoch_at(self, index: int) -> int | None:
        """The epoch of the entry at `index`, including the base; None if it is compacted or does not exist yet."""
        if index > self.last_index or index < self.base_index:
            return None
        if index >= self._starts[-1]:
            return self.last_epoch
        return self._epochs[bisect_right(self._starts, index) - 1]

    def agreement(self, hint_index: int, hint_epoch: int) -> int:
        """The last index, at most `hint_index`, whose epoch is at most `hint_epoch`: another log may agree with this
        one there (§5.3).

        It steps over whole epochs. The result may be before the base; then this log cannot tell.
        """
        position = bisect_right(self._epochs, hint_epoch)
        if position == 0:
            return min(hint_index, self.base_index - 1)
        end = self.last_index if position == len(self._epochs) else self._starts[position] - 1
        return min(hint_index, end)

    def bytes_between(self, after: int, through: int) -> int:
        """The batch bytes of the entries `after + 1` .. `through`, as far as they are retained."""
        return self._between(self._bytes_to, after, through)

    def records_between(self, after: int, through: int) -> int:
        """The records in those entries."""
        return self._between(self._records_to, after, through)

    def totals_at(self, index: int) -> tuple[int, int]:
        """The records and bytes of all entries up to `index`, from a fixed position before the base on: only for
        differences.
        """
        position = min(max(index, self.base_index), self.last_index) - self.base_index
        return self._records_to[position], self._bytes_to[position]

    def _between(self, totals: array[int], after: int, through: int) -> int:
        start = max(after, self.base_index)
        return totals[through - self.base_index] - totals[start - self.base_index] if through > start else 0

    def last_within(self, after: int, nbytes: int) -> int:
        """The last entry for which the entries after `after` up to it have at most `nbytes`; at least `after + 1`."""
        limit = self._bytes_to[after - self.base_index] + nbytes
        fits = self.base_index + bisect_right(self._bytes_to, limit, after - self.base_index) - 1
        return min(max(fits, after + 1), self.last_index)
