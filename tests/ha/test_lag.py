"""What a primary says of its backups: exact where they are near, never too little where they are far, and not too often."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.core.nodes import CLUSTER
from broker.core.planning import plan_queue
from broker.service import Broker
from broker.telemetry import TelemetryWriter
from ha import lag
from ha.lag import LagReporter
from tests.broker.disk.logs import FullDisk, SlowWriter
from tests.ha.log_cluster import Machine

WALL_S = 1_767_600_000.0
Line = dict[str, Any]


class Primary:
    """A primary `a` with queues and two backups, and what its telemetry says."""

    def __init__(self, folder: Path, witness: str = "", slow: SlowWriter | None = None) -> None:
        """`slow` is the disk of the backup `c`."""
        self.machine = Machine(folder / "stores")
        self.machine.disks |= {} if slow is None else {"c": slow}
        self.machine.witness = witness
        (folder / "stores").mkdir()
        clock = self.machine.clock
        self.folder = folder / "lag"
        self.broker = Broker(clock, broker_id="a", version="", clustered=True, default_level="all", on_fatal=pytest.fail)
        self.ledger = self.broker.ledgers[CLUSTER]
        self.log = self.machine.start("a", listener=self.ledger).log
        self.broker.attach_log(CLUSTER, self.log)
        for backup in "bc":
            self.machine.start(backup)
        self.machine.promote("a")
        self.wall = lambda: WALL_S + clock.seconds()
        self.telemetry = TelemetryWriter(self.folder, cluster="c", sender="a", clock=self.wall, submit=lambda work: work())

    def report(self, **settings: int) -> LagReporter:
        """Begin to sample."""
        reporter = LagReporter(self.machine.clock, self.broker, self.log, "a", self.telemetry, self.wall, **settings)
        reporter.start()
        return reporter

    def create(self, *queues: str) -> None:
        for name in queues:
            _, change = plan_queue(self.broker.nodes, name, f"uuid of {name}", {"replicate": "all"})
            self.ledger.change(change, lambda reason: None)
        self.machine.run_until(lambda: set(queues) <= set(self.broker.nodes.queues))

    def put(self, queue: str, *messages: bytes) -> tuple[float, float]:
        """Each in a batch of its own. Between which times the first was; how long that is is the disk's affair."""
        node = self.broker.nodes.queues[queue]
        times = [self.machine.clock.seconds()]
        for message in messages:
            self.ledger.enqueue(node, [message], len(message))
            self.machine.run_until(partial(self._has_applied_more_than, self.ledger.state.index))
            times.append(self.machine.clock.seconds())
        return times[0], times[1]

    def is_covered(self) -> bool:
        """Whether a checkpoint of all that is applied is written, and what it has let go is gone."""
        return self.log.journal.figures.checkpoint_index == self.log.applied and not self.log._snapshots.writing

    def _has_applied_more_than(self, index: int) -> bool:
        return self.ledger.state.index > index

    def lines(self) -> list[Line]:
        """All that was said so far."""
        self.telemetry.flush()
        return [json.loads(line) for path in sorted(self.folder.glob("*")) for line in path.read_text().splitlines()]

    def samples(self, backup: str, queue: str | None) -> list[Line]:
        """What was said of them so far."""
        return [line for line in self.lines() if line["kind"] == "sample" and (line["backup"], line["queue"]) == (backup, queue)]


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Primary]:
    made = Primary(tmp_path)
    yield made
    made.broker.close()
    made.machine.close()


def test_a_queue_lags_by_its_own_messages_and_since_the_first_of_them(primary: Primary) -> None:
    """Breaks when one queue gets another's, or all of them the whole log's."""
    primary.create("idle", "orders", "mail")
    primary.report()
    primary.machine.run_for(2.0)
    primary.machine.disconnect("a", "c")
    mailed = primary.put("mail", b"x" * 100)
    primary.machine.run_for(1.0)
    ordered = primary.put("orders", b"y" * 30, b"y" * 30)
    primary.machine.run_for(3.0)
    found = {queue: primary.samples("c", queue)[-1] for queue in (None, "idle", "mail", "orders")}
    lags = {queue: (line["lag_records"], line["lag_bytes"]) for queue, line in found.items() if queue is not None}
    assert lags == {"idle": (0, 0), "mail": (1, 100), "orders": (2, 60)}
    assert found[None]["lag_records"] == 3
    assert found["idle"]["lag_ms"] == found["idle"]["stall_ms"] == 0
    assert found["mail"]["lag_ms"] == found[None]["lag_ms"]
    later_ms = found["mail"]["lag_ms"] - found["orders"]["lag_ms"]
    assert 1000 * (ordered[0] - mailed[1]) - 1 <= later_ms <= 1000 * (ordered[1] - mailed[0]) + 1
    assert 1000 <= found["orders"]["stall_ms"] <= found["mail"]["stall_ms"]
    level = primary.samples("b", "orders")[-1]
    assert (level["lag_records"], level["lag_ms"], level["stall_ms"], level["connected"]) == (0, 0, 0, True)
    assert sum(line["records_per_s"] for line in primary.samples("b", "orders") if line["records_per_s"]) == pytest.approx(
        2, rel=0.1
    )


