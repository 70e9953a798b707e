"""Queues that are deleted: what is left on them goes through their alternate exchange first (docs/adr/0066-what-is-left.md).

Life of a removal: somebody wants a queue to go: a request, its last consumer, its time without use. A queue without messages, or
without an alternate exchange, goes at once: its deletion is proposed. Otherwise a last operation (`Bulk.clear`) first sends its
messages through the exchange, while clients may still use the queue. Then the queue is closed (`Logs.closing_queues`): it counts
as being deleted, and the links of its consumers end, so what they held is there again. When what was put on it before is
committed, another operation takes the rest, and the deletion is proposed in the same turn. What an exchange routes to the queue
meanwhile needs another operation.

A transaction over two logs whose first part is proposed has promised its messages to the queues of the second part
(`Logs.promised`). Such a queue is closed, empty or not, and the removal waits until it has got them.

If a message cannot go, the queue stays as it was. A request is refused, with the reason. A queue that was to go by itself, also
one that was to do so during such a request, is tried again, at longer and longer intervals, and the broker logs this once.

Only a broker that serves, and does not leave, sends messages on. A queue that was to go by itself goes later (`Logs.owed`).

Invariants: a message leaves the queue in the batch that puts it elsewhere; what the exchange routes nowhere goes with the queue
and is counted; one queue is closed at a time, so two queues that lead to each other do not wait for each other; a queue is closed
for `CLOSED_S` at most after it has got smaller for the last time; when a term ends, everything here is void.

Source: qpidd's Queue::destroyed, which sends the rest through the alternate exchange.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from twisted.logger import Logger

from broker.amqp.data import Condition
from broker.core.nodes import LOCAL, QueueNode
from broker.sessions.bulk import HELD, PASSING, Bulk, Operation, Result
from broker.sessions.logs import Logs
from broker.sessions.schedule import Schedule

PASSES = 3
"""A queue that has got many new messages meanwhile is emptied so often before it is closed."""
FEW = 1000
"""With fewer messages than this, a queue is closed."""
OPEN_S, CLOSED_S = 10.0, 2.0
"""For so long a removal waits for messages that may leave soon, before it gives up: while the queue is open, and when closed."""
_LOOK_S = 0.02
_REST = 10
"""The next pass over messages that were left begins this many times as long after the last pass as that took."""
AGAIN_S, AGAIN_MOST_S = 1.0, 60.0
"""The shortest and the longest interval between attempts to let a queue go by itself."""
WHAT_TO_DO = "purge or move them, or change the alternate exchange, and delete the queue again"
_log = Logger()


class Closable(Protocol):
    """The queue that goes."""

    node: QueueNode
    operation: Operation | None

    def end_consumers(self, condition: Condition) -> None:
        """End the links of all subscriptions: what they held is on the queue again."""


class Closables(Protocol):
    """The queues of this broker."""

    def at(self, node: QueueNode) -> Closable:
        """This queue, as its removal needs it."""

    def users(self, node: QueueNode) -> int:
        """How many links are attached to this queue."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a queue is to go. `propose` is called when it is empty, and proposes the deletion in this turn; it gets what has become
    of the messages, "" if there were none. `stays` is called with the reason if the queue stays. `holds`: whether the queue is
    still to go. `insists`: whether it is tried again."""

    propose: Callable[[str], None]
    stays: Callable[[str], None]
    holds: Callable[[], bool] = lambda: True
    insists: bool = False


def by_itself(holds: Callable[[], bool], propose: Callable[[], None], kept: Callable[[], None] = lambda: None) -> Cause:
    """A queue goes by itself, for as long as `holds` says so; when it does not any more, `kept` is called."""
    return Cause(lambda _: propose(), lambda _: kept(), holds, insists=True)


class _Removal:
    """One queue that is to go."""

    __slots__ = ("after", "cause", "closed", "dropped", "least", "moved", "next", "node", "passes", "since_s", "stays", "until_s")

    def __init__(self, node: QueueNode, cause: Cause) -> None:
        self.node = node
        self.cause = cause
        self.next: Cause | None = None
        """What is tried if the queue stays: it was to go by itself meanwhile."""
        self.closed = False
        self.after: list[int] = []
        """Where this pass over the queue goes on."""
        self.passes = self.moved = self.dropped = 0
        self.stays: Counter[str] = Counter()
        self.least = node.depth
        """The fewest messages that it has had."""
        self.since_s = self.until_s = 0.0
        """When the pass began, and when it is given up unless the queue gets smaller."""


class Removals:
    """See the module. `seconds` is the reactor's time."""

    def __init__(self, logs: Logs, queues: Closables, bulk: Bulk, schedule: Schedule, seconds: Callable[[], float]) -> None:
        self._logs = logs
        self._queues = queues
        self._bulk = bulk
        self._schedule = schedule
        self._seconds = seconds
        self._under_way: dict[str, _Removal] = {}
        self._line: deque[_Removal] = deque()
        """Those that are to be closed, one after the other; the first one is closed."""
        self._failures: Counter[str] = Counter()
        """Identity of a queue that was to go by itself -> how often it has stayed."""

    def fault(self, node: QueueNode) -> str:
        """Why this queue cannot be removed on request now; "" if it can."""
        removal = self._under_way.get(node.uuid)
        logs = self._logs
        if removal is not None:
            return (
                f"queue {node.name!r} is being deleted already: {removal.moved} of its messages have left it, through its "
                f"alternate exchange {node.definition.alternate!r}, and {node.depth} are to follow"
            )
        if self.goes_at_once(node):
            return ""
        if logs.serving and logs.closed:
            return logs.redirect().text
        if logs.serving and not self._serves(node):
            return f"queue {node.name!r} is not ready yet; try again"
        if not logs.serving:
            where = f" ({logs.primary})" if logs.primary else ""
            text = (
                f"this broker is {logs.state}: only the primary{where} can send the messages of queue {node.name!r} through its"
            )
            return f"{text} alternate exchange {node.definition.alternate!r}; purge the queue before you delete it here"
        return ""

    def goes_at_once(self, node: QueueNode) -> bool:
        """Whether this queue may be deleted as it is."""
        return is_bare(node) and node.uuid not in self._logs.promised

    def remove(self, node: QueueNode, cause: Cause) -> None:
        """Let this queue go."""
        removal = self._under_way.get(node.uuid)
        if removal is not None:
            if cause.insists:
                removal.next = cause
            cause.stays(self.fault(node))
        elif self.goes_at_once(node):
            self._failures.pop(node.uuid, None)
            cause.propose("")
        elif not self._serves(node):
            if cause.insists and (self._logs.serving or node.log == LOCAL):
                self._logs.owed[node.uuid] = None
            cause.stays(self.fault(node))
        else:
            removal = self._under_way[node.uuid] = _Removal(node, cause)
            removal.until_s = self._seconds() + OPEN_S
            self._go(removal)

    def begin(self) -> None:
        """This broker begins to serve, or serves again: queues that should have gone do so now."""
        logs = self._logs
        if not logs.serving or logs.closed:
            return
        for uuid in list(logs.owed):
            node = logs.nodes.queue_by_uuid(uuid)
            if node is None:
                del logs.owed[uuid]
            elif self._serves(node):
                del logs.owed[uuid]
                self.remove(node, by_itself(partial(self._is_unused, node), partial(logs.delete_queue, node)))

    def _serves(self, node: QueueNode) -> bool:
        """Whether this broker serves, and the logs of this queue do."""
        return self._logs.serving and self._logs.ledgers[node.log].serving and self._logs.ledger_of(node).serving

    def _is_unused(self, node: QueueNode) -> bool:
        """Whether a queue that is only there for its links has none."""
        return bool(node.definition.lifetime) or not self._queues.users(node)

    def void(self) -> None:
        """This broker stops serving: nothing of this has a result here. It remembers queues that only it has; the next primary
        decides about the others."""
        insist = [uuid for uuid, each in self._under_way.items() if each.cause.insists or each.next is not None]
        for uuid in [*insist, *self._failures, *self._logs.owed]:
            node = self._logs.nodes.queue_by_uuid(uuid)
            if node is not None and node.log == LOCAL:
                self._logs.owed[uuid] = None
            else:
                self._logs.owed.pop(uuid, None)
        self._under_way.clear()
        self._line.clear()
        self._failures.clear()
        self._logs.closing_queues.clear()
        self._logs.promised.clear()

    # ---- the steps

    def _is_over(self, removal: _Removal) -> bool:
        return self._under_way.get(removal.node.uuid) is not removal

    def _go(self, removal: _Removal) -> None:
        """Send on what is there, or what is left of it."""
        if self._is_over(removal):
            return
        logs, node = self._logs, self._logs.nodes.queue_by_uuid(removal.node.uuid)
        if node is None or logs.nodes.is_going(node.uuid) > removal.closed:
            self._end(removal)
            return
        removal.node = node
        if not removal.closed and not removal.cause.holds():
            self._end(removal, "it is in use again", holds=False)
            return
        if is_bare(node):
            if node.uuid in logs.promised:
                self._line_up(removal)  # when it is closed, nothing more is promised to it
            else:
                self._propose(removal)
            return
        exchange = logs.nodes.exchanges.get(node.definition.alternate)
        if exchange is None:
            text = f"its messages cannot go: its alternate exchange {node.definition.alternate!r} does not exist on this broker"
            self._end(removal, text)
        elif self._queues.at(node).operation is not None or node.messages is None:
            self._schedule.after(_step(node.uuid), _LOOK_S, partial(self._go, removal))
        else:
            if not removal.after:
                removal.since_s = self._seconds()
            self._bulk.clear(node, exchange, removal.after, partial(self._passed, removal))

    def _go_when_committed(self, removal: _Removal) -> None:
        """Go on when what was put on this closed queue so far is committed, with the messages of transactions whose first part is
        in another log: nothing more is promised to it."""
        if self._is_over(removal):
            return
        if removal.node.uuid not in self._logs.promised:
            self._logs.ledger_of(removal.node).pending.when_committed(partial(self._go, removal))
        elif self._seconds() >= removal.until_s:
            self._end(removal, "a transaction that is being committed puts messages on it; delete the queue again")
        else:
            self._schedule.after(_step(removal.node.uuid), _LOOK_S, partial(self._go_when_committed, removal))

    def _passed(self, removal: _Removal, result: Result) -> None:
        """An operation has ended."""
        if self._is_over(removal):
            return
        removal.moved += result.taken - result.dropped
        removal.dropped += result.dropped
        removal.stays.update(result.stays)
        if result.fault:
            self._end(removal, f"its messages cannot go: {result.fault}; {WHAT_TO_DO}")
            return
        if result.next is not None:
            removal.after = result.next
            self._go(removal)
            return
        stays, removal.stays, removal.after = removal.stays, Counter(), []
        removal.passes += 1
        left = ", ".join(f"{stays[why]} {why}" for why in stays)
        left = f"messages cannot go through its alternate exchange {removal.node.definition.alternate!r}: {left}; {WHAT_TO_DO}"
        if any(why not in PASSING for why in stays):
            self._end(removal, left)
            return
        depth, now_s = removal.node.depth, self._seconds()
        if depth < removal.least:
            removal.least, removal.until_s = depth, now_s + (CLOSED_S if removal.closed else OPEN_S)
        if not removal.closed and stays.total() == stays[HELD]:
            if depth - stays.total() > FEW and removal.passes < PASSES:
                self._go(removal)
            else:
                self._line_up(removal)
        elif not stays and (is_bare(removal.node) or now_s >= removal.until_s):
            self._propose(removal)
        elif not stays:  # an exchange has routed more to it
            self._go_when_committed(removal)
        elif now_s >= removal.until_s:
            self._end(removal, left)
        else:
            rest_s = max(_LOOK_S, min((now_s - removal.since_s) * _REST, removal.until_s - now_s))
            self._schedule.after(_step(removal.node.uuid), rest_s, partial(self._go, removal))

    def _line_up(self, removal: _Removal) -> None:
        """Close this queue when no other one is closed."""
        self._line.append(removal)
        if self._line[0] is removal:
            self._close(removal)

    def _close(self, removal: _Removal) -> None:
        """Let nobody use this queue any more, and then take what is there."""
        if self._is_over(removal):
            return
        node = self._logs.nodes.queue_by_uuid(removal.node.uuid)
        if node is None or not removal.cause.holds():
            self._go(removal)
            return
        if self._logs.closed:  # a drain takes the messages: its links must not end
            self._end(removal, f"its messages cannot go: {self._logs.redirect().text}")
            return
        removal.closed = True
        removal.until_s = self._seconds() + CLOSED_S
        self._logs.closing_queues[node.uuid] = []
        self._queues.at(node).end_consumers(Condition("amqp:resource-deleted", f"queue {node.name!r} was deleted"))
        self._go_when_committed(removal)

    def _propose(self, removal: _Removal) -> None:
        """Nothing is left: the deletion follows what was put before, and nothing comes between."""
        node = removal.node
        self._leave(removal)
        self._failures.pop(node.uuid, None)
        told = ""
        if removal.moved or removal.dropped:
            through = f"{removal.moved} messages went through the alternate exchange {node.definition.alternate!r}"
            told = f"{through}; {removal.dropped} that it routes to no queue are dropped"
            _log.info("queue {name!r} is deleted: {told}", name=node.name, told=told)
        waiting = self._logs.closing_queues.pop(node.uuid, [])
        removal.cause.propose(told)
        for call in waiting:
            self._logs.when_decided(node, call)
        self._next()

    def _end(self, removal: _Removal, why: str = "", *, holds: bool = True) -> None:
        """The queue stays, or somebody else has deleted it."""
        node = removal.node
        self._leave(removal)
        for call in self._logs.closing_queues.pop(node.uuid, ()):
            call()
        text = f"queue {node.name!r} {f'is not deleted: {why}' if why else 'was deleted by somebody else meanwhile'}"
        if removal.moved or removal.dropped:
            moved = f"{removal.moved} {'others' if why else 'of its messages'} went through the alternate exchange"
            text = f"{text}; {moved}, {removal.dropped} to no queue"
        insists = removal.cause.insists and holds and self._logs.nodes.queue_by_uuid(node.uuid) is not None
        if insists and self._logs.closed:
            self._logs.owed[node.uuid] = None
        elif insists:
            if why and node.uuid not in self._failures:
                _log.warn("{text}; it is tried again", text=text)
            self._failures[node.uuid] += 1
            delay_s = min(AGAIN_S * 2.0 ** min(self._failures[node.uuid] - 1, 10), AGAIN_MOST_S)
            self._schedule.after(_again(node.uuid), delay_s, partial(self._try_again, node.uuid, removal.cause))
        if not insists:
            removal.cause.stays(text)
            still = self._logs.nodes.queue_by_uuid(node.uuid)
            if removal.next is not None and removal.next.holds() and still is not None and node.uuid not in self._under_way:
                self.remove(still, removal.next)
        self._next()

    def _try_again(self, uuid: str, cause: Cause) -> None:
        node = self._logs.nodes.queue_by_uuid(uuid)
        if uuid in self._under_way:
            self._schedule.after(_again(uuid), AGAIN_S, partial(self._try_again, uuid, cause))
        elif node is None or not cause.holds():
            self._failures.pop(uuid, None)
            cause.stays("")
        else:
            self.remove(node, cause)

    def _leave(self, removal: _Removal) -> None:
        """It is over."""
        del self._under_way[removal.node.uuid]
        self._schedule.cancel(_step(removal.node.uuid))
        if removal in self._line:
            self._line.remove(removal)

    def _next(self) -> None:
        """Close the next queue that waits for it, in the next turn."""
        if self._line and not self._line[0].closed:
            self._schedule.after(_step(self._line[0].node.uuid), 0.0, partial(self._close, self._line[0]))


def is_bare(node: QueueNode) -> bool:
    """Whether a queue may be deleted as it is: there is nothing on it, or on its way to it, or no exchange for that."""
    messages = node.messages
    if messages is None or not node.definition.alternate:
        return True
    return not messages.depth and node.proposed == messages.enqueued


def _step(uuid: str) -> tuple[str, str]:
    return "removal", uuid


def _again(uuid: str) -> tuple[str, str]:
    return "removal again", uuid
