"""Which bodies stay in memory: pure accounting, one for the whole broker and both its logs.

A body in memory is a copy of the bytes on disk. Blocks report the bodies that they keep and drop. `enforce` is called after new
messages were offered to consumers. It drops bodies of the blocks that have not got any for the longest time, until the sum is
within the limit.

Invariant: `held_bytes` is the sum of the bodies in memory that are also on disk, with `RUN_BYTES` for the objects around each.
"""

from __future__ import annotations

from typing import Protocol

RUN_BYTES = 250
"""What Python needs beside the bytes of a body: a tuple, a place in a dictionary, the head of the bytes object."""


class Holder(Protocol):
    """Who holds bodies: a block."""

    def drop(self, most: int) -> int:
        """Forget bodies of at least `most` bytes, or all. Returns their bytes."""


class Residency:
    """The bound `limit_bytes`, and who holds how much of it."""

    __slots__ = ("_held", "held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._held: dict[Holder, int] = {}

    def kept(self, holder: Holder, nbytes: int) -> None:
        """It holds so many bytes more: nobody got some later."""
        held = self._held
        held[holder] = held.pop(holder, 0) + nbytes
        self.held_bytes += nbytes

    def let_go(self, holder: Holder, nbytes: int) -> None:
        """It holds so many bytes less."""
        self._held[holder] -= nbytes
        self.held_bytes -= nbytes

    def forget(self, holder: Holder) -> None:
        """It is gone, with all that it held."""
        self.held_bytes -= self._held.pop(holder, 0)

    def enforce(self) -> None:
        """Drop bodies, first those of blocks that got none for longest, until the bound is kept."""
        held = self._held
        while self.held_bytes > self.limit_bytes and held:
            holder = next(iter(held))
            freed = holder.drop(self.held_bytes - self.limit_bytes)
            self.held_bytes -= freed
            held[holder] -= freed
            if not freed or not held[holder]:
                del held[holder]
