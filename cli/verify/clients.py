"""A producer and a consumer that account for each message: ordinary programs on python-qpid-proton, which use no
internals of a cluster.

Life of a producer: it connects to the first of its addresses that serves it. It sends numbered messages to its queues
in turn, at its rate, with at most a window of them unsettled. When the connection ends, proton tries the next address.
Over the new links, all messages without an outcome are sent again, oldest first, before new ones. After `enough`, it
ends when all messages have their outcomes.

Life of a consumer: it accepts each message, compares it with what was sent, and treats an acceptance as settled only
when the broker has confirmed it. So it knows which messages may be delivered again. It ends after `stop`.

Each client runs in its own process. Every TURN_S it sends a list of its events in order over a pipe, and `run.py`
passes them to the checker. `stop`, or the end of the pipe, ends a client at once.

Invariants: a message without an outcome is never forgotten. It is sent again only over a connection that was opened
later, or when the broker has released it. Events of an earlier connection are ignored: tags and links contain its
number. A producer that sends `once` uses the same names over all connections, and its tags are the numbers of the
messages.
"""

from __future__ import annotations

import itertools
import logging
import signal
import time
import traceback
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from cproton_ffi import ffi, lib
from proton import Condition, Delivery, Handler, Message, MessageException, symbol
from proton.handlers import EndpointStateHandler
from proton.reactor import LinkOption

from broker.core.links import NUMBERED
from broker.core.sasl_client import Login
from broker.tls_files import TlsFiles
from cli.verify.channel import UNAUTHORIZED, Gate, Gated
from cli.verify.core.bodies import Bodies, Name, read_id, write_id
from cli.verify.core.checker import Stream
from cli.verify.core.measures import Gap, Gaps, Histogram

TURN_S = 0.02
RETRY_S = 0.1
"""How long to wait after a broker has refused a connection or a link."""
CLOSE_S = 1.0
MAX_TROUBLE_CHARS = 300
LONGEST_WAIT_S = 60.0
"""Time to wait for an event; the turns come much sooner."""

Runs = dict[Stream, list[tuple[int, int]]]
"""By stream, runs of numbers in the order of arrival: the first number, and how many consecutive ones follow."""


class Steadily:
    """Reconnect forever, with the same short pause. Proton's own default waits up to ten seconds for an address."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s

    def __iter__(self) -> Iterator[float]:
        return itertools.repeat(self.delay_s)


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a client. `rate` is in messages a second."""

    role: str
    number: int
    run: str
    addresses: tuple[str, ...]
    queues: tuple[str, ...]
    bodies: Bodies
    window: int
    rate: float
    at_least: int
    heartbeat_s: float
    once: bool
    reconnect_s: float
    login: Login = field(repr=False)
    tls: TlsFiles


@dataclass(slots=True)
class Turn:
    """What a client has done since its last turn. `at_s` is now."""

    at_s: float
    opened: int
    """Number of connections so far that a broker has served."""
    here: int
    """Messages settled or received over the present connection."""
    idle: bool
    """Whether nothing waits for an outcome or a confirmation."""
    attached: bool = False
    """A connection was opened, before all following fields."""
    sent: Runs = field(default_factory=dict)
    sent_again: Runs = field(default_factory=dict)
    accepted: Runs = field(default_factory=dict)
    refused: Runs = field(default_factory=dict)
    received: Runs = field(default_factory=dict)
    altered: list[tuple[Stream, int]] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    unconfirmed: Runs = field(default_factory=dict)
    detached: str = ""
    """Why the connection ended, after all fields above."""
    silent: bool = False
    """Whether the client ended the connection because it heard nothing."""
    trouble: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ended:
    """The last message of a client."""

    gaps: list[Gap]
    latency: Histogram


@dataclass(frozen=True, slots=True)
class Broken:
    """A client has failed by a bug of its own."""

    text: str


def add(runs: Runs, stream: Stream, number: int) -> None:
    """Add a number after those of its stream."""
    found = runs.setdefault(stream, [])
    if found and sum(found[-1]) == number:
        found[-1] = (found[-1][0], found[-1][1] + 1)
    else:
        found.append((number, 1))


