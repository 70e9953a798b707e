"""A virtual IP address follows the primary, on three hosts of a network made for the test, with the real kernel."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.verify.run import Run, Workload
from ha.core.virtual_ip import parsed
from ha.virtual_ip import CannotHold, Linux
from tests.system.harness import Cluster, cluster, eventually, free_ports
from tests.system.means import program, run, where_possible
from tests.system.namespaces import CLIENT, BridgedLan, bridged_lan
from tests.system.terms import go_on
from tests.system.test_bad_start import refusal
from tests.system.traffic import accounted

V4, V6 = "10.77.0.100", "fd00:77::100"
PORT = 5672
OPTIONS = ("--ha-replicate", "all", "--interface", "::", "--ha-virtual-ip", f"{V4}/24@eth0,{V6}/64@eth0")


def ip(*words: str) -> Any:
    """What iproute2 says on the host of the calling thread, decoded."""
    return json.loads(run(program("ip", "iproute2"), "-j", *words) or "[]")


def mac_of(lan: BridgedLan, host: int) -> str:
    with lan.inside(host):
        return str(ip("link", "show", "eth0")[0]["address"])


def virtual_of(lan: BridgedLan, host: int) -> set[str]:
    """The virtual addresses that a host has."""
    with lan.inside(host):
        return {each["local"] for each in ip("address", "show", "eth0")[0]["addr_info"]} & {V4, V6}


def neighbours(lan: BridgedLan) -> set[str]:
    """Where the client's host has the virtual addresses, by its tables of neighbours: hardware addresses."""
    with lan.inside(CLIENT):
        return {each.get("lladdr", "") for version in ("-4", "-6") for each in ip(version, "neigh") if each["dst"] in (V4, V6)}


def expect_clients_at(lan: BridgedLan, host: int) -> None:
    """The client's host learns, for both addresses, that they are at that one, which has them."""
    eventually(lambda: neighbours(lan), lambda found: found == {mac_of(lan, host)}, f"both addresses at host {host}")
    assert virtual_of(lan, host) == {V4, V6}


@contextmanager
def clients(lan: BridgedLan, brokers: Cluster) -> Iterator[Run]:
    """Clients that know the virtual address alone, at whose end everything is accounted for."""
    brokers.primary().create("queue", "jobs")
    with Run(Workload([f"{V4}:{PORT}"], ["jobs"], rate=100, heartbeat_s=1.0)) as run:
        run.wait_for(accepted=20)
        yield run
        go_on(run, 20)
        accounted(run, brokers.primary)


def connected() -> socket.socket:
    """A connection to the virtual address of IPv6, by which the client's host learns where it is."""
    return socket.create_connection((V6, PORT), timeout=20)


def expect_end(connection: socket.socket) -> None:
    with connection:
        assert connection.recv(100) == b""


@where_possible
def test_both_addresses_are_where_the_primary_is_and_clients_that_know_nothing_else_go_on(tmp_path: Path) -> None:
    """A planned switchover, a primary that is killed, and one that loses its majority. Breaks when two brokers that run have an
    address, when the network is not told, or when clients of an address that has gone wait for it."""
    with bridged_lan() as lan:
        with lan.inside(CLIENT):
            run(program("ip", "iproute2"), "-6", "address", "add", "fd00:77::1/64", "dev", "eth0", "nodad")
        places = [replace(place, port=PORT) for place in lan.places]
        with cluster(tmp_path, 3, *OPTIONS, places=places) as brokers, clients(lan, brokers) as traffic:
            second = brokers.brokers[1]
            connection = connected()
            expect_clients_at(lan, 1)
            brokers.promote(second)
            assert [virtual_of(lan, host) for host in (1, 2, 3)] == [set(), {V4, V6}, set()]
            expect_end(connection)
            expect_clients_at(lan, 2)
            go_on(traffic, 20)

            second.kill()
            primary = brokers.succeed()
            host = brokers.brokers.index(primary) + 1
            expect_clients_at(lan, host)
            go_on(traffic, 20)
            eventually(lambda: virtual_of(lan, 2), lambda found: not found, "the dead broker's kernel taking them away")

            lan.cut([host], [4 - host])
            eventually(lambda: virtual_of(lan, host), lambda found: not found, "a primary without a majority giving them up")
            assert "clients no longer reach this broker" in primary.log().rpartition("clients reach this broker at")[2]
            lan.heal()
            primary = brokers.succeed()
            expect_clients_at(lan, brokers.brokers.index(primary) + 1)


@where_possible
def test_a_primary_that_nobody_replaces_and_that_is_stopped_leaves_no_address_behind(tmp_path: Path) -> None:
    """Breaks when only a handover takes it away. By itself the kernel would do it some seconds later."""
    with bridged_lan(1) as lan, cluster(tmp_path, 1, *OPTIONS, places=[replace(lan.places[0], port=PORT)]) as brokers:
        eventually(lambda: virtual_of(lan, 1), lambda found: found == {V4, V6}, "the addresses at the one broker")
        assert brokers.brokers[0].stop() == 0
        assert virtual_of(lan, 1) == set()


@where_possible
def test_a_broker_that_could_not_have_its_address_does_not_start_and_says_why(tmp_path: Path) -> None:
    """Breaks when that is found out in a failover."""
    with bridged_lan(1) as lan:
        for device, why in (("eth7", "no network device eth7"), ("lo", "lo is not an Ethernet device")):
            with lan.inside(1), pytest.raises(CannotHold, match=why):
                Linux().check(parsed(f"{V4}@{device}"))
    words: list[object] = ["--data-dir", tmp_path, "--interface", "::", "--ha-cluster", "yes"]
    (port,) = free_ports(1)
    words += ["--port", port, "--ha-brokers-url", f"127.0.0.1:{port}", "--ha-virtual-ip", f"{V4}@lo"]
    setpriv = program("setpriv", "util-linux")
    said = refusal(*words, wrapper=(setpriv, "--bounding-set=-net_admin,-net_raw", "--inh-caps=-net_admin,-net_raw"))
    assert said.startswith(
        f"--ha-virtual-ip {V4}/32@lo: this process may not set IP addresses: start qpidd with CAP_NET_ADMIN and"
    )
