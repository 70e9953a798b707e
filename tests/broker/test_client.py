"""The management client against a peer that we did not write the engine of: proton's own reactor, in a process of its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.error import ConnectError as TwistedConnectError
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure

from broker import client as client_module
from broker.client import ConnectError, ManagementClient, ManagementError, NoPrimary, TimedOut, _explain, find_primary
from tests.broker.management_peer import Peer, running_peer
from tests.broker.real_time import PATIENCE_S, time_passes, until

reactor: Any = installed_reactor

ACTIVE = {"status": "active", "epoch": 3}
READY = {"status": "ready", "epoch": 3}


@pytest.fixture
def peers() -> Iterator[Any]:
    """Start peers with `peers(**given)`; they are gone after the test."""
    with ExitStack() as stack:
        yield lambda **given: stack.enter_context(running_peer(**given))


def nobody(port: int = 1) -> Any:
    return SimpleNamespace(name=f"127.0.0.1:{port}", host="127.0.0.1", port=port, transport="tcp")


def connect(address: Any, **options: Any) -> Deferred[ManagementClient]:
    return ManagementClient.connect(reactor, address, **{"timeout_s": 5.0} | options)


@pytest_twisted.ensureDeferred
async def test_an_answer_reaches_the_request_that_it_belongs_to(peers: Any) -> None:
    """Breaks when answers are matched by order, or when a stranger's correlation-id is taken for ours."""
    client = await connect(peers(ha=ACTIVE, items={"queue": [{"name": "a"}, {"name": "b"}]}, stray=True))
    both = await gatherResults([client.request("QUERY", "queue", body={"name": "b"}), client.request("QUERY", "ha")])
    assert both == [{"items": [{"name": "b"}]}, {"items": [ACTIVE]}]
    await client.close()


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("page", [1, 2, 3, 5])
async def test_a_query_reads_all_pages(peers: Any, page: int) -> None:
    """Breaks when a command shows the first thousand queues as if there were no more."""
    names = [{"name": name} for name in "abcde"]
    client = await connect(peers(items={"queue": names, "none": []}, page=page))
    assert await client.query("queue") == names
    assert await client.query("queue", "c") == [{"name": "c"}]
    assert await client.query("none") == []
    await client.close()


@pytest_twisted.ensureDeferred
async def test_the_open_says_who_we_are_and_keeps_what_the_broker_says(peers: Any) -> None:
    """Breaks when the administrator's mark is missing (a backup would hang up) or is sent by those who did not ask for it."""
    peer = peers()
    for admin in (True, False):
        client = await connect(peer, admin=admin)
        heard = client.properties["heard"]
        assert client.properties["product"] == "peer"
        assert ("qpid.ha-admin" in heard) is admin
        assert heard["qpid.client_pid"] > 0
        await client.close()


@pytest_twisted.ensureDeferred
async def test_a_refusal_carries_the_brokers_status_and_text(peers: Any) -> None:
    """Breaks when an answer of 409 counts as success or loses its reason."""
    client = await connect(peers(answers={"DELETE queue": [409, "queue q is not empty", None]}))
    with pytest.raises(ManagementError, match="queue q is not empty") as refused:
        await client.request("DELETE", "queue", "q")
    assert refused.value.status == 409
    await client.close()


@pytest_twisted.ensureDeferred
async def test_an_answer_without_a_status_is_an_error_and_not_a_success(peers: Any) -> None:
    client = await connect(peers(answers={"QUERY ha": [None, "", {"items": []}]}))
    with pytest.raises(ManagementError, match="no statusCode"):
        await client.request("QUERY", "ha")
    await client.close()


@pytest_twisted.ensureDeferred
async def test_a_rejected_request_fails_at_once_with_the_condition(peers: Any) -> None:
    """Breaks when only answers are looked at: the request would wait for its whole timeout."""
    client = await connect(peers(reject="you may not"))
    with pytest.raises(ManagementError, match="you may not"):
        await client.request("QUERY", "ha", timeout_s=60.0)
    await client.close()


