"""A careful producer and a careful consumer, each an ordinary program on python-qpid-proton in its own process; their accounts.

Life of a producer: it connects to the first of its URLs that serves it and sends numbered messages at its rate. When the
connection drops, proton goes on to the next URL; over a new link it sends again what was not settled, oldest first, before
anything new. Told `enough`, it ends when everything sent is settled.

Life of a consumer: it accepts what comes, and settles an acceptance only when the broker has confirmed it, so that it knows
which messages may come again. Told `enough`, it ends when it has had no message for a while; whether anything is left is for
the broker to say.

Each reports figures over a pipe, several times a second, and its whole account at the end. `audit` compares the two accounts
message by message. `send` and `take` move encoded messages as they are, in the process of the test.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from cproton_ffi import ffi, lib
from proton import Delivery, Handler, Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

from tests.system.harness import BrokerProcess, ask, eventually

WINDOW = 300
TURN_S = 0.02
QUIET_S = 0.5
_PATTERN = bytes(range(256)) * 260


class Steadily:
    """Reconnect without end, always after the same short time: proton's own default waits up to ten seconds per address."""

    def __iter__(self) -> Iterator[float]:
        return itertools.repeat(0.03)


def body_of(number: int, nbytes: int) -> bytes:
    """What message `number` holds: nothing that another one holds too."""
    start = number % 256
    return b"%d:" % number + _PATTERN[start : start + nbytes]


@dataclass
class Sent:
    """A producer's account. `accepted` in the order of the outcomes; `sends` has how often each message was sent,
    where more than once."""

    planned: int = 0
    accepted: list[int] = field(default_factory=list)
    sends: Counter[int] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    opened: int = 0
    longest_gap_s: float = 0.0


@dataclass
class Received:
    """A consumer's account. `numbers` in the order of coming; `unconfirmed`: how often each was accepted but not
    confirmed when the link ended."""

    numbers: list[int] = field(default_factory=list)
    unconfirmed: Counter[int] = field(default_factory=Counter)
    altered: list[int] = field(default_factory=list)
    opened: int = 0
    trouble: list[str] = field(default_factory=list)


class _Client(MessagingHandler):
    """What both have in common: the URLs, a new link on each connection, the pipe."""

    def __init__(self, pipe: Connection, addresses: Sequence[str], queue: str, **options: Any) -> None:
        super().__init__(**options)
        self.pipe = pipe
        self.urls = [f"amqp://{address}" for address in addresses]
        self.queue = queue
        self.enough = False
        self.link: Any = None
        self.connection: Any = None
        self.account: Any = None

    def on_start(self, event: Any) -> None:
        self.connection = event.container.connect(urls=self.urls, reconnect=Steadily())
        event.container.schedule(TURN_S, self)

    def on_connection_opened(self, event: Any) -> None:
        self.account.opened += 1
        self.link = self.attach(event)

    def on_disconnected(self, event: Any) -> None:
        if self.link is not None:
            self.link.free()
            self.link = None
        self.dropped()

    def on_link_error(self, event: Any) -> None:
        """A broker that serves, but not this queue yet (it begins or ends its reign): attach anew."""
        self.trouble(f"link: {event.link.remote_condition}")
        self.connection.close()

    def on_connection_error(self, event: Any) -> None:
        self.trouble(f"connection: {event.connection.remote_condition}")

    def on_timer_task(self, event: Any) -> None:
        while self.pipe.poll():
            self.pipe.recv()
            self.enough = True
        if self.turn():
            self.pipe.send(("figures", self.figures()))
            self.connection.close()
            event.container.stop()
        else:
            event.container.schedule(TURN_S, self)
            self.pipe.send(("figures", self.figures()))

    def attach(self, event: Any) -> Any:
        """The link for a new connection."""
        raise AssertionError("each client has its own")

    def dropped(self) -> None:
        """The connection is gone."""
        raise AssertionError("each client has its own")

    def turn(self) -> bool:
        """Do what time asks for; whether this client has ended."""
        raise AssertionError("each client has its own")

    def figures(self) -> int:
        """How many messages are accepted, or received."""
        raise AssertionError("each client has its own")

    def trouble(self, text: str) -> None:
        self.pipe.send(("trouble", text))


