"""Alerts of queues that hold too much: the serving broker reports them in its log file and as events.

Life of an alert: a commit brings messages to a queue with thresholds (broker.core.queues.alerts), and `fed` finds that one is
reached; or the queue gets a threshold that is reached already (`follow`). The alert is raised: it writes a line to the broker's
log file and sends an event (broker.sessions.events). Every `LOOK_S` seconds the raised alerts are checked again: one that has
ended sends an event too, and one that is due for repetition sends another. When a term begins, all queues with thresholds are
checked. So a new primary reports existing alerts again, because it does not know whether the last primary did.

Invariants: an alert is raised once until it ends; a check takes at most `MOST` queues in a turn; the number of lines in the log
file is limited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from twisted.logger import Logger

from broker.core.definitions import Change, QueueAltered
from broker.core.nodes import QueueNode
from broker.core.queues.alerts import COUNT
from broker.sessions.events import NOTICE, WARNING, Events
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.refusals import Bounded
from broker.sessions.schedule import Schedule

LOOK_S = 0.25
MOST = 500
_log = Logger()


class Alerts:
    """See the module. `seconds` is the reactor's time."""

    def __init__(self, logs: Logs, schedule: Schedule, seconds: Callable[[], float], events: Events) -> None:
        self._logs = logs
        self._schedule = schedule
        self._seconds = seconds
        self._events = events
        self._raised: dict[str, float] = {}
        """Queue with a raised alert -> the time of its last report."""
        self._to_look: deque[str] = deque()
        self._lines = Bounded(seconds, lambda line: _log.warn("{line}", line=line), "alerts of queues")

    def begin(self) -> None:
        """A term begins."""
        self.over()
        self._to_look.extend(self._logs.nodes.alerting)
        if self._to_look:
            self._arm(0.0)

    def over(self) -> None:
        """This broker stops serving."""
        self._raised.clear()
        self._to_look.clear()
        self._schedule.cancel("alerts")
        for node in self._logs.nodes.alerting.values():
            node.raised.clear()

    def fed(self, ledger: Ledger, numbers: Iterable[int]) -> None:
        """These queues of a log have got messages."""
        alerting = self._logs.nodes.alerting
        if not alerting or not self._logs.serving:
            return
        for number in numbers:
            messages = ledger.state.messages.get(number)
            node = None if messages is None else alerting.get(messages.uuid)
            if node is not None and len(node.raised) < 2:
                self._look_at(node)

    def follow(self, changes: Iterable[tuple[Change, str]]) -> None:
        """The thresholds of queues may be new ones, which these have reached already."""
        for change, reason in changes:
            if isinstance(change, QueueAltered) and not reason and self._logs.serving:
                node = self._logs.nodes.alerting.get(change.queue.uuid)
                if node is not None:
                    self._look_at(node)

    def _arm(self, delay_s: float) -> None:
        self._schedule.after("alerts", delay_s, self._look)

    def _look(self) -> None:
        """Look at some of the queues of which an alert is raised, or which a new term has not seen yet."""
        alerting = self._logs.nodes.alerting
        if not self._to_look:
            self._to_look.extend(self._raised)
        for _ in range(min(MOST, len(self._to_look))):
            uuid = self._to_look.popleft()
            node = alerting.get(uuid)
            if node is None:
                self._raised.pop(uuid, None)
                continue
            self._look_at(node)
            self._tell_again(node)
        if self._to_look or self._raised:
            self._arm(0.0 if self._to_look else LOOK_S)

    def _look_at(self, node: QueueNode) -> None:
        if node.messages is None or node.thresholds is None:
            return
        for what in node.thresholds.crossed(node.raised, node.depth, node.messages.live_bytes):
            if what in node.raised:
                node.raised.discard(what)
                self._tell(node, what, "queueThresholdCrossedDownward", NOTICE)
            else:
                node.raised.add(what)
                self._tell(node, what, "queueThresholdCrossedUpward", WARNING)
        if node.raised and node.uuid not in self._raised:
            self._raised[node.uuid] = self._seconds()
            self._arm(LOOK_S)
        elif not node.raised:
            self._raised.pop(node.uuid, None)

    def _tell_again(self, node: QueueNode) -> None:
        gap_s = 0 if node.thresholds is None else node.thresholds.gap_s
        if gap_s and node.raised and self._seconds() - self._raised[node.uuid] >= gap_s:
            self._raised[node.uuid] = self._seconds()
            for what in sorted(node.raised):
                self._tell(node, what, "queueThresholdCrossedUpward", WARNING)

    def _tell(self, node: QueueNode, what: str, event: str, severity: int) -> None:
        assert node.thresholds is not None
        assert node.messages is not None
        depth, nbytes = node.depth, node.messages.live_bytes
        up, down = node.thresholds.of[what]
        unit = "messages" if what == COUNT else "bytes"
        side = f"at or above its alert threshold of {up}" if severity == WARNING else f"below its threshold of {down}"
        self._lines.line(f"queue {node.name!r} holds {depth} messages, {nbytes} bytes: {side} {unit}")
        self._events.send(event, severity, {"qName": node.name, "msgDepth": depth, "byteDepth": nbytes})
