"""The simulated network: TCP connections between simulated hosts, as streams of bytes with delays, cuts and partitions.

Life of a connection: `connect` sends a handshake. If a listener exists, both ends get a `Socket`, which is a Twisted
transport. Bytes that one end writes arrive at the other end after the link's latency, in order, in chunks that the seed
chooses. A connection ends as TCP connections end: in order (all written bytes arrive first), by a reset (only the first
of them arrive), because a process was killed (the kernel tells the other end), or because of a power cut (the other end
learns nothing until it sends bytes to a host that does not know the connection).

A blocked direction holds everything that is sent in it until it is opened again, as retransmission would. This includes
segments, handshakes, and acknowledgements. Without acknowledgements the other direction stalls when its window is full.
A frozen process reads nothing, but its kernel still accepts connections, and bytes up to the window.

Invariants: bytes arrive in order and never altered, or not at all. An end is told once that its connection is lost. A
sender that exceeds its window is asked to pause, and to resume when there is room.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import CannotListenError, ConnectionAborted, ConnectionDone, ConnectionLost, UserError
from twisted.internet.error import ConnectionRefusedError as Refused
from twisted.internet.error import TimeoutError as NoAnswer
from twisted.internet.interfaces import IConnector, IListeningPort
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.simulation.events import Event, Events

if TYPE_CHECKING:
    from tests.simulation.reactor import HostReactor

WINDOW_BYTES = 128 * 1024
_RETRANSMIT_S = 0.05
_END = b""
_MOMENT = struct.Struct("<d")


@implementer(IListeningPort)
class ListeningPort:
    """A port on which a process listens."""

    def __init__(self, network: Network, reactor: HostReactor, ip: str, port: int, factory: Any) -> None:
        self.network = network
        self.reactor = reactor
        self.where = (ip, port)
        self.factory = factory

    def startListening(self) -> None:  # noqa: N802
        """It listens already."""

    def stopListening(self) -> None:
        """Listen no more."""
        if self.network.listening.get(self.where) is self:
            del self.network.listening[self.where]

    def getHost(self) -> IPv4Address:
        """Where it listens."""
        return IPv4Address("TCP", *self.where)


@implementer(IConnector)
class Connector:
    """One attempt to connect, and the connection that came of it."""

    def __init__(self, reactor: HostReactor, target: tuple[str, int], factory: Any) -> None:
        self.reactor = reactor
        self.target = target
        self.factory = factory
        self.state = "connecting"
        self.socket: Socket | None = None
        self.timer: Event | None = None

    def getDestination(self) -> IPv4Address:  # noqa: N802
        """Whereto."""
        return IPv4Address("TCP", *self.target)

    def stopConnecting(self) -> None:  # noqa: N802
        """Give the attempt up."""
        self.fail(UserError())

    def disconnect(self) -> None:
        """Give the attempt up, or end the connection in order."""
        if self.state == "connecting":
            self.stopConnecting()
        elif self.socket is not None:
            self.socket.loseConnection()

    def connect(self) -> None:
        """Another attempt is another connector's."""
        raise AssertionError("a connector of the simulation is used once")

    def fail(self, error: Exception) -> None:
        """The attempt came to nothing."""
        if self.state != "connecting":
            return
        self.state = "disconnected"
        self._end_timer()
        self.factory.clientConnectionFailed(self, Failure(error))
        self.factory.doStop()

    def succeed(self, socket: Socket) -> None:
        """The handshake is done: make the protocol."""
        if self.state != "connecting":
            socket.abandon()
            return
        if not socket.known:  # reset between the handshake and this turn: Twisted sees a connect that failed
            self.fail(Refused())
            return
        self._end_timer()
        self.state = "connected"
        self.socket = socket
        protocol = self.factory.buildProtocol(self.getDestination())
        if protocol is None:
            socket.abandon()
            return
        socket.begin(protocol)

    def _end_timer(self) -> None:
        if self.timer is not None and self.timer.active():
            self.timer.cancel()