@pytest_twisted.ensureDeferred
async def test_an_answer_larger_than_a_frame_arrives_whole(peers: Any) -> None:
    """Breaks when the first frame of a long answer is taken for all of it."""
    queues = [{"name": f"queue-{number}", "arguments": {"text": "x" * 500}} for number in range(200)]
    client = await connect(peers(items={"queue": queues}))
    assert (await client.request("QUERY", "queue"))["items"] == queues
    await client.close()


@pytest_twisted.ensureDeferred
async def test_more_requests_than_credit_are_all_answered(peers: Any) -> None:
    """Breaks when credit for answers, or for requests, is not renewed."""
    client = await connect(peers(ha=ACTIVE))
    for _ in range(3):
        assert len(await gatherResults([client.request("QUERY", "ha") for _ in range(150)])) == 150
    await client.close()


@pytest_twisted.ensureDeferred
async def test_requests_beyond_the_bound_are_refused_and_not_kept(peers: Any) -> None:
    """Breaks when a caller in a loop can fill the memory."""
    client = await connect(peers(silent_on=["QUERY queue"]))
    waiting = [client.request("QUERY", "queue") for _ in range(client_module.MAX_WAITING_REQUESTS)]
    with pytest.raises(ConnectError, match="wait for an answer already"):
        await client.request("QUERY", "queue")
    client.abort()
    await client.lost
    for request in waiting:
        with pytest.raises(ConnectError, match="before it answered QUERY queue"):
            await request


@pytest_twisted.ensureDeferred
async def test_a_request_without_an_answer_times_out_and_the_connection_lives(peers: Any) -> None:
    client = await connect(peers(ha=ACTIVE, silent_on=["QUERY queue"]))
    with pytest.raises(TimedOut, match=r"no answer to QUERY queue in 0\.05 s"):
        await client.request("QUERY", "queue", timeout_s=0.05)
    assert await client.request("QUERY", "ha") == {"items": [ACTIVE]}
    await client.close()


@pytest_twisted.ensureDeferred
async def test_a_cancelled_request_is_forgotten(peers: Any) -> None:
    """Breaks when its timer fires into a Deferred that has been called."""
    client = await connect(peers(ha=ACTIVE, silent_on=["QUERY queue"]))
    request = client.request("QUERY", "queue")
    request.cancel()
    with pytest.raises(CancelledError):
        await request
    assert await client.request("QUERY", "ha") == {"items": [ACTIVE]}
    await client.close()


@pytest_twisted.ensureDeferred
async def test_an_answer_may_ask_the_next_question_from_its_callback(peers: Any) -> None:
    """Breaks when the engine's event loop is entered again from within: the event would be handled twice."""
    client = await connect(peers(ha=ACTIVE))
    chained = client.request("QUERY", "ha").addCallback(lambda _: client.request("QUERY", "ha"))
    assert await chained == {"items": [ACTIVE]}
    await client.close()


@pytest_twisted.ensureDeferred
async def test_a_killed_broker_fails_every_waiting_request_and_fires_lost(peers: Any) -> None:
    """Breaks when a caller waits for a dead broker until its timeout."""
    peer = peers(silent_on=["QUERY queue"])
    client = await connect(peer)
    request = client.request("QUERY", "queue", timeout_s=60.0)
    peer.kill()
    with pytest.raises(ConnectError, match="before it answered QUERY queue"):
        await request
    assert "connection" in await client.lost
    with pytest.raises(ConnectError):
        await client.request("QUERY", "queue")


@pytest_twisted.ensureDeferred
async def test_a_frozen_broker_is_noticed_by_the_missing_heartbeat(peers: Any) -> None:
    """Breaks when silence is left to TCP, which takes minutes."""
    peer = peers()
    client = await connect(peer, heartbeat_s=0.2)
    peer.freeze()
    lost = client.lost
    await until(lambda: lost.called)
    assert await lost == "the broker is silent"


@pytest_twisted.ensureDeferred
async def test_an_idle_connection_lives_on_heartbeats(peers: Any) -> None:
    """Breaks when either side's heartbeats are not sent: the connection would end by itself."""
    client = await connect(peers(ha=ACTIVE), heartbeat_s=0.4)
    ended = client.lost
    await time_passes(1.5)
    assert not ended.called
    assert await client.request("QUERY", "ha") == {"items": [ACTIVE]}
    await client.close()