class Numbered(LinkOption):
    """A link to a target that remembers the numbers of deliveries."""

    def apply(self, link: Any) -> None:
        """Ask the broker to remember the numbers."""
        link.target.capabilities.put_object(symbol(NUMBERED))

    @staticmethod
    def is_answered(link: Any) -> bool:
        """Whether the broker remembers the numbers."""
        found = link.remote_target.capabilities
        found.rewind()
        said = found.get_object() if found.next() else None
        return NUMBERED in map(str, getattr(said, "elements", (said,)))


class Patient(Handler):
    """Runs before proton's own I/O. If an address cannot be looked up or reached, or a broker has become silent, the
    client neither ends nor waits, but tries the next address.
    """

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base

    def on_connection_bound(self, event: Any) -> None:
        """Connect."""
        try:
            event.dispatch(self.base)
        except OSError as error:
            transport = event.transport
            transport._selectable = None  # no socket; proton's I/O looks for it when the transport closes
            transport.condition = Condition("proton.pythonio", str(error))
            transport.close_tail()
            transport.close_head()

    def on_selectable_expired(self, event: Any) -> None:
        """A heartbeat is due, or was missed. If it was missed, proton would wait until a full socket has accepted its
        last frames, for as long as TCP waits; and if the connection has ended since, it would fail.
        """
        transport = event.selectable._transport
        if transport is None:
            return
        event.dispatch(self.base)
        if transport.condition is not None:
            transport.close_tail()
            transport.close_head()

    def on_unhandled(self, method: str, *args: Any) -> None:
        """Handle everything else."""
        args[0].dispatch(self.base)


