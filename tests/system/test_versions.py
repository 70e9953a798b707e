"""Brokers of two releases in one cluster, under load; and a member that reads data which its release does not know.

The older release is represented by this release's broker with `--ha-machine-version-limit 1`: it applies, proposes and
reports as version 1 does. This tests the upgrade of the state and the rise of the version between real processes. The
fixtures (tests/fixtures) test that this release reads the disk and wire formats of release 0.1. A run with the variable
UNDERSTUDY_OLD_RELEASE, the path of a checkout of release 0.1, tests both at once: the old brokers then run that release.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broker.core.commands import MACHINE_VERSION as NEWEST
from cli.verify.run import Run, Workload
from tests.cli.running import environment, run
from tests.system.harness import BrokerProcess, Refused, ask, cluster, eventually
from tests.system.terms import go_on
from tests.system.test_haproxy import Probed
from tests.system.traffic import accounted
from tests.system.wire import Peer

OLD_RELEASE = os.environ.get("UNDERSTUDY_OLD_RELEASE", "")
LIMIT = "--ha-machine-version-limit"
FIRST = LIMIT, "1"


class OldBroker(BrokerProcess):
    """A broker of the release before, until `upgraded`."""

    def start(self) -> None:
        if not OLD_RELEASE:
            self.options = [*self.options, *FIRST]
            super().start()
            return
        own = ["--port", str(self.port), "--data-dir", str(self.store), "--log-enable", "info+"]
        module = "cli.qpidd" if (Path(OLD_RELEASE) / "cli/qpidd.py").exists() else "cli.commands.qpidd"
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *own, *self.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=OLD_RELEASE,
                env=environment() | {"PYTHONPATH": OLD_RELEASE},
            )


def upgraded(broker: BrokerProcess) -> BrokerProcess:
    """The same broker and store, of this release."""
    options = broker.options.copy()
    if LIMIT in options:
        at = options.index(LIMIT)
        del options[at : at + 2]
    return BrokerProcess(broker.log_file.parent, broker.port, options)


def version(broker: BrokerProcess) -> int:
    """The cluster's version, as this broker has applied it."""
    return int(broker.status().get("version", 1))


def test_brokers_upgraded_one_by_one_under_load_lose_nothing_and_the_version_rises_after_the_last(tmp_path: Path) -> None:
    """A message lost, altered, doubled without reason or out of order fails in `accounted`."""
    with cluster(tmp_path, 3, "--ha-replicate", "all", make=OldBroker) as brokers:
        brokers.brokers[0].create("queue", "orders", replicate="all", durable=True)
        brokers.brokers[0].create("queue", "side", replicate="configuration")
        brokers.brokers[0].create("binding", "", exchange="amq.topic", queue="orders", key="eu.#")
        with Run(Workload(brokers.addresses, ["orders"], rate=400)) as traffic:
            traffic.wait_for(received=300)
            for position in (2, 0, 1):  # so that a primary of this release has a backup of the old one
                old = brokers.brokers[position]
                if old is brokers.primary():
                    brokers.promote(brokers.brokers[2])  # which hands over
                    go_on(traffic)
                assert old.stop() == 0
                new = brokers.brokers[position] = upgraded(old)
                new.start()
                new.wait_for("ready")
                if position != 1:
                    assert version(new) == 1, "a member of the old release is there yet, or away"
                go_on(traffic)
            eventually(lambda: [version(each) for each in brokers.brokers], lambda found: found == [NEWEST] * 3, "the rise")
            accounted(traffic, brokers.primary)
        assert all("stopped" not in each.log() for each in brokers.brokers)
        primary = brokers.primary()
        for broker in brokers.brokers:
            assert broker.queue("side")["replicate"] == "configuration"
            assert broker.queue("orders")["bindings"] == 2
        with pytest.raises(Refused, match="no queue named"):
            ask(primary.address, "DELETE", "queue", "none", {"ifEmpty": True})
        ask(primary.address, "DELETE", "queue", "orders", {"ifEmpty": True})
        for broker in brokers.brokers:
            eventually(lambda broker=broker: queues(broker), lambda found: "orders" not in found, "the queue's end")  # type: ignore[misc]


def queues(broker: BrokerProcess) -> list[str]:
    return [item["name"] for item in ask(broker.address, "QUERY", "queue")["items"]]


