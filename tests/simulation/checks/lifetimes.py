"""Checks that queues with `qpid.auto_delete_timeout` are deleted only when they may be, and because the primary says
so.

Life of a check: when a link attaches to such a queue or leaves it, when a broker first has the queue, and when its term
begins, the time is noted, on that broker's own clock. When the broker proposes the queue's deletion, its whole timeout
must have passed since the last of these times, and no link may be attached. Then the deletion has been requested, and
the queue's messages may be deleted. The end of a run checks that such queues are deleted at all.

Invariant: the broker's schedule is not used here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.core.commands import Command, QueueDel
from broker.core.nodes import AUTO_DELETE_TIMEOUT, QueueNode
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.queue_terminus import QueueTerminus

if TYPE_CHECKING:
    from tests.simulation.history import History


class Lifetimes:
    """See the module. What is wrong is added to `faults`, in sentences. A broker's process is known by its logs."""

    def __init__(self, history: History, faults: list[str]) -> None:
        self._history = history
        self._faults = faults
        self._terms: dict[Logs, float] = {}
        self._stirred: dict[tuple[Logs, str], float] = {}
        """When something last happened to a queue that makes its time run anew."""

    def begins(self, logs: Logs) -> None:
        """A broker serves from now on."""
        self._terms[logs] = _now(logs)

    def defined(self, ledger: Ledger, logs: Logs) -> None:
        """Definitions have come to a broker."""
        for uuid, queue in ledger.state.definitions.queues.items():
            if AUTO_DELETE_TIMEOUT in queue.arguments:
                self._stirred.setdefault((logs, uuid), _now(logs))

    def stirs(self, terminus: QueueTerminus) -> None:
        """A link attaches to a queue, or leaves it."""
        if terminus.node.auto_delete_s:
            logs = terminus._queues.logs
            self._stirred[logs, terminus.node.uuid] = _now(logs)

    def proposes(self, logs: Logs, command: Command, users: int) -> None:
        """A broker is about to propose this; `users` links are attached to the queue that it is about."""
        node = logs.nodes.queue_by_uuid(command.uuid) if isinstance(command, QueueDel) else None
        if node is None or not node.auto_delete_s:
            return
        since = max(self._terms.get(logs, 0.0), self._stirred.get((logs, node.uuid), 0.0))
        passed_s = _now(logs) - since
        if not logs.serving:
            self._faults.append(f"lifetime: a broker that is {logs.state} has {node.name} deleted")
        elif users:
            self._faults.append(f"lifetime: {node.name} is deleted while it is used by links: {users}")
        elif passed_s < node.auto_delete_s - 1e-6:
            self._faults.append(f"lifetime: {node.name} is deleted after {passed_s:.3f} s, {_wanted(node)}")
        else:
            self._history.queue_deleted(node.name)


def _wanted(node: QueueNode) -> str:
    return f"and it is to be kept for {node.auto_delete_s} s"


def _now(logs: Logs) -> float:
    return logs.lead._clock.seconds()
