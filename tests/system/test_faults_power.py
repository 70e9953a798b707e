"""Power cuts: a process is killed, and all its data that was written and not synced is lost. A kill -9 cannot show this.

Each broker has its own disk (`tests.system.filesystems`). Data that a broker has promised must be there afterwards. Data that
it had only written is lost, and nothing may depend on it. A file that is never synced lies beside each store, to check that
the cut was real.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from cli.verify.run import Run
from tests.system.filesystems import Disk, disk
from tests.system.harness import BrokerProcess, Cluster, cluster
from tests.system.means import where_possible
from tests.system.terms import check_one_primary_an_epoch, claims, go_on, healthy, new_primary, resource_manager, traffic

CANARY = "never-synced"


@contextlib.contextmanager
def three(folder: Path) -> Iterator[tuple[Cluster, list[Disk], Run]]:
    """Three brokers, each with its store on a disk of its own, and traffic, at whose end the cluster must be whole."""
    with contextlib.ExitStack() as mounted:
        disks = [
            mounted.enter_context(disk(folder / f"broker{number}" / "store", folder / f"disk{number}.img")) for number in range(3)
        ]
        with cluster(folder, 3, "--ha-replicate", "all") as brokers, resource_manager(folder, brokers):
            with traffic(brokers, rate=2000, heartbeat_s=1) as run:
                yield brokers, disks, run
                healthy(brokers)
            check_one_primary_an_epoch(brokers)


def cut_power(brokers: list[BrokerProcess], disks: list[Disk]) -> None:
    """Of these brokers, each with its disk, at the same moment: they write nothing more, and what they wrote is lost."""
    for broker in brokers:
        broker.freeze()
    for its in disks:
        (its.folder / "lost+found" / CANARY).write_bytes(b"x" * 10_000)
    for its in disks:
        its.lose_power()
    for broker in brokers:
        broker.kill()


def restore_power(brokers: list[BrokerProcess], disks: list[Disk]) -> None:
    """Repair the disks and start the brokers."""
    for broker, its in zip(brokers, disks, strict=True):
        its.repair()
        canary = its.folder / "lost+found" / CANARY
        assert not canary.exists() or canary.read_bytes() == b"", "what was not synced was not lost: this was not a power cut"
        broker.start()


@where_possible
def test_a_primary_that_loses_power_is_replaced_and_comes_back_with_what_it_had_synced(tmp_path: Path) -> None:
    """Breaks when a broker acknowledges what it has only written, or forgets a vote or an epoch that it had told of."""
    with three(tmp_path) as (brokers, disks, run):
        for _ in range(2):
            primary = healthy(brokers)
            its = disks[brokers.brokers.index(primary)]
            cut_power([primary], [its])
            new_primary(brokers, primary)
            go_on(run)
            restore_power([primary], [its])
            primary.wait_for("ready", "active")
        assert len({address for _, address in claims(brokers)}) >= 2


@where_possible
def test_when_all_brokers_lose_power_at_once_nothing_that_was_accepted_is_lost(tmp_path: Path) -> None:
    """Breaks when anything is accepted that is not yet on the disks of a majority: no other broker has it in memory now."""
    with three(tmp_path) as (brokers, disks, run):
        for _ in range(2):
            before = run.accepted
            cut_power(brokers.brokers, disks)
            restore_power(brokers.brokers, disks)
            healthy(brokers)
            go_on(run)
            assert run.accepted > before
