"""A broker with logs in memory, and real proton clients joined to it without sockets.

`MemoryLog` is the other side of `broker.commit_log.CommitLog`: it seals what is proposed and commits it when a test (or, with
`automatic`, the clock) says so. `Bench` has a Broker, its clock and its logs; `Bench.client` gives a `Client`: proton's own
Connection and Transport, whose bytes `Bench.settle` carries to and fro until nothing moves any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import google_crc32c
import proton
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock, deferLater
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from broker.core.commands import MACHINE_VERSION, MachineVersion
from broker.core.identity import Socket
from broker.core.nodes import CLUSTER, LOCAL
from broker.core.queues.reading import Body
from broker.core.records import Batch, BatchBuilder
from broker.service import Broker
from broker.sessions.connection import Connection
from broker.sessions.ledger import Ledger
from ha.standalone import Standalone
from tests.broker.core.queues.files import Files

CHUNK = 50_000


def one_turn(clock: Clock) -> None:
    """What is due now and nothing that comes of it: a turn of a reactor. (`Clock.advance` does both.)"""
    due = [call for call in clock.calls if call.getTime() <= clock.seconds()]
    clock.calls[:] = [call for call in clock.calls if call not in due]
    for call in due:
        if call.active():
            call.called = True
            call.func(*call.args, **call.kw)


class MemoryLog:
    """A log of one member that loses everything with the process."""

    def __init__(self, clock: Clock, state: str, *, automatic: bool = True) -> None:
        self.clock = clock
        self.state = state
        self.epoch = 1
        self.index = 0
        self.window = 4
        self.automatic = automatic
        self.waiting: list[bytes] = []
        self.committed: list[bytes] = []
        self.files = Files()
        self.reads = 0
        self.holds_reads = False
        self.held_reads: list[tuple[Deferred[list[bytes | str]], list[bytes | str]]] = []
        self.spoiled: set[int] = set()
        """Places whose bodies cannot be read."""
        self.rotted: list[str] = []
        self.stops_at_rot = False
        """Whether it is a cluster's: another broker has what has rotted here."""
        self.stamp_ms = 0
        """When batches are made from now on: ms since 1970."""
        self.ledger: Ledger

    @property
    def may_propose(self) -> bool:
        return self.state in ("active", "standalone") and len(self.waiting) < self.window

    def propose(self, builder: BatchBuilder) -> int:
        assert self.may_propose
        self.index += 1
        self.waiting.append(builder.seal(self.epoch, self.index, self.stamp_ms))
        if self.automatic:
            self.clock.callLater(0, self.commit)
        return self.index

    def commit(self, count: int = 1 << 30) -> None:
        """Commit the first `count` batches that wait."""
        batches, self.waiting = self.waiting[:count], self.waiting[count:]
        self.committed += batches
        if batches:
            self.ledger.on_committed([self._placed(data) for data in batches])
            self.ledger.on_writable()

    def _placed(self, data: bytes) -> Batch:
        return Batch.parse(data, place=self.files.write(data))

    def read_bodies(self, bodies: list[Body]) -> Deferred[list[bytes | str]]:
        """As it was when it was asked for, a moment later."""
        self.reads += 1
        found: list[bytes | str] = [
            "it has rotted" if body.place in self.spoiled else self.files.read(body.place, body.nbytes) for body in bodies
        ]
        for data, body in zip(found, bodies, strict=True):
            assert isinstance(data, str) or google_crc32c.value(data) == body.crc
        if not self.holds_reads:
            return deferLater(self.clock, 0, lambda: found)
        read: Deferred[list[bytes | str]] = Deferred()
        self.held_reads.append((read, found))
        return read

    def end_reads(self) -> None:
        """What was held comes back."""
        self.holds_reads = False
        while self.held_reads:
            read, found = self.held_reads.pop(0)
            read.callback(found)

    def rotten(self, place: int, text: str) -> None:
        self.rotted.append(text)
        if self.stops_at_rot:
            self.ledger.on_storage_error(text, fatal=True)

    def take(self, builder: BatchBuilder) -> None:
        """A batch that another broker proposed."""
        self.index += 1
        self.committed.append(builder.seal(self.epoch, self.index, 0))
        self.ledger.on_committed([self._placed(self.committed[-1])])

    def become(self, state: str, primary: str = "") -> None:
        """Change this log's state; what was proposed and not committed is lost when it no longer serves."""
        self.state = state
        if state not in ("active", "standalone"):
            self.index -= len(self.waiting)
            self.waiting.clear()
        self.ledger.on_state(state, self.epoch, primary)

    def replayed_into(self, other: MemoryLog) -> None:
        """Let another log begin with everything that this one has committed."""
        for data in self.committed:
            other.index += 1
            other.committed.append(data)
        other.ledger.on_committed([other._placed(data) for data in self.committed])


