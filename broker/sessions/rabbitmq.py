"""The management node of RabbitMQ's AMQP 1.0 clients: `/management`, over a pair of links.

Life of a pair: a client attaches a sending and a receiving link of the same name, both to `/management`, in any order. A request
over the sending link is translated into a request of our management (`broker.core.rabbitmq`). Its answer goes to the mailbox of
the receiving link, and is translated there into RabbitMQ's form.

Invariants: management checks a client's rights, as for any request; every request gets one answer, if both links of its pair
exist and management does not refuse it; the number of requests that wait for an answer is limited for each pair, and a request
that management has refused or dropped does not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from broker.amqp import management_node
from broker.amqp.data import Condition
from broker.amqp.sender import Sender
from broker.core import limits, message, rabbitmq
from broker.core.commands import QueueAdd
from broker.core.links import REJECTED
from broker.core.message import BadMessage
from broker.core.nodes import AUTO_DELETE_TIMEOUT, Nodes
from broker.core.planning import FOR_ANY, with_policy
from broker.core.rabbitmq import Native
from broker.sessions.attach import Attach, Output
from broker.sessions.mailboxes import Mailbox, Mailboxes
from broker.sessions.management import ManagementTerminus, TakeRequest
from broker.sessions.producer import Producer

Pair = tuple[int, str]
"""The number of a connection, and the name of its two links."""
_GIVEN = FOR_ANY | {AUTO_DELETE_TIMEOUT}
"""Arguments that do not decide the kind of a queue: an earlier policy or an operator may have given them to it."""


class Answers(Mailbox):
    """The receiving link of a pair: answers of management become RabbitMQ's here."""

    __slots__ = ("_asked", "_close", "_next", "_nodes")

    def __init__(
        self, mailboxes: Mailboxes, session: Output, link: Sender, address: str, nodes: Nodes, close: Callable[[], object]
    ) -> None:
        super().__init__(mailboxes, session, link, address)
        self._asked: dict[int, tuple[Native, Any]] = {}
        """Number of a request -> the request, and its id at the client."""
        self._next = 0
        self._nodes = nodes
        self._close = close

    def ask(self, request: Native, known_as: Any) -> tuple[int, bytes]:
        """The number of a request and its bytes for management, whose answer will arrive here. OverflowError when too many
        requests have no answer."""
        if len(self._asked) >= limits.MAILBOX_MESSAGES:
            raise OverflowError(f"{len(self._asked)} requests wait for their answers already")
        number = self._next = self._next + 1
        asked = management_node.encode_request(number, self.address, request.operation, request.type, request.name, request.body)
        self._asked[number] = request, known_as
        return number, asked

    def unanswered(self, number: int) -> None:
        """Management will not answer this request."""
        self._asked.pop(number, None)

    def put(self, data: bytes) -> None:
        """An answer of management."""
        answer = management_node.decode_answer(data)
        request, known_as = self._asked.pop(answer.correlation_id)
        alike = request.operation == "CREATE" and self._alike(request)
        self.say(known_as, *rabbitmq.answer(request, answer.status or 500, answer.text, answer.body, alike=alike))

    def say(self, known_as: Any, status: int, body: Any) -> None:
        """Answer the client's request."""
        properties = {"http:response": "1.1"}
        super().put(message.encoded(to="$me", correlation_id=known_as, properties=properties, body=body, subject=str(status)))

    def detached(self) -> None:
        """Its client is gone."""
        self._close()
        super().detached()

    def _alike(self, request: Native) -> bool:
        """Whether the object that a request creates exists already."""
        body = request.body
        if request.type == "queue":
            queue = self._nodes.queues.get(request.name)
            if queue is None:
                return False
            return _is_alike(queue.definition, body, with_policy(self._nodes, "queue", request.name, body))
        if request.type == "exchange":
            exchange = self._nodes.exchanges.get(request.name)
            return exchange is not None and exchange.definition.kind == body["exchangeType"]
        return body["exchange"] in self._nodes.exchanges and body["queue"] in self._nodes.queues


