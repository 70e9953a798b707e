"""Primaries are killed, frozen and relieved, while one unmodified client with a list of URLs sends and another one consumes."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from proton import Message
from proton.reactor import Container
from proton.utils import BlockingConnection, BlockingReceiver

from tests.system.harness import BrokerProcess, Refused, ask, cluster, eventually
from tests.system.terms import active, check_one_primary_an_epoch, new_primary, resource_manager, terms, traffic

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
OPEN, CLOSE = b"\x00\x53\x10", b"\x00\x53\x18"
OPEN_FRAME = b"\x00\x00\x00\x12\x02\x00\x00\x00" + OPEN + b"\xc0\x05\x01\xa1\x02me"
PATIENT = ("--ha-switchover-timeout", "120")
"""However busy the machine is, consumers have the time to settle what they have before a handover."""


def test_a_killed_primary_is_replaced_without_anybody_asking_and_clients_go_on(tmp_path: Path) -> None:
    """Breaks when the daemon, the election or the clients' way to the next broker does not work; or anything accepted is lost."""
    with cluster(tmp_path, 3, "--ha-replicate", "all", promote=False) as brokers, resource_manager(tmp_path, brokers):
        first = eventually(brokers.primary, bool, "a first primary")
        for broker in brokers.brokers:
            broker.wait_for("ready", "active")
        with traffic(brokers) as run:
            first.kill()
            second = new_primary(brokers, first)
            run.wait_for(accepted=run.accepted + 500)
            first.start()
            first.wait_for("ready")
            second.kill()
            new_primary(brokers, second)
            second.start()
            second.wait_for("ready")
        check_one_primary_an_epoch(brokers)


def open_raw(address: str) -> socket.socket:
    """A TCP connection on which a client has said its Open, without SASL."""
    host, port = address.split(":")
    client = socket.create_connection((host, int(port)), 60)
    client.sendall(AMQP_HEADER + OPEN_FRAME)
    return client


def heard(client: socket.socket, until: bytes = b"") -> bytes:
    """What the broker says until it says `until`, or else until it ends the connection."""
    said = b""
    while not until or until not in said:
        try:
            data = client.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            break
        said += data
    return said


def test_a_frozen_primary_is_replaced_and_steps_down_when_it_thaws(tmp_path: Path) -> None:
    """Breaks when silence is not noticed, when a primary that slept accepts anything in its old epoch, or when it
    keeps its clients."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers, resource_manager(tmp_path, brokers):
        first = brokers.brokers[0]
        with traffic(brokers) as run, open_raw(first.address) as client:
            assert OPEN in heard(client, until=OPEN)
            first.signal(signal.SIGSTOP)
            second = new_primary(brokers, first)
            first.signal(signal.SIGCONT)
            assert CLOSE not in heard(client), "a connection ends as in a crash: every client goes on to its next URL after that"
            first.wait_for("ready")
            assert second.state() == "active"
            run.wait_for(accepted=run.accepted + 500)
        check_one_primary_an_epoch(brokers)
        epochs = [epoch for epoch, _ in terms(brokers.primary())]
        assert epochs == sorted(set(epochs))


def test_a_backup_takes_over_from_a_healthy_primary_when_asked(tmp_path: Path) -> None:
    """Breaks when a planned switchover loses, repeats without need, or leaves two brokers serving."""
    with cluster(tmp_path, 3, "--ha-replicate", "all", *PATIENT) as brokers:
        with traffic(brokers, once=True) as run:
            for turn in range(6):
                candidate = brokers.brokers[(turn + 1) % 3]
                answer = brokers.promote(candidate)
                assert answer["status"] == "active"
                states = eventually(
                    lambda: sorted(broker.state() for broker in brokers.brokers),
                    lambda found: "joining" not in found,
                    "the end of it",
                )
                assert states == ["active", "ready", "ready"]
                run.wait_for(accepted=run.accepted + 300)
        check_one_primary_an_epoch(brokers)
        history = terms(brokers.primary())
        assert [primary for _, primary in history] == [brokers.brokers[turn % 3].address for turn in range(7)]


def test_a_primary_that_is_told_to_stop_hands_over_first(tmp_path: Path) -> None:
    """Breaks when SIGTERM costs a failure's time, or repeats a message. There is no resource manager: nobody else promotes."""
    with cluster(tmp_path, 3, "--ha-replicate", "all", *PATIENT) as brokers:
        first = brokers.brokers[0]
        with traffic(brokers, once=True):
            assert first.stop() == 0
            second = active(brokers, but=first)
            assert second is not None, "before the first has ended"
            first.start()
            first.wait_for("ready")
        last = ask(second.address, "QUERY", "history")["items"][-1]
        assert (last["primary"], last["reason"]) == (second.address, f"{first.address} handed over")


