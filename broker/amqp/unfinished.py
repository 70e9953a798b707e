"""The memory of the unfinished messages of all clients together. Each connection has its own limit, and all have this one.

Life: engines count the bytes of their unfinished messages. When the sum exceeds `limit_bytes`, an engine that receives more
passes on as much as possible of its own. If this is not enough, `over` is called, which closes a connection.
"""

from __future__ import annotations

from collections.abc import Callable


class Unfinished:
    """See the module. One for all engines that share a process's memory."""

    __slots__ = ("limit_bytes", "nbytes", "over")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.nbytes = 0
        self.over: Callable[[], None] = lambda: None

    @property
    def is_too_much(self) -> bool:
        """Whether there is more than there may be."""
        return self.nbytes > self.limit_bytes