def test_headroom_shrinks_with_what_a_backup_lacks_until_it_needs_a_snapshot(primary: Primary) -> None:
    """A backup that is away is not waited for: the next checkpoint drops what it lacks, and growth makes one due. What a
    connected one has for sure is what every checkpoint keeps for it, also one that frees space."""
    primary.create("orders")
    primary.log.retention.checkpoint_bytes = 20_000
    primary.report()
    primary.machine.run_for(2.0)
    level = primary.samples("b", None)[-1]
    assert level["lag_bytes"] == 0
    assert level["headroom_bytes"] == 20_000
    primary.machine.disconnect("a", "c")
    primary.put("orders", *(b"x" * 1000 for _ in range(10)))
    primary.machine.run_for(2.0)
    away, here = (primary.samples(backup, None)[-1] for backup in "cb")
    assert here["headroom_bytes"] == 20_000
    assert 0 < away["headroom_bytes"] < 20_000 - 10 * 1000
    assert primary.samples("c", "orders")[-1]["headroom_bytes"] == away["headroom_bytes"]
    primary.put("orders", *(b"x" * 1000 for _ in range(30)))
    primary.machine.run_until(lambda: primary.log.journal.checkpoint is not None)
    primary.machine.run_for(2.0)
    assert primary.samples("c", None)[-1]["headroom_bytes"] == 0


def test_a_connected_backup_needs_no_snapshot_before_its_headroom_is_used_up(tmp_path: Path) -> None:
    """However early a checkpoint is written. Breaks when the headroom counts on log that a checkpoint near the bound drops."""
    slow = SlowWriter()
    primary = Primary(tmp_path, slow=slow)
    primary.create("orders")
    log, retention = primary.log, primary.log.retention
    retention.checkpoint_bytes = 20_000
    reporter = primary.report()
    primary.machine.run_until(lambda: log.lag()["c"].lag_bytes == 0)
    slow.gate.clear()
    told: list[int] = []
    while not told or told[-1]:
        primary.put("orders", b"x" * 2000)
        behind = log.lag()["c"]
        told.append(reporter._headroom_bytes(behind))
        assert behind.connected
        assert told[-1] == max(0, 20_000 - behind.lag_bytes)
        retention.checkpoint(spared=retention._spared(pressed=True))
        primary.machine.run_until(primary.is_covered)
        assert not told[-1] or log.replica.log.first_index <= behind.acked_index + 1
    assert len(told) > 5
    slow.gate.set()
    primary.broker.close()
    primary.machine.close()