class Socket:
    """One end of a connection; a Twisted transport."""

    def __init__(self, network: Network, reactor: HostReactor, here: tuple[str, int], there: tuple[str, int]) -> None:
        self.network = network
        self.reactor: HostReactor = reactor
        self.here = here
        self.there = there
        self.peer: Socket | None = None
        self.connector: Connector | None = None
        self.protocol: Any = None
        self.open = True
        """The process may still write."""
        self.known = True
        """The kernel at this end knows the connection."""
        self.wire: deque[tuple[float, bytes]] = deque()
        """What is on its way to the other end: when it arrives at the earliest, and the bytes (none: the stream ends)."""
        self.in_flight = 0
        self.reset_due = False
        self.route = (here[0], there[0])
        self._sign = f"{here[0]} {there[0]}".encode()
        self._arrival: Event | None = None
        self._last_arrival = 0.0
        self._closing = False
        self._producer: Any = None
        self._producer_paused = False
        self._reading = True

    # ---- Twisted's ITransport

    disconnecting = property(lambda self: self._closing)

    def getHost(self) -> IPv4Address:
        """This end."""
        return IPv4Address("TCP", *self.here)

    def getPeer(self) -> IPv4Address:
        """The other end."""
        return IPv4Address("TCP", *self.there)

    def setTcpNoDelay(self, enabled: bool) -> None:  # noqa: N802
        """Nothing is delayed for company here."""

    def setTcpKeepAlive(self, enabled: bool) -> None:  # noqa: N802
        """There are no keep-alives here."""

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if not self.open or self._closing or not data:
            return
        self.in_flight += len(data)
        self._put(bytes(data))
        if self.in_flight > WINDOW_BYTES and self._producer is not None and not self._producer_paused:
            self._producer_paused = True
            self._producer.pauseProducing()

    def writeSequence(self, pieces: Any) -> None:
        """Send bytes."""
        self.write(b"".join(pieces))

    def loseConnection(self) -> None:
        """End the connection when what was written has left this host."""
        if self.open and not self._closing:
            self._closing = True
            self._put(_END)
            self._close_when_sent()

    def abortConnection(self) -> None:  # noqa: N802
        """End the connection now: a part of what is on its way arrives."""
        if self.open:
            self._closing = True
            self.open = False
            self.reset(prefix=True)
            self.reactor.callLater(0, self.lost, ConnectionAborted())

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Pause and resume this one as the window fills and empties."""
        assert streaming
        self._producer = producer

    def unregisterProducer(self) -> None:
        """Ask nobody any more."""
        self._producer = None

    def pauseProducing(self) -> None:
        """Do not read."""
        self._reading = False

    def resumeProducing(self) -> None:
        """Read again."""
        if not self._reading:
            self._reading = True
            if self.peer is not None:
                self.peer.schedule()

    def stopProducing(self) -> None:
        """See ITransport."""
        self.loseConnection()

    # ---- the kernel's side

    def begin(self, protocol: Any) -> None:
        """The connection is made at this end."""
        self.protocol = protocol
        protocol.makeConnection(self)
        if self.peer is not None:
            self.peer.schedule()

    def abandon(self) -> None:
        """The process does not want this connection after all."""
        self.open = False
        self.known = False
        self.network.sockets.pop(self, None)
        self.reset(prefix=False)

    def lost(self, error: Exception) -> None:
        """Tell the process, once, that the connection has ended."""
        self.known = False
        self.network.sockets.pop(self, None)
        protocol, self.protocol = self.protocol, None
        self.open = False
        if protocol is None:
            return
        why = Failure(error)
        protocol.connectionLost(why)
        if self.connector is not None:
            self.connector.state = "disconnected"
            self.connector.factory.clientConnectionLost(self.connector, why)
            self.connector.factory.doStop()

    def reset(self, *, prefix: bool) -> None:
        """Tell the other end that the connection is broken; with `prefix` a part of what is on its way arrives before."""
        self._cut(prefix=prefix)
        self.reset_due = True
        self._put(_END)

    def _cut(self, *, prefix: bool) -> None:
        """Of what is on its way only a part arrives."""
        rng = self.network.rng
        if not prefix or not self.wire:
            self.wire.clear()
            return
        keep = rng.randrange(len(self.wire) + 1)
        kept = [self.wire[position] for position in range(keep) if self.wire[position][1]]
        if keep < len(self.wire) and len(self.wire[keep][1]) > 1:
            arrives, data = self.wire[keep]
            kept.append((arrives, data[: rng.randrange(1, len(data))]))
        self.wire = deque(kept)

    def _put(self, data: bytes) -> None:
        network = self.network
        arrives = network.events.now + network.latency(*self.route)
        last = self._last_arrival
        self._last_arrival = arrives = arrives if arrives > last else last
        self.wire.append((arrives, data))
        if self._arrival is None:
            self.schedule()

    def schedule(self) -> None:
        """Let what is on its way arrive, if nothing holds it."""
        if not self.wire or self._arrival is not None:
            return
        network, peer = self.network, self.peer
        assert peer is not None
        if self.route in network.blocked:
            network.held[self] = None
            return
        if peer.known and (not peer._reading or peer.protocol is None):
            return
        at, now = self.wire[0][0], network.events.now
        self._arrival = network.events.at(at if at > now else now, peer.reactor if peer.known else None, self._arrive)

    def _arrive(self) -> None:
        """At the other end: bytes come in, or the stream ends."""
        network, peer = self.network, self.peer
        assert peer is not None
        self._arrival = None
        if self.route in network.blocked:
            network.held[self] = None
            return
        if not peer.known:
            self._arrive_nowhere()
            return
        if not peer._reading or peer.protocol is None:
            return
        now, wire = network.events.now, self.wire
        pieces: list[bytes] = []
        ends = False
        while wire and wire[0][0] <= now:
            data = wire.popleft()[1]
            if data:
                pieces.append(data)
            else:
                ends = True
                break
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(data) > 1 and network.rng.random() < network.chunking:
            cut = network.rng.randrange(1, len(data))
            if ends:
                wire.appendleft((now, _END))
                ends = False
            wire.appendleft((now + network.latency(*self.route), data[cut:]))
            self._last_arrival = max(self._last_arrival, wire[0][0])
            data = data[:cut]
        if data:
            network.note(now, self._sign, data)
            self._acknowledge(len(data))
            peer.protocol.dataReceived(data)
        if ends:
            wire.clear()
            if peer.known:
                peer.lost(ConnectionLost() if self.reset_due else ConnectionDone())
        elif self.wire:
            self.schedule()

    def _arrive_nowhere(self) -> None:
        """The other end does not know this connection (any more): its host says so, if there is one."""
        self.wire.clear()
        if self.network.is_up(self.there[0]) and self.known:
            latency = self.network.latency(self.there[0], self.here[0])
            self.network.events.after(latency, self.reactor, self._refused)

    def _refused(self) -> None:
        if self.known:
            self.lost(ConnectionLost())

    def _acknowledge(self, nbytes: int) -> None:
        """The sender learns after a while that bytes have arrived."""
        if self.network.blocked and self.network.is_blocked(self.there[0], self.here[0]):
            self.network.held_acks.setdefault(self, 0)
            self.network.held_acks[self] += nbytes
            return
        self.in_flight -= nbytes
        if self._producer_paused and self.in_flight < WINDOW_BYTES // 2:
            self.network.events.after(self.network.latency(self.there[0], self.here[0]), self.reactor, self._resume)
        if self._closing:
            self._close_when_sent()

    def acknowledge_later(self, nbytes: int) -> None:
        """What a blocked direction had held back."""
        self._acknowledge(nbytes)

    def _resume(self) -> None:
        if self._producer_paused and self.in_flight < WINDOW_BYTES and self._producer is not None and self.open:
            self._producer_paused = False
            self._producer.resumeProducing()

    def _close_when_sent(self) -> None:
        if self._closing and self.open and self.in_flight <= WINDOW_BYTES:
            self.open = False
            self.network.events.at(self.network.events.now, self.reactor, self._closed)

    def _closed(self) -> None:
        if self.known:
            self.lost(ConnectionDone())


class Network:
    """All hosts' network. `chunking` is the part of deliveries that come in pieces."""

    def __init__(
        self, events: Events, rng: Random, *, latency_s: tuple[float, float] = (0.0002, 0.002), chunking: float = 0.02
    ) -> None:
        self.events = events
        self.rng = rng
        self.latency_s = latency_s
        self.chunking = chunking
        self.digest = 0
        self.delivered = 0
        self.listening: dict[tuple[str, int], ListeningPort] = {}
        self.reactors: dict[str, HostReactor] = {}
        self.dark: set[str] = set()
        """Hosts without power."""
        self.sockets: dict[Socket, None] = {}
        self.blocked: dict[tuple[str, str], None] = {}
        self.slow: dict[tuple[str, str], float] = {}
        self.held: dict[Socket, None] = {}
        self.held_acks: dict[Socket, int] = {}
        self._held_handshakes: list[tuple[str, str, Callable[[], None]]] = []
        self._next_port = 30_000

    # ---- links

    def latency(self, source: str, target: str) -> float:
        """Seconds that bytes take now from one host to the other."""
        low, high = self.latency_s
        seconds = low + (high - low) * self.rng.random()
        return seconds + self.slow.get((source, target), 0.0) if self.slow else seconds

    def is_blocked(self, source: str, target: str) -> bool:
        """Whether nothing gets through in this direction."""
        return (source, target) in self.blocked

    def is_up(self, ip: str) -> bool:
        """Whether the host has power, be a process running on it or not."""
        return ip not in self.dark

    def block(self, source: str, target: str) -> None:
        """Let nothing through in this direction."""
        self.blocked[source, target] = None

    def unblock(self, source: str, target: str) -> None:
        """Let everything through again, what was held first."""
        if self.blocked.pop((source, target), 0) is None:
            self.events.after(_RETRANSMIT_S * self.rng.random(), None, self._release)

    def heal(self) -> None:
        """Every direction is open, and no link is slow."""
        self.slow.clear()
        for source, target in list(self.blocked):
            self.unblock(source, target)

    def _release(self) -> None:
        held, self.held = self.held, {}
        for socket in held:
            socket.schedule()
        acks, self.held_acks = self.held_acks, {}
        for socket, nbytes in acks.items():
            socket.acknowledge_later(nbytes)
        handshakes, self._held_handshakes = self._held_handshakes, []
        for source, target, go_on in handshakes:
            self._pass(source, target, go_on)

    def _pass(self, source: str, target: str, go_on: Callable[[], None]) -> None:
        """Carry a segment of a handshake, now or when the direction is open."""
        if self.is_blocked(source, target):
            self._held_handshakes.append((source, target, go_on))
        else:
            go_on()

    def note(self, now: float, sign: bytes, data: bytes) -> None:
        """Bytes have arrived; `sign` says from where and whereto."""
        self.delivered += 1
        self.digest = zlib.crc32(data, zlib.crc32(_MOMENT.pack(now) + sign, self.digest))

    # ---- connections

    def listen(self, reactor: HostReactor, ip: str, port: int, factory: Any) -> ListeningPort:
        """A process listens."""
        if (ip, port) in self.listening:
            raise CannotListenError(ip, port, OSError(98, "Address already in use"))
        found = self.listening[ip, port] = ListeningPort(self, reactor, ip, port, factory)
        factory.doStart()
        return found

    def connect(self, reactor: HostReactor, host: str, port: int, factory: Any, timeout_s: float) -> Connector:
        """A process wants a connection."""
        connector = Connector(reactor, (host, port), factory)
        factory.doStart()
        factory.startedConnecting(connector)
        if connector.state == "connecting":
            connector.timer = reactor.callLater(timeout_s, connector.fail, NoAnswer())
            go_on = self.events.after
            arrives = self.latency(reactor.ip, host)
            go_on(arrives, None, self._pass, reactor.ip, host, lambda: self._knock(connector))
        return connector

    def _knock(self, connector: Connector) -> None:
        """The handshake has come to the host that it was for."""
        reactor = connector.reactor
        host, port = connector.target
        if connector.state != "connecting" or reactor.gone or not self.is_up(host):
            return
        listening = self.listening.get((host, port))
        back_s = self.latency(host, reactor.ip)
        if listening is None:
            answer = lambda: self.events.at(self.events.now, reactor, connector.fail, Refused())  # noqa: E731
            self.events.after(back_s, None, self._pass, host, reactor.ip, answer)
            return
        self._next_port += 1
        theirs = Socket(self, listening.reactor, (host, port), (reactor.ip, self._next_port))
        ours = Socket(self, reactor, (reactor.ip, self._next_port), (host, port))
        ours.peer, theirs.peer = theirs, ours
        ours.connector = connector
        self.sockets[ours] = self.sockets[theirs] = None
        self.events.at(self.events.now, listening.reactor, self._accept, listening, theirs)
        reply = lambda: self.events.at(self.events.now, reactor, connector.succeed, ours)  # noqa: E731
        self.events.after(back_s, None, self._pass, host, reactor.ip, reply)

    @staticmethod
    def _accept(listening: ListeningPort, socket: Socket) -> None:
        protocol = listening.factory.buildProtocol(socket.getPeer()) if socket.known else None
        if protocol is None:
            if socket.known:
                socket.abandon()
        else:
            socket.begin(protocol)

    def cut(self, socket: Socket) -> None:
        """A connection is reset from outside, with what is on its way cut anywhere."""
        for each in (socket, socket.peer):
            assert each is not None
            each.reset(prefix=True)

    def process_gone(self, reactor: HostReactor, *, power: bool) -> None:
        """A process ended. Its kernel resets its connections, unless there is no kernel any more."""
        for where in [where for where, port in self.listening.items() if port.reactor is reactor]:
            del self.listening[where]
        if power:
            self.power_off(reactor.ip)
        for socket in [socket for socket in self.sockets if socket.reactor is reactor]:
            del self.sockets[socket]
            socket.known = socket.open = False
            _give_back(socket)
            if power:
                socket.wire.clear()
            else:
                socket.reset(prefix=True)
            if socket.peer is not None:
                socket.peer._arrival = None  # it was an event of the process
                socket.peer.schedule()

    def power_off(self, ip: str) -> None:
        """The host has no power any more; what it still wanted to get through a blocked direction is gone too."""
        self.dark.add(ip)
        for socket in [socket for socket in self.held if socket.here[0] == ip]:
            del self.held[socket]
            socket.wire.clear()

    def release(self) -> None:
        """The world ends: give the memory of every engine back."""
        for socket in self.sockets:
            _give_back(socket)
        self.sockets.clear()

    def power_on(self, ip: str) -> None:
        """The host has power again; it knows none of the connections that it had."""
        self.dark.discard(ip)
        for socket in list(self.sockets):
            if socket.there[0] == ip and socket.peer is not None and not socket.peer.known:
                socket.schedule()


def _give_back(socket: Socket) -> None:
    """The protocol at this end will not be told that its connection is lost: free what it has of C's memory."""
    protocol, socket.protocol = socket.protocol, None
    protocol = getattr(protocol, "_wrappedProtocol", protocol)
    engine = getattr(protocol, "engine", None)
    if engine is not None:
        engine.free()
    elif hasattr(protocol, "release"):
        protocol.release()
