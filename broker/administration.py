"""Management: from a request to its answer.

Life of a request: it arrives as a message to `$management` and is decoded (`broker.amqp.management_node`). It is refused with 403
if its connection lacks the right. Otherwise it is answered from the state of the broker (QUERY, in pages:
`broker.core.management.Page`), passed to the object that is registered for its type (`extensions`), or planned as one change of
one log and answered when that is committed. The answer goes to the mailbox or queue that the request names, if that still exists
and its connection may send to it. A broker that does not serve rejects a request that names a queue for its answer. When requests
exceed their share of a turn of the reactor, the rest of the work waits for the next turns, and the links take turns.

Invariants: management delays other work by at most `limits.MANAGEMENT_TURN_S` and one small piece of work, and under load takes
at most half of the time, less while messages move (`broker.sessions.share`); waiting requests and answers have limits; every
request gets one answer, whatever it contains, or none if it names no place for the answer, its link or the service of the place
has ended, or it is rejected; a request that fails by a defect of the broker is logged and rejected, and the others are served;
every change goes through a log and is written to the audit log.

Reference: docs/reference/management.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger, LogLevel

from broker.amqp import management_node
from broker.amqp.data import Condition
from broker.core import limits, management, schema
from broker.core.acl import questions
from broker.core.acl.questions import Lookup, shown
from broker.core.commands import QueueAdd, QueueDel, QueueDelIfEmpty, Term
from broker.core.links import REJECTED
from broker.core.management import Page, Place, Stream
from broker.core.nodes import LOCAL, ExchangeNode, QueueNode, Refused
from broker.core.planning import with_policy
from broker.core.policies import KINDS, POLICY_OF
from broker.host import resident_bytes
from broker.sessions import bulk, delivering, peek
from broker.sessions.audit import Audit
from broker.sessions.bulk import Bulk
from broker.sessions.connection import Connection
from broker.sessions.guard import Rights
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.mailboxes import Mailboxes
from broker.sessions.principal import Principal
from broker.sessions.producer import Producer
from broker.sessions.queue_terminus import QueueTerminus
from broker.sessions.queues import Queues
from broker.sessions.quota import QueueQuota
from broker.sessions.refusals import Bounded
from broker.sessions.removal import Cause
from broker.sessions.room import full_text, has_room
from broker.sessions.share import Allowance
from broker.sessions.slow import SlowConsumers
from broker.sessions.turn import Turn

_log = Logger()
Answer = Callable[[int, str, Any], None]
"""Takes status, text and body of an answer."""


class Extension(Protocol):
    """Answers the requests of one type."""

    def items(self) -> list[dict[str, Any]]:
        """The items of a QUERY of this type."""

    def act(self, operation: str, body: dict[str, Any], principal: Principal) -> Deferred[tuple[int, str, dict[str, Any]]]:
        """Any other operation on it, asked for by `principal`: status, text and body of the answer. Refused: it cannot be."""


class Administration:
    """A broker's management node. `new_id` makes the identities of new objects."""

    def __init__(
        self,
        clock: IReactorTime,
        logs: Logs,
        queues: Queues,
        mailboxes: Mailboxes,
        turn: Turn,
        audit: Audit,
        quota: QueueQuota,
        slow: SlowConsumers,
        allowance: Allowance,
        *,
        broker_id: str,
        version: str,
        new_id: Callable[[], str],
    ) -> None:
        self.bulk: Bulk
        """Executes operations on many messages."""
        self.extensions: dict[str, Extension] = {}
        """Type -> the object that answers its requests."""
        self.connections: dict[int, Connection] = {}
        """The connections, which belong to `broker.sessions.admission`."""
        self._clock = clock
        self._started = clock.seconds()
        self._logs = logs
        self._queues = queues
        self._mailboxes = mailboxes
        self._turn = turn
        self._audit = audit
        self._quota = quota
        self._slow = slow
        self._allowance = allowance
        self._under_way: dict[int, tuple[str, Callable[[], None]]] = {}
        """Number of a proposed change -> its log, and the call if there will be no result."""
        self._next_change = 0
        self._broker_id = broker_id
        self._version = version
        self._new_id = new_id
        self._waiting: dict[Producer, deque[_Request]] = {}
        self._waiting_bytes = 0
        self._spent_s = 0.0
        self._next_call: IDelayedCall | None = None
        self._dropped = Bounded(
            clock.seconds, lambda line: _log.warn("{line}", line=line), "dropped management requests or answers"
        )
        self._failures = Bounded(
            clock.seconds, lambda line: _log.failure("{line}", level=LogLevel.error, line=line), "failed management requests"
        )

    def take(
        self, producer: Producer, request_bytes: bytes, delivery_id: int, unanswered: Callable[[], object] = lambda: None
    ) -> None:
        """Serve a request that came over this link, now or in a later turn, and accept it then. Requests of a link keep their
        order; those that still wait when it ends are dropped. `unanswered` is called if it is rejected or dropped."""

        def refuse(condition: Condition) -> None:
            unanswered()
            producer.refuse(delivery_id, REJECTED, condition)

        if self._waiting_bytes + len(request_bytes) > limits.MANAGEMENT_WAITING_BYTES:
            text = f"management requests of {self._waiting_bytes} bytes wait already: ask again later, and less at a time"
            refuse(Condition("amqp:resource-limit-exceeded", text))
            return
        work = self.handle(producer.session.rights, request_bytes)
        request = _Request(work, len(request_bytes), partial(producer.done, delivery_id), refuse, unanswered)
        if self._waiting or self._spent_s >= self._turn_s or not self._serve(request):
            self._waiting.setdefault(producer, deque()).append(request)
            self._waiting_bytes += request.nbytes
        self._arm()

    @property
    def _turn_s(self) -> float:
        """The share of requests in this turn."""
        return self._allowance.turn_s(limits.MANAGEMENT_TURN_S)

    def _serve(self, request: _Request) -> bool:
        """Work on a request for as long as this turn allows. Returns whether it has been served."""
        began_s = self._clock.seconds()
        left_s, spent_s, served = self._turn_s - self._spent_s, 0.0, False
        try:
            for _ in request.work:
                spent_s = self._clock.seconds() - began_s
                if spent_s >= left_s:
                    break
            else:
                served = True
                request.served()
        except Condition as condition:
            served = True
            request.refused(condition)
        except Exception:
            served = True
            self._failures.line("a management request failed in this broker")
            request.refused(Condition("amqp:internal-error", "this request failed in the broker: its log has the reason"))
        if served:
            spent_s = self._clock.seconds() - began_s
        self._spent_s += spent_s
        return served

    def _arm(self) -> None:
        if self._next_call is None and (self._waiting or self._spent_s):
            rest_s = self._allowance.rest_s(limits.MANAGEMENT_TURN_S) if self._spent_s else 0
            self._next_call = self._clock.callLater(rest_s, self._next_turn)

    def _next_turn(self) -> None:
        self._next_call, self._spent_s = None, 0.0
        try:
            while self._waiting:
                producer = next(iter(self._waiting))
                requests = self._waiting.pop(producer)
                if not producer.link.open:
                    self._waiting_bytes -= sum(request.nbytes for request in requests)
                    for request in requests:
                        request.dropped()
                    continue
                request = requests.popleft()
                self._waiting_bytes -= request.nbytes
                if not self._serve(request):
                    requests.appendleft(request)
                    self._waiting_bytes += request.nbytes
                if requests:
                    self._waiting[producer] = requests
                if self._spent_s >= self._turn_s:
                    break
        finally:
            self._arm()
        self._turn.flush()

    def handle(self, rights: Rights, request_bytes: bytes) -> Iterator[None]:
        """Answer a request from a client with these rights, now or when its change is committed; a small piece of work at a time.
        A request that cannot be answered is logged and dropped. Condition: it cannot be answered here, and nothing was done."""
        try:
            request = management_node.decode(request_bytes)
        except management_node.BadRequest as error:
            self._dropped.line(f"management request dropped: {error}")
            return

        if not self._logs.serving and request.reply_to in self._logs.nodes.queues and not self._mailboxes.named(request.reply_to):
            raise self._logs.unserved()
        lookup = self._lookup(request)

        def answer(status: int, text: str, body: Any) -> None:
            if request.operation not in schema.UNAUDITED:
                self._audit.managed(rights.who, _what(lookup, request), status, text)
            box = self._mailboxes.named(request.reply_to)
            if box is not None:
                box.put(management_node.encode(request, status, text, body))
                self._turn.flush()
                return
            queue = self._logs.nodes.queues.get(request.reply_to)
            if queue is not None and queue.messages is not None:
                denial = rights.denial(questions.send_to_queue(queue))
                if denial:
                    self._audit.managed(rights.who, "the answer is dropped", 403, denial)
                    return
                data = management_node.encode(request, status, text, body)
                ledger, size = self._logs.ledger_of(queue), len(data)
                if self._logs.closed:
                    self._dropped.line("the answer to a management request was dropped: this broker leaves")
                    return
                if not (self._logs.serving and ledger.serving):
                    where = f"this broker no longer serves {queue.name!r}"
                    self._dropped.line(f"the answer to a management request was dropped: {where}")
                    return
                if self._logs.nodes.is_going(queue.uuid):
                    self._dropped.line(f"the answer to a management request was dropped: queue {queue.name!r} is being deleted")
                    return
                if not (has_room(queue, 1, size) and ledger.room.takes(size)):
                    why = ledger.room.text if ledger.room.low else full_text(queue, size)
                    self._dropped.line(f"the answer to a management request was dropped: {why}")
                    return
                ledger.enqueue(queue, [data], size)

        try:
            denial = rights.denial((lookup,))
            if denial:
                raise Refused(403, denial)
            yield from self._execute(rights, request, answer)
        except Refused as refusal:
            answer(refusal.status, refusal.text, {})
        except (KeyError, TypeError, ValueError) as error:
            answer(400, f"this request's body does not fit the operation {request.operation}: {error}", {})

    def _lookup(self, request: management_node.Request) -> Lookup:
        nodes, name, kind = self._logs.nodes, request.name, request.type
        if kind == schema.NODE and request.operation in schema.ASKING:
            name, kind = "", str(request.properties.get("entityType") or kind)
        elif request.operation == "QUERY":
            name = _queried(request) if kind in _QUERIED_BY_NAME else ""
        elif request.operation == "READ" and request.properties.get("identity") is not None:
            name = self._name_of(kind, str(request.properties["identity"]))
        return questions.request(
            "QUERY" if request.operation in schema.ASKING else request.operation,
            kind,
            name,
            with_policy(nodes, kind, name, request.body) if request.operation == "CREATE" and kind in POLICY_OF else request.body,
            queue=nodes.queues.get(name),
            exchange=nodes.exchanges.get(name),
            default_bytes=nodes.default_queue_bytes,
        )

    def _name_of(self, kind: str, identity: str) -> str:
        """The name, for rules, of the entity of this type and identity: only queues and exchanges have another one."""
        nodes = self._logs.nodes
        node: QueueNode | ExchangeNode | None = None
        if kind == "queue":
            node = nodes.queue_by_uuid(identity)
        elif kind == "exchange":
            node = nodes.find_exchange(identity)
        return identity if node is None else node.name

    def _execute(self, rights: Rights, request: management_node.Request, answer: Answer) -> Iterator[None]:
        operation, kind = request.operation, request.type
        if kind == schema.NODE:
            yield from self._describe(request, answer)
        elif operation == "READ":
            yield from self._read(request, answer)
        elif operation == "QUERY":
            count, after = _asked_page(request.body)
            page = Page(count, limits.PAGE_BYTES)
            found = self._query(kind, _queried(request), request, after, count + 1)
            if kind == "ha" and (why := rights.objection(_PROMOTION)):
                found = (each and (each[0], each[1] | {"promoteDenied": why}) for each in found)
            yield from page.fill(found)
            answer(200, "OK", page.body)
        elif kind in self.extensions:
            self.extensions[kind].act(operation, request.body, rights.who.principal).addCallbacks(
                lambda result: answer(*result),
                lambda failure: answer(500, f"{operation} failed: {failure.getErrorMessage()}", {}),
            )
        elif kind == "queue" and operation == peek.OPERATION:
            self._peek(rights, request, answer)
        elif kind == "queue" and operation == delivering.OPERATION:
            self._deliver(rights, request, answer)
        elif kind == "queue" and operation in bulk.OPERATIONS:
            self._do_in_bulk(rights, request, answer)
        else:
            self._change(rights, request, answer)

    # ---- the node itself, by AMQP Management

    def _describe(self, request: management_node.Request, answer: Answer) -> Iterator[None]:
        operation, wanted = request.operation, request.properties.get("entityType")
        kinds = [*schema.ATTRIBUTES, *self.extensions, schema.NODE]
        if operation not in schema.operations(schema.NODE):
            raise Refused(501, f"the management node does not have the operation {operation!r}")
        if wanted is not None and wanted not in kinds:
            raise Refused(404, f"there are no entities of type {wanted!r}; there are: {', '.join(kinds)}")
        asked = kinds if wanted is None else [str(wanted)]
        match operation:
            case "QUERY":
                yield from self._table(request, answer, None if wanted is None else str(wanted))
            case "GET-ATTRIBUTES":
                answer(200, "OK", {kind: self._attributes(kind) for kind in asked})
            case "GET-OPERATIONS":
                answer(200, "OK", {kind: schema.operations(kind) for kind in asked})
            case "GET-MGMT-NODES":
                answer(200, "OK", [management_node.ADDRESS])
            case _:  # types extend no others, and have no annotations
                answer(200, "OK", {kind: [] for kind in asked})

    def _attributes(self, kind: str) -> list[str]:
        return schema.attributes(kind, self.extensions[kind].items() if kind in self.extensions else ())

    def _table(self, request: management_node.Request, answer: Answer, kind: str | None) -> Iterator[None]:
        """A query by AMQP Management: a row for each entity of a type."""
        if kind is None or kind == schema.NODE:
            raise Refused(400, "`entityType` is missing: name one of the types that GET-TYPES lists")
        count, offset = (request.properties.get(field) for field in ("count", "offset"))
        if offset is None:
            offset = 0
        if type(offset) is not int or offset < 0:
            raise Refused(400, f"`offset` must be a number of entities to skip, 0 or more, not {offset!r}")
        count, _ = _asked_page({"count": count})
        names = request.body.get("attributeNames") or self._attributes(kind)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Refused(400, "`attributeNames` must be a list of names of attributes")
        if len(set(names)) < len(names):
            raise Refused(400, "`attributeNames` must name each attribute once")
        if len(names) > limits.MAX_ATTRIBUTE_NAMES:
            raise Refused(400, f"`attributeNames` may have {limits.MAX_ATTRIBUTE_NAMES} names, not {len(names)}")
        unknown = set(names).difference(self._attributes(kind)) if kind in schema.ATTRIBUTES else ()
        for name in unknown:
            raise Refused(400, f"entities of type {kind!r} have no attribute {name!r}")
        page = Page(count, limits.PAGE_BYTES)
        yield from page.fill(schema.rows(self._query(kind, "", request, (), offset + count + 1), kind, names, offset))
        more = {} if page.next is None else {"next": page.next[0]}
        answer(200, "OK", {"attributeNames": names, "results": page.items} | more)

    def _read(self, request: management_node.Request, answer: Answer) -> Iterator[None]:
        """One entity, by its name or its identity."""
        kind, name, identity = request.type, request.name, request.properties.get("identity")
        if not name and identity is None:
            raise Refused(400, f"name the {kind} by `name` or `identity`")
        by_name = name if kind in ("queue", "exchange") and identity is None else ""
        for found in self._query(kind, by_name, request, (), 1 << 30):
            if found is not None:
                item = schema.entity(kind, found[1])
                if item["identity"] == identity or (identity is None and item["name"] == name):
                    answer(200, "OK", item)
                    return
            yield
        raise Refused(404, f"there is no {kind} with the {'name' if identity is None else 'identity'} {name or identity!r}")

    # ---- changes

    def _consumable(self, rights: Rights, name: str) -> QueueTerminus:
        """The queue of this name, if this broker serves it and the client may consume from it. Refused."""
        node = self._logs.nodes.queues.get(name)
        if node is None:
            raise Refused(404, f"there is no queue named {name!r}")
        denial = rights.denial(questions.take_from_queue(node))
        if denial:
            raise Refused(403, denial)
        queue = self._queues.at(node)
        if node.messages is None or not queue.ledger.serving:
            raise Refused(409, f"queue {node.name!r} is not ready on this broker: ask the primary")
        return queue

    def _later(self, answer: Answer) -> Callable[[dict[str, Any]], None]:
        """A function that answers later, unless this broker has stopped serving by then."""
        number, self._next_change = self._next_change, self._next_change + 1

        def done(body: dict[str, Any]) -> None:
            if self._under_way.pop(number, None) is not None:
                answer(200, "OK", body)

        self._under_way[number] = self._logs.lead.name, lambda: None
        return done

    def _peek(self, rights: Rights, request: management_node.Request, answer: Answer) -> None:
        """Messages of a queue, as they lie there."""
        queue, asked = self._consumable(rights, request.name), peek.asked_of(request.body)
        peek.peek(queue, *asked, self._later(answer))

    def _deliver(self, rights: Rights, request: management_node.Request, answer: Answer) -> None:
        """Messages of a queue that are to wait no longer."""
        queue, asked = self._consumable(rights, request.name), delivering.asked_of(request.body)
        if not self._logs.serving:
            raise Refused(409, f"this broker is {self._logs.state}: only the primary delivers messages")
        delivering.deliver(queue, asked, self._later(answer))

    def _do_in_bulk(self, rights: Rights, request: management_node.Request, answer: Answer) -> None:
        number, self._next_change = self._next_change, self._next_change + 1

        def done(result: bulk.Result) -> None:
            self._under_way.pop(number, None)
            body: dict[str, Any] = {"count": result.taken, "left": result.left}
            body |= {"repeated": result.stays[bulk.REPEATED]} if bulk.REPEATED in result.stays else {}
            body |= {} if result.next is None else {"next": result.next}
            if result.fault:
                answer(409, f"{result.fault}; {result.taken} messages were processed before that", body)
            else:
                answer(200, f"{result.taken} messages", body)

        self.bulk.start(request.name, request.operation, request.body, done)
        self._under_way[number] = self._logs.lead.name, partial(self._unanswered, rights, request)

    def _unanswered(self, rights: Rights, request: management_node.Request) -> None:
        text = "this broker is no longer the primary: the next primary has the result"
        self._audit.managed(rights.who, _what(self._lookup(request), request), 0, text)

    def _query(self, kind: str, name: str, request: management_node.Request, after: Place, most: int) -> Stream:
        nodes, in_order = self._logs.nodes, management.one_by_one
        match kind:
            case "broker":
                return in_order([self._broker_item()], after)
            case "queue":
                return management.queue_items(nodes, name, self._consumers, after, most)
            case "exchange":
                all_of_them = not name and "name" not in request.body
                return management.exchange_items(nodes, name, all_of_them=all_of_them, after=after, most=most)
            case "binding":
                ends = {field: str(request.body.get(field) or "") for field in ("exchange", "queue")}
                return management.binding_items(nodes, after, most, **ends)
            case "connection":
                return self._connection_items(after)
            case "subscription":
                return self._subscription_items(after)
            case "memory":
                return in_order(self._memory_items(), after)
            case "QueuePolicy" | "TopicPolicy":
                return in_order(management.policy_items(nodes, kind), after)
            case "history":
                return in_order(map(_term_item, self._logs.lead.state.definitions.terms), after)
            case _:
                if kind in self.extensions:
                    return in_order(self.extensions[kind].items(), after)
                raise Refused(404, f"there is no type {kind!r} to query")

    def _consumers(self, node: QueueNode) -> int:
        return self._queues.consumers(node)

    def _broker_item(self) -> dict[str, Any]:
        logs = self._logs
        return {
            "name": self._broker_id,
            "uptime_s": self._clock.seconds() - self._started,
            "cluster": logs.state if logs.nodes.clustered else "",
            "connections": len(self.connections),
            "sessions": len([connection for connection in self.connections.values() if connection.opened]),
            "exchanges": len(logs.nodes.exchanges),
            "queues": len(logs.nodes.queues),
            "slowConsumers": self._slow.count,
            "slowConsumersEnded": self._slow.ended,
            "version": self._version,
        }

    def _memory_items(self) -> list[dict[str, Any]]:
        logs = self._logs
        found = (
            ("resident", resident_bytes()),
            ("bodies", logs.residency.held_bytes),
            ("bodies-limit", logs.residency.limit_bytes),
            ("not-committed", logs.inflow.nbytes),
            ("answers-waiting", self._mailboxes.nbytes),
            ("requests-waiting", self._waiting_bytes),
        )
        return [{"name": name, "bytes": nbytes} for name, nbytes in found]

    def _connection_items(self, after: Place) -> Stream:
        for number in list(self.connections):  # they are in the order of their numbers
            connection = self.connections.get(number)
            if (number,) > after and connection is not None and connection.opened:
                yield (number,), connection.describe()
            else:
                yield None

    def _subscription_items(self, after: Place) -> Stream:
        for number in list(self.connections):
            yield None
            connection = self.connections.get(number)
            if connection is None or (number,) < after[:1]:
                continue
            described = connection.describe()
            of_it = {field: described[theirs] for field, theirs in _OF_A_CONNECTION.items()}
            for link, item in connection.session.subscriptions(after[1:] if after[:1] == (number,) else ()):
                yield (number, link), item | of_it

    def _change(self, rights: Rights, request: management_node.Request, answer: Answer) -> None:
        nodes, user = self._logs.nodes, rights.user
        if request.operation == "CREATE":
            self._check_creates()
        node = nodes.queues.get(request.name)
        consumers = 0 if node is None else self._consumers(node)
        uuid, owner = self._new_id(), self._quota.owner(user)
        log, command = management.plan(nodes, request.operation, request.type, request.name, request.body, uuid, consumers, owner)
        ledger = self._logs.ledgers[log]
        self._check_serving(ledger, request)

        deletes = isinstance(command, QueueDel | QueueDelIfEmpty)
        if deletes and node is not None and request.body.get("ifEmpty") and node.uuid in self._logs.promised:
            raise Refused(409, f"queue {node.name!r} is not empty: a transaction that is being committed puts messages on it")
        if isinstance(command, QueueDel) and node is not None:
            fault = self._queues.removals.fault(node)
            if fault:
                raise Refused(409, fault)

        number, self._next_change = self._next_change, self._next_change + 1
        told = ""
        counted = self._count(user, uuid, log) if isinstance(command, QueueAdd) else None

        def made(reason: str) -> None:
            self._under_way.pop(number, None)
            if counted is not None:
                counted(reason)
            if reason:
                answer(409, reason, {})
            elif request.operation == "DELETE":
                answer(204, f"deleted; {told}" if told else "deleted", {})
            elif request.operation == "UPDATE":
                self._answer_with(request, answer, 200, "updated")
            elif request.type == "queue":
                self._answer_when_placed(request.name, answer)
            elif request.type != "binding":
                self._answer_with(request, answer, 201, "created")
            else:
                names = {field: str(request.body.get(field) or "") for field in ("exchange", "queue", "key")}
                answer(201, "created", schema.entity("binding", names | {"arguments": request.body.get("arguments") or {}}))

        def propose(of_its_messages: str) -> None:
            nonlocal told
            told = of_its_messages
            self._under_way[number] = log, unanswered
            ledger.change(command, made)

        def stays(why: str) -> None:
            self._under_way.pop(number, None)
            answer(409, why, {})

        def holds() -> bool:
            return not (request.body.get("ifUnused") and node is not None and self._consumers(node))

        unanswered = partial(self._unanswered, rights, request)
        if isinstance(command, QueueDel) and node is not None:
            self._under_way[number] = self._logs.lead.name, unanswered
            self._queues.removals.remove(node, Cause(propose, stays, holds))
        else:
            propose("")

    def _check_creates(self) -> None:
        """Refused, unless this broker creates objects: even one of this broker alone is for clients, which only a primary has."""
        if not self._logs.serving:
            raise Refused(409, self._only_the_primary("create objects, because only there clients can use them"))
        if self._logs.closed:
            raise Refused(409, self._logs.redirect().text)

    def _check_serving(self, ledger: Ledger, request: management_node.Request) -> None:
        """Refused, unless this broker may write to that log."""
        if not ledger.serving and self._logs.serving:
            what = f"{request.type} {request.name!r} belongs to this broker's own log"
            raise Refused(409, f"{what}, which is not ready yet: try again")
        if not ledger.serving:
            raise Refused(409, self._only_the_primary("change replicated objects"))

    def _only_the_primary(self, can: str) -> str:
        where = f"; send it to the primary, {self._logs.primary}" if self._logs.primary else ""
        return f"this broker is {self._logs.state}: only the primary can {can}{where}"

    def _answer_with(self, request: management_node.Request, answer: Answer, status: int, text: str) -> None:
        """Answer with the current state of the queue, exchange or policy."""
        kind = request.type
        for found in self._query(kind, request.name, request, (), 1) if self._exists(kind, request.name) else ():
            if found is not None and found[1]["name"] == request.name:
                answer(status, text, schema.entity(kind, found[1]))
                return
        answer(409, f"{kind} {request.name!r} was deleted meanwhile", {})

    def _exists(self, kind: str, name: str) -> bool:
        nodes = self._logs.nodes
        return kind in KINDS or name in (nodes.queues if kind == "queue" else nodes.exchanges)

    def _count(self, user: str, uuid: str, log: str) -> Callable[[str], None]:
        """A queue more of this user's: to be called with the answer. Refused, when that is one too many."""
        full = self._quota.denial(user, self._logs.nodes)
        if full:
            raise Refused(403, full)
        return self._quota.proposed(user, uuid, log)

    def void(self, log: str) -> None:
        """Proposals to this log get no result any more."""
        self._quota.void(log)
        for number in [number for number, (proposed_to, _) in self._under_way.items() if proposed_to == log]:
            _, unanswered = self._under_way.pop(number)
            unanswered()

    def _answer_when_placed(self, name: str, answer: Answer) -> None:
        """A queue of level `configuration` exists when its messages have a place in the local log, too."""
        node = self._logs.nodes.queues.get(name)
        if node is not None and node.messages is None:
            self._logs.ledgers[LOCAL].pending.when_committed(lambda: self._answer_when_placed(name, answer))
        elif node is None:
            answer(409, f"queue {name!r} was deleted while it was being made", {})
        else:
            answer(201, "created", schema.entity("queue", management.queue_item(self._logs.nodes, node, 0, 1)))


