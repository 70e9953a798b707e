"""Networks that fail in many ways: links unplugged, cut one way, cut between some brokers only, slow, lossy.

Three brokers are on three hosts, and a resource manager and the clients on a fourth; a switch joins them
(`tests.system.namespaces`), and messages pass all the time. A broker that is cut off does not know it, and neither do the
processes that can still reach it. After each fault the cluster must recover by itself, and every message must be accounted
for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.verify.run import Run
from tests.system.harness import Cluster, cluster, eventually
from tests.system.means import where_possible
from tests.system.namespaces import CLIENT, Lan, bridged_lan, slow_lan
from tests.system.terms import (
    Manager,
    check_one_primary_an_epoch,
    go_on,
    healthy,
    new_primary,
    resource_manager,
    terms,
    traffic,
)

EVERYBODY = (1, 2, 3)
OPTIONS = ("--ha-replicate", "all", "--link-heartbeat-interval", "1")
HEARTBEAT_S = 1.0
PATIENT_S = 3.0
"""Silence for which nobody is given up where nobody is to be: the machine may be busy with something else for a while."""


@contextmanager
def three(folder: Path, lan: Lan, silence_s: float = 1.0) -> Iterator[tuple[Cluster, Manager, Run]]:
    """Three brokers on their hosts, the first one the primary, and traffic, at whose end the cluster must be whole."""
    options = (*OPTIONS, "--ha-election-timeout", str(silence_s))
    with (
        cluster(folder, 3, *options, places=lan.places) as brokers,
        resource_manager(folder, brokers, detection_s=silence_s) as manager,
    ):
        with traffic(brokers, rate=700, before=200, after=200, heartbeat_s=HEARTBEAT_S) as run:
            yield brokers, manager, run
            healthy(brokers)
        check_one_primary_an_epoch(brokers)


@where_possible
@pytest.mark.parametrize("direction", ["hears nobody", "is heard by nobody"])
def test_a_primary_that_is_cut_off_one_way_is_replaced(tmp_path: Path, direction: str) -> None:
    """Breaks when a primary that still hears its backups, or is still heard by them, is taken for one that serves: it goes on
    and nothing is accepted, for ever."""
    with bridged_lan() as lan, three(tmp_path, lan) as (brokers, _, run):
        first, others = brokers.brokers[0], [CLIENT, 2, 3]
        if direction == "hears nobody":
            lan.cut(others, [1], both_ways=False)
        else:
            lan.cut([1], others, both_ways=False)
        new_primary(brokers, first)
        go_on(run)
        assert lan.dropped() > 0
        lan.heal()
        first.wait_for("ready", "active")


@where_possible
def test_a_primary_without_its_backups_gives_up_though_clients_and_daemon_reach_it(tmp_path: Path) -> None:
    """Breaks when whoever can be asked is taken to serve: it cannot commit anything, and must not try to for ever."""
    with bridged_lan() as lan, three(tmp_path, lan) as (brokers, _, run):
        first = brokers.brokers[0]
        lan.cut([1], [2, 3])
        second = new_primary(brokers, first)
        eventually(first.state, lambda state: state == "joining", "the first one giving up")
        go_on(run)
        assert first.status()["commitIndex"] < second.status()["commitIndex"]
        lan.heal()


@where_possible
def test_a_backup_that_only_some_can_reach_changes_nothing(tmp_path: Path) -> None:
    """Primary and third broker do not reach one another, the second reaches both: a majority is there, and its term goes on.

    Breaks when a broker that hears no primary, or a daemon that asks it, unseats one that serves.
    """
    with bridged_lan() as lan, three(tmp_path, lan, PATIENT_S) as (brokers, _, run):
        first, second, third = brokers.brokers
        lan.cut([1], [3])
        eventually(third.state, lambda state: state == "joining", "the third one missing its primary")
        go_on(run)
        lan.heal()
        third.wait_for("ready")
        lan.cut([2], [3])
        go_on(run)
        assert (first.state(), second.state(), third.state()) == ("active", "ready", "ready")
        assert len(terms(first)) == 1


@where_possible
def test_a_daemon_that_cannot_reach_a_primary_whom_all_brokers_hear_promotes_nobody(tmp_path: Path) -> None:
    """Breaks when what the daemon cannot see is taken to be dead: all other clients would be cut off for a broken cable of its
    own."""
    with bridged_lan() as lan, three(tmp_path, lan, PATIENT_S) as (brokers, manager, run):
        first, second, _ = brokers.brokers
        lan.cut([CLIENT], [1])
        waits = f"still hear the primary {first.address}"
        eventually(manager.log, lambda log: waits in log, "the daemon seeing that others hear the primary")
        assert not run.reaches(accepted=run.accepted + 300, timeout_s=1.0), "clients are on the same side as the daemon"
        assert second.status()["primary"] == first.address
        lan.heal()
        go_on(run)
        assert healthy(brokers) is first
        assert len(terms(first)) == 1


def links(chance: random.Random) -> tuple[list[int], list[int], bool]:
    """A cut by chance: from whom, to whom, both ways or not."""
    hosts = [CLIENT, *EVERYBODY]
    chance.shuffle(hosts)
    split = chance.randrange(1, len(hosts))
    return hosts[:split], hosts[split:], chance.random() < 0.5


@where_possible
def test_links_cut_and_healed_at_random_lose_nothing(tmp_path: Path) -> None:
    """Breaks in ways that nobody has thought of. The seed fixes the cuts, the clients' progress when the next one comes."""
    chance = random.Random(11)
    with bridged_lan() as lan, three(tmp_path, lan) as (_, _, run):
        for _ in range(6):
            senders, receivers, both_ways = links(chance)
            lan.cut(senders, receivers, both_ways=both_ways)
            run.reaches(accepted=run.accepted + 300, timeout_s=chance.uniform(0.2, 1.5))
            if chance.random() < 0.6:
                lan.heal()
            run.reaches(accepted=run.accepted + 300, timeout_s=1.0)
        assert lan.dropped() > 0
        lan.heal()


@where_possible
def test_a_tenth_of_all_frames_lost_costs_time_and_no_message(tmp_path: Path) -> None:
    """Breaks when a heartbeat that comes late ends what TCP would have mended: nothing would last long enough to be of use."""
    with bridged_lan() as lan, three(tmp_path, lan, PATIENT_S) as (brokers, _, run):
        lan.lose(10)
        go_on(run)
        eventually(lan.dropped, lambda count: count > 200, "200 frames being lost")
        go_on(run)
        lan.lose(0)
        assert len(terms(brokers.brokers[0])) == 1


@where_possible
def test_on_slow_links_messages_flow_and_a_killed_primary_is_replaced(tmp_path: Path) -> None:
    """Twenty to thirty milliseconds each way. Breaks when something waits for an answer per message rather than per window."""
    delay_s, count = 0.02, 500
    with slow_lan(delay_s, 0.01) as lan, three(tmp_path, lan, PATIENT_S) as (brokers, _, run):
        first = brokers.brokers[0]
        one_by_one_s = count * 4 * delay_s  # to the primary, to a backup and back, and back to the producer
        run.wait_for(accepted=run.accepted + count, timeout_s=one_by_one_s)
        assert len(terms(first)) == 1, "slow is not dead"
        first.kill()
        new_primary(brokers, first)
        go_on(run)
        first.start()
