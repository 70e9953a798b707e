"""When a broker has its virtual addresses, and when it tells the network. The real kernel: tests/system/test_virtual_ip.py."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from OpenSSL import SSL
from twisted.internet.address import IPv4Address
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.internet.tcp import Connection
from twisted.logger import ILogObserver, globalLogPublisher
from zope.interface import provider

from broker.net.tls import TlsSocket
from ha.core.virtual_ip import VirtualAddress, parsed
from ha.virtual_ip import ANNOUNCED_S, LIFETIME_S, VirtualIp

V4, V6 = parsed("10.0.0.9/24@eth0"), parsed("fd00::9/64@eth1")


class Machine:
    """What was asked of a machine, which may refuse it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refuses = ""

    def check(self, address: VirtualAddress) -> None:
        self._asked("check", address)

    def grant(self, address: VirtualAddress, valid_s: int) -> None:
        assert valid_s == LIFETIME_S
        self._asked("grant", address)

    def withdraw(self, address: VirtualAddress) -> None:
        self._asked("withdraw", address)

    def announce(self, address: VirtualAddress) -> None:
        self._asked("announce", address)

    def _asked(self, what: str, address: VirtualAddress) -> None:
        self.asked.append(f"{what} {address.ip}")
        if what == self.refuses:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    def take(self) -> list[str]:
        """What was asked since the last time."""
        asked, self.asked = self.asked, []
        return asked


@pytest.fixture
def said() -> Iterator[list[str]]:
    lines: list[str] = []

    @provider(ILogObserver)
    def observe(event: Any) -> None:
        lines.append(event["log_format"].format(**event))

    globalLogPublisher.addObserver(observe)
    yield lines
    globalLogPublisher.removeObserver(observe)


def made(*addresses: VirtualAddress, sockets: tuple[Any, ...] = ()) -> tuple[Machine, Clock, VirtualIp]:
    machine, clock = Machine(), Clock()
    return machine, clock, VirtualIp(addresses, clock.seconds, lambda: sockets, machine)


def test_a_primary_has_its_addresses_at_once_and_renews_them_until_it_leaves() -> None:
    """Breaks when the kernel takes an address away from a primary that serves, or a broker that left has one."""
    machine, clock, virtual_ip = made(V4, V6)
    virtual_ip.check()
    assert machine.take() == ["check 10.0.0.9", "check fd00::9"]
    virtual_ip.leave()
    assert machine.take() == [], "nothing is here"
    virtual_ip.tick()
    assert machine.take() == ["grant 10.0.0.9", "announce 10.0.0.9", "grant fd00::9", "announce fd00::9"]
    grants = []
    for _ in range(100):
        clock.advance(0.2)
        virtual_ip.tick()
        grants += [clock.seconds() for asked in machine.take() if asked == "grant fd00::9"]
    assert max(b - a for a, b in zip([0.0, *grants], [*grants, 20.0], strict=True)) <= LIFETIME_S / 2, "one may be late"
    virtual_ip.leave()
    virtual_ip.leave()
    assert machine.take() == ["withdraw 10.0.0.9", "withdraw fd00::9"]


def test_the_network_is_told_for_longer_than_a_dead_broker_s_host_has_the_address() -> None:
    """Until then that one answers, too, and neighbours may ask it: what they hear last must be the primary. And whoever else
    announces the address later does not keep it from clients for long."""
    machine, clock, virtual_ip = made(V4)
    told = []
    for _ in range(600):
        virtual_ip.tick()
        told += [clock.seconds()] * machine.take().count("announce 10.0.0.9")
        clock.advance(0.05)
    assert told == pytest.approx([*ANNOUNCED_S, 18.0, 28.0], abs=0.06)
    assert ANNOUNCED_S[-1] > LIFETIME_S + 2, "the kernel may be a second or two late with what is over"


