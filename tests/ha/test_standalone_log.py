"""A replicated log of one member: a standalone broker's, and the one that each member of a cluster keeps for itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.core.records import BatchBuilder
from ha.core.settings import ReplicaSettings
from tests.broker.disk.logs import FullDisk
from tests.ha.log_cluster import Machine, bodies


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, ReplicaSettings(standalone=True), checkpoint_bytes=4096)
    yield made
    made.close()


def test_a_standalone_log_serves_by_itself_and_keeps_what_it_committed(alone: Machine) -> None:
    """Through a kill; each start is a new epoch."""
    broker = alone.start("a", "a")
    alone.run_until(lambda: broker.log.state == "standalone")
    alone.write(broker, b"one", b"two")
    alone.kill("a")
    again = alone.start("a", "a")
    alone.run_until(lambda: again.log.state == "standalone")
    assert bodies(again) == [b"one", b"two"]
    assert again.log.epoch == 2


def test_the_broker_is_told_that_it_serves_after_all_that_was_committed_before(alone: Machine) -> None:
    """A client that got in earlier would find queues missing."""
    broker = alone.start("a", "a")
    alone.run_until(lambda: broker.log.state == "standalone")
    alone.write(broker, *(b"%d" % number for number in range(20)))
    alone.kill("a")
    again = alone.start("a", "a")
    alone.run_until(lambda: again.log.may_propose)
    told = again.ledger.told
    assert told.index("recovering") < told.index("batches") < told.index("standalone") < told.index("writable")
    assert "batches" not in told[told.index("standalone") :]


def test_a_standalone_log_that_has_nothing_to_do_sets_no_timer(alone: Machine) -> None:
    """A broker that idles would wake up for nothing; there is nobody whose heartbeat could be due."""
    broker = alone.start("a", "a")
    alone.run_until(lambda: broker.log.state == "standalone")
    alone.write(broker, b"one")
    assert alone.clock.getDelayedCalls() == []


def test_a_standalone_log_says_that_the_disk_takes_writes_again_though_nothing_else_happens(alone: Machine) -> None:
    """Its producers wait for that word; there is no heartbeat after which it would be looked at."""
    disk = alone.disks["a"] = FullDisk()
    broker = alone.start("a", "a")
    alone.run_until(lambda: broker.log.state == "standalone")
    disk.full.set()
    broker.propose(b"waits")
    alone.run_until(lambda: bool(broker.ledger.errors))
    told = broker.ledger.told.count("writable")
    disk.full.clear()
    alone.run_until(lambda: alone.level(broker))
    assert broker.ledger.told.count("writable") == told + 1


def test_the_log_is_checkpointed_when_it_has_outgrown_what_is_alive(alone: Machine) -> None:
    """And a start loads the checkpoint, then the batches after it."""
    broker = alone.start("a", "a")
    alone.run_until(lambda: broker.log.state == "standalone")
    for number in range(30):
        alone.write(broker, b"%03d" % number * 100)
        builder = BatchBuilder()
        builder.dequeues_for(1).append(number + 1)
        alone.run_until(lambda: broker.log.may_propose)
        broker.log.propose(builder)
    alone.run_until(lambda: broker.log.journal.figures.checkpoint_index > 0)
    alone.write(broker, b"after")
    held = bodies(broker)
    assert broker.log.status().first_index > 1
    alone.kill("a")
    again = alone.start("a", "a")
    alone.run_until(lambda: again.log.state == "standalone")
    assert again.ledger.resets == [broker.log.journal.figures.checkpoint_index]
    assert bodies(again) == held