class Client(Handler):
    """The common part of both clients: the addresses, the links of each connection, the pipe."""

    def __init__(self, pipe: Connection, setting: Setting, urls: list[str]) -> None:
        super().__init__()
        self.handlers = [EndpointStateHandler(False, weakref.proxy(self))]
        self.pipe = pipe
        self.setting = setting
        self.urls = urls
        self.stream = f"{setting.run}.{setting.number}"
        self.enough = self.stopped = self.ending = False
        self.opened = self.here = 0
        self.links: dict[str, int] = {}
        """The position of the queue of each present link, by the link's name."""
        self.endpoints: list[Any] = []
        """The present links, in the order of the queues."""
        self.connection: Any = None
        self.retry_s: float | None = None
        """When to connect again after a refusal."""
        self.gaps = Gaps()
        self.latency = Histogram()
        self.turn = self.new_turn()

    # ---- the connection

    def on_reactor_init(self, event: Any) -> None:
        """Begin."""
        self.connect(event.container)
        event.container.schedule(TURN_S, self)

    def connect(self, container: Any) -> None:
        """Connect to one of the addresses, now and whenever the connection ends."""
        setting = self.setting
        again = Steadily(setting.reconnect_s)
        self.connection = container.connect(urls=self.urls, reconnect=again, heartbeat=setting.heartbeat_s, sasl_enabled=False)

    def on_connection_opened(self, event: Any) -> None:
        """A broker serves this client: make new links."""
        if event.connection != self.connection:
            return
        self.opened += 1
        self.here = 0
        self.tell()
        self.turn.attached = True
        names = [self.name_of(queue) for queue in range(len(self.setting.queues))]
        self.links = {name: queue for queue, name in enumerate(names)}
        self.endpoints = self.attach(event.container, names)

    def name_of(self, queue: int) -> str:
        """The name of the link to a queue."""
        return f"{self.stream}-{self.opened}-{queue}"

    def on_disconnected(self, event: Any) -> None:
        """The connection has ended, and proton tries the next address by itself. It would attach the old links again,
        but their credit and deliveries are no longer valid.
        """
        if event.connection == self.connection:
            condition = event.transport.condition
            if condition is not None and condition.name == UNAUTHORIZED:
                self.turn.trouble.append(str(condition.description)[:MAX_TROUBLE_CHARS])
            silent = condition is not None and "local-idle-timeout" in str(condition.description)
            old = self.endpoints
            self.end_links(str(condition or "closed"), silent=silent)
            for link in old:
                link.free()

    def on_connection_error(self, event: Any) -> None:
        """The broker has ended the connection, with a reason."""
        self.refused(event.connection)

    def on_connection_closing(self, event: Any) -> None:
        """The same, without a word."""
        self.refused(event.connection)

    def on_session_error(self, event: Any) -> None:
        """The broker has ended the session."""
        self.refused(event.session)

    def on_session_closing(self, event: Any) -> None:
        """The same, without a word."""
        self.refused(event.session)

    def on_link_error(self, event: Any) -> None:
        """The broker has ended a link: the queue does not exist, or was deleted, or does not exist yet."""
        self.refused(event.link)

    def on_link_closing(self, event: Any) -> None:
        """The same, without a word."""
        self.refused(event.link)

    def refused(self, endpoint: Any, text: str = "the broker has ended it without a word") -> None:
        """Begin again after a pause, with a new connection, because proton does not do this after such an end. `text`:
        the reason, if the broker gave none.
        """
        connection = endpoint if endpoint == self.connection else endpoint.connection
        if connection == self.connection and self.retry_s is None:
            why = str(endpoint.remote_condition or text)
            self.turn.trouble.append(why[:MAX_TROUBLE_CHARS])
            self.end_links(why, silent=False)
            self.retry_s = time.monotonic() + RETRY_S
            connection.close()

    def end_links(self, why: str, *, silent: bool) -> None:
        """The present links are no longer used."""
        if self.links:
            self.drop()
            self.links, self.endpoints = {}, []
            self.turn.detached, self.turn.silent = why[:MAX_TROUBLE_CHARS], silent
            self.tell()

    # ---- the pipe

    def new_turn(self) -> Turn:
        """An empty turn."""
        return Turn(time.monotonic(), self.opened, self.here, self.is_idle())

    def tell(self) -> None:
        """Report what was done so far."""
        self.turn.at_s, self.turn.opened, self.turn.here = time.monotonic(), self.opened, self.here
        self.turn.idle = self.is_idle()
        self.pipe.send(self.turn)
        self.turn = self.new_turn()

    def on_timer_task(self, event: Any) -> None:
        """Every TURN_S: read the pipe, act, report."""
        try:
            while self.pipe.poll():
                word = self.pipe.recv()
                self.enough = self.enough or word == "enough"
                self.stopped = self.stopped or word == "stop"
        except EOFError:
            self.stopped = True
        if self.ending:
            event.container.stop()  # the broker has not answered the close
            return
        if self.retry_s is not None and time.monotonic() >= self.retry_s:
            self.retry_s = None
            self.connect(event.container)
        self.act()
        if self.stopped or self.has_done():
            self.end(event.container)
        else:
            event.container.schedule(TURN_S, self)
            self.tell()

    def end(self, container: Any) -> None:
        """Close the connection, and wait a moment until the broker has closed it too."""
        self.ending = True
        served = bool(self.links)
        self.end_links("ended", silent=False)
        self.tell()
        self.connection.close()
        if served:
            container.schedule(CLOSE_S, self)
        else:
            container.stop()

    def on_connection_closed(self, event: Any) -> None:
        """Both sides have closed it."""
        if self.ending:
            event.container.stop()

    # ---- each client has its own

    def attach(self, container: Any, names: list[str]) -> list[Any]:
        """Make a link of each name to the queue at the same position."""
        raise AssertionError

    def drop(self) -> None:
        """The links have ended, with everything on them."""
        raise AssertionError

    def act(self) -> None:
        """Do what is due at this time."""
        raise AssertionError

    def is_idle(self) -> bool:
        """Whether nothing waits for an outcome or a confirmation."""
        raise AssertionError

    def has_done(self) -> bool:
        """Whether it may end."""
        raise AssertionError


