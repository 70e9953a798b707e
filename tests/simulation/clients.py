"""Clients of a simulated cluster: producers with windows, competing consumers, and browsers. All fail over through a
list of addresses.

Life of a client: it connects to the first of its addresses. If the TCP connection ends before the broker's Open,
without a Close, it tries the next address at once, as real clients were measured to do. After all addresses have
failed, or after a Close, it waits for a short time. Everything that it does and is told goes into the world's history
at that moment. After `enough`, a producer sends no new messages, but continues until it knows the outcome of each
message; consumers continue until the world ends. A client that is `late` begins when everything that it needs has been
set up.

Invariant: on one link a producer sends each number once, in ascending order. Messages without a known outcome are sent
again over its next link, oldest first, before new ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from broker.core.values import Symbol
from tests.simulation.amqp_client import (
    ACCEPTED,
    MODIFIED,
    REJECTED,
    RELEASED,
    ClientConnection,
    NumberedConnection,
    StrangeConnection,
)
from tests.simulation.history import History, Key, body
from tests.simulation.reactor import HostReactor

_PORT = 5672
_CONNECT_S = 1.0
_WAIT_S = 0.25
_PAUSE_FROM = 600
_GIVEN_UP = 0.1


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """What one client is to do. Times in seconds, sizes in bytes; `release`, `modify`, `reject`: the chances of a message.

    `queue` is the address; `arrives`: the queues that what a producer sends there comes to (None: that one); not `sure`: it may
    come there or not, accepted or not; not `needed`: nobody waits for the end of it; `settled`: what goes over the link is
    settled when it is sent; `priorities`: what a producer chooses from for each message (None: the message says nothing of it),
    and so `ttls_ms` and `delays_ms` (0: nothing), its time to live and its delay;
    `stay_s`, `away_s`: it leaves after about so long, and comes back about so long after that; `pause_s`: how long it may pause
    in the middle of a larger message, some of which it gives up then; `keys`: how many a producer has for its messages, in turn;
    `selects`: a consumer takes those messages alone whose number, divided by three, leaves one of these; a producer that has any
    says in each message what its number leaves.
    """

    kind: str
    name: str
    queue: str
    arrives: tuple[str, ...] | None = None
    sure: bool = True
    needed: bool = True
    late: bool = False
    start_s: float = 0.0
    window: int = 20
    burst: int = 5
    gap_s: float = 0.05
    count: int = 100
    size: tuple[int, int] = (24, 60)
    resend: bool = True
    settle_delay_s: float = 0.0
    confirm: bool = True
    release: float = 0.0
    modify: float = 0.0
    reject: float = 0.0
    settled: bool = False
    idle_s: float = 2.0
    max_frame: int = 65536
    stall_s: float = 0.0
    priorities: tuple[int | None, ...] = (None,)
    ttls_ms: tuple[int, ...] = (0,)
    delays_ms: tuple[int, ...] = (0,)
    stay_s: float = 0.0
    away_s: float = 0.0
    pause_s: float = 0.0
    keys: int = 0
    selects: tuple[int, ...] = ()

    @property
    def selector(self) -> str:
        """What selects these messages, "" for all."""
        return f"third IN ({', '.join(map(str, self.selects))})" if self.selects else ""


class Client:
    """What all have in common: the connection, and where it goes next."""

    credit_window = 0
    browse = False
    connects = ClientConnection

    def __init__(
        self,
        reactor: HostReactor,
        plan: ClientPlan,
        addresses: list[str],
        history: History,
        place: Callable[[str, str], str],
        seed: str,
        say: Any,
    ) -> None:
        self.reactor = reactor
        self.plan = plan
        self.name = plan.name
        self.queue = plan.queue
        self.addresses = addresses
        self.history = history
        self.place = place
        """What the history calls a queue at the broker with this container id."""
        self.places: tuple[str, ...] = ()
        self.say = say
        self.rng = Random(f"{seed}/{plan.name}")
        self.connection: ClientConnection | None = None
        self.ready = False
        self.stopped = False
        self.link_number = 0
        self.reasons: dict[str, int] = {}
        self._next = 0
        self._failures = 0
        self._leaves = False
        if not plan.late:
            self.begin()

    def begin(self) -> None:
        """Come when it is time."""
        events = self.reactor.events
        events.at(max(events.now, self.plan.start_s), self.reactor, self._try)

    # ---- failover

    noisy = False

    def doStart(self) -> None:
        """See IFactory."""

    def doStop(self) -> None:
        """See IFactory."""

    def startedConnecting(self, connector: Any) -> None:
        """See IFactory."""

    def clientConnectionLost(self, connector: Any, reason: Any) -> None:
        """The connection has said so itself."""

    def clientConnectionFailed(self, connector: Any, reason: Any) -> None:
        """Nobody there."""
        self._go_on()

    def buildProtocol(self, address: Any) -> ClientConnection:
        """A connection is made."""
        plan = self.plan
        self.connection = self.connects(
            self,
            credit=self.credit_window,
            browse=self.browse,
            idle_s=plan.idle_s,
            max_frame=plan.max_frame,
            settled=plan.settled,
            selector=plan.selector if self.credit_window else "",
        )
        return self.connection

    def _try(self) -> None:
        if not self.stopped:
            host, _, port = self.addresses[self._next % len(self.addresses)].partition(":")
            self.reactor.connectTCP(host, int(port or _PORT), self, timeout=_CONNECT_S)

    def _go_on(self, *, wait: bool = False) -> None:
        """To the next address: at once, but after each round, or when the broker has said no, a little later."""
        self.connection = None
        self._next += 1
        self._failures += 1
        if self.stopped:
            return
        if wait or self._failures % len(self.addresses) == 0:
            self.reactor.callLater(_WAIT_S * (0.5 + self.rng.random()), self._try)
        else:
            self.reactor.callLater(0, self._try)

    def _leave(self, connection: ClientConnection) -> None:
        """Go, if it is still this connection, and come back later."""
        if connection is self.connection and connection.alive:
            self._leaves = True
            connection.close()

    def over(self, *, opened: bool, reason: str) -> None:
        """See LinkUser."""
        was_ready, self.ready = self.ready, False
        if was_ready or reason:
            self.say(f"{self.name}: connection lost: {reason or 'no word'}")
        if reason:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
        if was_ready:
            self.unlinked()
        if self._leaves and not self.stopped:
            self._leaves, self.connection = False, None
            self.reactor.callLater(self.plan.away_s * (0.5 + self.rng.random()), self._try)
        else:
            self._go_on(wait=bool(reason))

    def usable(self) -> None:
        """See LinkUser."""
        self.ready = True
        self._failures = 0
        self.link_number += 1
        assert self.connection is not None
        names, at = self.plan.arrives, self.connection.peer
        self.places = tuple(self.place(name, at) for name in ((self.queue,) if names is None else names))
        self.say(f"{self.name}: link {self.link_number} at {self.addresses[self._next % len(self.addresses)]}")
        if self.plan.stay_s:
            self.reactor.callLater(self.plan.stay_s * (0.5 + self.rng.random()), self._leave, self.connection)

    def stop(self) -> None:
        """End for good."""
        self.stopped = True
        if self.connection is not None:
            self.connection.close()

    def enough(self) -> None:
        """The end is near: who comes and goes does not come again."""
        if self.plan.stay_s:
            self.stop()

    def unlinked(self) -> None:
        """The link is gone."""

    def credit(self) -> None:
        """See LinkUser."""

    def outcome(self, delivery: Any, outcome: int) -> None:
        """See LinkUser."""

    def message(self, delivery: Any, data: bytes) -> None:
        """See LinkUser."""

    def overdrawn(self, count: int) -> None:
        """See LinkUser."""
        self.history.overdrawn(self.name, self.link_number, count)

    def settled(self, delivery: Any) -> None:
        """See LinkUser."""

    def taken_back(self, delivery: Any) -> None:
        """See LinkUser."""

    @property
    def now(self) -> float:
        """Simulated time."""
        return self.reactor.events.now


class Producer(Client):
    """Sends numbered messages in bursts; at most `window` wait for their outcome."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sends = True
        self.waiting: dict[Any, int] = {}
        self.again: deque[int] = deque()
        self.next_number = 0
        self.due = 0
        self._pausing: Any = None
        self.accepted = self.refused = self.unknown = 0
        self._times = Random(f"times of {self.name} in {self.plan.start_s}")

    def begin(self) -> None:
        """Come, and have something to send."""
        super().begin()
        events = self.reactor.events
        events.at(max(events.now, self.plan.start_s), self.reactor, self._burst)

    @property
    def done(self) -> bool:
        """Whether it knows what became of everything."""
        return (not self.sends or self.next_number >= self.plan.count) and not self.waiting and not self.again

    def enough(self) -> None:
        """Send nothing new."""
        self.sends = False
        super().enough()

    def _burst(self) -> None:
        if self.sends and self.next_number + self.due < self.plan.count:
            self.due = min(self.due + self.rng.randint(1, self.plan.burst), self.plan.window)
            self.reactor.callLater(self.plan.gap_s * (0.5 + self.rng.random()), self._burst)
            self.credit()

    def credit(self) -> None:
        """Send what is due and what the broker takes."""
        connection = self.connection
        if not self.ready or connection is None or not connection.alive:
            return
        sent = False
        while self._pausing is None and len(self.waiting) < self.plan.window and connection.credit_left > 0:
            if self.again:
                number = self.again.popleft()
            elif self.due and self.sends:
                number, self.next_number, self.due = self.next_number, self.next_number + 1, self.due - 1
            else:
                break
            size, priority, times = self._chosen(number)
            data = body(self.name, self.link_number, number, size)
            held_back = len(data) // 2 if self.plan.pause_s and len(data) >= _PAUSE_FROM else 0
            properties = {"third": number % 3} if self.plan.selects else {}
            if self.plan.keys:
                properties["k"] = number % self.plan.keys
            sequence, message_id = self._sequence(number), self._message_id(number)
            delivery = connection.send(data, priority, held_back, sequence, properties, message_id=message_id, **times)
            if held_back:
                self._pausing = delivery
                pause_s = self.plan.pause_s * self.rng.random()
                self.reactor.callLater(pause_s, self._go_on_with, connection, delivery, data[-held_back:])
            if self.plan.settled:
                self.unknown += 1
                self._tell(self.history.unknown, number)
            else:
                self.waiting[delivery] = number
            sent = True
        if sent:
            connection.flush()

    def _chosen(self, number: int) -> tuple[int, int | None, dict[str, int]]:
        """Size, priority and times of what is about to be sent, which the history hears."""
        size = self.rng.randint(*self.plan.size)
        priority = self.rng.choice(self.plan.priorities) if len(self.plan.priorities) > 1 else self.plan.priorities[0]
        times = {"ttl_ms": self._times.choice(self.plan.ttls_ms), "delay_ms": self._times.choice(self.plan.delays_ms)}
        for place in self._places_of(number):
            self.history.sent(self.name, place, number, self.now, link=self.link_number, priority=priority, **times)
        return size, priority, times

    def _places_of(self, number: int) -> tuple[str, ...]:
        """The queues that this message comes to."""
        return self.places

    def _sequence(self, number: int) -> int:
        """What a message's tag says, 0 for nothing but another one each time."""
        return 0

    def _message_id(self, number: int) -> str:
        """A message's id, "" for none."""
        return ""

    def _go_on_with(self, connection: ClientConnection, delivery: Any, rest: bytes) -> None:
        """Send the rest of a message, or give it up: then it must never come to a queue."""
        if connection is not self.connection or not connection.alive or self._pausing is not delivery:
            return
        self._pausing = None
        if delivery in self.waiting and self.rng.random() < _GIVEN_UP:
            connection.give_up(delivery)
            number = self.waiting.pop(delivery)
            self.refused += 1
            self._tell(self.history.refused, number)
        else:
            connection.go_on(delivery, rest)
        connection.flush()
        self.credit()

    def outcome(self, delivery: Any, outcome: int) -> None:
        """Accepted, or not."""
        number = self.waiting.pop(delivery)
        if outcome == ACCEPTED:
            self.accepted += 1
            self._tell(self.history.accepted if self.plan.sure else self.history.unknown, number)
        else:
            self.refused += 1
            self._tell(self.history.refused, number)
        self.credit()

    def _tell(self, what: Callable[..., None], number: int) -> None:
        for place in self._places_of(number):
            what(self.name, place, number, self.now, link=self.link_number)

    def unlinked(self) -> None:
        """Nobody knows what became of what waits."""
        self._pausing = None
        numbers = sorted(self.waiting.values())
        self.waiting.clear()
        self.unknown += len(numbers)
        for number in numbers:
            self._tell(self.history.unknown, number)
        if self.plan.resend:
            self.again.extendleft(reversed(numbers))


