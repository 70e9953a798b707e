"""What the kernel and the neighbours are told of a virtual IP address, to the byte."""

from __future__ import annotations

import struct
from ipaddress import ip_address

import pytest

from ha.core.virtual_ip import BadAddress, VirtualAddress, announcement, grant, outcome, parsed, withdraw

MAC = bytes.fromhex("02005e0053a1")
V4, V6 = parsed("192.0.2.9/24@eth0"), parsed("2001:db8::9/64@eth0")


@pytest.mark.parametrize(
    "text, ip, prefix, device",
    [
        ("10.0.0.9/24@eth0", "10.0.0.9", 24, "eth0"),
        (" 10.0.0.9@bond0.12 ", "10.0.0.9", 32, "bond0.12"),
        ("FD00:0:0::9/64@br-lan", "fd00::9", 64, "br-lan"),
        ("fd00::9@eth0", "fd00::9", 128, "eth0"),
    ],
)
def test_an_address_has_a_device_and_without_a_prefix_stands_for_itself_alone(
    text: str, ip: str, prefix: int, device: str
) -> None:
    address = parsed(text)
    assert address == VirtualAddress(ip_address(ip), prefix, device)
    assert parsed(str(address)) == address


@pytest.mark.parametrize(
    "text, why",
    [
        ("10.0.0.9/24", "names no network device"),
        ("10.0.0.9@", "names no network device"),
        ("10.0.0.9@eth0 eth1", "names no network device"),
        ("10.0.0.9@../eth0", "names no network device"),
        ("10.0.0.9@sixteen-letters-", "names no network device"),
        ("host1@eth0", "'host1' is not an IP address"),
        ("10.0.0@eth0", "'10.0.0' is not an IP address"),
        ("0.0.0.0@eth0", "cannot be the address of one host"),
        ("::@eth0", "cannot be the address of one host"),
        ("127.0.0.1@lo", "cannot be the address of one host"),
        ("ff02::1@eth0", "cannot be the address of one host"),
        ("fe80::9%eth0@eth0", "cannot be the address of one host"),
        ("10.0.0.9/@eth0", "from 1 to 32"),
        ("10.0.0.9/0@eth0", "from 1 to 32"),
        ("10.0.0.9/33@eth0", "from 1 to 32"),
        ("fd00::9/-1@eth0", "from 1 to 128"),
    ],
)
def test_what_is_no_address_of_one_host_on_a_device_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadAddress, match=why.replace("(", r"\(")):
        parsed(text)


def test_neighbours_are_told_of_an_ipv4_address_by_an_arp_announcement() -> None:
    """RFC 5227 §1.1 and §2.3: a broadcast ARP Request whose sender and target IP address are both the address, and whose target
    hardware address is zero; the fields in the order of RFC 826."""
    expected = (
        "ffffffffffff 02005e0053a1 0806"  # to everybody, from the device, ARP
        "0001 0800 06 04 0001"  # Ethernet, IPv4, lengths 6 and 4, request
        "02005e0053a1 c0000209"  # sender
        "000000000000 c0000209"  # target
    )
    assert announcement(V4, MAC) == bytes.fromhex(expected.replace(" ", ""))


def test_neighbours_are_told_of_an_ipv6_address_by_an_unsolicited_advertisement() -> None:
    """RFC 4861 §4.4 and §7.2.6: hop limit 255, to all nodes, Solicited 0, Override 1, with the target's link-layer address."""
    frame = announcement(V6, MAC)
    target = "20010db8000000000000000000000009"
    ip = f"333300000001 02005e0053a1 86dd 60000000 0020 3a ff {target} ff020000000000000000000000000001"
    icmp = f"88 00 cccc 20000000 {target} 02 01 02005e0053a1"
    told = bytearray(frame)
    checksum = bytes(told[56:58])
    told[56:58] = b"\xcc\xcc"
    assert bytes(told) == bytes.fromhex((ip + icmp).replace(" ", ""))
    summed = frame[22:54] + (32).to_bytes(4, "big") + (58).to_bytes(4, "big") + frame[54:]  # RFC 8200 §8.1
    assert int.from_bytes(summed, "big") % 0xFFFF == 0, "the sum in ones' complement is nothing"
    assert checksum != bytes(2)


def test_the_kernel_is_asked_for_an_address_for_a_time_and_without_looking_for_duplicates() -> None:
    """rtnetlink(7), linux/if_addr.h: RTM_NEWADDR with CREATE and REPLACE, so that the same request renews it; preferred for 0 s:
    nobody takes it for a source. Numbers are in the machine's own byte order."""
    attributes = (
        struct.pack("=HH4s", 8, 2, V4.ip.packed)  # IFA_LOCAL
        + struct.pack("=HH4s", 8, 1, V4.ip.packed)  # IFA_ADDRESS
        + struct.pack("=HHIIII", 20, 6, 0, 4, 0, 0)  # IFA_CACHEINFO
        + struct.pack("=HHI", 8, 8, 0x02)  # IFA_FLAGS: IFA_F_NODAD
    )
    header = struct.pack("=IHHII", 68, 20, 0x001 | 0x004 | 0x100 | 0x400, 7, 0)
    assert grant(V4, 3, 4, 7) == header + struct.pack("=BBBBI", 2, 24, 0, 0, 3) + attributes
    assert grant(V6, 3, 4, 7)[16:18] == bytes([10, 64])


def test_the_kernel_is_asked_to_take_an_address_away() -> None:
    request = withdraw(V6, 3, 8)
    length, kind, flags, number, _ = struct.unpack_from("=IHHII", request)
    assert (length, kind, flags, number) == (len(request), 21, 5, 8)
    assert request[24:] == struct.pack("=HH", 20, 2) + V6.ip.packed + struct.pack("=HH", 20, 1) + V6.ip.packed


def test_an_answer_is_that_to_the_request_of_its_number_alone() -> None:
    """NLMSG_ERROR (2), with 0 for what was done, and else the negative number of the error."""

    def answer(code: int, number: int, kind: int = 2) -> bytes:
        return struct.pack("=IHHIIi", 20, kind, 0, number, 0, code)

    assert [outcome(answer(code, 8), 8) for code in (0, -1, -99)] == [0, 1, 99]
    assert [outcome(answer(0, 7), 8), outcome(answer(0, 8, kind=20), 8), outcome(b"", 8)] == [None, None, None]
