"""Management: from a request to its answer.

Life of a request: it comes as a message to `$management`, is read (`broker.amqp.management_node`), answered from what the broker
has (QUERY), handed to the cluster part (type `ha`), or planned as one change of one log (`broker.core.management`) and answered
when that is committed. The answer goes to the mailbox or queue that the request names, if that is still there. When requests take
more than their share of a turn of the reactor, the rest waits for the next ones, link by link in turn.

Invariants: management keeps nothing else waiting for longer than `limits.MANAGEMENT_TURN_S` and one request; whatever a request
holds, it gets one answer, or none if it names no place for it or its link has ended; nothing is changed but through a log.

Reference: docs/reference/management.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from broker.amqp import management_node
from broker.amqp.links import Receiver, Sender
from broker.consumers import Subscription
from broker.core import limits, management
from broker.core.commands import Reign
from broker.core.nodes import LOCAL, QueueNode, Refused
from broker.producers import full_text, has_room

if TYPE_CHECKING:
    from broker.service import Broker

_log = Logger()
Answer = Callable[[int, str, dict[str, Any]], None]
"""Takes status, text and body of an answer."""


class Administration:
    """A broker's management node."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[Receiver, deque[tuple[bytes, Callable[[], None]]]] = {}
        self._spent_s = 0.0
        self._turn: IDelayedCall | None = None

    def take(self, link: Receiver, request_bytes: bytes, served: Callable[[], None]) -> None:
        """Serve a request of this link, now or in a later turn, and say so. Requests of a link keep their order; those that still
        wait when it ends are dropped."""
        if self._waiting or self._spent_s >= limits.MANAGEMENT_TURN_S:
            self._waiting.setdefault(link, deque()).append((request_bytes, served))
        else:
            self._serve(request_bytes, served)
        self._arm()

    def _serve(self, request_bytes: bytes, served: Callable[[], None]) -> None:
        began_s = self._broker.clock.seconds()
        self.handle(request_bytes)
        served()
        self._spent_s += self._broker.clock.seconds() - began_s

    def _arm(self) -> None:
        if self._turn is None and (self._waiting or self._spent_s):
            self._turn = self._broker.clock.callLater(0, self._next_turn)

    def _next_turn(self) -> None:
        self._turn, self._spent_s = None, 0.0
        while self._waiting:
            link = next(iter(self._waiting))
            requests = self._waiting.pop(link)
            if not link.open:
                continue
            self._serve(*requests.popleft())
            if requests:
                self._waiting[link] = requests
            if self._spent_s >= limits.MANAGEMENT_TURN_S:
                break
        self._arm()
        self._broker.flush()

    def handle(self, request_bytes: bytes) -> None:
        """Answer a request, now or when what it asks for is committed. One that cannot be answered is logged and dropped."""
        try:
            request = management_node.decode(request_bytes)
        except management_node.BadRequest as error:
            _log.warn("management request dropped: {error}", error=str(error))
            return

        def answer(status: int, text: str, body: dict[str, Any]) -> None:
            box = self._broker.mailbox(request.reply_to)
            if box is not None:
                box.put(management_node.encode(request, status, text, body))
                self._broker.flush()
                return
            found = self._broker.nodes.find(request.reply_to)
            if found is not None and isinstance(found[0], QueueNode) and found[0].messages is not None:
                data = management_node.encode(request, status, text, body)
                if not has_room(found[0], 1, len(data)):
                    _log.warn("the answer to a management request was dropped: {text}", text=full_text(found[0], len(data)))
                    return
                self._broker.ledger_of(found[0]).enqueue(found[0], [data], len(data), None, [])

        try:
            self._execute(request, answer)
        except Refused as refusal:
            answer(refusal.status, refusal.text, {})
        except (KeyError, TypeError, ValueError) as error:
            answer(400, f"this request's body does not fit the operation {request.operation}: {error}", {})

    def _execute(self, request: management_node.Request, answer: Answer) -> None:
        operation, kind = request.operation, request.type
        if operation == "QUERY":
            answer(200, "OK", {"items": self._query(kind, str(request.body.get("name") or request.name), request)})
        elif kind == "ha":
            if self._broker.ha is None:
                raise Refused(409, "this broker is standalone: it was started without --ha-cluster yes")
            self._broker.ha.act(operation, request.body).addCallbacks(
                lambda result: answer(*result),
                lambda failure: answer(500, f"{operation} failed: {failure.getErrorMessage()}", {}),
            )
        else:
            self._change(request, answer)

    def _query(self, kind: str, name: str, request: management_node.Request) -> list[dict[str, Any]]:
        match kind:
            case "broker":
                return [self._broker_item()]
            case "queue":
                return management.queue_items(self._broker.nodes, name, self._consumers)
            case "exchange":
                return management.exchange_items(self._broker.nodes, name, all_of_them=not name and "name" not in request.body)
            case "binding":
                return management.binding_items(self._broker.nodes)
            case "connection":
                return [connection.describe() for connection in self._broker.connections.values() if connection.opened]
            case "subscription":
                return list(self._subscription_items())
            case "ha":
                return [self._broker.ha.ha_item() if self._broker.ha is not None else self._standalone_item()]
            case "history":
                return [_reign_item(reign) for reign in self._broker.lead.state.definitions.reigns]
            case _:
                raise Refused(404, f"there is nothing of type {kind!r} to query")

    def _consumers(self, node: QueueNode) -> int:
        return 0 if node.context is None else len(node.context.subscriptions)

    def _broker_item(self) -> dict[str, Any]:
        return {
            "name": self._broker.broker_id,
            "uptime_s": self._broker.clock.seconds() - self._broker.started,
            "cluster": self._broker.state if self._broker.ha is not None else "",
            "connections": len(self._broker.connections),
            "sessions": len([connection for connection in self._broker.connections.values() if connection.opened]),
            "exchanges": len(self._broker.nodes.exchanges),
            "queues": len(self._broker.nodes.queues),
            "version": self._broker.version,
        }

    def _standalone_item(self) -> dict[str, Any]:
        return {
            "status": self._broker.state,
            "brokerId": self._broker.broker_id,
            "address": "",
            "brokersUrl": "",
            "publicUrl": "",
            "members": [],
        }

    def _subscription_items(self) -> Iterable[dict[str, Any]]:
        for connection in self._broker.connections.values():
            for link in connection.engine.links:
                if isinstance(link.context, Subscription) and isinstance(link, Sender):
                    described = connection.describe()
                    yield {
                        "id": link.name,
                        "queue": link.context.node.name,
                        "connection": described["id"],
                        "processName": described["processName"],
                        "processId": described["processId"],
                        "browse": link.context.browse,
                        "acknowledged": not link.context.presettled,
                        "exclusive": link.context.node.definition.exclusive,
                        "creditMode": "CREDIT",
                        "delivered": link.context.delivered,
                        "unacked": len(link.unsettled),
                    }

    def _change(self, request: management_node.Request, answer: Answer) -> None:
        node = self._broker.nodes.queues.get(request.name)
        consumers = 0 if node is None else self._consumers(node)
        log, command = management.plan(
            self._broker.nodes, request.operation, request.type, request.name, request.body, self._broker.new_id(), consumers
        )
        ledger = self._broker.ledgers[log]
        if not ledger.serving:
            where = f"; send it to the primary, {self._broker.primary}" if self._broker.primary else ""
            raise Refused(409, f"this broker is {self._broker.state}: only the primary changes what is replicated{where}")

        def made(reason: str) -> None:
            if reason:
                answer(409, reason, {})
            elif request.operation == "DELETE":
                answer(204, "deleted", {})
            elif request.type == "queue":
                self._answer_when_placed(request.name, answer)
            else:
                answer(201, "created", command.to_dict())

        ledger.change(command, made)

    def _answer_when_placed(self, name: str, answer: Answer) -> None:
        """A queue of level `configuration` exists when its messages have a place in the local log, too."""
        node = self._broker.nodes.queues.get(name)
        if node is not None and node.messages is None:
            self._broker.ledgers[LOCAL].when_committed(lambda: self._answer_when_placed(name, answer))
        elif node is None:
            answer(409, f"queue {name!r} was deleted while it was being made", {})
        else:
            answer(201, "created", management.queue_item(self._broker.nodes, node, 0, 1))


def _reign_item(reign: Reign) -> dict[str, Any]:
    return {
        "ts": reign.ts,
        "epoch": reign.epoch,
        "primary": reign.primary,
        "reason": reign.reason,
        "gap_ms": reign.gap_ms,
    }
