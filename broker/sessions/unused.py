"""Queues that are deleted when nobody has used them for a time: `qpid.auto_delete_timeout`, in seconds.

Life of such a queue: its time starts when it is created, when its last link ends, or when a term begins in which it has no link.
A link that attaches to it stops the time. When the time is over, the primary proposes the deletion, like a client's request. So
the queue is kept for its full time on each new primary, because the new primary does not know since when the queue was unused.

Every link that is attached to the queue uses it: producers, consumers and browsers. Messages through an exchange or over an
anonymous link do not count as use.

Invariants: only the broker that serves decides; a backup needs no time and no clock; the number of links at that moment decides,
not only the schedule.

Source: qpidd's QueueSettings.cpp (an argument above 0 makes the queue an auto-delete queue) and Queue.cpp (the time begins anew
when the queue is read back from the store; a link of either direction is a user).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from twisted.logger import Logger

from broker.core.definitions import Change, QueueMade
from broker.core.nodes import QueueNode
from broker.sessions.logs import Logs
from broker.sessions.schedule import Schedule

_log = Logger()


class Unused:
    """See the module. `users` returns the number of a queue's links; `remove` lets a queue go that has none."""

    def __init__(
        self, logs: Logs, schedule: Schedule, users: Callable[[QueueNode], int], remove: Callable[[QueueNode], None]
    ) -> None:
        self._logs = logs
        self._schedule = schedule
        self._users = users
        self._remove = remove

    def begin(self) -> None:
        """This broker begins to serve: the full time of each unused queue starts again."""
        for node in self._logs.nodes.queues.values():
            self.left(node)

    def follow(self, changes: Iterable[tuple[Change, str]]) -> None:
        """Queues may have been made."""
        for change, _ in changes:
            if isinstance(change, QueueMade):
                node = self._logs.nodes.queue_by_uuid(change.queue.uuid)
                if node is not None:
                    self.left(node)

    def left(self, node: QueueNode) -> None:
        """A link of this queue has ended, or it never had one: start its time, if it has one and no link is left."""
        if node.auto_delete_s and self._logs.serving and not self._users(node):
            self._schedule.after(_key(node), node.auto_delete_s, partial(self._due, node.uuid))

    def used(self, node: QueueNode) -> None:
        """A link has attached, or the queue is gone: its time does not run."""
        if node.auto_delete_s:
            self._schedule.cancel(_key(node))

    def _due(self, uuid: str) -> None:
        node = self._logs.nodes.queue_by_uuid(uuid)
        if node is None or self._users(node) or not self._logs.serving or self._logs.closed:
            return
        if not self._logs.ledgers[node.log].serving:  # the log of this queue does not serve yet
            self.left(node)
            return
        _log.info("queue {name!r} is deleted: it was unused for {s} s", name=node.name, s=node.auto_delete_s)
        self._remove(node)


def _key(node: QueueNode) -> tuple[str, str]:
    return "unused", node.uuid
