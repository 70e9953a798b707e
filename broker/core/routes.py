"""The life cycle of one route on the broker that serves: its requests to the source, when it fetches messages, which sequences it
forgets, and when it tries again. Pure: it gets events and returns effects, and the order of the effects is the contract.

Life of a route: it connects to the primary of its source. It asks for the objects that it needs there, creates the queue if this
is configured, and gets the queue's place (`Place`): the store that has its messages, and the address that delivers them with
their sequences. It records the origin in its own log, unless it is known there, and attaches. From then on messages arrive and
are put (broker.routes.intake), each with a HELD record. Once a second, or more often while there are many runs of them, the route
asks which of them are still on the source's queue; the others can be forgotten. Any failure ends the connection, and the route
begins again after a pause, which grows with each failure until the route has run for a second.

    WAITING --due--> CONNECTING --connected--> PREPARING --noted--> ATTACHING --attached--> RUNNING
       ^                  any failure, or the end of the connection or the link                |
       +-----------------------------------------------------------------------------------+

A route that must end takes the same steps, but requests the deletion of its queue at the source; then it has ended.

A dynamic route has a queue of its own at the source too. Before it attaches, it reads which bindings this queue has, and makes
them equal to the interest in the exchange here; later it follows the changes of the interest (broker.core.propagation).

Invariants: nothing is fetched from a place that is not recorded in the log; a sequence is forgotten only if the source has
confirmed, over the current connection, that its message has left; a source's primary with a lower epoch than an earlier one that
has delivered messages is not used; a route of an exchange runs only if its queue is bound there. The source answers this with
each look, because its exchange may be deleted and created again without the binding; a source of an earlier release does not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from broker.core import limits
from broker.core.commands import RouteAdd
from broker.core.interest import OWN_QUEUES, Interest
from broker.core.propagation import Propagation, Wish

WAITING, CONNECTING, PREPARING, ATTACHING, RUNNING, OVER = (
    "Waiting",
    "Connecting",
    "Preparing",
    "Attaching",
    "Operational",
    "Closed",
)
"""The states of a route; those that Qpid's links have too are called as there."""

QUEUE, EXCHANGE, DYNAMIC = KINDS = "queue", "exchange", "dynamic"
"""The kinds of a route."""
SEQUENCE = "sequence"
"""The type of management requests about the sequences of a queue's messages (broker.routes.sequences)."""
FIRST_DELAY_S, MOST_DELAY_S = 0.1, 10.0
LOOK_S = 1.0
"""Interval of the requests for held sequences."""
IDLE_LOOKS = 10
"""While nothing is held, a route of an exchange asks once in so many intervals whether its queue is bound. A dynamic route asks
once in so many intervals again for bindings that were refused, and once for all of its bindings."""
LOOK_RUNS = 1000
"""Runs that are asked for at a time."""
_FULL_LOOKS = 20
"""While so many are held, a route asks this many times as often: consumers that share a queue get its messages in short runs."""
_NOT_FOUND = 404
_CONFLICT = 409

Runs: TypeAlias = Sequence[tuple[int, int]]
"""Sequences as (first, count)."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a queue's messages: the `store` that has them, the `queue`'s uuid, the `address` that delivers them, the
    `epoch` of the primary that has answered, and the identity of its `cluster`."""

    store: str
    queue: str
    address: str
    epoch: int
    cluster: str

    @property
    def key(self) -> str:
        """By which an origin names the queue."""
        return f"{self.store}/{self.queue}"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to the source's management; `accepts` are statuses that count as done, besides success."""

    operation: str
    type: str
    name: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    accepts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Connect:
    """Find the source's primary, and connect to it."""


@dataclass(frozen=True, slots=True)
class Note:
    """Have the log note this origin, unless it is noted: then say `noted`."""

    place: Place


@dataclass(frozen=True, slots=True)
class Attach:
    """Attach a link to this place, for messages."""

    place: Place


@dataclass(frozen=True, slots=True)
class Forget:
    """The messages with these sequences have left the place."""

    runs: Runs


@dataclass(frozen=True, slots=True)
class Wake:
    """Say `woken` after so many seconds, and not before; one time at a time."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Drop:
    """End the connection, if there is one, and take nothing more of it."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """Say `go_on` in the next turn of the reactor."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The source knows that the route ends: it may go."""