_PROMOTION = Lookup("access", "method", {"name": "promote", "schemaclass": "ha"})
_QUERIED_BY_NAME = frozenset(("queue", "exchange"))
_OF_A_CONNECTION = {"connection": "id", "processName": "processName", "processId": "processId"}
"""Field of a subscription -> field of its connection."""


@dataclass(slots=True)
class _Request:
    """A request in progress: the rest of the work, and the calls at its end, one of which is made."""

    work: Iterator[None]
    nbytes: int
    served: Callable[[], None]
    refused: Callable[[Condition], None]
    dropped: Callable[[], object]


def _asked_page(body: dict[str, Any]) -> tuple[int, Place]:
    """How many items a QUERY asks for, and the place behind which; Refused when that cannot be."""
    count, after = body.get("count"), body.get("after")
    if count is None:
        count = limits.PAGE_ITEMS
    if type(count) is not int or count < 1:
        raise Refused(400, f"`count` must be a number of items, 1 or more, not {count!r}")
    if after is not None and not isinstance(after, list):
        raise Refused(400, "`after` must be the `next` of an earlier answer")
    return min(count, limits.PAGE_ITEMS), tuple(after or ())


def _queried(request: management_node.Request) -> str:
    """The name of the object of a QUERY; "" for all objects. All are told of types that are not `_QUERIED_BY_NAME`."""
    return str(request.body.get("name") or request.name)


def _what(lookup: Lookup, request: management_node.Request) -> str:
    """The text of a request in the audit log."""
    address = request.body.get("address")
    return str(lookup) if address is None else f"{lookup} address={shown(str(address))}"


def _term_item(term: Term) -> dict[str, Any]:
    return {
        "ts": term.ts,
        "epoch": term.epoch,
        "primary": term.primary,
        "reason": term.reason,
        "gap_ms": term.gap_ms,
        "by": term.by,
        "planned": term.planned,
        "estimated": term.estimated,
    }