@pytest_twisted.ensureDeferred
async def test_closing_ends_in_order_and_twice_is_once(peers: Any) -> None:
    client = await connect(peers())
    await client.close()
    assert await client.lost == "closed by this program"
    await client.close()


@pytest_twisted.ensureDeferred
async def test_closing_towards_a_frozen_broker_ends_all_the_same(peers: Any) -> None:
    """Breaks when a tool cannot end because the broker does not answer its close."""
    peer = peers()
    client = await connect(peer)
    peer.freeze()
    await client.close()
    assert client.lost.called


@pytest_twisted.ensureDeferred
async def test_a_port_where_nobody_listens_is_named_with_the_reason() -> None:
    with pytest.raises(ConnectError, match=r"127.0.0.1:1: connection refused"):
        await connect(nobody())


def test_a_socket_that_ends_while_it_connects_is_told_in_a_line() -> None:
    """Twisted's own text for it has the name of a class and a line break in it."""
    ended = Failure(TwistedConnectError(string=Failure(ConnectionDone())))
    assert str(_explain("b1:5672", ended, "")) == "b1:5672: closed the connection"
    assert str(_explain("b1:5672", ended, "the broker is silent")) == "b1:5672: the broker is silent"


@pytest_twisted.ensureDeferred
async def test_a_broker_that_accepts_tcp_and_says_nothing_times_out(peers: Any) -> None:
    """Breaks when the timeout covers TCP alone."""
    peer = peers()
    peer.freeze()
    with pytest.raises(TimedOut, match=r"no answer in 0.2 s"):
        await connect(peer, timeout_s=0.2)


@pytest_twisted.ensureDeferred
async def test_a_backups_refusal_of_a_client_tells_what_to_do(peers: Any) -> None:
    peer = peers(refuse=True)
    with pytest.raises(ConnectError, match=r"a backup, or a broker that is being drained, does this .* use --ha-admin"):
        await connect(peer, admin=False)
    await (await connect(peer, admin=True)).close()


@pytest_twisted.ensureDeferred
async def test_a_brokers_own_reason_for_closing_is_passed_on(peers: Any) -> None:
    try:
        reason = await (await connect(peers(close=["amqp:resource-limit-exceeded", "too many connections"]))).lost
    except ConnectError as refused:  # whether the links open before the broker's close arrives is the network's choice
        reason = str(refused)
    assert "too many connections (amqp:resource-limit-exceeded)" in reason


@pytest_twisted.ensureDeferred
async def test_a_peer_that_does_not_speak_amqp_is_told_apart() -> None:
    class Web(Protocol):
        def connectionMade(self) -> None:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")  # type: ignore[union-attr]

    port = reactor.listenTCP(0, Factory.forProtocol(Web), interface="127.0.0.1")
    with pytest.raises(ConnectError, match="framing-error"):
        await connect(nobody(port.getHost().port))
    await port.stopListening()


@pytest.mark.parametrize(
    "said, why",
    [
        (b"", "closed the connection; if this port is for TLS, write amqps: instead of amqp: in the URL"),
        (b"\x15\x03\x03\0\x02\x02\x46", "this port is for TLS: write amqps: instead of amqp: in the URL"),
    ],
)
@pytest.mark.parametrize("admin", [True, False])
@pytest_twisted.ensureDeferred
async def test_a_port_for_tls_is_told_of(said: bytes, why: str, admin: bool) -> None:
    """Breaks when the user of a wrong scheme looks for a backup, or for nothing at all."""

    class ForTls(Protocol):
        def dataReceived(self, data: bytes) -> None:
            self.transport.write(said)  # type: ignore[union-attr]
            self.transport.loseConnection()  # type: ignore[union-attr]

    port = reactor.listenTCP(0, Factory.forProtocol(ForTls), interface="127.0.0.1")
    with pytest.raises(ConnectError, match=why):
        await connect(nobody(port.getHost().port), admin=admin)
    await port.stopListening()


@pytest_twisted.ensureDeferred
async def test_a_cancelled_connect_drops_its_connection(peers: Any) -> None:
    peer = peers()
    peer.freeze()
    connecting = connect(peer)
    connecting.cancel()
    with pytest.raises(ConnectError, match="cancelled"):
        await connecting