def test_a_handover_is_told_as_one_although_the_new_primary_was_refused_before(tmp_path: Path) -> None:
    """Breaks when the history gives an old, refused promotion as the reason of a handover weeks later, and calls it unplanned."""
    with cluster(tmp_path, 3, "--ha-replicate", "all", "--ha-promote-timeout", "0.5", *PATIENT) as brokers:
        first, second, third = brokers.brokers
        eventually(second.status, lambda view: not view["blank"], "a vote of its own: a new store has none")
        for other in (first, third):
            other.kill()
        with pytest.raises(Refused, match="1 of the 2 votes needed"):
            ask(second.address, "PROMOTE", "ha", body={"reason": "the primary failed", "manager": "builtin"}, timeout_s=30)
        for other in (first, third):
            other.start()
            other.wait_for("joining")
        brokers.promote(first)
        for other in (second, third):
            other.wait_for("ready")
        ask(first.address, "SET", "ha", body={"setting": "tags", "address": third.address, "tags": {"nofailover": True}})
        assert first.stop() == 0
        eventually(lambda: active(brokers, but=first), lambda found: found is second, "the broker that the first hands over to")
        last = ask(second.address, "QUERY", "history")["items"][-1]
        told = (second.address, f"{first.address} handed over", "", True)
        assert (last["primary"], last["reason"], last["by"], last["planned"]) == told


def test_a_broker_that_is_elected_for_another_one_does_not_say_that_the_dead_primary_handed_over(tmp_path: Path) -> None:
    """Breaks when whoever was not asked to be the primary takes its term for a handover: the history called a failure planned."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers:
        first, second, third = brokers.brokers
        for backup in (second, third):
            eventually(backup.status, lambda view: not view["blank"], "a vote of its own: a new store has none")
        second.kill()
        first.create("queue", "later")
        third.wait_until("lastIndex", lambda index: index >= first.status()["lastIndex"], "having what the second lacks")
        first.kill()
        second.start()
        third.wait_for("joining")
        brokers.promote(second)
        items = ask(second.address, "QUERY", "history")["items"]
        between = [(item["reason"], item["planned"]) for item in items if item["primary"] == third.address]
        told = (f"elected first, so that {second.address} can take over", False)
        assert between in ([told], []), "its term may be over before its entry is in the log"
        assert [(item["primary"], item["reason"], item["planned"]) for item in items[-1:]] == [(second.address, "test", False)]


def test_to_promote_the_primary_changes_nothing(tmp_path: Path) -> None:
    """Breaks when a repeated promotion begins a new term, and so cuts every client off."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers:
        primary = brokers.brokers[0]
        epoch = primary.status()["epoch"]
        client = BlockingConnection(primary.address, timeout=30)
        for _ in range(3):
            assert ask(primary.address, "PROMOTE", "ha")["epoch"] == epoch
        primary.create("queue", "still-there")
        client.create_sender("still-there").send(Message(body="the same connection"))
        client.close()
        assert primary.queue("still-there")["messages"] == 1


def test_without_a_majority_nobody_is_promoted_and_the_refusal_says_why(tmp_path: Path) -> None:
    """Breaks when a broker makes itself primary alone: the beginning of every split brain."""
    with cluster(tmp_path, 3, "--ha-replicate", "all", "--ha-promote-timeout", "0.5") as brokers:
        alone = brokers.brokers[2]
        eventually(alone.status, lambda view: not view["blank"], "a vote of its own: a new store has none")
        brokers.brokers[0].kill()
        brokers.brokers[1].kill()
        with pytest.raises(Refused, match="1 of the 2 votes needed") as refused:
            ask(alone.address, "PROMOTE", "ha", timeout_s=30)
        assert refused.value.status == 409
        assert alone.state() == "joining"


