"""How a cluster begins, and that it does not begin again while a broker that is down may have its messages (docs/adr/0017)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import Ran, ended
from tests.system.harness import BrokerProcess, Cluster, Refused, ask, cluster, eventually, free_ports
from tests.system.terms import active, healthy, resource_manager
from tests.system.traffic import send, take

ACCEPTED = 5000
ALL = ("--ha-replicate", "all")


def qpid_ha(*words: str) -> Ran:
    """The command, to its end."""
    return ended("qpid-ha", *words)


def lose_two_stores(brokers: Cluster) -> tuple[list[BrokerProcess], BrokerProcess, list[bytes]]:
    """Messages are accepted by all; then all brokers go down, and two lose their folders. The two, the third, the messages."""
    first, second, third = brokers.brokers
    first.create("queue", "jobs")
    messages = [b"\x00\x53\x75\xa0\x05%05d" % number for number in range(ACCEPTED)]
    assert send(first.address, "jobs", messages) == ACCEPTED
    brokers.level(second)
    brokers.level(third)
    for broker in brokers.brokers:
        broker.kill()
    for broker in (first, second):
        broker.wipe()
        broker.start()
    first.wait_for("joining")
    second.wait_for("joining")
    eventually(lambda: str(first.status()["reason"]), lambda text: second.address not in text, "the link between the two")
    return [first, second], third, messages


def test_two_lost_stores_wait_for_the_third_broker_which_has_every_message(tmp_path: Path) -> None:
    """Breaks when the votes of empty stores elect an empty primary, or when nobody says what the cluster waits for."""
    with cluster(tmp_path, 3, *ALL) as brokers:
        (first, second), third, messages = lose_two_stores(brokers)
        with resource_manager(tmp_path, brokers) as manager:
            waits = f"every store that answers is new, and {third.address} may hold messages"
            eventually(manager.log, lambda log: waits in log, "the resource manager saying what it waits for")
            for broker in (first, second):
                with pytest.raises(Refused, match=f"no broker is elected without {third.address}, which may hold messages"):
                    ask(broker.address, "PROMOTE", "ha", body={"reason": "an operator's error"})
            assert active(brokers) is None
            told = qpid_ha("status", "-b", first.address)
            assert told.out == "joining\n"
            assert "this broker's store is new" in told.err
            assert f"{third.address} cannot be reached" in told.err
            third.start()
            assert healthy(brokers) is third
            assert take(third.address, "jobs", ACCEPTED) == messages


def test_bootstrap_says_what_it_gives_up_and_records_it(tmp_path: Path) -> None:
    """Breaks when force is needed no more, when it is silent about the loss, or when an old member mixes with the new cluster."""
    with cluster(tmp_path, 3, *ALL) as brokers:
        (first, second), third, messages = lose_two_stores(brokers)
        asked = qpid_ha("bootstrap", "-b", first.address)
        assert asked.status == 1
        assert f"Whatever messages {third.address} may hold are given up" in asked.err
        assert active(brokers) is None
        forced = qpid_ha("bootstrap", "--force", "-b", first.address)
        assert (forced.status, forced.err) == (0, "")
        assert f"{first.address} is active in epoch 1" in forced.out
        given_up = f"begun anew without {third.address}, whose data, if any, is given up"
        eventually(lambda: qpid_ha("history", "-b", first.address).out, lambda told: given_up in told, "the record of the term")
        second.wait_for("ready")
        first.create("queue", "jobs")
        assert send(first.address, "jobs", [b"\x00\x53\x75\xa0\x03new"]) == 1
        held = third.store
        third.start()
        third.wait_for("joining")
        reason = eventually(lambda: str(third.status()["reason"]), lambda text: "belongs to cluster" in text, "a reason")
        assert str(first.status()["clusterId"]) in reason
        assert "belongs to cluster" in qpid_ha("status", "-b", third.address).err
        with pytest.raises(Refused):
            ask(third.address, "PROMOTE", "ha", body={"reason": "an operator's error"})
        assert first.state() == "active"
        assert take(first.address, "jobs", 1) == [b"\x00\x53\x75\xa0\x03new"]
        assert int(third.status()["lastIndex"]) > int(first.status()["lastIndex"])
        third.kill()
        assert any(messages[-1] in path.read_bytes() for path in held.glob("cluster/*.seg"))


def test_a_broker_with_messages_is_not_bootstrapped(tmp_path: Path) -> None:
    """Breaks when force hides a store's messages behind a new cluster."""
    with cluster(tmp_path, 3, *ALL) as brokers:
        (first, _), third, _ = lose_two_stores(brokers)
        third.start()
        third.wait_for("joining")
        refused = qpid_ha("bootstrap", "--force", "-b", third.address)
        assert refused.status == 1
        assert "is not new: it holds data of cluster" in refused.err
        eventually(lambda: str(first.status()["reason"]), lambda text: third.address not in text, "the link to the third")
        assert "its log is newer" in qpid_ha("bootstrap", "--force", "-b", first.address).err


def test_new_brokers_begin_no_cluster_beside_the_one_that_they_are_to_be_added_to(tmp_path: Path) -> None:
    """Breaks when new brokers that are a majority of their own list, but not of the running cluster, are told to begin a new one,
    or do so: the clients of one list of addresses would then be served by two clusters."""
    with cluster(tmp_path, 1, *ALL) as brokers:
        (old,) = brokers.brokers
        ports = free_ports(2)
        url = "amqp:" + ",".join((old.address, *(f"127.0.0.1:{port}" for port in ports)))
        options = ["--ha-cluster", "yes", "--ha-brokers-url", url, *ALL]
        new = [BrokerProcess(tmp_path / str(port), port, options) for port in ports]
        try:
            for broker in new:
                broker.start()
            first, second = new
            eventually(lambda: str(first.status()["reason"]), lambda text: second.address not in text, "the link between the two")
            promoted = qpid_ha("promote", "-b", first.address)
            assert promoted.status == 1
            assert f"is not among the members {old.address}; add it with qpid-ha add-broker" in promoted.err
            assert "bootstrap" not in promoted.err
            for words in ([], ["--force"]):
                refused = qpid_ha("bootstrap", *words, "-b", first.address)
                assert refused.status == 1
                assert f"no new cluster can begin here: {old.address} runs, and exchanges no messages" in refused.err
            assert qpid_ha("add-broker", first.address, second.address, "-b", old.address).err == ""
            assert old.state() == "active"
            first.wait_for("ready")
        finally:
            for broker in new:
                broker.kill()