class Mover(Producer):
    """Sends the messages of another store's queue, and all of which it does not know the outcome again, over its next link: each
    must come once. To the history all of its links are one."""

    def __init__(self, *arguments: Any) -> None:
        self._sent: dict[int, tuple[int, int | None, dict[str, int]]] = {}
        super().__init__(*arguments)

    def usable(self) -> None:
        """See LinkUser."""
        super().usable()
        self.link_number = 1

    def _chosen(self, number: int) -> tuple[int, int | None, dict[str, int]]:
        if number not in self._sent:
            self._sent[number] = super()._chosen(number)
        return self._sent[number]

    def _sequence(self, number: int) -> int:
        return number + 1

    def outcome(self, delivery: Any, outcome: int) -> None:
        """Accepted, or it is to come again."""
        if outcome == ACCEPTED:
            super().outcome(delivery, outcome)
        else:
            self._given_back(number := self.waiting.pop(delivery))
            self.again.append(number)
            self.credit()

    def _given_back(self, number: int) -> None:
        """Where a link keeps the order, it ends at what is not taken."""

    def unlinked(self) -> None:
        """All that waits comes again."""
        self.again.extendleft(sorted(self.waiting.values(), reverse=True))
        self.waiting.clear()


class Fetched(Producer):
    """Sends to a queue from which a route fetches: what was accepted there has to come to the queue where the route ends, once.
    It is done when a consumer there has got all of that."""

    def __init__(self, *arguments: Any) -> None:
        self.on_the_way: list[Key] = []
        super().__init__(*arguments)

    @property
    def done(self) -> bool:
        """Whether everything has come."""
        return super().done and all(self.history.notes[key].received for key in self.on_the_way)

    def outcome(self, delivery: Any, outcome: int) -> None:
        """Accepted where it is fetched from, or not."""
        if outcome != ACCEPTED:
            super().outcome(delivery, outcome)
            return
        number = self.waiting.pop(delivery)
        self.accepted += 1
        self._tell(self.history.unknown, number)
        if self.plan.sure:
            self.on_the_way += [Key(self.name, self.link_number, number, place) for place in self._places_of(number)]
        self.credit()