class Producer(Client):
    """Sends numbered messages, and sends messages without an outcome again after a connection has ended."""

    def __init__(self, pipe: Connection, setting: Setting, urls: list[str]) -> None:
        queues = range(len(setting.queues))
        self.next = [0] * len(queues)
        self.unsettled: list[dict[int, float]] = [{} for _ in queues]
        """By queue: numbers in the order of sending, and the time when each was first sent."""
        self.again: list[deque[int]] = [deque() for _ in queues]
        self.owed = 0
        """The number of messages to send again."""
        self.waiting = 0
        """The number of unsettled messages."""
        self.made = 0
        """The number of messages so far."""
        self.at = 0
        self.budget = 0.0
        self.last_s = time.monotonic()
        super().__init__(pipe, setting, urls)

    def attach(self, container: Any, names: list[str]) -> list[Any]:
        """Attach senders; all unsettled messages are sent over them first."""
        self.again = [deque(numbers) for numbers in self.unsettled]
        self.owed = self.waiting
        named = zip(self.setting.queues, names, strict=True)
        options = Numbered() if self.setting.once else None
        return [container.create_sender(self.connection, queue, name=name, options=options) for queue, name in named]

    def name_of(self, queue: int) -> str:
        """The same name over all connections, if the brokers must remember the link."""
        return f"{self.stream}-{queue}" if self.setting.once else super().name_of(queue)

    def on_link_opened(self, event: Any) -> None:
        """The broker has attached a link: check whether it remembers numbers."""
        if self.setting.once and not Numbered.is_answered(event.link):
            self.refused(
                event.link, "the broker does not remember numbers: it, or another of its cluster, is of an older release"
            )

    def drop(self) -> None:
        """Keep the unsettled messages, to send them again."""

    def on_link_flow(self, event: Any) -> None:
        """Credit has arrived."""
        self.send()

    def may_make(self) -> bool:
        """Whether there is another message to send, and its time has come."""
        wanted = not self.enough or self.made < self.setting.at_least
        return wanted and self.budget >= 1 and self.waiting < self.setting.window

    def send(self) -> None:
        """Send while there are messages and credit for them, to each queue in turn."""
        count = len(self.endpoints)
        passed = 0
        while passed < count and (self.owed or self.may_make()):
            queue, self.at = self.at, (self.at + 1) % count
            again, sender = self.again[queue], self.endpoints[queue]
            if (not again and not self.may_make()) or sender.credit <= 0:
                passed += 1
            else:
                passed = 0
                self.owed -= bool(again)
                self.send_one(queue, sender, again.popleft() if again else None)

    def send_one(self, queue: int, sender: Any, number: int | None) -> None:
        """Send the message of this number again, or a new one (None)."""
        stream = (self.setting.number, queue)
        if number is None:
            number = self.next[queue]
            self.next[queue] += 1
            self.made += 1
            self.waiting += 1
            self.budget -= 1
            now = time.monotonic()
            self.unsettled[queue][number] = now
            self.gaps.wait(now)
            add(self.turn.sent, stream, number)
        else:
            add(self.turn.sent_again, stream, number)
        name = f"{self.stream}.{queue}"
        message = Message(
            id=write_id(name, number, self.unsettled[queue][number]),
            body=self.setting.bodies.body(name, number),
            inferred=True,
            durable=True,
        )
        sender.send(message, tag=str(number) if self.setting.once else f"{self.opened}.{queue}.{number}")

    def on_delivery(self, event: Any) -> None:
        """An outcome has arrived."""
        delivery = event.delivery
        if not delivery.updated:
            return
        if self.setting.once:
            queue, number = self.links.get(event.link.name, -1), int(delivery.tag)
            opened = self.opened if queue >= 0 and self.endpoints[queue] == event.link else -1
        else:
            opened, queue, number = map(int, delivery.tag.split("."))
        state, settled = delivery.remote_state, delivery.settled
        if settled:
            delivery.settle()
        if opened == self.opened and self.links and (state or settled):
            self.outcome(queue, number, state, delivery)

    def outcome(self, queue: int, number: int, state: Any, delivery: Any) -> None:
        """The broker has given a message its outcome. Any outcome except accepted and rejected returns the message to
        the producer.
        """
        stream, unsettled = (self.setting.number, queue), self.unsettled[queue]
        if number not in unsettled:
            return
        if state == Delivery.ACCEPTED:
            now = time.monotonic()
            self.latency.add(now - unsettled.pop(number))
            self.waiting -= 1
            self.here += 1
            add(self.turn.accepted, stream, number)
            self.gaps.event(now)
            if not self.waiting and not self.may_make():
                self.gaps.rest()
        elif state == Delivery.REJECTED:
            del unsettled[number]
            self.waiting -= 1
            add(self.turn.refused, stream, number)
            self.turn.trouble.append(f"a message was refused: {delivery.remote.condition}"[:MAX_TROUBLE_CHARS])
        else:
            self.again[queue].append(number)
            self.owed += 1
        self.send()

    def act(self) -> None:
        """Count the messages that are due by the rate, and send them."""
        now = time.monotonic()
        self.budget = min(self.budget + (now - self.last_s) * self.setting.rate, self.setting.window)
        self.last_s = now
        if self.may_make():
            self.gaps.wait(now)
        self.send()

    def end(self, container: Any) -> None:
        """If there are still messages without an outcome, or to send, the gap ends here."""
        self.gaps.end(time.monotonic())
        super().end(container)

    def is_idle(self) -> bool:
        """Whether every message has its outcome."""
        return not self.waiting

    def has_done(self) -> bool:
        """Whether every message to send has its outcome."""
        return self.enough and self.made >= self.setting.at_least and not self.waiting


