"""Checks that a broker stays within its limits: credit, connections, bytes that wait for clients, memory for messages."""

from __future__ import annotations

from collections.abc import Iterator

from broker.amqp.receiver import Receiver
from broker.amqp.sender import Sender
from broker.core import limits
from broker.core.nodes import QueueNode
from broker.service import Broker
from broker.sessions.consumer import Subscription
from broker.sessions.producer import Producer


def broken_limits(broker: Broker) -> Iterator[str]:
    """The bounds that this broker does not keep at the moment, in sentences."""
    allowed = broker.max_connections + limits.SPARE_CONNECTIONS
    if len(broker.connections) > allowed:
        yield f"{len(broker.connections)} connections, where {allowed} are allowed"
    for connection in broker.connections.values():
        for link in connection.engine.links:
            context = link.context
            if isinstance(context, Producer) and isinstance(link, Receiver):
                credit = link.credit + len(link.inbox) + link.account.held
                if credit > limits.CREDIT_WINDOW:
                    yield f"a producer with credit for {credit} messages, where {limits.CREDIT_WINDOW} are allowed"
            elif isinstance(context, Subscription) and isinstance(link, Sender):
                yield from _of_subscription(link, broker.max_message_bytes)
    for node in broker.nodes.queues.values():
        yield from _of_queue(node)


def _of_subscription(link: Sender, max_message_bytes: int) -> Iterator[str]:
    unsettled = link.account.n_unsettled
    if unsettled > limits.MAX_UNSETTLED_PER_LINK:
        yield f"a consumer with {unsettled} messages unsettled, where {limits.MAX_UNSETTLED_PER_LINK} are allowed"
    if link.open and link.account.credit != link.credit:
        yield f"a consumer with an account of {link.account.credit} credit, where {link.credit} are on the wire"
    allowed = limits.MAX_OUTPUT_BYTES + limits.MAX_TURN_BYTES + max_message_bytes
    if link.buffered_bytes > allowed:
        yield f"{link.buffered_bytes} bytes waiting for a consumer, where {allowed} are allowed"


def _of_queue(node: QueueNode) -> Iterator[str]:
    if node.messages is None:
        return
    messages = node.messages
    if node.max_count and messages.depth > node.max_count:
        yield f"queue {node.name!r} with {messages.depth} messages, where {node.max_count} are allowed"
    if node.max_bytes and messages.live_bytes > node.max_bytes:
        yield f"queue {node.name!r} with {messages.live_bytes} bytes, where {node.max_bytes} are allowed"