Effect: TypeAlias = Connect | Ask | Wish | Note | Attach | Forget | Wake | GoOn | Drop | Finish
"""A Wish is a request for one binding, beside the others: say `bound` with its result."""


def source_queue(route: RouteAdd) -> str:
    """The queue at the source that a route takes from."""
    return route.key if route.kind == QUEUE else OWN_QUEUES + route.uuid


def _binding(route: RouteAdd) -> Ask:
    """Bind the route's own queue to the source's exchange."""
    body = {"exchange": route.exchange, "queue": source_queue(route), "key": route.key}
    return Ask("CREATE", "binding", "", body, (_CONFLICT,))


def asking_for(route: RouteAdd, wish: Wish) -> Ask:
    """The request for a binding of a dynamic route."""
    names = {"exchange": route.exchange, "queue": source_queue(route), "key": wish.key}
    if wish.arguments is None:
        return Ask("DELETE", "binding", "", names)
    return Ask("CREATE", "binding", "", names | {"arguments": wish.arguments})


def _bindings_after(route: RouteAdd, after: list[Any]) -> Ask:
    """Ask for a page of the bindings of the route's queue. Sources of earlier releases give those of other queues too."""
    page = {"after": after, "count": limits.BINDINGS_COMPARED}
    return Ask("QUERY", "binding", "", {"exchange": route.exchange, "queue": source_queue(route)} | page)


def _with_binding(route: RouteAdd, body: dict[str, Any]) -> dict[str, Any]:
    """A request about sequences that also asks whether the route's queue is bound, if it must be, or how often."""
    if route.kind == DYNAMIC:
        return body | {"bindings": route.exchange}
    return body | {"exchange": route.exchange, "key": route.key} if route.kind == EXCHANGE else body


def _preparation(route: RouteAdd) -> list[Ask]:
    """The requests to the source before messages can arrive."""
    queue = source_queue(route)
    if route.ending:
        return [Ask("DELETE", "queue", queue, {"ifUnused": False, "ifEmpty": False}, (_NOT_FOUND,))]
    made: list[Ask] = []
    if route.kind != QUEUE:
        body = {"durable": True, "replicate": "all"}
        made = [Ask("CREATE", "queue", queue, body, (_CONFLICT,))]
    if route.kind == EXCHANGE:
        made.append(_binding(route))
    return [*made, Ask("FIND", SEQUENCE, "", _with_binding(route, {"queue": queue, "taker": route.uuid}))]


def _place_of(body: Mapping[str, Any]) -> Place:
    """Read the answer to FIND. ValueError, when it is not one."""
    texts = [body.get(name) for name in ("store", "queue", "address", "cluster")]
    epoch = body.get("epoch")
    if not all(isinstance(each, str) and each for each in texts) or type(epoch) is not int:
        raise ValueError("the source does not say where its messages are")
    store, queue, address, cluster = map(str, texts)
    return Place(store, queue, address, epoch, cluster)