class Consumer(Client):
    """Accepts messages, and compares them with what was sent."""

    def __init__(self, pipe: Connection, setting: Setting, urls: list[str]) -> None:
        self.waiting: dict[bytes, tuple[Stream, int]] = {}
        """Messages that were accepted and not confirmed, by the delivery's tag and its link."""
        super().__init__(pipe, setting, urls)

    def attach(self, container: Any, names: list[str]) -> list[Any]:
        """Receivers, each with a window of credit."""
        named = zip(self.setting.queues, names, strict=True)
        receivers = [container.create_receiver(self.connection, queue, name=name) for queue, name in named]
        for receiver in receivers:
            receiver.flow(self.setting.window)
        return receivers

    def drop(self) -> None:
        """Messages that were not confirmed may be delivered again."""
        for stream, number in self.waiting.values():
            add(self.turn.unconfirmed, stream, number)
        self.waiting.clear()

    def on_delivery(self, event: Any) -> None:
        """A message has arrived, or the confirmation of an acceptance."""
        delivery, link = event.delivery, event.link
        queue = self.links.get(link.name)
        if queue is None:
            return
        if delivery.readable and not delivery.partial:
            encoded = link.recv(delivery.pending)
            link.advance()
            name = self.take(encoded, queue)
            delivery.update(Delivery.ACCEPTED)
            if not delivery.settled and name is not None:
                self.waiting[b"%d:" % queue + _tag(delivery)] = (name.producer, name.queue), name.number
            if link.credit <= self.setting.window // 2:
                link.flow(self.setting.window - link.credit)
        if delivery.settled:
            self.waiting.pop(b"%d:" % queue + _tag(delivery), None)
            delivery.settle()

    def take(self, encoded: bytes, queue: int) -> Name | None:
        """Record a message and return its name; None if it does not belong to this run."""
        now = time.monotonic()
        message = Message()
        try:
            message.decode(encoded)
        except MessageException as error:
            self.turn.strange.append(f"what is not an AMQP message on {self.setting.queues[queue]}: {error}"[:MAX_TROUBLE_CHARS])
            return None
        name = read_id(message.id)
        if name is None or name.run != self.setting.run or name.queue != queue:
            self.turn.strange.append(f"a message {str(message.id)[:60]!r} on {self.setting.queues[queue]}")
            return None
        self.here += 1
        self.gaps.event(now)
        self.latency.add(now - name.sent_s)
        stream = name.producer, queue
        add(self.turn.received, stream, name.number)
        body = message.body
        wanted = self.setting.bodies.body(f"{name.run}.{name.producer}.{queue}", name.number)
        if not isinstance(body, (bytes, memoryview)) or bytes(body) != wanted:
            self.turn.altered.append((stream, name.number))
        return name

    def act(self) -> None:
        """Nothing is due by time."""

    def is_idle(self) -> bool:
        """Whether every acceptance was confirmed."""
        return not self.waiting

    def has_done(self) -> bool:
        """Never: a consumer ends when it is told to stop."""
        return False


def _tag(delivery: Any) -> bytes:
    """The tag as bytes; `Delivery.tag` would decode it as a text."""
    tag = lib.pn_delivery_tag(delivery._impl)
    return bytes(ffi.buffer(tag.start, tag.size))


def run(pipe: Connection, setting: Setting) -> None:
    """The life of a client's process. It ignores Ctrl-C, which only its parent handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("proton").setLevel(logging.CRITICAL)  # otherwise it logs each failed attempt to connect
    try:
        gate = Gate(setting.addresses, setting.login, setting.tls)
        kind = Producer if setting.role == "producer" else Consumer
        client = kind(pipe, setting, gate.urls)
        container = Gated(gate, client, name=f"{setting.run}-{setting.role}-{setting.number}")
        container.global_handler = Patient(container.global_handler)
        container.timeout = LONGEST_WAIT_S
        container.start()
        while container.process() and not container.errors:
            continue
        container.stop()  # raises the exception of a handler, if there was one
        pipe.send(Ended(client.gaps.all(), client.latency))
    except BrokenPipeError:
        return  # the parent process has ended
    except Exception:
        pipe.send(Broken(traceback.format_exc()))