class Numbered(Mover):
    """Sends over a numbered link, and again what it does not know the outcome of: each must be there once. To the history all of
    its links are one."""

    connects = NumberedConnection
    connection: NumberedConnection | None

    def usable(self) -> None:
        """Attached; but who is not remembered goes, and comes back."""
        assert self.connection is not None
        if self.connection.is_numbered:
            super().usable()
        else:
            self.connection.close()

    def _given_back(self, number: int) -> None:
        """The link goes on, and so does what was sent behind it."""
        for place in self._places_of(number):
            self.history.given_back.add(Key(self.name, self.link_number, number, place))


class Repeater(Mover):
    """Sends messages with ids to a queue that detects duplicates, and again those whose outcome it does not know: each must
    be there once. To the history all of its links are one."""

    def __init__(self, *arguments: Any) -> None:
        self._unsure: set[int] = set()
        super().__init__(*arguments)

    def _sequence(self, number: int) -> int:
        return 0

    def _message_id(self, number: int) -> str:
        return f"{self.name}/{number}"

    def outcome(self, delivery: Any, outcome: int) -> None:
        """Accepted, or not; what is refused the second time may have been accepted the first."""
        if outcome != ACCEPTED and self.waiting[delivery] in self._unsure:
            self.unknown += 1
            self._tell(self.history.unknown, self.waiting.pop(delivery))
            self.credit()
        else:
            Producer.outcome(self, delivery, outcome)

    def unlinked(self) -> None:
        """All that waits comes again."""
        self._unsure.update(self.waiting.values())
        super().unlinked()


