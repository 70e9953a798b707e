"""What the unfinished messages of all clients take of memory together: each connection has its own bound, and all have this one.

Life: engines count what they keep of messages that are not whole; when the sum passes `limit_bytes`, an engine that brings more
hands on what it can of its own, and if that is not enough, `over` is told, whose business is to end somebody's connection.
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