def test_of_a_backup_that_is_far_behind_no_queue_is_forgotten_or_said_to_lag_less_than_it_does(
    primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a queue is left out as soon as its batches are too many to be looked into: it would look silent."""
    monkeypatch.setattr(lag, "_FEW_BATCHES", 4)
    primary.create("orders", "mail")
    primary.put("mail", *[b"before"] * 5)
    primary.report()
    primary.machine.run_for(2.0)
    primary.machine.disconnect("a", "c")
    for _ in range(4):
        primary.put("orders", *[b"y" * 30] * 10)
        primary.machine.run_for(1.0)
    primary.machine.run_for(1.0)
    orders, mail, whole = (primary.samples("c", queue)[-1] for queue in ("orders", "mail", None))
    assert whole["lag_records"] == 40
    assert (orders["lag_records"], orders["lag_bytes"]) == (40, 1200)
    assert mail["lag_records"] == 0
    assert orders["lag_ms"] == whole["lag_ms"]


def test_with_more_queues_than_it_may_write_of_it_samples_less_often_and_says_so(primary: Primary) -> None:
    """Breaks when telemetry takes ever more of the processor, or when a reader waits for samples that were not meant to come."""
    primary.create(*(f"q{number}" for number in range(5)))
    primary.report(rows_per_s=4)
    primary.machine.run_for(14.0)
    for queue in ("q0", "q4", None):
        samples = primary.samples("b", queue)
        assert {line["interval_ms"] for line in samples} == {3000}, "12 rows, 4 a second"
        assert len(samples) in (4, 5)


def test_many_queues_are_told_in_slices_that_together_are_all_of_them(primary: Primary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a slice is lost, said twice, or gets the lag of another one's queues."""
    monkeypatch.setattr(lag, "SLICE", 2)
    names = [f"q{number}" for number in range(5)]
    primary.create(*names)
    primary.report()
    primary.machine.run_for(1.0)
    primary.machine.disconnect("a", "c")
    primary.put("q3", b"late")
    primary.machine.run_for(2.0)
    for name in names:
        for backup in "bc":
            samples = primary.samples(backup, name)
            assert len({line["ts"] for line in samples}) == len(samples) >= 2
            assert samples[-1]["ts"] == primary.samples(backup, None)[-1]["ts"], "they are of one moment"
            assert samples[-1]["lag_records"] == (1 if (backup, name) == ("c", "q3") else 0)


def test_nobody_says_that_a_witness_lags_and_nobody_waits_for_it_to_be_spoken_of(tmp_path: Path) -> None:
    """What it attests stands still on purpose. Breaks when the dashboard shows it as the backup that is furthest behind."""
    primary = Primary(tmp_path, witness="c")
    primary.create("orders")
    primary.report()
    witness = primary.machine.brokers["c"].log
    other = Broker(primary.machine.clock, broker_id="c", version="", clustered=True, default_level="all", on_fatal=pytest.fail)
    other.attach_log(CLUSTER, witness)
    own = LagReporter(primary.machine.clock, other, witness, "c", primary.telemetry, primary.wall)
    primary.put("orders", b"x")
    primary.machine.run_for(3.0)
    own._take_sample()
    said = primary.lines()
    roster = [line for line in said if line["kind"] == "roster"][-1]
    assert roster["backups"] == ["b"]
    assert (roster["voters"], roster["witness"], roster["witness_connected"]) == (["a", "b", "c"], "c", True)
    assert {line["backup"] for line in said if line["kind"] == "sample"} == {"b"}
    other.close()
    primary.broker.close()
    primary.machine.close()


def test_a_backup_says_how_long_it_has_lacked_what_it_lacks_and_not_how_long_nothing_came(tmp_path: Path) -> None:
    """Breaks when each sample resets the time of a commit index that stands still, or when a quiet time counts as lag."""
    primary = Primary(tmp_path)
    machine, disk = primary.machine, FullDisk()
    machine.kill("b")
    machine.disks["b"] = disk
    log = machine.start("b").log
    machine.run_until(lambda: log.state == "ready")
    primary.create("orders")

    def lacks() -> bool:
        status = log.status()
        return status.told_commit > status.durable_index

    disk.full.set()
    primary.put("orders", b"x")
    machine.run_until(lacks)
    broker = Broker(machine.clock, broker_id="b", version="", clustered=True, default_level="all", on_fatal=pytest.fail)
    broker.attach_log(CLUSTER, log)
    own = LagReporter(machine.clock, broker, log, "b", primary.telemetry, primary.wall)
    own.start()
    machine.run_for(10.5)
    lags_ms = [line["lag_ms"] for line in primary.samples("b", None)]
    assert lags_ms == pytest.approx([1000 * n for n in range(len(lags_ms))], abs=100)
    assert lags_ms[-1] > 8000

    disk.full.clear()
    machine.run_until(lambda: not lacks())
    machine.run_for(20.0)
    assert primary.samples("b", None)[-1]["lag_ms"] == 0
    disk.full.set()
    primary.put("orders", b"y")
    machine.run_until(lacks)
    machine.run_for(1.0)
    assert 0 < primary.samples("b", None)[-1]["lag_ms"] < 2100
    disk.full.clear()
    own.stop()
    for each in (broker, primary.broker, machine):
        each.close()


def test_the_roster_says_once_who_votes_and_again_when_the_witness_is_away(tmp_path: Path) -> None:
    """Whoever asks whether the primary can be lost must count votes, and learners have none."""
    primary = Primary(tmp_path, witness="c")
    primary.report()
    primary.machine.run_for(3.0)
    primary.machine.disconnect("a", "c")
    primary.machine.run_for(3.0)
    rosters = [line for line in primary.lines() if line["kind"] == "roster"]
    assert [(line["witness"], line["witness_connected"]) for line in rosters] == [("c", True), ("c", False)]
    assert all(line["voters"] == ["a", "b", "c"] for line in rosters)
    primary.broker.close()
    primary.machine.close()


def test_a_primary_that_has_handed_over_writes_no_roster_any_more(primary: Primary) -> None:
    """Each new file would begin with the roster of its old term and the time of now."""
    primary.report()
    primary.machine.run_for(3.0)
    assert [line["epoch"] for line in primary.lines() if line["kind"] == "roster"] == [1]
    primary.machine.promote("b")
    primary.machine.run_for(3.0)
    lines = primary.lines()
    primary.machine.run_for(3.0)
    later = primary.lines()[len(lines) :]
    assert {(line["kind"], line.get("role"), line["primary"]) for line in later} == {("sample", "backup", "b")}