class _Producer(_Client):
    def __init__(
        self, pipe: Connection, addresses: Sequence[str], queue: str, rate: float, nbytes: int, limit: int, first: int
    ) -> None:
        super().__init__(pipe, addresses, queue)
        self.rate, self.nbytes, self.limit, self.next = rate, nbytes, limit, first
        self.end = first + limit
        self.account = Sent(planned=limit)
        self.unsettled: dict[int, None] = {}
        self.again: deque[int] = deque()
        self.budget = 0.0
        self.last_turn = self.last_accept = time.monotonic()

    def attach(self, event: Any) -> Any:
        return event.container.create_sender(event.connection, self.queue)

    def dropped(self) -> None:
        self.again = deque(self.unsettled)

    def on_sendable(self, event: Any) -> None:
        self.send()

    def send(self) -> None:
        while self.link is not None and self.link.credit > 0:
            if self.again:
                number = self.again.popleft()
                self.account.sends[number] = self.account.sends.get(number, 1) + 1
            elif self.budget >= 1 and not self.enough and self.next < self.end and len(self.unsettled) < WINDOW:
                number, self.next, self.budget = self.next, self.next + 1, self.budget - 1
                self.unsettled[number] = None
            else:
                return
            self.link.send(Message(id=number, body=body_of(number, self.nbytes), inferred=True, durable=True), tag=str(number))

    def on_accepted(self, event: Any) -> None:
        number = int(event.delivery.tag)
        if self.unsettled.pop(number, 0) is None:
            now = time.monotonic()
            self.account.longest_gap_s = max(self.account.longest_gap_s, now - self.last_accept)
            self.last_accept = now
            self.account.accepted.append(number)

    def on_rejected(self, event: Any) -> None:
        self.unsettled.pop(int(event.delivery.tag), None)
        self.trouble(f"message {event.delivery.tag} rejected: {event.delivery.remote.condition}")

    def on_released(self, event: Any) -> None:
        self.again.append(int(event.delivery.tag))

    def trouble(self, text: str) -> None:
        super().trouble(text)
        self.account.refused.append(text)

    def turn(self) -> bool:
        now = time.monotonic()
        self.budget = min(self.budget + (now - self.last_turn) * self.rate, WINDOW)
        self.last_turn = now
        self.send()
        return (self.enough or self.next >= self.end) and not self.unsettled

    def figures(self) -> int:
        return len(self.account.accepted)


class _Consumer(_Client):
    def __init__(self, pipe: Connection, addresses: Sequence[str], queue: str, nbytes: int) -> None:
        super().__init__(pipe, addresses, queue, prefetch=WINDOW, auto_accept=False, auto_settle=False)
        self.nbytes = nbytes
        self.account = Received()
        self.waiting: dict[bytes, int] = {}
        self.last_message = time.monotonic()

    def attach(self, event: Any) -> Any:
        self.last_message = time.monotonic()
        return event.container.create_receiver(event.connection, self.queue)

    def dropped(self) -> None:
        self.account.unconfirmed.update(self.waiting.values())
        self.waiting.clear()

    def on_message(self, event: Any) -> None:
        number = event.message.id
        self.last_message = time.monotonic()
        if bytes(event.message.body) != body_of(number, self.nbytes):
            self.account.altered.append(number)
        self.account.numbers.append(number)
        self.waiting[_tag(event.delivery)] = number
        event.delivery.update(Delivery.ACCEPTED)

    def on_settled(self, event: Any) -> None:
        self.waiting.pop(_tag(event.delivery), None)
        event.delivery.settle()

    def trouble(self, text: str) -> None:
        super().trouble(text)
        self.account.trouble.append(text)

    def turn(self) -> bool:
        return self.enough and not self.waiting and time.monotonic() - self.last_message > QUIET_S

    def figures(self) -> int:
        return len(self.account.numbers)


def _tag(delivery: Any) -> bytes:
    """The tag as it is; `Delivery.tag` takes it for a text."""
    tag = lib.pn_delivery_tag(delivery._impl)
    return bytes(ffi.buffer(tag.start, tag.size))


def _run(pipe: Connection, make: Callable[..., _Client], options: dict[str, Any]) -> None:
    client = make(pipe, **options)
    Container(client).run()
    pipe.send(("account", client.account))


