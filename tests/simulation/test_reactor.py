"""The simulated reactor and network behave like Twisted's and the kernel's, as far as the product relies on it, and
always in the same way.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from twisted.internet.error import (
    AlreadyCalled,
    CannotListenError,
    ConnectionDone,
    ConnectionLost,
)
from twisted.internet.error import ConnectionRefusedError as Refused
from twisted.internet.error import TimeoutError as NoAnswer
from twisted.internet.protocol import ClientFactory, Protocol
from twisted.internet.task import LoopingCall

from tests.simulation.events import Events
from tests.simulation.network import WINDOW_BYTES, Network
from tests.simulation.reactor import HostReactor
from tests.simulation.threads import SimulatedThreads


class End(Protocol):
    """One end of a connection, which keeps what it gets."""

    transport: Any

    def __init__(self) -> None:
        self.got = bytearray()
        self.chunks = 0
        self.lost: list[type[BaseException]] = []
        self.paused = False

    def dataReceived(self, data: bytes) -> None:
        self.got += data
        self.chunks += 1

    def connectionLost(self, reason: Any = None) -> None:
        self.lost.append(reason.type)

    def pauseProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False


class Ends(ClientFactory):
    """Makes ends, at either side."""

    protocol = End

    def __init__(self) -> None:
        self.made: list[End] = []
        self.failed: list[type[BaseException]] = []

    def buildProtocol(self, addr: Any) -> End:
        self.made.append(End())
        return self.made[-1]

    def clientConnectionFailed(self, connector: Any, reason: Any) -> None:
        self.failed.append(reason.type)


class Bench:
    """Two hosts, a and b; b listens on port 1."""

    def __init__(self, seed: int = 1, chunking: float = 0.0) -> None:
        self.events = Events()
        self.network = Network(self.events, Random(seed), chunking=chunking)
        self.a: Any = HostReactor(self.events, self.network, "a")
        self.b: Any = HostReactor(self.events, self.network, "b")
        self.servers = Ends()
        self.b.listenTCP(1, self.servers)
        self.clients = Ends()

    def run(self, seconds: float) -> None:
        until = self.events.now + seconds
        while self.events.queue and self.events.queue[0][0] <= until:
            self.events.step()
        self.events.now = until

    def connected(self) -> tuple[End, End]:
        self.a.connectTCP("b", 1, self.clients)
        self.run(0.1)
        return self.clients.made[-1], self.servers.made[-1]


def test_timers_happen_in_their_order_and_a_cancelled_one_never_does() -> None:
    bench = Bench()
    told: list[str] = []
    bench.a.callLater(0.2, told.append, "second")
    bench.a.callLater(0.1, told.append, "first")
    never = bench.a.callLater(0.15, told.append, "never")
    later = bench.a.callLater(0.05, told.append, "third")
    never.cancel()
    later.reset(0.3)
    bench.run(1)
    assert told == ["first", "second", "third"]
    with pytest.raises(AlreadyCalled):
        later.cancel()


def test_a_timer_that_is_due_while_the_reactor_waits_can_still_be_moved_or_cancelled() -> None:
    """As with a real reactor, which calls nothing while it is blocked."""
    bench = Bench()
    threads = SimulatedThreads(bench.a.thread_later, bench.a.seconds)
    bench.a.enter = threads.enter
    told: list[tuple[str, float]] = []
    cancelled = bench.a.callLater(0.2, lambda: told.append(("cancelled", bench.events.now)))
    moved = bench.a.callLater(0.3, lambda: told.append(("moved", bench.events.now)))

    def wait() -> None:
        threads.sleep(1.0)
        assert cancelled.active()
        cancelled.cancel()
        moved.reset(0.5)

    bench.a.callLater(0.1, wait)
    bench.run(3)
    ((what, when),) = told
    assert what == "moved"
    assert when == pytest.approx(1.6)
    assert not moved.active()


def test_a_fast_clock_fires_its_timers_early_in_the_worlds_time() -> None:
    bench = Bench()
    fast = HostReactor(bench.events, bench.network, "c", rate=2.0)
    began = fast.seconds()
    told: list[float] = []
    fast.callLater(1.0, lambda: told.append(fast.seconds() - began))
    bench.run(0.6)
    assert told == [pytest.approx(1.0)]


def test_a_looping_call_loops_until_its_process_is_gone() -> None:
    bench = Bench()
    told: list[float] = []
    loop = LoopingCall(lambda: told.append(bench.events.now))
    loop.clock = bench.a
    loop.start(0.125)
    bench.run(0.4)
    assert len(told) == 4
    bench.a.vanish()
    bench.run(1)
    assert len(told) == 4


def test_bytes_arrive_in_order_and_whole_in_chunks_of_the_seeds_choice() -> None:
    bench = Bench(chunking=0.9)
    client, server = bench.connected()
    sent = bytes(Random(3).randbytes(5000))
    for start in range(0, 5000, 100):
        client.transport.write(sent[start : start + 100])
        bench.run(0.0005)
    client.transport.loseConnection()
    bench.run(1)
    assert bytes(server.got) == sent
    assert server.chunks > 20
    assert (server.lost, client.lost) == ([ConnectionDone], [ConnectionDone])


def test_a_port_is_taken_once_and_refuses_when_nobody_listens() -> None:
    bench = Bench()
    with pytest.raises(CannotListenError):
        bench.b.listenTCP(1, Ends())
    bench.a.connectTCP("b", 2, bench.clients)
    bench.run(0.1)
    assert bench.clients.failed == [Refused]


def test_a_host_without_power_does_not_answer_and_one_that_comes_back_knows_nothing() -> None:
    bench = Bench()
    client, _ = bench.connected()
    bench.b.vanish(power=True)
    bench.a.connectTCP("b", 1, bench.clients, timeout=3)
    client.transport.write(b"anybody?")
    bench.run(5)
    assert bench.clients.failed == [NoAnswer]
    assert client.lost == []
    bench.network.power_on("b")
    client.transport.write(b"and now?")
    bench.run(1)
    assert client.lost == [ConnectionLost]


def test_the_kernel_tells_the_others_of_a_killed_process_after_a_prefix_of_what_it_had_sent() -> None:
    kept = set()
    for seed in range(20):
        bench = Bench(seed)
        client, server = bench.connected()
        server.transport.write(b"x" * 100)
        bench.b.vanish()
        bench.run(1)
        assert client.lost == [ConnectionLost]
        assert server.lost == []
        kept.add(len(client.got))
    assert len(kept) > 5
    assert max(kept) <= 100


def test_a_blocked_direction_holds_bytes_and_handshakes_until_it_is_opened() -> None:
    bench = Bench()
    client, server = bench.connected()
    bench.network.block("a", "b")
    client.transport.write(b"late")
    server.transport.write(b"on time")
    bench.a.connectTCP("b", 1, bench.clients, timeout=30)
    bench.run(2)
    assert (bytes(client.got), bytes(server.got), len(bench.servers.made)) == (b"on time", b"", 1)
    bench.network.unblock("a", "b")
    bench.run(1)
    assert (bytes(server.got), len(bench.servers.made)) == (b"late", 2)


def test_a_connection_that_is_reset_before_its_handshake_is_told_is_one_that_failed() -> None:
    bench = Bench()
    bench.network.block("b", "a")
    bench.a.connectTCP("b", 1, bench.clients, timeout=30)
    bench.run(0.5)
    bench.b.vanish()
    bench.network.cut(next(iter(bench.network.sockets)))
    bench.run(0.5)
    bench.network.unblock("b", "a")
    bench.run(1)
    assert (bench.clients.failed, bench.clients.made) == ([Refused], [])


def test_a_window_that_is_not_acknowledged_pauses_its_sender() -> None:
    bench = Bench()
    client, server = bench.connected()
    client.transport.registerProducer(client, True)
    bench.network.block("b", "a")
    client.transport.write(b"x" * (WINDOW_BYTES + 1))
    assert client.paused
    bench.run(1)
    assert len(server.got) == WINDOW_BYTES + 1
    assert client.paused
    bench.network.unblock("b", "a")
    bench.run(1)
    assert not client.paused


def test_a_frozen_process_gets_its_bytes_and_its_timers_when_it_thaws() -> None:
    bench = Bench()
    client, server = bench.connected()
    told: list[float] = []
    bench.b.callLater(0.5, lambda: told.append(bench.events.now))
    bench.b.frozen = True
    client.transport.write(b"wake up")
    bench.run(2)
    assert (bytes(server.got), told) == (b"", [])
    bench.events.thaw(bench.b)
    bench.run(0.1)
    assert bytes(server.got) == b"wake up"
    assert told == [pytest.approx(2.1, abs=0.2)]


def test_an_aborted_connection_ends_at_both_ends_and_a_cut_one_too() -> None:
    bench = Bench()
    client, server = bench.connected()
    client.transport.abortConnection()
    bench.run(1)
    assert (len(client.lost), server.lost) == (1, [ConnectionLost])
    client, server = bench.connected()
    socket = next(socket for socket in bench.network.sockets if socket.protocol is client)
    bench.network.cut(socket)
    bench.run(1)
    assert (client.lost, server.lost) == ([ConnectionLost], [ConnectionLost])
    assert not bench.network.sockets


def test_a_reactor_stops_in_order_after_its_triggers() -> None:
    bench = Bench()
    told: list[str] = []
    bench.b.run()
    bench.b.addSystemEventTrigger("before", "shutdown", told.append, "trigger")
    bench.b.on_stopped = lambda: told.append("stopped")
    bench.b.stop()
    assert told == []
    bench.run(1)
    assert told == ["trigger", "stopped"]
    assert bench.b.gone


def test_what_waits_for_a_reactor_to_run_waits_for_its_process_to_have_started() -> None:
    bench = Bench()
    told: list[str] = []
    bench.b.callWhenRunning(told.append, "early")
    bench.run(1)
    assert told == []
    bench.b.run()
    bench.b.callWhenRunning(told.append, "at once")
    assert told == ["at once"]
    bench.run(1)
    assert told == ["at once", "early"]


def test_the_same_seed_carries_the_same_bytes_at_the_same_times() -> None:
    def digest(seed: int) -> int:
        bench = Bench(seed, chunking=0.5)
        client, _ = bench.connected()
        for _ in range(20):
            client.transport.write(b"x" * 50)
            bench.run(0.001)
        bench.run(1)
        return bench.network.digest

    assert digest(5) == digest(5)
    assert digest(5) != digest(6)
