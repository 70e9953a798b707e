"""Which bodies stay in memory: pure accounting, one for the whole broker and both its logs.

A body in memory is a copy of the bytes on disk. Blocks report the bodies that they keep and drop. `enforce` is called after new
messages were offered to consumers. It drops bodies of the blocks that have not got any for the longest time, until the sum is
within the limit.

Invariant: `held_bytes` is the sum of the bodies in memory that are also on disk, with `RUN_BYTES` for the objects around each.
"""

from __future__ import annotations

from typing import Protocol

RUN_BYTES = 250
"""Memory of Python for a body besides its bytes: a tuple, an entry in a dictionary, the head of the bytes object."""


class Holder(Protocol):
    """A holder of bodies: a block."""

    def drop(self, most: int) -> int:
        """Forget bodies of at least `most` bytes, or all. Returns their bytes."""


class Residency:
    """The limit `limit_bytes`, and the bytes of each holder."""

    __slots__ = ("_held", "held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._held: dict[Holder, int] = {}

    def kept(self, holder: Holder, nbytes: int) -> None:
        """The holder has `nbytes` more bytes. It is now the latest one that got some."""
        held = self._held
        held[holder] = held.pop(holder, 0) + nbytes
        self.held_bytes += nbytes

    def let_go(self, holder: Holder, nbytes: int) -> None:
        """The holder has `nbytes` fewer bytes."""
        self._held[holder] -= nbytes
        self.held_bytes -= nbytes

    def forget(self, holder: Holder) -> None:
        """The holder is gone, with all its bodies."""
        self.held_bytes -= self._held.pop(holder, 0)

    def enforce(self) -> None:
        """Drop bodies until the sum is within the limit, first those of blocks that have not got any for the longest time."""
        held = self._held
        while self.held_bytes > self.limit_bytes and held:
            holder = next(iter(held))
            freed = holder.drop(self.held_bytes - self.limit_bytes)
            self.held_bytes -= freed
            held[holder] -= freed
            if not freed or not held[holder]:
                del held[holder]