def request(operation: str, kind: str, name: str, reply_to: str, number: Any = 1, body: Any = None, **more: Any) -> bytes:
    """A management request, encoded, with `more` application properties."""
    message: Any = proton.Message(body=body if body is not None else {}, reply_to=reply_to, id=number)
    message.properties = {"operation": operation, "type": kind, "name": name} | more
    return bytes(message.encode())


class Client:
    """A client of proton's: `received` and `outcomes` fill while the bench settles."""

    def __init__(self, bench: Bench, properties: dict[str, Any] | None = None, *, sasl: bool = True, **options: Any) -> None:
        self.bench = bench
        self.connection: Any = proton.Connection()
        self.connection.container = options.get("container", "client")
        self.connection.desired_capabilities = [proton.symbol(each) for each in options.get("desired", ())]
        if properties:
            self.connection.properties = {proton.symbol(key): value for key, value in properties.items()}
        self.transport: Any = proton.Transport()
        self.transport.max_frame_size = 1 << 16
        if sasl:
            self.transport.sasl().allowed_mechs(options.get("mechanism", "ANONYMOUS"))
            self.transport.sasl().allow_insecure_mechs = True
        if "user" in options:
            self.connection.user, self.connection.password = options["user"], options["password"]
        self.collector: Any = proton.Collector()
        self.connection.collect(self.collector)
        self.transport.bind(self.connection)
        self.session: Any = self.connection.session()
        self.received: dict[str, list[tuple[Any, Any]]] = {}
        self.outcomes: list[tuple[str, Any]] = []
        self.events: list[str] = []
        self.auto_accept = True
        self._tag = 0
        found = bench.broker.new_connection(options.get("socket", Socket("127.0.0.1:1")))
        assert found is not None
        self.server: Connection = found
        self.socket = StringTransport()
        self.lost = False
        self.server.makeConnection(self.socket)

    def open(self) -> Client:
        self.connection.open()
        self.session.open()
        self.bench.settle()
        return self

    # ---- links

    def sender(self, address: str | None, name: str = "", *, presettled: bool = False, session: Any = None) -> Any:
        link: Any = (session or self.session).sender(name or f"to-{address}-{len(self.events)}")
        link.target.address = address
        link.source.address = "here"
        link.snd_settle_mode = proton.Link.SND_SETTLED if presettled else proton.Link.SND_UNSETTLED
        link.open()
        self.bench.settle()
        return link

    def receiver(
        self,
        address: str | None,
        credit: int = 100,
        *,
        name: str = "",
        browse: bool = False,
        presettled: bool = False,
        dynamic: bool = False,
        filters: dict[Any, Any] | None = None,
        second: bool = False,
    ) -> Any:
        link: Any = self.session.receiver(name or f"from-{address}-{len(self.events)}-{len(self.received)}")
        if dynamic:
            link.source.dynamic = True
        else:
            link.source.address = address
        if browse:
            link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
        if filters:
            link.source.filter.put_dict(filters)
        link.snd_settle_mode = proton.Link.SND_SETTLED if presettled else proton.Link.SND_UNSETTLED
        link.rcv_settle_mode = proton.Link.RCV_SECOND if second else proton.Link.RCV_FIRST
        link.open()
        self.received[link.name] = []
        if credit:
            link.flow(credit)
        self.bench.settle()
        return link

    # ---- messages

    def send(self, link: Any, *bodies: Any, subject: str | None = None, settle: bool = True, **fields: Any) -> list[Any]:
        """Send messages and return their deliveries."""
        return self.send_encoded(
            link, *(proton.Message(body=body, subject=subject, **fields).encode() for body in bodies), settle=settle
        )

    def send_encoded(self, link: Any, *messages: bytes, settle: bool = True) -> list[Any]:
        deliveries = []
        for data in messages:
            self._tag += 1
            delivery = link.delivery(f"t{self._tag}")
            link.stream(data)
            link.advance()
            if link.snd_settle_mode == proton.Link.SND_SETTLED:
                delivery.settle()
            deliveries.append(delivery)
        if settle:
            self.bench.settle()
        return deliveries

    def bodies(self, link: Any) -> list[Any]:
        return [message.body for _, message in self.received[link.name]]

    def give(self, delivery: Any, outcome: Any, *, failed: bool = False, undeliverable: bool = False) -> None:
        """Settle a delivery that has been received with an outcome."""
        if failed:
            delivery.local.failed = True
        if undeliverable:
            delivery.local.undeliverable = True
        delivery.update(outcome)
        delivery.settle()
        self.bench.settle()

    def request(self, operation: str, kind: str, name: str = "", body: Any = None, **more: Any) -> tuple[int, str, Any]:
        """A management request over links of its own: status, text and body of the answer."""
        reply = self.receiver(None, dynamic=True)
        link = self.sender("$management")
        message = request(operation, kind, name, reply.remote_source.address, 7, body, **more)
        self.send_encoded(link, message)
        self.bench.clock.advance(0)
        self.bench.settle()
        ((_, answer),) = self.received[reply.name]
        assert answer.correlation_id == 7
        reply.close()
        link.close()
        self.bench.settle()
        return answer.properties["statusCode"], answer.properties["statusDescription"], answer.body

    # ---- the wire

    def say(self, frame: bytes) -> None:
        """Put a frame of our own making on the wire."""
        self.server.dataReceived(frame)

    def pump(self) -> bool:
        """Carry bytes both ways once; whether any moved."""
        moved = self._to_server() | self._from_server()
        self._handle()
        return moved

    def _to_server(self) -> bool:
        waiting = self.transport.pending()
        if waiting <= 0 or self.lost:
            return False
        data = self.transport.peek(waiting)
        self.transport.pop(len(data))
        for start in range(0, len(data), CHUNK):
            if not self.lost:
                self.server.dataReceived(data[start : start + CHUNK])
        return True

    def _from_server(self) -> bool:
        data = self.socket.value()
        self.socket.clear()
        position = 0
        while position < len(data):
            room = self.transport.capacity()
            if room <= 0:
                break
            self.transport.push(data[position : position + room])
            position += room
            self._handle()
        if (self.socket.disconnecting or self.socket.disconnected) and not self.lost:
            self.lose()
            return True
        return bool(data)

    def lose(self) -> None:
        """The TCP connection is gone."""
        if not self.lost:
            self.lost = True
            self.server.connectionLost(Failure(ConnectionDone()))
            with contextlib.suppress(proton.TransportException):
                self.transport.close_tail()
            self.transport.close_head()
            self._handle()

    def _handle(self) -> None:
        while (event := self.collector.peek()) is not None:
            kind = event.type
            self.events.append(str(kind))
            if kind == proton.Event.DELIVERY:
                self._delivery(event.delivery)
            elif kind == proton.Event.LINK_REMOTE_CLOSE:
                event.link.close()
            elif kind == proton.Event.CONNECTION_REMOTE_CLOSE:
                event.connection.close()
            self.collector.pop()

    def _delivery(self, delivery: Any) -> None:
        link = delivery.link
        if link.is_sender:
            self.outcomes.append((str(link.name), delivery))
            if delivery.settled:
                delivery.settle()
        elif delivery.aborted:
            delivery.settle()
        elif delivery.readable and not delivery.partial:
            message = proton.Message()
            data = link.recv(delivery.pending)
            link.advance()
            if data:
                message.decode(data)
            self.received[link.name].append((delivery, message))
            if delivery.settled:
                delivery.settle()
            elif self.auto_accept:
                delivery.update(proton.Delivery.ACCEPTED)
                if link.rcv_settle_mode == proton.Link.RCV_FIRST:
                    delivery.settle()


