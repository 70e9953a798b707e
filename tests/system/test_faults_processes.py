"""Processes that are stopped for a while: a backup, both backups, the resource manager, one primary after the other.

A stopped process is worse than a dead one: its connections stay open, and when it continues it still has its old state.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.system.harness import BrokerProcess, Cluster, cluster, eventually
from tests.system.terms import (
    Manager,
    active,
    check_one_primary_an_epoch,
    go_on,
    healthy,
    new_primary,
    resource_manager,
    terms,
    traffic,
)

PATIENT_S = 3.0
"""Silence for which nobody is given up where nobody is to be: the machine may be busy with something else for a while."""
HEARTBEAT_S = 1.0
"""With which the clients here notice that their broker is silent."""


@contextlib.contextmanager
def stopped(*processes: BrokerProcess | Manager) -> Iterator[None]:
    """These processes stand still."""
    for process in processes:
        process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.signal(signal.SIGCONT)


def patient(folder: Path) -> contextlib.AbstractContextManager[Cluster]:
    """Three brokers who bear silence for a while."""
    return cluster(folder, 3, "--ha-replicate", "all", "--ha-election-timeout", str(PATIENT_S))


def backups(brokers: Cluster) -> tuple[BrokerProcess, list[BrokerProcess]]:
    """The primary of a healthy cluster, and its backups."""
    primary = healthy(brokers)
    return primary, [broker for broker in brokers.brokers if broker is not primary]


def connected(broker: BrokerProcess) -> dict[str, bool]:
    """Which members the primary says that it is connected to."""
    return {member["address"]: bool(member["connected"]) for member in broker.status()["members"]}


def test_a_stopped_backup_costs_nobody_anything_and_catches_up_when_it_goes_on(tmp_path: Path) -> None:
    """Breaks when a producer waits for a backup of which it has no need, when the primary keeps for it without bound what it
    does not read, or when it comes back believing that it is up to date."""
    with patient(tmp_path) as brokers, resource_manager(tmp_path, brokers, detection_s=PATIENT_S):
        primary, (silent, _) = backups(brokers)
        epoch = primary.status()["epoch"]
        with traffic(brokers, rate=1000, before=300, after=300, heartbeat_s=HEARTBEAT_S) as run:
            with stopped(silent):
                go_on(run, 1000)
                lost = f"link to {silent.address} lost: amqp:resource-limit-exceeded: local-idle-timeout expired"
                eventually(primary.log, lambda log: lost in log, "the end of the link to the silent broker")
                go_on(run, 500)
            silent.wait_for("ready")
        assert primary.status()["epoch"] == epoch, "nobody had to be promoted"
        brokers.level(silent)
        assert silent.queue("jobs")["messages"] == 0


def gives_up(status: dict[str, Any]) -> bool:
    """Whether the primary has given up. As long as it has not, it commits nothing but what a majority says that it holds."""
    if status["status"] != "active":
        return True
    held = sorted(member["ackedIndex"] for member in status["members"])
    assert status["commitIndex"] <= held[len(held) // 2], (
        f"batch {status['commitIndex']} is committed, and the members hold {held}"
    )
    return False


def test_while_both_backups_stand_still_nothing_is_accepted_and_then_everything_is(tmp_path: Path) -> None:
    """Breaks when a primary accepts on its own, which a takeover would forget; when it never gives up; or when the cluster does
    not find back to a primary by itself."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers, resource_manager(tmp_path, brokers):
        with traffic(brokers, rate=1000, before=300, after=300, heartbeat_s=HEARTBEAT_S) as run:
            primary, others = backups(brokers)
            with stopped(*others):
                eventually(lambda: gives_up(primary.status()), bool, "the primary giving up")
                accepted = run.accepted
                committed = primary.status()["commitIndex"]
                assert not run.reaches(accepted=accepted + 1, timeout_s=1.0), "a message was accepted by one broker of three"
                assert primary.status()["commitIndex"] == committed
            healthy(brokers)
        check_one_primary_an_epoch(brokers)


def test_a_resource_manager_that_slept_changes_nothing_and_one_that_sleeps_is_missed_only_when_needed(tmp_path: Path) -> None:
    """Breaks when a daemon acts on what it knew before it slept, or does not notice afterwards what happened meanwhile."""
    with patient(tmp_path) as brokers, resource_manager(tmp_path, brokers) as manager:
        primary, _ = backups(brokers)
        eventually(manager.log, lambda log: "is the primary of epoch" in log, "the daemon seeing the primary")
        with traffic(brokers, rate=1000, before=300, after=300, heartbeat_s=HEARTBEAT_S) as run:
            with stopped(manager):
                go_on(run, 2000)  # two seconds at this rate: for the daemon, everybody was silent for longer than it takes
            go_on(run, 500)
            assert healthy(brokers) is primary
            assert len(terms(primary)) == 1, "it has slept, and everything is well"

            with stopped(manager):
                primary.kill()
                more = run.accepted + 2000
                assert not run.reaches(accepted=more, timeout_s=2.0), "nobody promotes a backup while the daemon stands still"
                assert active(brokers) is None
            second = new_primary(brokers, primary)
            go_on(run, 500)
            primary.start()
            primary.wait_for("ready")
        assert [name for _, name in terms(second)] == [primary.address, second.address]
        check_one_primary_an_epoch(brokers)


def test_primaries_that_are_stopped_one_after_the_other_lose_nothing(tmp_path: Path) -> None:
    """Each thaws while the next one leads, with its old term's messages and connections in its buffers.

    Breaks when anything of an old term is accepted, applied or acknowledged in a new one.
    """
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers, resource_manager(tmp_path, brokers):
        with traffic(brokers, rate=1000, before=300, after=300, heartbeat_s=HEARTBEAT_S) as run:
            for _ in range(2):
                primary = healthy(brokers)
                with stopped(primary):
                    new_primary(brokers, primary)
                    go_on(run, 500)
                primary.wait_for("ready")
        assert len(terms(brokers.primary())) >= 3
        check_one_primary_an_epoch(brokers)