@pytest.mark.parametrize("older_version", [1, NEWEST - 1])
def test_a_member_that_is_put_back_to_an_older_release_says_so_and_leads_nobody(tmp_path: Path, older_version: int) -> None:
    """It would have called itself level, and been elected, without the queue that it could not make, or the large message."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers:
        primary, _, back = brokers.brokers
        eventually(lambda: version(primary), lambda found: found == NEWEST, "the rise")
        primary.create("queue", "jobs", replicate="all")
        back.stop()
        older = brokers.brokers[2] = Probed(back.log_file.parent, back.port, [*back.options, LIMIT, str(older_version)])
        older.start()
        stopped = eventually(older.status, lambda status: bool(status.get("stopped")), "stopping to apply")
        assert f"'machine-version' needs machine version {NEWEST}" in stopped["stopped"]
        assert "upgrade this broker" in stopped["stopped"]
        assert "upgrade this broker" in older.log()
        last = primary.status()["lastIndex"]
        eventually(lambda: older.status()["lastIndex"], lambda index: index >= last, "all of it on the older one's disk")
        assert not older.status()["inSync"]
        eventually(older.state, lambda state: state == "ready", "its log is level")
        assert older.probe("/startedz") == (503, "ready: it has stopped applying the log")
        assert run("qpid-ha", "status", "--expect", "ready", "-b", older.address).status == 1
        with pytest.raises(Refused, match="cannot apply its log"):
            ask(older.address, "PROMOTE", "ha")
        shown = run("qpid-ha", "query", "-b", older.address)
        assert shown.status == 0
        assert "Stopped:" in shown.out
        assert "upgrade this broker" in shown.out
        brokers.brokers[1].kill()
        primary.create("queue", "more", replicate="all")
        assert queues(older) == [], "it has applied nothing since"
        primary.kill()
        brokers.brokers[1].start()
        brokers.brokers[1].wait_for("joining")  # now there is a majority, which would vote
        with pytest.raises(Refused, match="cannot apply its log"):
            ask(older.address, "PROMOTE", "ha")
        assert older.state() != "active"
        older.stop()
        brokers.brokers[2] = upgraded(older)
        brokers.brokers[2].start()
        brokers.succeed()
        assert set(queues(brokers.primary())) == {"jobs", "more"}


@pytest.mark.parametrize("scheduled", [False, True], ids=["sigterm", "scheduled"])
def test_the_primary_hands_over_past_a_backup_that_has_stopped_applying_the_log(tmp_path: Path, scheduled: bool) -> None:
    """Breaks when it waits for that one alone, and leaves its clients without a primary. There is no resource manager."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers:
        primary, back, third = brokers.brokers
        eventually(lambda: version(primary), lambda found: found == NEWEST, "the rise")
        primary.create("queue", "jobs", replicate="all")
        assert run("qpid-ha", "tag", third.address, "--nofailover", "-b", primary.address).status == 0, "the last choice"
        back.stop()
        older = brokers.brokers[1] = BrokerProcess(back.log_file.parent, back.port, [*back.options, LIMIT, str(NEWEST - 1)])
        older.start()
        eventually(older.status, lambda status: bool(status.get("stopped")), "stopping to apply")
        eventually(older.state, lambda state: state == "ready", "its log is level")
        if scheduled:
            at = (datetime.now(UTC) + timedelta(seconds=2)).isoformat(timespec="seconds")
            assert run("qpid-ha", "switchover", "--scheduled", at, "-b", primary.address).status == 0
        else:
            assert primary.stop() == 0
        third.wait_for("active", timeout_s=10)
        assert queues(third) == ["jobs"]


def test_a_member_whose_messages_cannot_be_read_is_refused_in_words(tmp_path: Path) -> None:
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers:
        primary, backup, _ = brokers.brokers
        backup.stop()
        status = primary.status()
        far = {"qpid.ha-machine-version": 9, "qpid.ha-wire-version": 12, "qpid.ha-wire-oldest": 11}
        who = {"qpid.ha-peer": backup.address, "qpid.ha-cluster": status["clusterId"], "qpid.ha-broker": "newer"}
        with Peer(primary.port, who | far) as peer:
            peer.run(lambda: bool(peer.reason), "the refusal")
            assert f"{backup.address} uses wire versions 11 to 12, this broker 1 to 3" in peer.reason
            assert "this broker must be upgraded before it can connect to" in peer.reason
        member = next(each for each in primary.status()["members"] if each["address"] == backup.address)
        assert "uses wire versions 11 to 12" in member["refused"]
        assert primary.log().count("uses wire versions") == 1


def test_release_0_1_is_refused_in_words_once_the_cluster_has_risen_beyond_it(tmp_path: Path) -> None:
    """It says nothing of versions, and would apply the log past what it does not know."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers:
        primary, backup, _ = brokers.brokers
        eventually(lambda: version(primary), lambda found: found == NEWEST, "the rise")
        backup.stop()
        who = {"qpid.ha-peer": backup.address, "qpid.ha-cluster": primary.status()["clusterId"], "qpid.ha-broker": "older"}
        with Peer(primary.port, who) as peer:
            peer.run(lambda: bool(peer.reason), "the refusal")
            assert f"{backup.address} runs release 0.1, and this cluster has risen to version {NEWEST}" in peer.reason