class Bench:
    """A broker with its logs and clients, on a clock that only a test moves."""

    def __init__(
        self, *, clustered: bool = False, state: str = "", automatic: bool = True, start: bool = True, **options: Any
    ) -> None:
        self.clock = Clock()
        self.fatal: list[str] = []
        if "authentication" in options:
            options["authentication"] = options["authentication"](self.clock)
        name = options.pop("identity", "broker-1")
        self.broker = Broker(self.clock, broker_id=name, version="1", clustered=clustered, on_fatal=self.fatal.append, **options)
        self.clients: list[Client] = []
        self.logs: dict[str, MemoryLog] = {}
        self._add_log(LOCAL, "standalone", automatic)
        if clustered:
            self._add_log(CLUSTER, state or "active", automatic)
        else:
            Standalone(self.broker)
        if start:
            self.start()

    def _add_log(self, name: str, state: str, automatic: bool) -> None:
        log = self.logs[name] = MemoryLog(self.clock, state, automatic=automatic)
        log.ledger = self.broker.attach_log(name, log)

    def start(self) -> None:
        """Let every log say its state."""
        for log in self.logs.values():
            log.become(log.state)
        self.settle()

    @property
    def lead(self) -> MemoryLog:
        return self.logs[CLUSTER] if CLUSTER in self.logs else self.logs[LOCAL]

    def client(self, properties: dict[str, Any] | None = None, **options: Any) -> Client:
        client = Client(self, properties, **options)
        self.clients.append(client)
        return client.open()

    def upgraded(self) -> None:
        """Every member applies what this release applies: the cluster's version says so."""
        self.broker.lead.change(MachineVersion(needs=MACHINE_VERSION), lambda reason: None)
        self.settle()

    def queue(self, name: str, **attributes: Any) -> None:
        """Create a queue as a client would."""
        client = self.client({"qpid.ha-admin": True})
        status, text, _ = client.request("CREATE", "queue", name, attributes)
        assert status == 201, text
        client.connection.close()
        self.settle()

    def depth(self, name: str) -> int:
        return self.broker.nodes.queues[name].depth

    def begin_deletion(self, name: str, **body: Any) -> None:
        """Let the end of a queue be proposed, and nothing be committed until `commit_all`."""
        client = self.client(ADMIN)
        reply, link = client.receiver(None, dynamic=True), client.sender("$management")
        self.lead.automatic = False
        client.send_encoded(link, request("DELETE", "queue", name, reply.remote_source.address, body=body))
        assert self.broker.nodes.is_going(self.broker.nodes.queues[name].uuid)

    def commit_all(self) -> None:
        """Commit what waits, batch by batch, and from now on everything."""
        while self.lead.waiting:
            self.lead.commit(1)
            self.settle()
        self.lead.automatic = True

    def settle(self) -> None:
        """Let everything happen that happens without the passing of noticeable time."""
        for _ in range(2_000):
            moved = sum(client.pump() for client in self.clients)
            due = [call for call in self.clock.getDelayedCalls() if call.getTime() <= self.clock.seconds()]
            if due:
                self.clock.advance(0)
            if not (moved or due):
                return
        raise AssertionError("the broker and its clients never come to rest")

    def pass_time(self, seconds: float, step: float = 0.5) -> None:
        """Let time pass, and settle at each step."""
        passed = 0.0
        while passed < seconds:
            self.clock.advance(step)
            self.settle()
            passed += step

    def close(self) -> None:
        """Stop, and check that nothing is left ticking."""
        self.broker.close()
        self.settle()
        for client in self.clients:
            client.lose()
        self.clock.advance(0)
        assert not self.broker.connections
        assert not self.clock.getDelayedCalls(), "a broker that was closed leaves timers behind"


@contextmanager
def bench(**options: Any) -> Iterator[Bench]:
    """A bench that is closed and checked at the end."""
    made = Bench(**options)
    yield made
    made.close()


ACCEPTED, REJECTED, RELEASED = (
    str(outcome) for outcome in (proton.Delivery.ACCEPTED, proton.Delivery.REJECTED, proton.Delivery.RELEASED)
)
ADMIN = {"qpid.ha-admin": True}


def statuses(client: Client, link: Any) -> list[str]:
    """What became of the messages sent on a link, in the order in which the broker said so."""
    return [str(delivery.remote_state) for name, delivery in client.outcomes if name == link.name]


def condition(endpoint: Any) -> str:
    """The name of the error with which the broker ended this link or connection; "" for none."""
    found = endpoint.remote_condition
    return "" if found is None else str(found.name)


def creating(name: str, **attributes: Any) -> BatchBuilder:
    """The batch of a primary that creates a queue."""
    builder = BatchBuilder()
    flags = dict.fromkeys(("durable", "autoDelete", "exclusive"), False)
    change = {"op": "queue-add", "uuid": f"uuid-{name}", "name": name, "level": "all", "arguments": {}, "alternate": ""}
    builder.define(change | flags | attributes)
    return builder