def test_a_primary_that_stood_still_for_longer_than_it_had_its_address_takes_it_again_if_it_still_serves() -> None:
    """Breaks when it takes it at once: the timers of a process that wakes come before the news of the next primary."""
    machine, clock, virtual_ip = made(V4)
    virtual_ip.tick()
    machine.take()
    clock.advance(LIFETIME_S)
    virtual_ip.tick()
    assert machine.take() == []
    clock.advance(0.2)
    virtual_ip.tick()
    assert machine.take() == ["grant 10.0.0.9", "announce 10.0.0.9"]
    clock.advance(LIFETIME_S + 1)
    virtual_ip.tick()
    virtual_ip.leave()
    assert machine.take() == ["withdraw 10.0.0.9"], "the next primary has it"


def test_an_address_that_cannot_be_had_is_complained_of_once_not_announced_and_tried_again(said: list[str]) -> None:
    """Breaks when trouble of one device keeps the other address away, or a broker without the address calls clients to it."""
    machine, clock, virtual_ip = made(V4)
    machine.refuses = "grant"
    for _ in range(20):
        virtual_ip.tick()
        clock.advance(0.2)
    assert 3 <= machine.asked.count("grant 10.0.0.9") <= 5
    assert "announce 10.0.0.9" not in machine.take()
    machine.refuses = ""
    for _ in range(10):
        clock.advance(0.2)
        virtual_ip.tick()
    assert "announce 10.0.0.9" in machine.take()
    machine.refuses = "withdraw"
    virtual_ip.leave()
    assert said == [
        "the virtual IP address 10.0.0.9/24@eth0 cannot be had here: No such device",
        "clients reach this broker at 10.0.0.9/24@eth0",
        "the virtual IP address 10.0.0.9/24@eth0 cannot be taken away: No such device",
    ]


def test_an_address_on_a_device_that_is_down_is_complained_of_once_and_announced_as_soon_as_the_device_is_up(
    said: list[str],
) -> None:
    """The kernel gives a device that is down its address, and sends nothing. Breaks when the log says so again and again, or
    neighbours keep an older place of the address for seconds."""
    machine, clock, virtual_ip = made(V4)
    machine.refuses = "announce"
    for _ in range(100):
        virtual_ip.tick()
        clock.advance(0.2)
    assert said == [
        "clients reach this broker at 10.0.0.9/24@eth0",
        "the virtual IP address 10.0.0.9/24@eth0 cannot be announced: No such device",
    ]
    machine.refuses = ""
    machine.take()
    for _ in range(10):
        virtual_ip.tick()
        clock.advance(0.2)
    assert machine.take().count("announce 10.0.0.9") == 4, "as at the beginning: at once, and after 0.1, 0.5 and 1 s"


@pytest.mark.parametrize("over_tls", [False, True])
@pytest.mark.parametrize("host, ends", [("10.0.0.9", True), ("::ffff:10.0.0.9", True), ("10.0.0.1", False)])
def test_connections_to_an_address_end_before_it_goes_and_others_do_not(host: str, ends: bool, over_tls: bool) -> None:
    """Breaks when clients of the virtual address wait for one that has gone, or those of the broker's own are cut off. Sockets of
    IPv6 name an IPv4 address in their own way."""
    here, there = socket.socketpair()
    with here, there:
        transport: Any = Connection(here, Protocol())
        transport.getHost = lambda: IPv4Address("TCP", host, 5672)
        if over_tls:
            unused: Any = None
            above = TlsSocket(unused, SSL.Connection(SSL.Context(SSL.TLS_METHOD)), unused, 1.0)
            above.transport, transport = transport, above
        _, _, virtual_ip = made(V4, sockets=(None, transport))
        virtual_ip.tick()
        virtual_ip.leave()
        there.setblocking(False)
        if ends:
            assert there.recv(1) == b""
        else:
            with pytest.raises(BlockingIOError):
                there.recv(1)
        there.send(b"still heard")
        assert here.recv(20) == b"still heard"
