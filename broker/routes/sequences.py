"""Messages that are delivered with their sequences, so that the receiver can identify them permanently: the source's side of a
route.

Life: a client asks for the place of a queue's messages (`FIND`), and gets the store that has them and an address that delivers
them. A link that attaches to this address gets the same messages as any consumer of the queue; the tag of each delivery is the
message's sequence, in 8 bytes, most significant first. From time to time the client asks which sequences are still on the queue
(`LEFT`). With both requests it can ask whether the queue is bound to an exchange, or how often. The broker remembers nothing of a
client except its link: a later link of the same client replaces an earlier one, whose connection may be dead.

Invariants: an address belongs to one queue in one store and never to another one, so a sequence under it always means the same
message; a sequence that `LEFT` does not list has left the queue by a committed record.

Reference: docs/reference/management.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.defer import Deferred, succeed

from broker.amqp.data import Condition
from broker.amqp.sender import Sender
from broker.core.acl import questions
from broker.core.nodes import ExchangeNode, QueueNode, Refused
from broker.sessions.attach import Attach
from broker.sessions.consumer import Subscription
from broker.sessions.logs import Logs
from broker.sessions.principal import Principal
from broker.sessions.queues import Queues

Answer = tuple[int, str, dict[str, Any]]
NODE = "$sequences"
MAX_RUNS = 5000
"""Runs in one request, and in one answer to it."""


class Sequences:
    """See the module. Fulfils `broker.administration.Extension`, and finds sources by their addresses."""

    def __init__(self, logs: Logs, queues: Queues) -> None:
        self._logs = logs
        self._queues = queues
        self._links: dict[tuple[str, str], Sender] = {}
        """Queue's uuid and taker -> the link over which that one takes its messages."""

    def named(self, address: str) -> SequencedQueue | None:
        """The source that an address names."""
        words = address.split("/")
        return SequencedQueue(self, *words[1:]) if len(words) == 4 and words[0] == NODE else None

    def node_at(self, store: str, uuid: str) -> QueueNode | None:
        """The queue, if its messages are in this store."""
        node = self._logs.nodes.queue_by_uuid(uuid)
        return node if node is not None and node.messages is not None and self._logs.store_of(node) == store else None

    def subscribe(self, attach: Attach, link: Sender, node: QueueNode, taker: str) -> None:
        """Attach this link. Condition, when it may not."""
        needs = questions.take_from_queue(node)
        attach.demand(needs)
        if attach.link.presettled:
            raise Condition(
                "amqp:invalid-field", "messages of a route are settled by their receiver: attach with unsettled deliveries"
            )
        queue = self._queues.at(node)
        queue.admit(attach)
        earlier = self._links.get((node.uuid, taker))
        if earlier is not None and earlier.open and isinstance(earlier.context, Subscription):
            earlier.context.end_slow(Condition("amqp:link:stolen", "another link with the same receiver has attached"))
        queue.add(attach, link, needs, browse=False, tags=True, route=taker)
        self._links = {key: each for key, each in self._links.items() if each.open}
        self._links[node.uuid, taker] = link

    # ---- management

    def items(self) -> list[dict[str, Any]]:
        """None: there is nothing to list."""
        return []

    def act(self, operation: str, body: dict[str, Any], principal: Principal) -> Deferred[Answer]:
        """See the module. Refused, KeyError, TypeError, ValueError."""
        if not self._logs.serving:
            raise Refused(409, f"this broker is {self._logs.state}: ask the primary, {self._logs.primary or 'unknown'}")
        match operation:
            case "FIND":
                return succeed((200, "OK", self._find(body)))
            case "LEFT":
                return succeed((200, "OK", self._left(body)))
        raise Refused(501, f"this broker does not have the operation {operation!r} on sequences")

    def _find(self, body: Mapping[str, Any]) -> dict[str, Any]:
        logs, name, taker = self._logs, body["queue"], body["taker"]
        if not isinstance(taker, str) or not taker or "/" in taker:
            raise Refused(400, "`taker` must be a name for the receiver of the messages, without a slash")
        if logs.closed:
            raise Refused(409, logs.redirect().text)
        node = logs.nodes.queues.get(name)
        if node is None or node.messages is None:
            raise Refused(404, f"there is no queue named {name!r}")
        store = logs.store_of(node)
        address = f"{NODE}/{store}/{node.uuid}/{taker}"
        found = {"store": store, "queue": node.uuid, "address": address, "epoch": logs.epoch, "cluster": logs.identify()}
        return found | self._bound(node, body)

    def _bound(self, node: QueueNode, body: Mapping[str, Any]) -> dict[str, Any]:
        """Whether the queue is bound to an exchange with a key, or how often, and to which one, if the request asks this."""
        nodes = self._logs.nodes
        if "bindings" in body:
            found = nodes.exchanges.get(str(body["bindings"]))
            return {"exchange": "", "bindings": 0} if found is None else _count(found, node)
        if "exchange" not in body:
            return {}
        exchange, key = nodes.exchanges.get(str(body["exchange"])), str(body.get("key") or "")
        return {"bound": exchange is not None and nodes.log_of_binding((exchange.uuid, node.uuid, key)) is not None}

    def _left(self, body: Mapping[str, Any]) -> dict[str, Any]:
        store, uuid, numbers = str(body["store"]), str(body["queue"]), body["runs"]
        if not isinstance(numbers, list) or len(numbers) % 2 or not all(type(each) is int and each >= 0 for each in numbers):
            raise Refused(400, "`runs` is a list of first, count, first, count, ...")
        node = self.node_at(store, uuid)
        if node is None or node.messages is None:
            raise Refused(404, f"queue {uuid} is not in store {store}")
        if len(numbers) > 2 * MAX_RUNS:
            raise Refused(400, f"`runs` has more than {MAX_RUNS} runs: ask for fewer at a time")
        found: list[int] = []
        for first, count in zip(numbers[::2], numbers[1::2], strict=True):
            for run in node.messages.order.lane_of(first).alive_between(first, first + count):
                if len(found) >= 2 * MAX_RUNS:
                    raise Refused(400, f"more than {MAX_RUNS} runs of these are on the queue: ask for fewer at a time")
                found += run
        return {"runs": found} | self._bound(node, body)


def _count(exchange: ExchangeNode, queue: QueueNode) -> dict[str, Any]:
    return {"exchange": exchange.uuid, "bindings": exchange.routing.bindings_of(queue.uuid)}


class SequencedQueue:
    """A queue whose messages are delivered with their sequences. Fulfils `broker.sessions.termini.Source`."""

    def __init__(self, sequences: Sequences, store: str, uuid: str, taker: str) -> None:
        self._sequences = sequences
        self._store = store
        self._uuid = uuid
        self._taker = taker

    def knows_filter(self, name: str) -> bool:
        """None: all messages are given out."""
        return False

    def subscribe(self, attach: Attach, link: Sender) -> None:
        """The link consumes the messages of the queue."""
        node = self._sequences.node_at(self._store, self._uuid)
        if node is None:
            attach.demand_either(questions.unknown(attach.asked.address))
            raise Condition("amqp:not-found", f"queue {self._uuid} is not in store {self._store}")
        self._sequences.subscribe(attach, link, node, self._taker)
