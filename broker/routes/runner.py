"""One route on the broker that serves: executes the effects of its life cycle (`broker.core.routes`) on connections, links,
timers and the log.

Invariants: a route has at most one connection, one link and one timer; data from a dropped connection is ignored; nothing is left
after `stop`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.amqp.data import Condition
from broker.amqp.links import Link
from broker.amqp.receiver import Receiver
from broker.client import ClientError, ManagementClient, ManagementError
from broker.core import limits, routes
from broker.core.commands import RouteAdd
from broker.core.interest import Interest
from broker.core.propagation import Wish
from broker.core.routes import Ask, Effect, Place, RouteLife
from broker.core.subscriptions import NOWHERE
from broker.routes.dialer import TIMEOUT_S, Dial
from broker.routes.intake import Intake
from broker.sessions.guard import Guard, Rights
from broker.sessions.logs import Logs
from broker.sessions.principal import ANONYMOUS, Principal
from broker.sessions.producer import Producer
from broker.sessions.queues import Queues
from broker.sessions.transactions import Transactions
from broker.sessions.turn import Turn

_log = Logger()


class Means(Protocol):
    """The objects that all runners of a broker share."""

    clock: IReactorTime
    logs: Logs
    queues: Queues
    turn: Turn
    guard: Guard
    dial: Dial

    def note(self, route: RouteAdd, place: Place, answer: Callable[[str], None]) -> None:
        """Record an origin in the log; `answer` gets "" or the reason why this failed."""

    def finish(self, route: RouteAdd) -> None:
        """Take the route out of the log."""


class RouteRunner:
    """See the module. `interest`: what a dynamic route follows."""

    def __init__(self, means: Means, route: RouteAdd, interest: Interest | None = None) -> None:
        self.route = route
        self.life = RouteLife(route, self._epoch_at, interest)
        self.name = ""
        """The broker that it is connected to, `host:port`, or was last."""
        self.taken = 0
        self._means = means
        self._client: ManagementClient | None = None
        self._dialing: Deferred[ManagementClient] | None = None
        self._link: RouteLink | None = None
        self._timer: IDelayedCall | None = None
        self._effects: deque[Effect] = deque()
        self._busy = self._stopped = False
        self._cursor = 0
        """The sequence from which `_some_held` continues."""
        self._told = ""
        """The last reason in the log file why it does not run: each reason is logged once, until it has run for a second."""
        self._missing = ""
        """What was last missing at the source. The log file has the first thing, until nothing is missing any more."""
        self._title = f"the route from {route.source} {routes.source_queue(route)} to {route.exchange}"

    def start(self) -> None:
        """Begin."""
        self._do(self.life.start())

    def stop(self) -> None:
        """End the connection, and make no other one."""
        self._stopped = True
        self._drop()

    def retire(self) -> None:
        """Accept no more messages, and end when the accepted ones are settled at the source, so that it gives them to no other
        client."""
        if self._stopped or self._client is None or self._link is None:
            self.stop()
            return
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._link.retire()
        self._means.logs.lead.pending.when_committed(self._goodbye)

    def _goodbye(self) -> None:
        if self._client is not None:
            self._client.close()

    @property
    def is_connected(self) -> bool:
        """Whether its connection has not ended."""
        return self._client is not None and not self._client.is_lost

    def describe(self) -> dict[str, Any]:
        """Its state in a query, without its definition."""
        taken = self.taken + (self._link.intake.taken if self._link is not None else 0)
        counted = {} if self.life.bindings is None else {"bindings": len(self.life.bindings)}
        return {"state": self.life.state, "lastError": self.life.last_error, "peer": self.name, "taken": taken} | counted

    def touched(self, keys: Iterable[str]) -> None:
        """The interest in its exchange has changed."""
        if not self._stopped:
            self._do(self.life.touched(keys))

    # ---- what the life wants

    def _do(self, effects: list[Effect]) -> None:
        """Execute effects in order; new effects that result are appended."""
        self._effects.extend(effects)
        if self._busy:
            return
        self._busy = True
        try:
            while self._effects and not self._stopped:
                self._one(self._effects.popleft())
        finally:
            self._busy = False
            if self._stopped:
                self._effects.clear()

    def _one(self, effect: Effect) -> None:
        match effect:
            case routes.Connect():
                self._connect()
            case routes.Ask():
                self._ask(effect)
            case Wish():
                self._wish(effect)
            case routes.GoOn():
                client = self._client
                self._means.clock.callLater(0, self._if_still, client, self.life.go_on)
            case routes.Note(place):
                client = self._client
                self._means.note(self.route, place, lambda reason: self._if_still(client, lambda: self.life.noted(reason)))
            case routes.Attach(place):
                self._attach(place)
            case routes.Forget(runs):
                if self.origin is not None:
                    self._means.logs.lead.forget(self.origin, runs)
            case routes.Wake(after_s):
                assert self._timer is None, "one time at a time"
                self._timer = self._means.clock.callLater(after_s, self._woken)
            case routes.Drop():
                self._drop()
            case routes.Finish():
                self._means.finish(self.route)

    def _if_still(self, client: ManagementClient | None, event: Callable[[], list[Effect]]) -> None:
        """Pass the result of a connection to the life cycle, unless the connection was dropped meanwhile."""
        if client is not None and client is self._client and not self._stopped:
            self._do(event())

    def _connect(self) -> None:
        if self._means.logs.closed:
            self._do(self.life.failed("this broker leaves: it takes nothing more"))
            return
        dialing = self._dialing = self._means.dial(self.route.source, self.route.mechanism)
        dialing.addCallbacks(self._connected, self._not_connected)

    def _connected(self, client: ManagementClient) -> None:
        self._dialing = None
        self._client, self.name = client, client.name
        client.lost.addCallback(lambda reason: self._lost(client, reason))
        self._do(self.life.connected())

    def _not_connected(self, failure: Failure) -> None:
        self._dialing = None
        if self._stopped or isinstance(failure.value, CancelledError):
            return
        if not isinstance(failure.value, ClientError):
            failure.raiseException()
        self._do(self.life.failed(str(failure.value)))

    def _lost(self, client: ManagementClient, reason: str) -> str:
        self._if_still(client, lambda: self.life.failed(f"{client.name}: {reason}"))
        return reason

    def _ask(self, ask: Ask) -> None:
        self._request(ask, self.life.answered, self.life.refused)

    def _wish(self, wish: Wish) -> None:
        def told(status: int, text: str) -> list[Effect]:
            found = self.life.bound(wish.key, status, text)
            self._say_what_is_missing()
            return found

        self._request(routes.asking_for(self.route, wish), lambda body: told(200, ""), told)

    def _say_what_is_missing(self) -> None:
        missing = "" if self.life.bindings is None else self.life.bindings.error
        if missing and not self._missing:
            _log.warn("{route}: {missing}", route=self._title, missing=missing)
        self._missing = missing

    def _request(
        self, ask: Ask, answered: Callable[[dict[str, Any]], list[Effect]], refused: Callable[[int, str], list[Effect]]
    ) -> None:
        client = self._client
        assert client is not None, "it is connected"

        def failed(failure: Failure) -> None:
            error = failure.value
            if not isinstance(error, ClientError):
                failure.raiseException()
            status = error.status if isinstance(error, ManagementError) else 0
            text = f"{client.name}: {ask.operation} {ask.type} {ask.name or ask.body.get('queue', '')}: {error}"
            self._if_still(client, lambda: refused(status, text))

        asked = client.request(ask.operation, ask.type, ask.name or None, ask.body, TIMEOUT_S)
        asked.addCallbacks(lambda body: self._if_still(client, lambda: answered(body)), failed)

    def _attach(self, place: Place) -> None:
        client = self._client
        assert client is not None, "it is connected"
        self._cursor = 0
        self._link = RouteLink(self, self._means, client, place)
        self._link.attach(place.address)

    def _woken(self) -> None:
        self._timer = None
        if self.life.state == routes.RUNNING and self._told:
            self._told = ""
            self._runs()
        self._do(self.life.woken(self._some_held()))
        self._means.turn.flush()

    def _some_held(self) -> list[tuple[int, int]]:
        """Some runs of the held sequences; if there are many, other ones each time."""
        held = None if self.origin is None else self._means.logs.lead.state.held.get(self.origin)
        if held is None or self._link is None:
            return []
        found = held.runs(self._cursor, routes.LOOK_RUNS)
        self._cursor = sum(found[-1]) if len(found) == routes.LOOK_RUNS else 0
        return found

    @property
    def origin(self) -> int | None:
        """The number of its origin; None when there is none."""
        place = self.life.place
        origins = self._means.logs.lead.state.definitions.origins
        origin = None if place is None else origins.get((self.route.uuid, place.key))
        return None if origin is None else origin.number

    def _epoch_at(self, key: str) -> int:
        origin = self._means.logs.lead.state.definitions.origins.get((self.route.uuid, key))
        return 0 if origin is None else origin.source_epoch

    def _drop(self) -> None:
        if self.life.error != self._told and not self._stopped:
            self._told = self.life.error
            _log.warn("{route} does not run, and tries again: {why}", route=self._title, why=self._told)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        link, self._link = self._link, None
        if link is not None:
            self.taken += link.intake.taken
            link.end()
        client, self._client = self._client, None
        if client is not None:
            client.abort()
        dialing, self._dialing = self._dialing, None
        if dialing is not None:
            dialing.cancel()

    # ---- what its link tells

    def attached(self, link: RouteLink) -> None:
        """Messages may arrive."""
        if link is self._link:
            self._do(self.life.attached())
            if not self._told:
                self._runs()

    def _runs(self) -> None:
        _log.info("{route} runs, from {peer}", route=self._title, peer=self.name)

    def failed(self, link: RouteLink, reason: str) -> None:
        """The link cannot continue."""
        if link is self._link and not self._stopped:
            self._do(self.life.failed(reason))


class RouteLink:
    """The link for a route's messages. It is the `broker.net.management_wire.DataLink` of the client's wire, the
    `broker.sessions.attach.Output` of its producer, and the ledger calls it for accepted messages."""

    is_stuffed = False
    unread_s = 0.0
    is_lost = is_closed = False
    number = 0
    container = ""
    origin = NOWHERE

    def __init__(self, runner: RouteRunner, means: Means, client: ManagementClient, place: Place) -> None:
        self.intake = Intake(means.logs, means.queues, runner.route, place, self._stop)
        self.large = 0
        self.rights = Rights(means.guard, self)
        self._runner = runner
        self._means = means
        self._client = client
        self._producer: Producer | None = None
        self._ended = self._retired = False

    def attach(self, address: str) -> None:
        """Ask for messages from there."""
        link: Receiver = self._client.wire.receive_from(address, self, limits.MAX_MESSAGE_BYTES)
        self._producer = Producer(self, link, self.intake)
        if self._means.logs.takes_large:
            link.take_parts(self._producer, limits.MAX_MESSAGE_BYTES)

    def end(self) -> None:
        """Take nothing more."""
        self._ended = True
        self._means.turn.forget(self)
        self._means.logs.inflow.forget(self._client.wire)
        if self._producer is not None:
            self._producer.detached()

    def end_link(self, link: Link, condition: Condition) -> None:
        """The other broker has broken a rule: end the link."""
        if self._producer is not None:
            self._producer.detached()
        link.context = None
        link.close(condition)
        self._stop(f"{self._client.name}: the source sent more messages than it had credit for")

    def retire(self) -> None:
        """Accept no more messages, but settle the accepted ones."""
        self._retired = True
        if self._producer is not None:
            self._producer.detached()

    def _stop(self, reason: str) -> None:
        self._means.clock.callLater(0, self._runner.failed, self, reason)

    # ---- DataLink

    def opened(self) -> None:
        """The source has attached the link."""
        if self._producer is not None and not self._ended:
            self._start(self._producer)

    def _start(self, producer: Producer) -> None:
        self.intake.attached(producer)
        producer.start()
        self._runner.attached(self)

    def messages(self) -> None:
        """Messages have arrived."""
        if self._producer is not None and not (self._ended or self._retired):
            self._producer.take()
            self._means.logs.inflow.brought(self._client.wire)

    def outcomes(self) -> None:
        """Nothing is sent here."""

    def credit(self) -> None:
        """Nothing is sent here."""

    def closed(self, reason: str) -> None:
        """The source sends no more messages."""
        self._stop(f"{self._client.name}: {reason}")

    # ---- for the ledger

    def accepted(self, count: int) -> None:
        """This number of messages was accepted: give the source credit for more."""
        if self._retired:
            self.touch()
        elif self._producer is not None and not self._ended:
            self._producer.accepted(count)

    # ---- Output

    @property
    def principal(self) -> Principal:
        """No user: the rights were checked when the route was created."""
        return ANONYMOUS

    @property
    def address(self) -> str:
        """The source's."""
        return self._client.name

    @property
    def now_s(self) -> float:
        """The reactor's time."""
        return self._means.clock.seconds()

    @property
    def transactions(self) -> Transactions:
        """There are none on a route."""
        raise AssertionError("a source sends nothing in a transaction")

    def touch(self) -> None:
        """There is output: it is written at the end of this turn."""
        self._means.turn.touch(self)

    def flush(self) -> None:
        """Write it. A deleted queue has ended the link of its producer."""
        self._client.wire.pump()
        producer = self._producer
        if producer is not None and not producer.link.open and not (self._ended or self._retired):
            self._stop(f"the queue {self._runner.route.exchange!r} was deleted")

    def brought_parts(self) -> None:
        """While there is too much, the source is not read."""
        self._means.logs.inflow.brought(self._client.wire, parts=True)

    def choke(self) -> None:
        """Nothing goes out here."""

    def unsettled_left(self, n_unsettled: int) -> int:
        """Nothing goes out here."""
        return 0

    def await_outcomes(self) -> None:
        """Nothing goes out here."""

    def turn_out(self, condition: Condition) -> None:
        """End the connection."""
        self._stop(condition.text)
