"""From an exchange to the queues that want a message, and into all of them at once.

Invariants: a message is put into every queue that it is routed to, or into none; it has its outcome when each log that has a part
of it has committed that. A queue that detects duplicates, and has it already, counts as one that it was put into.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.core import message
from broker.core.nodes import ExchangeNode, Nodes, QueueNode, Unplaced
from broker.core.subscriptions import NOWHERE, Origin
from broker.sessions.logs import Logs
from broker.sessions.producer import Full, Producer
from broker.sessions.room import check_places, full_text, has_room


def route(nodes: Nodes, exchange: ExchangeNode, key: str, data: bytes, origin: Origin = NOWHERE) -> list[QueueNode]:
    """The queues that an exchange sends this message to; those of its alternate exchange when it has none for it.

    `origin`: what it has come from.
    """
    exchange.received += 1
    seen: set[str] = set()
    at: ExchangeNode | None = exchange
    while at is not None and at.name not in seen:
        seen.add(at.name)
        uuids = at.routing.route(key, lambda: message.application_properties(data))
        queues = [queue for queue in map(nodes.queue_by_uuid, uuids) if queue is not None]
        found = [queue for queue in queues if queue.gate is None or queue.gate(data, origin)]
        if found:
            exchange.routed += 1
            return found
        at = nodes.exchanges.get(at.definition.alternate) if at.definition.alternate else None
    exchange.dropped += 1
    return []


def put(
    logs: Logs,
    queues: list[QueueNode],
    producer: Producer,
    delivery_id: int,
    data: bytes,
    held: tuple[int, Sequence[int]] | None = None,
) -> None:
    """Put a producer's message into all of these queues; Unplaced or Full when one of them, or the disk, cannot have it, and
    Unplaced on a broker that leaves. `held`: by which its log is to remember it, which has one queue for it."""
    size = len(data)
    if logs.closed:
        raise Unplaced
    check_places(queues)
    wanted = queues
    if any(queue.detects_duplicates for queue in queues):
        queues = [queue for queue in queues if not queue.repeats(data, logs.ledger_of(queue).now_ms)]
    for queue in queues:
        if not has_room(queue, 1, size):
            raise Full(full_text(queue, size), queue.name)
    if not wanted:
        producer.done(delivery_id)
        return
    ledgers = {logs.ledger_of(queue).name: logs.ledger_of(queue) for queue in wanted}
    if not all(ledger.takes(size * len(queues)) for ledger in ledgers.values()):
        raise Unplaced
    if len(ledgers) == 1 and queues:
        for queue in queues[:-1]:
            logs.ledger_of(queue).enqueue(queue, [data], size, timed=producer.timed)
        logs.ledger_of(queues[-1]).enqueue(queues[-1], [data], size, producer.link, delivery_id, held, timed=producer.timed)
        return
    outstanding = set(ledgers)

    def committed(name: str) -> None:
        outstanding.discard(name)
        if not outstanding:
            producer.done(delivery_id)

    for queue in queues:
        logs.ledger_of(queue).enqueue(queue, [data], size, timed=producer.timed)
    for name, ledger in ledgers.items():
        ledger.when_committed(lambda name=name: committed(name))  # type: ignore[misc]