@pytest_twisted.ensureDeferred
async def test_an_ended_connection_gives_its_memory_back(peers: Any) -> None:
    """Breaks when the engine's C objects outlive the connection: a daemon that reconnects for days would grow (23 KB each)."""
    peer = peers()

    async def after_connections(n: int) -> int:
        """The memory of this process."""
        for _ in range(n):
            await (await connect(peer)).close()
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    sizes = [await after_connections(40) for _ in range(5)]
    grown = min(later - before for before, later in pairwise(sizes))
    assert grown < 40 * 4096, "what else goes on in this process grows now and then, a leak each time"


@pytest_twisted.ensureDeferred
async def test_the_primary_is_found_among_backups_dead_and_frozen_ones(peers: Any) -> None:
    """Breaks when one frozen broker holds the search up for its whole timeout."""
    frozen = peers()
    frozen.freeze()
    primary = peers(ha=ACTIVE)
    searching = find_primary(reactor, [nobody(), frozen, peers(ha=READY), primary], timeout_s=10 * PATIENCE_S)
    await until(lambda: searching.called)
    client = await searching
    assert client.name == primary.name
    await client.close()


def connections_to(peer: Peer) -> int:
    """How many connections to that peer the reactor reads from."""
    peers = [reader.getPeer() for reader in reactor.getReaders() if hasattr(reader, "getPeer")]
    return sum(getattr(one, "port", None) == peer.port for one in peers)


@pytest_twisted.ensureDeferred
async def test_a_broker_that_owes_its_view_is_left_when_the_primary_is_found(peers: Any) -> None:
    """Breaks when each search leaves a connection behind."""
    mute, primary = peers(silent_on=["QUERY ha"]), peers(ha=ACTIVE)
    searching = find_primary(reactor, [mute, primary], timeout_s=30.0)
    await until(lambda: connections_to(mute) == 1)
    client = await searching
    await until(lambda: connections_to(mute) == 0)
    assert connections_to(primary) == 1
    await client.close()


@pytest_twisted.ensureDeferred
async def test_of_two_that_say_active_the_higher_epoch_is_the_primary(peers: Any) -> None:
    """Breaks when a primary that was cut off, and does not know it yet, is taken for the true one."""
    stale, true = peers(ha=ACTIVE), peers(ha=ACTIVE | {"epoch": 4})
    for order in ([stale, true], [true, stale]):
        client = await find_primary(reactor, order)
        assert client.name == true.name
        await client.close()


@pytest_twisted.ensureDeferred
async def test_without_a_primary_the_error_says_what_each_broker_said(peers: Any) -> None:
    backup = peers(ha=READY)
    with pytest.raises(NoPrimary) as error:
        await find_primary(reactor, [backup, nobody()])
    assert error.value.said == {backup.name: "ready", "127.0.0.1:1": "connection refused"}
    assert error.value.refused == ()


@pytest.mark.parametrize(
    "said,text",
    [
        ({"a:1": "ready"}, "a:1 (ready)"),
        ({"a:1": "ready", "b:1": "joining"}, "a:1 (ready), b:1 (joining)"),
        ({"a:1": "why", "b:1": "ready", "c:1": "why"}, "a:1 and c:1 (why), b:1 (ready)"),
        ({"a:1": "why", "b:1": "why", "c:1": "why"}, "a:1, b:1 and c:1 (why)"),
    ],
)
def test_what_several_brokers_have_said_without_a_primary_stands_there_once(said: dict[str, str], text: str) -> None:
    """Breaks when an error repeats a long reason for each address."""
    assert str(NoPrimary(said)) == f"no primary among {text}"


@pytest_twisted.ensureDeferred
async def test_without_a_primary_it_is_known_who_will_refuse_the_next_attempt_too(peers: Any) -> None:
    backup, alone = peers(ha=READY), peers(ha={"status": "standalone"})
    strict = peers(answers={"QUERY ha": [403, "ann may not", None]})
    with pytest.raises(NoPrimary) as error:
        await find_primary(reactor, [backup, alone, strict, nobody()])
    assert sorted(error.value.refused) == sorted([alone.name, strict.name])