class Traffic:
    """A client in its process, seen from the test. Leaving the context ends it."""

    def __init__(self, make: Callable[..., _Client], options: dict[str, Any]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_run, args=(theirs, make, options), daemon=True)
        self._process.start()
        theirs.close()
        self._count = 0
        self._account: Any = None
        self.trouble: list[str] = []

    @property
    def count(self) -> int:
        """Messages accepted (producer) or received (consumer) so far."""
        while self._account is None and self._pipe.poll():
            self._take()
        return self._count

    def _take(self) -> None:
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            raise AssertionError("a client has ended without its account: see its traceback above") from None
        if kind == "figures":
            self._count = value
        elif kind == "trouble":
            self.trouble.append(value)
        else:
            self._account = value

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.is_alive()

    def wait_for(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait until it has so many messages."""
        assert self.reaches(count, timeout_s), f"{self._count} messages and not {count} after {timeout_s} s; {self.trouble}"

    def reaches(self, count: int, timeout_s: float) -> bool:
        """Wait until it has so many messages, or until the time is over; whether it has."""
        deadline = time.monotonic() + timeout_s
        while self.count < count:
            if self._account is not None or not self._pipe.poll(max(deadline - time.monotonic(), 0)):
                return self.count >= count
        return True

    def finish(self, timeout_s: float = 90.0) -> Any:
        """Say `enough`; its account when it has ended."""
        if self._account is None:
            with contextlib.suppress(BrokenPipeError):
                self._pipe.send("enough")
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = 90.0) -> Any:
        """Its account when it has ended by itself (a producer that has sent all that was planned)."""
        deadline = time.monotonic() + timeout_s
        while self._account is None:
            assert self._pipe.poll(max(deadline - time.monotonic(), 0)), (
                f"a client has not ended after {timeout_s} s, with {self._count} messages"
            )
            self._take()
        self._process.join(10)
        return self._account

    def close(self) -> None:
        """End the process."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join(10)

    def __enter__(self) -> Traffic:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def producer(
    addresses: Sequence[str], queue: str, *, rate: float = 1e6, nbytes: int = 100, limit: int = 1 << 40, first: int = 0
) -> Traffic:
    """A producer of messages `first`, `first + 1`, ...: at most `rate` a second, `limit` in all, of `nbytes` each."""
    options = {"addresses": list(addresses), "queue": queue, "rate": rate, "nbytes": nbytes, "limit": limit, "first": first}
    return Traffic(_Producer, options)


def consumer(addresses: Sequence[str], queue: str, *, nbytes: int = 100) -> Traffic:
    """A consumer that checks each message against `nbytes`."""
    return Traffic(_Consumer, {"addresses": list(addresses), "queue": queue, "nbytes": nbytes})


def drained(serving: Callable[[], BrokerProcess], queue: str, sink: Traffic, timeout_s: float = 90.0) -> Received:
    """Wait until the queue is empty on the broker that serves it; then the consumer's account. A failure tells what
    the consumer was at."""

    def left() -> tuple[int, str]:
        address = serving().address
        at = [f"{each['unacked']} of {each['delivered']} unsettled" for each in ask(address, "QUERY", "subscription")["items"]]
        depth = int(serving().queue(queue)["messages"])
        return depth, f"subscriptions on {address}: {at}, received: {sink.count}, trouble: {sink.trouble}, alive: {sink.alive}"

    eventually(left, lambda found: found[0] == 0, f"{queue} being empty", timeout_s)
    received: Received = sink.finish()
    return received


class _Sender(Handler):
    """Sends encoded messages, as they are, and waits until each has its outcome."""

    def __init__(self, address: str, node: str, messages: Sequence[bytes], timeout_s: float) -> None:
        super().__init__()
        self.address, self.node, self.timeout_s = address, node, timeout_s
        self.left = deque(messages)
        self.outcomes: Counter[Any] = Counter()
        self.wanted = len(messages)
        self.link: Any = None
        self.connection: Any = None

    def on_reactor_init(self, event: Any) -> None:
        self.connection = event.container.connect(url=self.address, reconnect=False)
        self.link = event.container.create_sender(self.connection, self.node)
        event.container.schedule(self.timeout_s, self)

    def on_link_flow(self, event: Any) -> None:
        while self.left and self.link.credit > 0:
            self.link.delivery(self.link.delivery_tag())
            self.link.stream(self.left.popleft())
            self.link.advance()

    def on_delivery(self, event: Any) -> None:
        if event.delivery.updated and event.delivery.remote_state:
            self.outcomes[event.delivery.remote_state] += 1
            event.delivery.settle()
        if sum(self.outcomes.values()) == self.wanted:
            self.end(event)

    def on_link_remote_close(self, event: Any) -> None:
        self.end(event)

    def on_timer_task(self, event: Any) -> None:
        self.end(event)

    def end(self, event: Any) -> None:
        self.connection.close()
        event.container.stop()


class _Taker(Handler):
    """Takes encoded messages, as they come, over one link after the other in turn."""

    def __init__(self, address: str, node: str, count: int, links: int, options: Any, timeout_s: float) -> None:
        super().__init__()
        self.address, self.node, self.wanted, self.options, self.timeout_s = address, node, count, options, timeout_s
        self.taken: list[list[bytes]] = [[] for _ in range(links)]
        self.links: dict[str, int] = {}
        self.connection: Any = None
        self.confirmed = 0

    def on_reactor_init(self, event: Any) -> None:
        self.connection = event.container.connect(url=self.address, reconnect=False)
        for position in range(len(self.taken)):
            link = event.container.create_receiver(self.connection, self.node, name=f"taker-{position}", options=self.options)
            self.links[link.name] = position
            link.flow(-(-self.wanted // len(self.taken)))
        event.container.schedule(self.timeout_s, self)

    def on_delivery(self, event: Any) -> None:
        delivery = event.delivery
        if delivery.readable and not delivery.partial:
            self.taken[self.links[event.link.name]].append(bytes(event.link.recv(delivery.pending)))
            event.link.advance()
            delivery.update(Delivery.ACCEPTED)
        if delivery.settled:
            delivery.settle()
            self.confirmed += 1
            if self.confirmed == self.wanted:
                self.end(event)

    def on_link_remote_close(self, event: Any) -> None:
        self.end(event)

    def on_timer_task(self, event: Any) -> None:
        self.end(event)

    def end(self, event: Any) -> None:
        self.connection.close()
        event.container.stop()


def send(address: str, node: str, messages: Sequence[bytes], timeout_s: float = 60.0) -> int:
    """Send encoded messages to a node of the broker at `address`; how many were accepted."""
    sender = _Sender(address, node, messages, timeout_s)
    Container(sender).run()
    return int(sender.outcomes[Delivery.ACCEPTED])


def take_by(links: int, address: str, node: str, count: int, options: Any = None, timeout_s: float = 60.0) -> list[list[bytes]]:
    """Take `count` encoded messages from a node over that many links of one connection; what came on each. Acceptances
    are confirmed."""
    taker = _Taker(address, node, count, links, options, timeout_s)
    Container(taker).run()
    return taker.taken


def take(address: str, node: str, count: int, options: Any = None, timeout_s: float = 60.0) -> list[bytes]:
    """Take `count` encoded messages from a node; those that came in time."""
    return take_by(1, address, node, count, options, timeout_s)[0]


def audit(sent: Sent, *received: Received) -> str:
    """Compare the accounts message by message; AssertionError names what is wrong. Returns a line of figures.

    Every accepted message came. A message came at most once for each time that it was sent, and once more for each
    acceptance that the broker had not confirmed when the link ended. None came altered, or that was never sent. With one
    consumer, those that were sent once came, the first time, in the order of sending.
    """
    came = Counter(itertools.chain.from_iterable(each.numbers for each in received))
    unconfirmed: Counter[int] = Counter()
    for each in received:
        unconfirmed.update(each.unconfirmed)
        assert not each.altered, f"{len(each.altered)} messages came altered, {each.altered[:5]} among them"
    assert not sent.refused, f"{len(sent.refused)} refusals, the first: {sent.refused[0]}"
    accepted = set(sent.accepted)
    assert len(accepted) == len(sent.accepted), "a message was accepted twice"
    lost = sorted(accepted - came.keys())
    assert not lost, f"{len(lost)} of {len(accepted)} accepted messages were lost, {lost[:10]} among them"
    strange = sorted(came.keys() - accepted)
    assert not strange, (
        f"{len(strange)} messages came that were never accepted, though all were settled in the end: {strange[:10]}"
    )
    too_often = {number: times for number, times in came.items() if times > sent.sends.get(number, 1) + unconfirmed[number]}
    assert not too_often, (
        f"{len(too_often)} messages came more often than they can have: {dict(itertools.islice(too_often.items(), 10))}"
    )
    if len(received) == 1:
        first_times = [number for number in dict.fromkeys(received[0].numbers) if number not in sent.sends]
        disordered = [pair for pair in itertools.pairwise(first_times) if pair[0] > pair[1]]
        assert not disordered, f"{len(disordered)} messages came before their turn: {disordered[:5]}"
    total = sum(len(each.numbers) for each in received)
    return (
        f"{len(accepted)} accepted, {total} received, 0 lost, {total - len(came)} duplicates of {len(sent.sends)} resent and "
        f"{len(unconfirmed)} unconfirmed messages, {sent.opened} connections, longest gap {sent.longest_gap_s:.2f} s"
    )
