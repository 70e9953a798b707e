"""What other clients notice of a flood: `python -m tests.bench --scenario floods`.

A broker by itself, one client that sends a message of 1 KiB and waits until it is accepted, over and over, and beside it a
flooder, in a process of its own that gives way to both (`nice`): of connections, of TLS handshakes, of links, of logins with a
wrong password or a SCRAM that is not gone on with, of requests to management; and of nothing, by a flooder that only computes,
which says what the machine itself makes of a third process. Each flood is measured between two times without one, `ROUNDS` times,
and its ratio is to those; p99 of what goes with the machine's load is to be read with care.

`python -m tests.bench.floods KIND HOST PORT` is a flooder.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proton import Message
from proton.utils import BlockingConnection

from broker.core import sasl, values
from broker.core.door import HEADER
from broker.core.users import SHA_256, derive, line_of
from tests.broker.core.stream import BEGIN, OPEN, attach, init, performative
from tests.certificates import authority
from tests.system import harness

SECONDS = 4.0
"""For each measurement."""
ROUNDS = 3
AT_ONCE = 60
"""Connections that a flooder has at a time."""
QUEUES = 2000
NICE = 10


def main() -> int:
    """Measure all floods and print a table; as `KIND HOST PORT` be a flooder."""
    if len(sys.argv) == 4:
        os.nice(NICE)
        FLOODS[sys.argv[1]]((sys.argv[2], int(sys.argv[3])))
    import tempfile

    with tempfile.TemporaryDirectory(prefix="understudy-floods-") as folder:
        measure(Path(folder))
    return 0


def measure(folder: Path) -> None:
    """Two rows for each flood: without it, and with it."""
    folder.mkdir(exist_ok=True)
    users = folder / "users"
    users.touch(0o600)
    users.write_text(line_of("user", {SHA_256: derive(SHA_256, "password", bytes(16))}) + "\n")
    options = ("--users", str(users), "--plain-without-tls", "yes", "--sasl-mechanisms", "SCRAM-SHA-256,PLAIN,ANONYMOUS")
    certificate, key = authority().issue("broker", "localhost", "127.0.0.1").write(folder, "broker")
    (tls_port,) = map(str, harness.free_ports(1))
    by_tls = ("--ssl-port", tls_port, "--ssl-certificate", str(certificate), "--ssl-key", str(key))
    with harness.standalone(folder / "broker", *options, *by_tls) as broker:
        harness.ask_all(broker.address, *(("CREATE", "queue", f"q{number}", {}) for number in range(QUEUES)), timeout_s=300)
        print(f"{'a flood of':<14}{'round trips':>13}{'p50 ms':>9}{'p99 ms':>9}{'ratio p50':>11}{'ratio p99':>11}{'load':>7}")
        for kind in FLOODS:
            quiet: list[float] = []
            flooded: list[float] = []
            for _ in range(ROUNDS):
                quiet += round_trips(broker.address)
                host, port = broker.address.split(":")
                at = tls_port if kind == "handshakes" else port
                flooder = subprocess.Popen([sys.executable, "-m", "tests.bench.floods", kind, host, at])
                try:
                    time.sleep(1.5)  # it is at it
                    flooded += round_trips(broker.address)
                    assert flooder.poll() is None, f"the flooder of {kind} has ended"
                finally:
                    flooder.kill()
                    flooder.wait()
            _row("(none)", quiet, quiet)
            _row(kind, flooded, quiet)


def round_trips(address: str) -> list[float]:
    """Send and wait, for a while. Returns how long each took, in ms."""
    connection = BlockingConnection(address, timeout=60, allowed_mechs="ANONYMOUS")
    found = []
    try:
        sender = connection.create_sender("q0")
        message = Message(body=bytes(1024), durable=True)
        end = time.monotonic() + SECONDS
        while (began := time.monotonic()) < end:
            sender.send(message)
            found.append((time.monotonic() - began) * 1000)
    finally:
        connection.close()
    return found


def _row(name: str, found: list[float], quiet: list[float]) -> None:
    p50, p99 = _percentiles(found)
    was50, was99 = _percentiles(quiet)
    load = os.getloadavg()[0]
    ratios = f"{p50 / was50:>11.1f}{p99 / was99:>11.1f}"
    print(f"{name:<14}{len(found):>13,}{p50:>9.1f}{p99:>9.1f}{ratios}{load:>7.1f}", flush=True)


def _percentiles(found: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(found, n=100)
    return cuts[49], cuts[98]


# ---- flooders: they never end by themselves


def _connections(address: tuple[str, int]) -> None:
    """Connections that are opened and dropped."""
    _come_and_go(address, [sasl.HEADER + init() + HEADER + OPEN + BEGIN])


def _handshakes(address: tuple[str, int]) -> None:
    """TLS handshakes that are dropped when the server has done its part, which is the expensive one."""
    hello = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    _come_and_go(address, [hello.read()])


def _wrong_passwords(address: tuple[str, int]) -> None:
    _come_and_go(address, [sasl.HEADER + init("PLAIN", values.encode(b"\0user\0wrong"))])


def _scram(address: tuple[str, int]) -> None:
    _come_and_go(address, [sasl.HEADER + init("SCRAM-SHA-256", values.encode(b"n,,n=user,r=abcdefghijklmnop"))])


def _come_and_go(address: tuple[str, int], says: list[bytes]) -> None:
    """Connections that say something, take one answer and go, `AT_ONCE` at a time."""
    waiting = selectors.DefaultSelector()
    count = 0
    while True:
        while count < AT_ONCE:
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME_WAIT: ports would run out
            one.connect(address)
            one.setblocking(False)
            one.sendall(says[0])
            waiting.register(one, selectors.EVENT_READ)
            count += 1
        for key, _ in waiting.select():
            answered: Any = key.fileobj
            waiting.unregister(answered)
            answered.close()
            count -= 1


def _links(address: tuple[str, int]) -> None:
    """One connection that attaches and detaches, as fast as it may."""
    pairs = b"".join(attach(number) + performative(0x16, b"\x52" + bytes((number,)), b"\x41") for number in range(100))
    with socket.create_connection(address) as one:
        one.sendall(sasl.HEADER + init() + HEADER + OPEN + BEGIN)
        one.setblocking(False)
        left = b""
        while True:
            left = left or pairs
            try:
                left = left[one.send(left) :]
            except BlockingIOError:
                time.sleep(0.001)
            try:
                while one.recv(1 << 18):
                    pass
            except BlockingIOError:
                pass


def _management(address: tuple[str, int]) -> None:
    """Four connections that ask for all queues, as many times at once as they may. They do not read to the end what they get."""
    from twisted.internet import defer

    from broker.client import ManagementClient
    from broker.core.urls import parse
    from broker.net.reactor import install

    reactor: Any = install()

    async def ask() -> None:
        where = parse(f"{address[0]}:{address[1]}").addresses[0]
        client = await ManagementClient.connect(reactor, where)
        while True:
            await defer.gatherResults([client.request("QUERY", "queue", timeout_s=600) for _ in range(32)])

    for _ in range(4):
        defer.ensureDeferred(ask())
    reactor.run()


def _computing(address: tuple[str, int]) -> None:
    """Nobody is asked for anything: what two cores lose to a process that only computes."""
    while True:
        sum(range(10_000))


FLOODS: dict[str, Callable[[tuple[str, int]], None]] = {
    "computing": _computing,
    "connections": _connections,
    "handshakes": _handshakes,
    "links": _links,
    "passwords": _wrong_passwords,
    "scram": _scram,
    "management": _management,
}

if __name__ == "__main__":
    sys.exit(main())