class Consumer(Client):
    """Takes messages: accepts them now or later, gives some back; settled is what the broker has confirmed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.credit_window = self.plan.window
        self.keys: dict[Any, Key | None] = {}
        self.held: dict[Any, int] = {}
        """What is to be accepted later, and which message of this client's it is."""
        self.received = self.confirmed = 0
        self.slow = True
        """Whether it delays, gives back and stalls; not any more when the cluster is to be drained."""

    def message(self, delivery: Any, data: bytes) -> None:
        """Decide what to do with it."""
        plan, connection = self.plan, self.connection
        assert connection is not None
        self.received += 1
        key = self.history.received(self.name, self.places[0], data, self.now, link=self.link_number)
        if key is not None and plan.selects and key.number % 3 not in plan.selects:
            self.history.unselected(self.name, key)
        chance = self.rng.random()
        if plan.settled:
            if key is not None:
                self.history.taken(key)
            connection.forget(delivery)
            connection.grant(1)
        elif self.slow and chance < plan.release:
            connection.dispose(delivery, RELEASED, settle=True)
            connection.grant(1)
        elif self.slow and chance < plan.release + plan.modify:
            note = {Symbol(f"x-{self.received % 3}"): self.received}
            connection.dispose(delivery, MODIFIED, settle=True, failed=True, note=note)
            connection.grant(1)
        elif self.slow and plan.reject and self.rng.random() < plan.reject:
            if key is not None:
                self.history.rejected(key)
            connection.dispose(delivery, REJECTED, settle=True)
            connection.grant(1)
        elif self.slow and plan.settle_delay_s:
            delay = plan.settle_delay_s * self.rng.random()
            self.held[delivery] = self.received
            self.reactor.callLater(delay, self._accept_later, connection, delivery, key, self.received)
        else:
            self._accept(connection, delivery, key)
        if self.slow and plan.stall_s and self.rng.random() < 0.02:
            connection.transport.pauseProducing()  # type: ignore[union-attr]
            self.reactor.callLater(plan.stall_s, self._read_on, connection)

    def enough(self) -> None:
        """Take everything, at once."""
        self.slow = False
        super().enough()

    def _accept_later(self, connection: ClientConnection, delivery: Any, key: Key | None, number: int) -> None:
        """Accept it, unless it was taken back; its delivery may be another one's by now."""
        if self.held.get(delivery) == number:
            del self.held[delivery]
            self._accept(connection, delivery, key)

    def _accept(self, connection: ClientConnection, delivery: Any, key: Key | None) -> None:
        if connection is not self.connection or not connection.alive:
            return
        if key is not None:
            self.history.taken(key)
        if self.plan.confirm:
            self.keys[delivery] = key
        connection.dispose(delivery, ACCEPTED, settle=not self.plan.confirm)
        connection.grant(1)
        if self.plan.settle_delay_s:
            connection.flush()

    @staticmethod
    def _read_on(connection: ClientConnection) -> None:
        if connection.transport is not None:
            connection.transport.resumeProducing()  # type: ignore[attr-defined]

    def settled(self, delivery: Any) -> None:
        """Gone for good."""
        key = self.keys.pop(delivery, None)
        self.confirmed += 1
        if key is not None:
            self.history.settled(key)

    def taken_back(self, delivery: Any) -> None:
        """It comes again, to whomever."""
        self.keys.pop(delivery, None)
        self.held.pop(delivery, None)
        if self.connection is not None:
            self.connection.grant(1)
            self.connection.flush()

    def unlinked(self) -> None:
        """What was not confirmed may come again."""
        self.keys.clear()
        self.held.clear()


class Stranger(Consumer):
    """A consumer whose link has another name each time: who it was before never comes back."""

    connects = StrangeConnection


class Browser(Client):
    """Looks at messages and leaves them where they are."""

    browse = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.credit_window = self.plan.window
        self.seen = 0

    def message(self, delivery: Any, data: bytes) -> None:
        """Look, and let go."""
        connection = self.connection
        assert connection is not None
        self.seen += 1
        self.history.looked(self.name, self.places[0], data, self.now)
        connection.dispose(delivery, ACCEPTED, settle=True)
        connection.grant(1)
