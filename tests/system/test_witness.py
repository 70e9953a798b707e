"""Two brokers and a witness as processes: either broker continues alone, nothing is lost, and data on only one disk is
reported. The witness is a broker's process, or the daemon's."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.running import run
from tests.system.harness import BrokerProcess, Cluster, Refused, ask, eventually, free_ports, spawn
from tests.system.terms import active, new_primary, resource_manager
from tests.system.traffic import send, take

BEFORE, ALONE = ([b"\x00\x53\x75\xa0\x05%s%04d" % (kind, number) for number in range(200)] for kind in (b"b", b"a"))


def test_two_brokers_and_a_witness_lose_nothing_and_say_what_is_on_one_disk(tmp_path: Path) -> None:
    """Breaks when the broker that was away is promoted without what the other one accepted alone, or when nobody serves though
    one broker and the witness are there."""
    brokers = Cluster(tmp_path, 3, ["--ha-replicate", "all"])
    first, second, witness = brokers.brokers
    for broker in brokers.brokers:
        broker.options = [*broker.options, "--ha-witness", witness.address]
    with closing(brokers), resource_manager(tmp_path, brokers) as manager:
        brokers.start()
        eventually(lambda: active(brokers), bool, "a first primary")
        primary = brokers.primary()
        other = second if primary is first else first
        primary.create("queue", "jobs")
        assert send(primary.address, "jobs", BEFORE) == len(BEFORE)
        brokers.level(other)
        assert [each["role"] for each in primary.status()["members"] if each["address"] == witness.address] == ["witness"]
        assert primary.status()["copies"] == 2
        other.kill()
        assert send(primary.address, "jobs", ALONE) == len(ALONE)
        told = run("qpid-ha", "status", "-b", primary.address)
        assert (told.out, f"are only on the disk of {primary.address}, with {witness.address} as witness" in told.err) == (
            "active\n",
            True,
        )
        primary.kill()
        other.start()
        other.wait_for("joining")
        lacks = f"it attests the log of {primary.address} up to epoch 1"
        eventually(manager.log, lambda log: lacks in log, "the resource manager hearing why the broker is not promoted")
        with pytest.raises(Refused, match=f"start {primary.address}"):
            ask(other.address, "PROMOTE", "ha", body={"reason": "test"})
        witness.kill()
        witness.start()
        primary.start()
        eventually(lambda: active(brokers), lambda found: found is primary, "the broker that has all")
        brokers.level(other)
        check_one_log(witness)
        assert take(primary.address, "jobs", len(BEFORE) + len(ALONE)) == [*BEFORE, *ALONE]
        primary.kill()
        eventually(lambda: active(brokers), lambda found: found is other, "the broker that has caught up")
        for broker in brokers.brokers:
            broker.check_log()


def test_what_is_left_of_the_only_copy_is_used_when_an_operator_has_it(tmp_path: Path) -> None:
    """As docs/howto/witness.md says. The witness attests what is lost, so it must forget that, too."""
    brokers = Cluster(tmp_path, 3, ["--ha-replicate", "all"])
    primary, other, witness = brokers.brokers
    for broker in brokers.brokers:
        broker.options = [*broker.options, "--ha-witness", witness.address]
    with closing(brokers):
        brokers.start()
        brokers.promote(primary)
        primary.create("queue", "jobs")
        assert send(primary.address, "jobs", BEFORE) == len(BEFORE)
        brokers.level(other)
        other.stop()
        first, last = ALONE[:100], ALONE[100:]
        assert send(primary.address, "jobs", first) == len(first)
        assert send(primary.address, "jobs", last) == len(last)
        primary.stop()
        newest = sorted((primary.store / "cluster").glob("*.seg"))[-1]
        os.truncate(newest, len(newest.read_bytes().rstrip(b"\0")) - 10)
        primary.start()
        primary.wait_for("joining")
        other.start()
        with pytest.raises(Refused, match="has lost a part"):
            ask(primary.address, "PROMOTE", "ha", body={"reason": "test"})
        for broker in brokers.brokers:
            broker.stop()
        (primary.store / "cluster" / "floor").unlink()
        shutil.rmtree(witness.store)
        brokers.start()
        brokers.promote(primary)
        assert take(primary.address, "jobs", len(BEFORE) + len(first)) == [*BEFORE, *first]
        for broker in brokers.brokers:
            broker.check_log()


def test_a_witness_is_replaced_by_one_that_the_primary_reaches(tmp_path: Path) -> None:
    """Breaks when the command takes the refusal of a second witness for another obstacle, and changes nothing."""
    brokers = Cluster(tmp_path, 3, ["--ha-replicate", "all"])
    first, second, witness = brokers.brokers
    for broker in brokers.brokers:
        broker.options = [*broker.options, "--ha-witness", witness.address]
    (port,) = free_ports(1)
    url, address = f"{brokers.url},127.0.0.1:{port}", f"127.0.0.1:{port}"
    options = ["--ha-cluster", "yes", "--ha-brokers-url", url, "--ha-witness", address, "--ha-replicate", "all"]
    with closing(brokers):
        brokers.start()
        brokers.promote(first)
        brokers.brokers.append(new := BrokerProcess(tmp_path / "new", port, options))
        new.start()
        new.wait_for("joining")
        ran = run("qpid-ha", "replace-broker", witness.address, address, "-b", second.address)
        assert (ran.status, ran.err) == (0, "")
        told = first.status()["membership"]
        assert (told["witness"], told["voters"]) == (address, sorted([first.address, second.address, address]))
        witness.wait_for("removed")


class WitnessingDaemon(BrokerProcess):
    """A resource manager's process that is the cluster's witness, too."""

    brokers_url = ""

    def start(self) -> None:
        words = ["--brokers", self.brokers_url, "--name", "third", "--witness", self.address, "--witness-dir", str(self.store)]
        self.process = spawn(self.log_file, "qpid-resource-manager", *words)

    def listens(self) -> bool:
        return bool(self.state())


def test_a_daemon_that_is_the_witness_gives_the_vote_that_one_broker_lacks(tmp_path: Path) -> None:
    """Breaks when the daemon promotes and does not vote, or the other way round; when the primary needs the daemon; when the
    daemon's process does not take up its vote again, or stores messages."""
    brokers = Cluster(tmp_path, 3, ["--ha-replicate", "all"])
    first, second, third = brokers.brokers
    for broker in (first, second):
        broker.options = [*broker.options, "--ha-witness", third.address]
    daemon = WitnessingDaemon(tmp_path / "daemon", third.port, [])
    daemon.brokers_url = brokers.url
    brokers.brokers[2] = daemon
    with closing(brokers):
        brokers.start()
        eventually(lambda: active(brokers), bool, "a first primary")
        primary = brokers.primary()
        other = second if primary is first else first
        primary.create("queue", "jobs")
        assert send(primary.address, "jobs", BEFORE) == len(BEFORE)
        brokers.level(other)
        primary.kill()
        assert new_primary(brokers, primary) is other
        assert send(other.address, "jobs", ALONE) == len(ALONE)
        primary.start()
        primary.wait_for("ready")
        brokers.level(primary)
        daemon.kill()
        assert send(other.address, "jobs", BEFORE) == len(BEFORE)
        assert other.state() == "active"
        daemon.start()
        check_one_log(daemon)
        assert take(other.address, "jobs", 2 * len(BEFORE) + len(ALONE)) == [*BEFORE, *ALONE, *BEFORE]
        assert daemon.stop() == 0
        for broker in brokers.brokers:
            broker.check_log()


def check_one_log(witness: BrokerProcess) -> None:
    """It is up to date and stores nothing."""
    witness.wait_for("ready")
    told = witness.status()
    assert (told["appliedIndex"], told["inSync"], told["witness"], told["store"]["checkpointIndex"]) == (0, False, True, 0)
    stored = sum(path.stat().st_size for path in (witness.store / "cluster").rglob("*"))
    assert b"jobs" not in b"".join(path.read_bytes() for path in (witness.store / "cluster").rglob("*") if path.is_file()), stored
