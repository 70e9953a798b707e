"""A virtual IP address in bytes: the requests to the kernel that add it to a device or remove it, and the announcements
to neighbours.

An address is written as `10.0.0.9/24@eth0`, or `fd00::9/64@eth0`. The default prefix is /32 or /128.

Life of an address on a host: `grant` adds it, and renews it before its lifetime ends; `withdraw` removes it; `outcome`
reads the kernel's answer. `announcement` is the frame that tells hosts of the same network where the address is now.
For IPv4 this is an ARP Announcement (RFC 5227 §2.3: an ARP Request of RFC 826 whose sender and target are the address),
for IPv6 an unsolicited Neighbor Advertisement to all nodes with the Override flag (RFC 4861 §4.4, §7.2.6).

Invariants: an address always has a limited lifetime, so that the kernel of a dead broker's host removes it by itself.
It is deprecated from the beginning, so that the host does not use it as the source of its own connections (RFC 6724 §5,
rule 3). For IPv6 there is no duplicate address detection (RFC 4862 §5.4), because the host of a dead primary may still
have the address.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

_NEW_ADDRESS, _DELETE_ADDRESS, _ERROR = 20, 21, 2
_REQUEST, _ACK, _REPLACE, _CREATE = 0x1, 0x4, 0x100, 0x400
_ADDRESS, _LOCAL, _CACHE_INFO, _FLAGS = 1, 2, 6, 8
_NO_DUPLICATE_DETECTION = 0x02
_FAMILIES = {4: 2, 6: 10}
"""Linux's numbers of address families, by IP version."""
_HEADER = struct.Struct("=IHHII")
"""Length, type, flags, sequence number, port (netlink(7))."""
_OF_ADDRESS = struct.Struct("=BBBBI")
"""Family, prefix, flags, scope, index of the device (rtnetlink(7))."""
_ATTRIBUTE = struct.Struct("=HH")
_CODE = struct.Struct("=i")
_MAX_DEVICE_NAME = 15

MAC_BYTES = 6
_EVERYBODY, _NOBODY = b"\xff" * MAC_BYTES, bytes(MAC_BYTES)
_ALL_NODES, _ALL_NODES_MAC = IPv6Address("ff02::1").packed, b"\x33\x33\x00\x00\x00\x01"
_ARP, _IPV6 = 0x0806, 0x86DD
_ICMPV6, _HOP_LIMIT = 58, 255
_NEIGHBOR_ADVERTISEMENT, _OVERRIDE, _TARGET_LINK_LAYER = 136, 0x20000000, 2


class BadAddress(ValueError):
    """This is not a virtual IP address. The text says why."""


@dataclass(frozen=True, slots=True)
class VirtualAddress:
    """An address with the length of its prefix, and the device that has it while this broker is the primary."""

    ip: IPv4Address | IPv6Address
    prefix: int
    device: str

    def __str__(self) -> str:
        """As it is written."""
        return f"{self.ip}/{self.prefix}@{self.device}"


def parsed(text: str) -> VirtualAddress:
    """The address that a text describes. BadAddress."""
    rest, at, device = text.strip().partition("@")
    number, slash, prefix = rest.partition("/")
    if not at or not 0 < len(device) <= _MAX_DEVICE_NAME or "/" in device or device.split() != [device]:
        raise BadAddress(f"{text!r} names no network device: write it as 10.0.0.9/24@eth0")
    try:
        ip = ip_address(number)
    except ValueError:
        raise BadAddress(f"{number!r} is not an IP address: write it as 10.0.0.9/24@eth0") from None
    if ip.is_unspecified or ip.is_multicast or ip.is_loopback or (isinstance(ip, IPv6Address) and ip.scope_id):
        raise BadAddress(f"{number} cannot be the address of one host")
    if slash and not (prefix.isdecimal() and 0 < int(prefix) <= ip.max_prefixlen):
        raise BadAddress(f"/{prefix} is not the length of a prefix of {number}: it is from 1 to {ip.max_prefixlen}")
    return VirtualAddress(ip, int(prefix) if slash else ip.max_prefixlen, device)


def grant(address: VirtualAddress, device: int, valid_s: int, number: int) -> bytes:
    """The request (netlink) to add this address to the device of that index for this number of seconds, or to renew it.

    `number` is the request's number, in 32 bits.
    """
    lifetime = struct.pack("=IIII", 0, valid_s, 0, 0)  # preferred, valid; the kernel's own times
    flags = struct.pack("=I", _NO_DUPLICATE_DETECTION)
    more = _attribute(_CACHE_INFO, lifetime) + _attribute(_FLAGS, flags)
    return _request(_NEW_ADDRESS, _REQUEST | _ACK | _CREATE | _REPLACE, address, device, number, more)


def withdraw(address: VirtualAddress, device: int, number: int) -> bytes:
    """The request to remove it."""
    return _request(_DELETE_ADDRESS, _REQUEST | _ACK, address, device, number, b"")


def outcome(answer: bytes, number: int) -> int | None:
    """The error number (errno) in the answer to that request, 0 for none; None if this is not the answer to it."""
    if len(answer) < _HEADER.size + _CODE.size:
        return None
    _, kind, _, answered, _ = _HEADER.unpack_from(answer)
    if kind != _ERROR or answered != number:
        return None
    return -int(_CODE.unpack_from(answer, _HEADER.size)[0])


def announcement(address: VirtualAddress, mac: bytes) -> bytes:
    """The Ethernet frame that tells the network that this address is at the device with that MAC address."""
    assert len(mac) == MAC_BYTES, f"{mac.hex()} is not the address of an Ethernet device"
    packed = address.ip.packed
    if address.ip.version == 4:
        arp = struct.pack("!HHBBH", 1, 0x0800, MAC_BYTES, len(packed), 1) + mac + packed + _NOBODY + packed
        return _EVERYBODY + mac + struct.pack("!H", _ARP) + arp
    option = struct.pack("!BB", _TARGET_LINK_LAYER, 1) + mac
    body = struct.pack("!I", _OVERRIDE) + packed + option
    length = 4 + len(body)
    pseudo = packed + _ALL_NODES + struct.pack("!II", length, _ICMPV6)  # RFC 8200 §8.1
    kind = struct.pack("!BB", _NEIGHBOR_ADVERTISEMENT, 0)
    icmp = kind + struct.pack("!H", _checksum(pseudo + kind + bytes(2) + body)) + body
    ip = struct.pack("!IHBB", 6 << 28, length, _ICMPV6, _HOP_LIMIT) + packed + _ALL_NODES
    return _ALL_NODES_MAC + mac + struct.pack("!H", _IPV6) + ip + icmp


def _request(kind: int, flags: int, address: VirtualAddress, device: int, number: int, more: bytes) -> bytes:
    packed = address.ip.packed
    body = _OF_ADDRESS.pack(_FAMILIES[address.ip.version], address.prefix, 0, 0, device)
    body += _attribute(_LOCAL, packed) + _attribute(_ADDRESS, packed) + more
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, number, 0) + body


def _attribute(kind: int, value: bytes) -> bytes:
    assert len(value) % 4 == 0, "values of other lengths need padding"
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value


def _checksum(data: bytes) -> int:
    """RFC 1071, of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total
