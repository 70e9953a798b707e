"""Virtual IP addresses that follow the primary: clients use them, and the broker that serves holds them.

Life of an address here: when this broker has become active, and at every `tick` while it is, it asks the kernel to assign the
address to its device for `LIFETIME_S`, and announces it to the network several times, and then each `AGAIN_S`. Before this
broker stops being the primary, `leave` ends the TCP connections to the address and removes it: before another broker may take
over, at the beginning of the end of a term that was lost, and when the process stops. If the process is killed or stands
still, the kernel removes the address when its lifetime is over. Until then two hosts have the address; the announcements of
the new primary continue for longer than that. A process that stood still takes the address again only at its second `tick`:
in between it hears of a broker that has become the primary meanwhile.

The kernel is called directly, over netlink and packet sockets, and answers at once: an address is removed when `leave`
returns. This needs CAP_NET_ADMIN and CAP_NET_RAW; `check` tests for them before this broker joins its cluster.

Invariants: a broker that is not active never requests an address. An address is never assigned for longer than `LIFETIME_S`.
A failure is logged once, until the action succeeds, and the action is tried again; meanwhile the broker serves on.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from ipaddress import IPv6Address, ip_address
from math import inf
from typing import Any, Protocol

from twisted.logger import Logger

from broker.net.output import end_output
from ha.core import virtual_ip
from ha.core.virtual_ip import MAC_BYTES, VirtualAddress

_log = Logger(namespace="ha")
LIFETIME_S = 4
RENEW_S = 1.0
ANNOUNCED_S = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
"""When an address is announced, in seconds after it was taken. RFC 5227 §2.3 requires two announcements, because one may be
lost."""
AGAIN_S = 10.0
"""Then it is announced at this interval, in case that another host has announced it meanwhile."""
_ANSWER_S = 1.0
_ETHERNET = 1
"""ARPHRD_ETHER (netdevice(7))."""
_NOT_THERE = (errno.EADDRNOTAVAIL, errno.ENODEV)
_ANSWER_BYTES = 65_536


class CannotHold(Exception):
    """This machine, or this process, cannot have the address. The text is one line for people."""


class Kernel(Protocol):
    """The requests to the machine. OSError if it refuses one."""

    def check(self, address: VirtualAddress) -> None:
        """Remove the address, if it is left from an earlier process, and test that all other requests are possible.
        CannotHold."""

    def grant(self, address: VirtualAddress, valid_s: int) -> None:
        """Assign the address to its device for so long from now on."""

    def withdraw(self, address: VirtualAddress) -> None:
        """Remove the address, if it is assigned."""

    def announce(self, address: VirtualAddress) -> None:
        """Announce to the network that the address is here."""


class Linux:
    """The real kernel: the network namespace of this process."""

    def __init__(self) -> None:
        self._number = 0

    def check(self, address: VirtualAddress) -> None:
        """See `Kernel`."""
        try:
            _index(address.device)
        except OSError:
            raise CannotHold(f"--ha-virtual-ip {address}: this machine has no network device {address.device}") from None
        try:
            self.withdraw(address)
            with closing(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)) as packets:
                packets.bind((address.device, 0))
                _, _, _, kind, mac = packets.getsockname()
        except PermissionError:
            raise CannotHold(
                f"--ha-virtual-ip {address}: this process may not set IP addresses: start qpidd with CAP_NET_ADMIN and "
                f"CAP_NET_RAW "
                "(AmbientCapabilities= of systemd), or as root"
            ) from None
        if kind != _ETHERNET or len(mac) != MAC_BYTES:
            raise CannotHold(f"--ha-virtual-ip {address}: {address.device} is not an Ethernet device, so its network has no ARP")

    def grant(self, address: VirtualAddress, valid_s: int) -> None:
        """See `Kernel`."""
        self._number += 1
        self._ask(virtual_ip.grant(address, _index(address.device), valid_s, self._number))

    def withdraw(self, address: VirtualAddress) -> None:
        """See `Kernel`."""
        self._number += 1
        try:
            self._ask(virtual_ip.withdraw(address, _index(address.device), self._number))
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise

    def announce(self, address: VirtualAddress) -> None:
        """See `Kernel`."""
        with closing(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)) as packets:
            packets.bind((address.device, 0))
            mac = packets.getsockname()[4]
            packets.send(virtual_ip.announcement(address, mac))

    def _ask(self, request: bytes) -> None:
        """Send this request to the kernel, and read its answer within the same call."""
        with closing(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)) as netlink:
            netlink.settimeout(_ANSWER_S)
            netlink.sendto(request, (0, 0))
            while (code := virtual_ip.outcome(netlink.recv(_ANSWER_BYTES), self._number)) is None:
                pass
        if code:
            raise OSError(code, os.strerror(code))


def _index(device: str) -> int:
    """The kernel's number of that device. It is read each time, because the device may be created anew. OSError if it is
    missing."""
    return socket.if_nametoindex(device)


class VirtualIp:
    """See the module. `sockets` gives those of all connections of this broker; `now` is in seconds and never goes back."""

    def __init__(
        self,
        addresses: Sequence[VirtualAddress],
        now: Callable[[], float],
        sockets: Callable[[], Iterable[Any]],
        kernel: Kernel | None = None,
    ) -> None:
        self._kernel = kernel or Linux()
        self._holdings = [_Holding(self._kernel, address) for address in addresses]
        self._now = now
        self._sockets = sockets

    def check(self) -> None:
        """Test that the addresses can be held, and that none is left from an earlier process. CannotHold."""
        for each in self._holdings:
            self._kernel.check(each.address)

    def tick(self) -> None:
        """This broker serves: take the addresses, or keep them."""
        now_s = self._now()
        for each in self._holdings:
            each.tick(now_s)

    def leave(self) -> None:
        """This broker will no longer be the primary: the addresses are removed when this returns."""
        held = [each for each in self._holdings if each.wanted]
        ips = {each.address.ip for each in held}
        for transport in self._sockets() if ips else ():
            if _host_of(transport) in ips:
                end_output(transport)
        for each in held:
            each.leave()


class _Holding:
    """One address."""

    def __init__(self, kernel: Kernel, address: VirtualAddress) -> None:
        self.address = address
        self.wanted = False
        """Whether this broker is to hold it."""
        self._kernel = kernel
        self._since_s: float | None = None
        """Since when this broker holds it and can announce it; None if it does not hold it."""
        self._asked_s = 0.0
        self._announced = 0
        self._complaints: dict[str, str] = {}
        """What failed, and how, until it succeeds."""

    def tick(self, now_s: float) -> None:
        """This broker is to hold it: request it, renew it, announce it."""
        if self.wanted and self._since_s is not None and now_s - self._asked_s >= LIFETIME_S:
            self._since_s, self._asked_s = None, -inf  # this process stood still: see the module
            return
        if not self.wanted or now_s - self._asked_s >= RENEW_S:
            self._take(now_s)
        since_s, count = self._since_s, self._announced
        if since_s is not None and now_s - since_s >= _announced_s(count):
            if self._done("announced", self._kernel.announce):
                self._announced += 1
            else:  # nobody has heard any of them while the device was down: they begin anew
                self._since_s, self._announced = now_s, 0

    def _take(self, now_s: float) -> None:
        self.wanted, self._asked_s = True, now_s
        if not self._done("had here", self._grant):
            self._since_s = None
        elif self._since_s is None:
            self._since_s, self._announced = now_s, 0
            _log.info("clients reach this broker at {address}", address=self.address)

    def leave(self) -> None:
        """This broker is no longer to hold it: remove it."""
        self.wanted, self._since_s = False, None
        if self._done("taken away", self._kernel.withdraw):
            _log.info("{address} is removed: clients no longer reach this broker there", address=self.address)

    def _grant(self, address: VirtualAddress) -> None:
        self._kernel.grant(address, LIFETIME_S)

    def _done(self, what: str, do: Callable[[VirtualAddress], None]) -> bool:
        """Whether that worked. A failure is logged once."""
        try:
            do(self.address)
        except OSError as error:
            complaint = f"the virtual IP address {self.address} cannot be {what}: {error.strerror or error}"
            if complaint != self._complaints.get(what):
                _log.error("{complaint}", complaint=complaint)
            self._complaints[what] = complaint
            return False
        self._complaints.pop(what, None)
        return True


def _announced_s(count: int) -> float:
    """When an address is announced after so many announcements, in seconds after it was taken."""
    last = len(ANNOUNCED_S) - 1
    return ANNOUNCED_S[count] if count <= last else ANNOUNCED_S[last] + AGAIN_S * (count - last)


def _host_of(transport: Any) -> Any:
    """The address of this machine to which that socket is connected; None if there is none. One socket may serve both
    versions: an IPv4 address then has the form of an IPv6 address that contains it (RFC 4291 §2.5.5.2)."""
    where = transport.getHost() if transport is not None else None
    try:
        found = ip_address(getattr(where, "host", "").partition("%")[0])
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found