class RouteLife:
    """See the module. `epoch_at` returns, by a place's key, the highest epoch of a source's primary in the log. `interest`: of a
    dynamic route that does not end."""

    def __init__(self, route: RouteAdd, epoch_at: Callable[[str], int], interest: Interest | None = None) -> None:
        self.route = route
        self.bindings = None if interest is None else Propagation(route.exchange, source_queue(route), interest)
        """Of a dynamic route."""
        self.state = WAITING
        self.error = ""
        """Why it does not run, or has not lately; "" when it does."""
        self.place: Place | None = None
        self._epoch_at = epoch_at
        self._asks: deque[Ask] = deque()
        """The requests that have no answer yet, except those for held sequences."""
        self._refusal = ""
        """Why the source has refused the last request, which may count as done."""
        self._no_queue = ""
        """Why the source has not made the route's queue, if it has not."""
        self._failures = 0
        self._asked: Runs = ()
        """The runs that the source is being asked for."""
        self._idle = 0
        """Intervals with nothing held since the last request, or since the link was attached."""
        self._looks = 0
        """Intervals since refused bindings were asked for, or all were read, or since the link was attached."""
        self._doubts = False
        """Whether the bindings are still to be read a second time over this connection."""
        self._goes_on = False
        """Whether GoOn was said, and the turn has not come."""
        self._awaits_bindings = False
        """Whether the messages wait for the bindings of the first comparison."""

    @property
    def last_error(self) -> str:
        """Why it does not run, or which bindings are missing at the source of a dynamic route that runs; "": neither."""
        return self.error or ("" if self.bindings is None else self.bindings.error)

    def start(self) -> list[Effect]:
        """Begin."""
        return self._connect()

    def _connect(self) -> list[Effect]:
        self.state = CONNECTING
        return [Connect()]

    def connected(self) -> list[Effect]:
        """There is a connection to the source's primary."""
        self.state, self._no_queue = PREPARING, ""
        self._asks = deque(_preparation(self.route))
        return [self._asks[0]]

    def answered(self, body: Mapping[str, Any]) -> list[Effect]:
        """The source has executed the last request, or it was done already."""
        if self.state == RUNNING and not self._asks:
            return self._looked(body)
        if self.state == RUNNING and self.bindings is None:
            return self._bound()
        ask = self._asks.popleft()
        if self._asks:
            self._refusal = ""
            return [self._asks[0]]
        if self.route.ending:
            self.state = OVER
            return [Drop(), Finish()]
        return self._found(body) if ask.type == SEQUENCE else self._read(ask, body)

    def _found(self, body: Mapping[str, Any]) -> list[Effect]:
        """The source has said where its messages are."""
        try:
            place = _place_of(body)
        except ValueError as error:
            return self.failed(str(error))
        if body.get("bound") is False:
            unbound = f"the route's queue is not bound to the source's exchange {self.route.exchange!r}"
            return self.failed(self._refusal or unbound)
        known = self._epoch_at(place.key)
        if place.epoch < known:
            return self.failed(f"the source's primary is of epoch {place.epoch}, and there was one of epoch {known}")
        self.place = place
        if self.bindings is None:
            return [Note(place)]
        if place.cluster == self.bindings.interest.here:
            return self.failed("the source is this cluster: a dynamic route fetches from another one")
        self.bindings.begin(place.cluster)
        self._awaits_bindings = True
        return self._ask(Ask("QUERY", "exchange", self.route.exchange))

    # ---- the bindings of a dynamic route

    def _ask(self, ask: Ask) -> list[Effect]:
        self._asks.append(ask)
        return [ask]

    def _read(self, ask: Ask, body: Mapping[str, Any]) -> list[Effect]:
        """The source has described its exchange, or some of its bindings."""
        bindings = self.bindings
        assert bindings is not None
        try:
            if ask.type == "exchange":
                bindings.exchange(body)
                after: list[Any] | None = [self.route.exchange, source_queue(self.route)]
            else:
                after = bindings.page(body)
        except ValueError as error:
            return self.failed(str(error))
        if after is not None:
            return self._ask(_bindings_after(self.route, after))
        bindings.compare()
        return self._and_on(self._propagate(bindings))

    def _and_on(self, effects: list[Effect], after_s: float = 0.0) -> list[Effect]:
        """These, and the next look, if the route runs still."""
        return [*effects, Wake(after_s or LOOK_S)] if self.state == RUNNING else effects

    def touched(self, keys: Iterable[str]) -> list[Effect]:
        """The interest in the exchange has changed for these keys at the source."""
        bindings = self.bindings
        if bindings is None or not bindings.is_read:
            return []
        bindings.touch(keys)
        return self._propagate(bindings)

    def bound(self, key: str, status: int, text: str) -> list[Effect]:
        """The result of a Wish: the status of the source's answer, and its text if it is a refusal; 0 and why there is none."""
        bindings = self.bindings
        if bindings is None or not bindings.is_read:
            return []
        if not status:
            return self.failed(text)
        bindings.answered(key, status, text)
        return self._propagate(bindings)

    def go_on(self) -> list[Effect]:
        """The next turn has come."""
        self._goes_on = False
        return [] if self.bindings is None or not self.bindings.is_read else self._propagate(self.bindings)

    def _propagate(self, bindings: Propagation) -> list[Effect]:
        """Ask for what is to be changed; when the bindings are there, the messages can come. Between exchanges that do not fit
        together the route does not run: then its bindings are withdrawn first, because nobody takes their messages."""
        effects: list[Effect] = [*bindings.wishes()]
        if bindings.is_misled:
            return [*effects, *self.failed(bindings.mismatch)]
        if bindings.may_go_on and not self._goes_on:
            self._goes_on = True
            effects.append(GoOn())
        if self._awaits_bindings and bindings.is_ready and not bindings.mismatch:
            assert self.place is not None
            self._awaits_bindings = False
            effects.append(Note(self.place))
        return effects

    # ---- messages

    def refused(self, status: int, text: str) -> list[Effect]:
        """The source has refused the last request."""
        if self.state == PREPARING and status in self._asks[0].accepts:
            if self._asks[0].type == "queue" and "exists already" not in text:
                self._no_queue = text
            effects = self.answered({})
            self._refusal = text
            return effects
        return self.failed(self._no_queue if self._no_queue and status == _NOT_FOUND else text)

    def noted(self, reason: str) -> list[Effect]:
        """The origin is in the log, or is not, for this reason."""
        assert self.place is not None
        if reason:
            return self.failed(reason)
        self.state = ATTACHING
        return [Attach(self.place)]

    def attached(self) -> list[Effect]:
        """Messages may come."""
        self.state, self.error, self._idle = RUNNING, "", 0
        self._looks, self._doubts = 0, True
        return [Wake(LOOK_S)]

    def woken(self, held: Runs) -> list[Effect]:
        """The timer has fired; `held` are some of the held sequences of the place."""
        if self.state == WAITING:
            return self._connect()
        self._failures = 0
        self._looks += 1
        self._idle = 0 if held else self._idle + 1
        if not held and (self.route.kind == QUEUE or self._idle < IDLE_LOOKS):
            return [Wake(LOOK_S)]
        assert self.place is not None
        self._asked, self._idle = held, 0
        runs = [number for run in held for number in run]
        asked = {"store": self.place.store, "queue": self.place.queue, "runs": runs}
        if self.bindings is not None:
            self._look(self.bindings)
        return [Ask("LEFT", SEQUENCE, "", _with_binding(self.route, asked))]

    def _look(self, bindings: Propagation) -> None:
        """The source is being asked how many bindings there are. Once, after a while, they are in doubt."""
        if self._doubts and self._looks >= IDLE_LOOKS:
            self._doubts = False
            bindings.doubt()
        bindings.look()

    def _ask_again(self) -> list[Effect]:
        """Once in a while, ask for refused bindings again: after a look, which compares nothing while there are requests."""
        if self.bindings is None or self._looks < IDLE_LOOKS:
            return []
        self._looks = 0
        self.bindings.retry()
        return self._propagate(self.bindings)

    def _looked(self, body: Mapping[str, Any]) -> list[Effect]:
        """The source has answered which of the requested sequences are still on the queue."""
        numbers = body.get("runs")
        if not isinstance(numbers, list) or len(numbers) % 2 or not all(type(each) is int and each >= 0 for each in numbers):
            return self.failed("the source does not say which of its messages have left it")
        gone = minus(self._asked, list(zip(numbers[::2], numbers[1::2], strict=True)))
        after_s = LOOK_S / _FULL_LOOKS if len(self._asked) == LOOK_RUNS else LOOK_S
        self._asked = ()
        then: list[Effect]
        if self.bindings is not None and self.bindings.differs(body):
            self._looks = 0
            self.bindings.read_again()
            then = self._ask(Ask("QUERY", "exchange", self.route.exchange))
        elif self.bindings is not None and self.bindings.is_of_another(body):
            then = self.failed(f"the source's exchange {self.route.exchange!r} was deleted, or created again")
        elif body.get("bound") is False:
            then = self._ask(_binding(self.route))
        else:
            then = self._and_on(self._ask_again(), after_s)
        return [Forget(gone), *then] if gone else then

    def _bound(self) -> list[Effect]:
        """The source has made the binding again."""
        self._asks.clear()
        return [Wake(LOOK_S)]

    def failed(self, text: str) -> list[Effect]:
        """The route cannot continue: the connection or the link has ended, or there was another failure."""
        delay_s = min(FIRST_DELAY_S * 2**self._failures, MOST_DELAY_S)
        self.state, self.error, self._asked = WAITING, text, ()
        self._goes_on = self._awaits_bindings = False
        if self.bindings is not None:
            self.bindings.end()
        self._failures = min(self._failures + 1, 16)
        return [Drop(), Wake(delay_s)]


def minus(runs: Runs, other: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """These runs without the other ones; both ascending."""
    found: list[tuple[int, int]] = []
    others = deque(other)
    for first, count in runs:
        at, end = first, first + count
        while at < end:
            while others and sum(others[0]) <= at:
                others.popleft()
            stop = min(end, max(others[0][0], at)) if others else end
            if stop > at:
                found.append((at, stop - at))
            at = min(end, sum(others[0])) if others else end
    return found