def test_two_resource_managers_do_not_get_into_each_others_way(tmp_path: Path) -> None:
    """Breaks when the second daemon promotes another backup after the first one has: clients would be cut off twice
    for one failure."""
    with (
        cluster(tmp_path, 3, "--ha-replicate", "all", promote=False) as brokers,
        resource_manager(tmp_path, brokers, "rm-1"),
        resource_manager(tmp_path, brokers, "rm-2"),
    ):
        first = eventually(brokers.primary, bool, "a first primary")
        for broker in brokers.brokers:
            broker.wait_for("ready", "active")
        with traffic(brokers):
            first.kill()
            second = new_primary(brokers, first)
            first.start()
            first.wait_for("ready")
        history = terms(second)
        assert [primary for _, primary in history] == [first.address, second.address], "one failure, one promotion"
        check_one_primary_an_epoch(brokers)


def test_a_backup_turns_clients_away_by_closing_without_an_open_and_serves_administrators(tmp_path: Path) -> None:
    """Breaks when clients of any library stay with a backup instead of going on to the next URL: an Open, even one
    with an error, would hold them."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers:
        primary, backup, _ = brokers.brokers
        with open_raw(primary.address) as client:
            assert OPEN in heard(client, until=OPEN), "the primary answers the same bytes with an Open"
        with open_raw(backup.address) as client:
            assert heard(client) in (b"", AMQP_HEADER)
        assert backup.status()["primary"] == primary.address
        with pytest.raises(Refused, match=f"only the primary.*{primary.address}") as refused:
            backup.create("queue", "not-here")
        assert refused.value.status == 409


def remote_properties(client: BlockingConnection) -> Any:
    """What the broker says in its Open."""
    connection: Any = client.conn
    return connection.remote_properties


def test_the_open_names_all_brokers_to_fail_over_to(tmp_path: Path) -> None:
    """Breaks when clients that were given one address cannot learn the others."""
    public = "amqp:broker-a.example:5672,broker-b.example:5673"
    with cluster(tmp_path, 3) as brokers:
        client = BlockingConnection(brokers.brokers[0].address, timeout=30)
        listed = remote_properties(client)["failover-server-list"]
        assert [f"{each['network-host']}:{each['port']}" for each in listed] == brokers.addresses
        assert {type(each["scheme"]) for each in listed} == {str}, "Qpid JMS reads no list with symbols there"
        client.close()
    with cluster(tmp_path / "public", 1, "--ha-public-url", public) as brokers:
        client = BlockingConnection(brokers.brokers[0].address, timeout=30)
        listed = remote_properties(client)["failover-server-list"]
        assert [(each["network-host"], each["port"]) for each in listed] == [
            ("broker-a.example", 5672),
            ("broker-b.example", 5673),
        ]
        client.close()


def worker(broker: BrokerProcess, name: str, credit: int) -> BlockingReceiver:
    """A consumer of the queue whose container has this name."""
    container = Container()
    container.container_id = name
    connection = BlockingConnection(broker.address, timeout=30, container=container)
    return connection.create_receiver("sessions", credit=credit, name="link")


def send(broker: BrokerProcess, *bodies: str) -> None:
    """Messages whose group is the first letter of their body."""
    connection = BlockingConnection(broker.address, timeout=30)
    sender = connection.create_sender("sessions")
    for body in bodies:
        sender.send(Message(body=body, group_id=body[0]))
    connection.close()


def test_the_owner_of_a_message_group_goes_on_with_it_after_a_failover_and_a_consumer_that_comes_first_does_not(
    tmp_path: Path,
) -> None:
    """Breaks when the next primary does not know the owners of groups, or does not wait for them."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers:
        first, second, _ = brokers.brokers
        arguments = {"qpid.group_header_key": "JMSXGroupID", "qpid.group_owner_timeout": 3600}
        first.create("queue", "sessions", arguments=arguments)
        send(first, "a1", "a2")
        assert worker(first, "owner", credit=1).receive().body == "a1"
        first.kill()
        brokers.promote(second)
        other = worker(second, "other", credit=10)
        send(second, "b1")
        assert other.receive().body == "b1"
        back = worker(second, "owner", credit=10)
        assert (back.receive().body, back.receive().body) == ("a1", "a2")
        send(second, "a3", "b2")
        assert (back.receive().body, other.receive().body) == ("a3", "b2")
