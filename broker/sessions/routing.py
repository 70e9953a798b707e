"""Routing: from an exchange to the queues that want a message, and putting it on all of them at once.

All messages through an exchange pass here: from producers, by its name, through the anonymous terminus or in a transaction; dead
letters; messages that operators reroute or that routes fetch; events. The caller first asks where a message goes (`route`, which
changes only counters; or `find`, if the message may stay where it is and come again: `count` follows when it is put). Then it
checks whether the message can be put there. Just before it puts the message, it passes it through the exchanges on the way
(broker.sessions.passing): an exchange that numbers messages adds its number, an exchange that keeps the last message stores it,
and the batch records this.

Invariants: a message is put on every queue that it is routed to, or on none; it has its outcome when every log with a part of it
has committed, including the log of an exchange that numbers or keeps it. A queue that detects the message as a duplicate counts
as one that has it. A message that is refused, or stays where it is, gets no number and is not an exchange's last message. A
message that a route or an operator puts through an exchange is counted there once.

While the deletion of a queue is not committed, no message is put on it that names the queue (`check_stays`). What an exchange
routes to it goes with it: the queue counts as one that is not bound any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.core import message
from broker.core.nodes import ExchangeNode, Nodes, QueueNode, Routed, Unplaced
from broker.core.subscriptions import NOWHERE, Origin
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.passing import pass_on, too_long
from broker.sessions.producer import Full, Producer
from broker.sessions.room import check_places, full_text, has_room


def route(nodes: Nodes, exchange: ExchangeNode, key: str, data: bytes, origin: Origin = NOWHERE) -> Routed:
    """The queues to which an exchange routes this message, as `find` has them; the exchange counts it."""
    routed = find(nodes, exchange, key, data, origin)
    count(exchange, routed)
    return routed


def count(exchange: ExchangeNode, routed: Routed, messages: int = 1) -> None:
    """An exchange has received so many messages, which it has routed like this."""
    exchange.received += messages
    if routed.queues:
        exchange.routed += messages
    else:
        exchange.dropped += messages


def find(nodes: Nodes, exchange: ExchangeNode, key: str, data: bytes, origin: Origin = NOWHERE) -> Routed:
    """The queues to which an exchange routes this message, or its alternate exchange if it has none. `origin`: where the message
    comes from. BadMessage.
    """
    seen: set[str] = set()
    through: tuple[ExchangeNode, ...] = ()
    at: ExchangeNode | None = exchange
    while at is not None and at.name not in seen:
        seen.add(at.name)
        if at.passage is not None:
            through = (*through, at)
        uuids = at.routing.route(key, lambda: message.application_properties(data))
        queues = [queue for queue in map(nodes.queue_by_uuid, uuids) if queue is not None]
        found = [queue for queue in queues if queue.gate is None or queue.gate(data, origin)]
        if found:
            return Routed(found, key, through, origin)
        at = nodes.exchanges.get(at.definition.alternate) if at.definition.alternate else None
    return Routed([], key, through, origin)


def check_stays(logs: Logs, queue: QueueNode) -> None:
    """Unplaced, while the queue that a message names is being deleted: the message would be accepted and go with the queue."""
    if logs.nodes.is_going(queue.uuid):
        raise Unplaced


def put(
    logs: Logs,
    routed: Routed,
    producer: Producer,
    delivery_id: int,
    data: bytes,
    held: tuple[int, Sequence[int]] | None = None,
) -> None:
    """Put a producer's message where it goes; Unplaced or Full when a queue there, or the disk, cannot have it, and Unplaced on a
    broker that leaves. `held`: by which its log is to remember it, which has one queue for it."""
    size, wanted = len(data), routed.queues
    if logs.closed:
        raise Unplaced
    check_places(wanted)
    queues = wanted
    if any(queue.detects_duplicates for queue in queues):
        queues = [queue for queue in queues if not queue.repeats(data, logs.ledger_of(queue).now_ms)]
    for queue in queues:
        if not has_room(queue, 1, size):
            raise Full(full_text(queue, size), queue.name)
    if not wanted and not routed.through:
        producer.done(delivery_id)
        return
    ledgers = {logs.ledger_of(queue).name: logs.ledger_of(queue) for queue in wanted}
    if routed.through:
        fault = too_long(routed, size)
        if fault:
            raise Full(fault, routed.through[0].name, "unavailable")
        ledgers |= {ledger.name: ledger for ledger in map(logs.ledger_at, routed.through)}
    if not all(ledger.room.takes(size * len(queues)) for ledger in ledgers.values()):
        raise Unplaced
    if routed.through:
        data = pass_on(logs, routed, data)
        size = len(data)
    if len(ledgers) == 1 and queues:
        for queue in queues[:-1]:
            logs.ledger_of(queue).enqueue(queue, [data], size, timed=producer.timed)
        logs.ledger_of(queues[-1]).enqueue(queues[-1], [data], size, producer.link, delivery_id, held, timed=producer.timed)
        return
    for queue in queues:
        logs.ledger_of(queue).enqueue(queue, [data], size, timed=producer.timed)
    _done_when_committed(ledgers, producer, delivery_id)


def _done_when_committed(ledgers: dict[str, Ledger], producer: Producer, delivery_id: int) -> None:
    outstanding = set(ledgers)

    def committed(name: str) -> None:
        outstanding.discard(name)
        if not outstanding:
            producer.done(delivery_id)

    for name, ledger in ledgers.items():
        ledger.pending.when_committed(lambda name=name: committed(name))  # type: ignore[misc]
