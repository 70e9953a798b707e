"""The size limit of a batch, by the time that the log needs for a commit.

A batch that takes long delays all messages after it, even small ones. So a batch is limited by time as well as by size: the
duration of the last ones, from proposal to commit, decides how many bytes the next one may have.

A reactor that is busy with other work comes late to the answers of the backups, whatever the size of the batch is. Smaller
batches would only make it busier. So this time does not count.

Life of a pace: it begins at the highest limit. A batch of a significant size halves the limit if it took longer than `SLOW_S`,
and doubles it if it took less than `QUICK_S`. Batches that are small for another reason do not change it.

Invariant: `LEAST_BYTES` <= `batch_bytes` <= `limits.BATCH_TARGET_BYTES`.
"""

from __future__ import annotations

from broker.core import limits

SLOW_S = 0.1
QUICK_S = SLOW_S / 2
"""Twice the bytes take at most twice the time, so a doubled limit is not slow."""
TURNS = 2
"""While a batch is committed, a busy reactor finishes a turn, and another one before it comes to the answers."""
LEAST_BYTES = 64 * limits.KIB
"""A smaller batch costs the time of a sync, whatever its content is."""


class Pace:
    """See the module."""

    __slots__ = ("batch_bytes",)

    def __init__(self) -> None:
        self.batch_bytes = limits.BATCH_TARGET_BYTES
        """With this many bytes of payload a batch is sealed, and later messages go into the next one."""

    def took(self, nbytes: int, seconds: float, lag_s: float = 0.0) -> None:
        """A batch of so many bytes was committed so long after it was proposed. `lag_s`: by how much the reactor was late when it
        was proposed."""
        seconds -= TURNS * lag_s
        if seconds > SLOW_S and 2 * nbytes >= self.batch_bytes:
            self.batch_bytes = max(self.batch_bytes // 2, LEAST_BYTES)
        elif seconds < QUICK_S and nbytes >= self.batch_bytes:
            self.batch_bytes = min(2 * self.batch_bytes, limits.BATCH_TARGET_BYTES)
