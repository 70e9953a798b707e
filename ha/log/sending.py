"""Sends Appends to the other members, with batches from memory or from disk.

Life of an Append here: if its batches are in memory, it leaves at once. Otherwise the first of them are read from disk in
another thread, and it leaves with them if the term is still the same. If batches can no longer be read, a new checkpoint
covers them, and the member gets that. If too many files are open, it does not leave: the member's answer to a later heartbeat
says that it lacks these batches, and the core sends them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from broker.disk.durable import NO_DESCRIPTORS
from broker.disk.journal import Journal
from ha.batch_cache import BatchCache
from ha.core.messages import Append
from ha.outbox import Outbox

_log = Logger(namespace="ha")


class BatchSender:
    """See the module. `unreadable(peer)` has a new checkpoint written, and closes the link to that member."""

    def __init__(
        self,
        outbox: Outbox,
        cache: BatchCache,
        journal: Journal,
        in_thread: Callable[[Callable[[], object]], Deferred[Any]],
        epoch: Callable[[], int],
        unreadable: Callable[[str], None],
    ) -> None:
        self._outbox = outbox
        self._cache = cache
        self._journal = journal
        self._in_thread = in_thread
        self._epoch = epoch
        self._unreadable = unreadable

    def send(self, peer: str, append: Append) -> None:
        """Send it with its batches."""
        if append.last < append.first:
            self._outbox.send(peer, append, ())
            return
        batches = self._cache.span(append.first, append.last)
        if batches is not None:
            self._outbox.send(peer, append, batches)
            return
        term = self._epoch()
        # Batches in memory are sent from there: on disk they may be truncated and rewritten at this moment.
        on_disk = min(self._cache.first - 1, append.last)
        in_memory = self._cache.span(on_disk + 1, append.last) or []

        def read() -> list[bytes]:
            found: list[bytes] = []
            while len(found) < on_disk - append.first + 1:
                more = self._journal.read(append.first + len(found), on_disk, 1 << 40)
                if not more:
                    raise LookupError(f"batch {append.first + len(found)} is neither in memory nor on disk")
                found += more
            return found + in_memory

        self._outbox.send_later(peer, append, self._in_thread(read), lambda: self._epoch() == term, self._failed)

    def _failed(self, peer: str, error: Exception) -> None:
        """A backup needs batches that cannot be read: they are damaged, were released meanwhile, or too many files are open."""
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
            _log.error("no batches are sent to {peer} now, which asks again: {error}", peer=peer, error=str(error))
            return
        _log.error("batches for {peer} cannot be read: {error}; it gets a snapshot instead", peer=peer, error=str(error))
        self._unreadable(peer)
