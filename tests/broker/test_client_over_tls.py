"""The management client over TLS, against proton's own reactor with OpenSSL below it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol

from broker.client import ConnectError, ManagementClient, TimedOut, find_primary
from broker.core.sasl_client import PERHAPS_PLAIN
from broker.net.credentials import Credentials
from broker.tls_files import TlsFiles
from tests.broker.management_peer import running_peer
from tests.broker.real_time import until
from tests.certificates import Authority, authority

reactor: Any = installed_reactor
ACTIVE = {"status": "active", "epoch": 3}


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Any]:
    """`peer(*names)` starts one whose certificate has these names."""
    with ExitStack() as stack:

        def started(*names: str, by: Authority | None = None) -> Any:
            files = (by or authority()).issue("peer", *names).write(tmp_path, "peer")
            return stack.enter_context(running_peer(ha=ACTIVE, certificate=list(map(str, files))))

        yield started


def credentials(folder: Path) -> Credentials:
    return Credentials(TlsFiles(authorities=authority().write(folder)))


def connect(address: Any, folder: Path, timeout_s: float = 20.0) -> Deferred[ManagementClient]:
    return ManagementClient.connect(reactor, address, timeout_s=timeout_s, credentials=credentials(folder))


@pytest_twisted.ensureDeferred
async def test_a_broker_is_asked_over_tls(peer: Any, tmp_path: Path) -> None:
    """Large answers come in many records."""
    client = await connect(peer("127.0.0.1"), tmp_path)
    assert (await client.request("QUERY", "ha"))["items"] == [ACTIVE]
    await client.close()


@pytest_twisted.ensureDeferred
async def test_the_primary_is_found_over_tls(peer: Any, tmp_path: Path) -> None:
    found = await find_primary(reactor, [peer("127.0.0.1")], timeout_s=20.0, credentials=credentials(tmp_path))
    assert found.properties["product"] == "peer"
    await found.close()


@pytest_twisted.ensureDeferred
async def test_a_server_with_the_certificate_of_another_is_told_nothing(peer: Any, tmp_path: Path) -> None:
    """Breaks when whoever has any certificate of the same authority can take a broker's place."""
    with pytest.raises(ConnectError, match=r"the server's certificate is not for 127.0.0.1: it names broker9, 192.0.2.9"):
        await connect(peer("broker9", "192.0.2.9"), tmp_path)


@pytest_twisted.ensureDeferred
async def test_a_server_by_an_authority_that_is_not_trusted_is_told_nothing(peer: Any, tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match=r"the other side's certificate is not trusted: unable to get"):
        await connect(peer("127.0.0.1", by=Authority("Stranger")), tmp_path)


@pytest_twisted.ensureDeferred
async def test_without_a_list_the_system_s_authorities_are_trusted(peer: Any) -> None:
    """Breaks when an amqps URL without further options trusts everybody."""
    with pytest.raises(ConnectError, match=r"the other side's certificate is not trusted"):
        await ManagementClient.connect(reactor, peer("127.0.0.1"), timeout_s=20.0)


@pytest_twisted.ensureDeferred
async def test_a_server_that_speaks_in_the_clear_is_told_of(tmp_path: Path) -> None:
    with running_peer(ha=ACTIVE) as plain:
        plain.transport = "ssl"
        with pytest.raises(ConnectError, match=r"TLS: |TLS handshake"):
            await connect(plain, tmp_path)


@pytest.mark.parametrize(
    "said, why",
    [
        (b"", f"closed during the TLS handshake; {PERHAPS_PLAIN}"),
        (b"AMQP\0\1\0\0", "the other side does not use TLS here; amqps: is for a port with TLS, amqp: for a port without"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_port_without_tls_is_told_of(said: bytes, why: str, tmp_path: Path) -> None:
    class Plain(Protocol):
        def dataReceived(self, data: bytes) -> None:
            self.transport.write(said)  # type: ignore[union-attr]
            self.transport.loseConnection()  # type: ignore[union-attr]

    port = reactor.listenTCP(0, Factory.forProtocol(Plain), interface="127.0.0.1")
    number = port.getHost().port
    plain = SimpleNamespace(name=f"127.0.0.1:{number}", host="127.0.0.1", port=number, transport="ssl")
    with pytest.raises(ConnectError, match=why):
        await connect(plain, tmp_path)
    await port.stopListening()


@pytest_twisted.ensureDeferred
async def test_a_server_that_never_shakes_hands_is_given_up(tmp_path: Path) -> None:
    """Breaks when the time to connect begins anew with TLS, or a socket is left behind."""
    port = reactor.listenTCP(0, Factory.forProtocol(Protocol), interface="127.0.0.1")
    number = port.getHost().port
    silent = SimpleNamespace(name=f"127.0.0.1:{number}", host="127.0.0.1", port=number, transport="ssl")
    with pytest.raises(TimedOut, match=r"no answer in 0.3 s"):
        await connect(silent, tmp_path, timeout_s=0.3)
    await until(lambda: not [one for one in reactor.getReaders() if getattr(one, "realAddress", ("", 0))[1] == number])
    await port.stopListening()