class RabbitmqManagement:
    """See the module: both ends of all pairs. `new_id` makes the addresses of mailboxes."""

    def __init__(self, requests: TakeRequest, mailboxes: Mailboxes, nodes: Nodes, new_id: Callable[[], str]) -> None:
        self._requests = requests
        self._mailboxes = mailboxes
        self._nodes = nodes
        self._new_id = new_id
        self._answers: dict[Pair, Answers] = {}

    def target(self, attach: Attach) -> Requests | None:
        """For a link that brings requests."""
        return Requests(self._requests, self, _pair(attach)) if attach.asked.address == rabbitmq.ADDRESS else None

    def source(self, attach: Attach) -> RabbitmqManagement | None:
        """For a link that takes answers."""
        return self if attach.asked.address == rabbitmq.ADDRESS else None

    def knows_filter(self, name: str) -> bool:
        """None is applied."""
        return False

    def subscribe(self, attach: Attach, link: Sender) -> None:
        """Answers go to this link."""
        pair = _pair(attach)
        if pair in self._answers:
            raise Condition("amqp:not-allowed", "this connection has a link of that name that takes answers already")
        link.accept(settled=True)
        address = f"$reply/{self._new_id()}"
        made = Answers(self._mailboxes, attach.session, link, address, self._nodes, lambda: self._answers.pop(pair))
        self._answers[pair] = made
        self._mailboxes.add(made)
        link.context = made

    def answers(self, pair: Pair) -> Answers | None:
        """The other end of a pair."""
        return self._answers.get(pair)


class Requests(ManagementTerminus):
    """The sending link of a pair."""

    __slots__ = ("_management", "_pair")
    in_any_order = True
    """RabbitMQ's client for Python puts a body of null before everything else."""

    def __init__(self, requests: TakeRequest, management: RabbitmqManagement, pair: Pair) -> None:
        super().__init__(requests)
        self._management = management
        self._pair = pair

    def receive(self, producer: Producer, first: int, messages: list[bytes]) -> None:
        """Requests, in order."""
        for delivery_id, data in enumerate(messages, first):
            self._take(producer, data, delivery_id)

    def _take(self, producer: Producer, data: bytes, delivery_id: int) -> None:
        answers = self._management.answers(self._pair)
        if answers is None:
            text = f"a request needs a link of the same name that takes answers from {rabbitmq.ADDRESS}: attach it first"
            producer.refuse(delivery_id, REJECTED, Condition("amqp:precondition-failed", text))
            return
        if len(data) > limits.MAX_REQUEST_BYTES:
            text = f"a management request may have {limits.MAX_REQUEST_BYTES} bytes, this one has {len(data)}"
            producer.refuse(delivery_id, REJECTED, Condition("amqp:resource-limit-exceeded", text))
            return
        try:
            data = message.in_order(data)
            known_as = message.message_id(data)
            request = rabbitmq.native(message.subject(data) or "", message.to(data) or "", message.body_value(data))
            number, asked = answers.ask(request, known_as)
        except BadMessage as error:
            producer.refuse(delivery_id, REJECTED, Condition("amqp:decode-error", str(error)))
        except OverflowError as error:
            producer.refuse(delivery_id, REJECTED, Condition("amqp:resource-limit-exceeded", str(error)))
        except (rabbitmq.Unserved, TypeError, ValueError) as error:
            answers.say(known_as, 400, str(error))
            producer.done(delivery_id)
        else:
            self._requests.take(producer, asked, delivery_id, partial(answers.unanswered, number))


def _is_alike(there: QueueAdd, asked: Mapping[str, Any], completed: Mapping[str, Any]) -> bool:
    """Whether a queue has everything that a request asks for, and is of the kind that the request would have, `completed` by the
    policy. As in RabbitMQ, a policy may give a queue more than its clients ask for; an operator may, too."""
    if (asked["autoDelete"] and not there.auto_delete) or there.alternate != asked.get("alternateExchange", there.alternate):
        return False
    wanted, theirs = asked["arguments"], completed["arguments"]
    return wanted.keys() <= there.arguments.keys() and all(
        value == wanted[name] if name in wanted else name in _GIVEN or (name in theirs and theirs[name] == value)
        for name, value in there.arguments.items()
    )


def _pair(attach: Attach) -> Pair:
    return attach.session.number, attach.link.name
