"""The replication-lag telemetry of real brokers during events that a test knows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.verify.run import Run, Workload
from tests.system.harness import cluster, eventually

INTERVAL_MS = 200
Line = dict[str, Any]


@dataclass(frozen=True)
class Story:
    """What happened, and every line that tells of it, in the order of the files' names."""

    folder: Path
    killed: str
    successor: str
    lines: list[Line]

    def samples(self, sender: str, epoch: int, queue: str | None) -> list[Line]:
        """A primary's samples of a queue (None: of the whole log) in that epoch."""
        return [
            line
            for line in self.lines
            if (line["kind"], line["sender"], line["epoch"]) == ("sample", sender, epoch)
            and (line["role"], line["queue"]) == ("primary", queue)
        ]

    def events(self, sender: str, type: str) -> list[Line]:
        """A sender's events of this type."""
        return [line for line in self.lines if (line["kind"], line["sender"], line.get("type")) == ("event", sender, type)]


def written(paths: Iterable[Path]) -> list[Line]:
    """The whole lines of files that may be being written."""
    texts = [line for path in sorted(paths) for line in path.read_text().splitlines(keepends=True)]
    return [json.loads(line) for line in texts if line.endswith("\n")]


def of_a_failover(base: Path) -> Story:
    """Three brokers serve a producer, the primary is killed with kill -9, a backup is promoted, the killed one comes back, and
    all are stopped in order. Everything lies in this folder."""
    folder = base / "lag"
    options = ["--ha-replicate", "all", "--telemetry-dir", str(folder), "--telemetry-interval-ms", str(INTERVAL_MS)]

    def samples_of(primary: str, queue: str | None) -> list[Line]:
        """Those that there are by now."""
        lines = written([*folder.glob("*.jsonl"), *folder.glob(".*.part")])
        return [line for line in lines if line["kind"] == "sample" and (line["sender"], line["queue"]) == (primary, queue)]

    def of_each(primary: str) -> Counter[str]:
        """How many there are of each backup, for the queue."""
        return Counter(line["backup"] for line in samples_of(primary, "orders"))

    with cluster(base, 3, *options) as brokers:
        first = brokers.primary()
        first.create("queue", "orders")
        with Run(Workload(brokers.addresses, ["orders"], consumers=0, rate=500)) as run:
            eventually(lambda: of_each(first.address).total(), lambda count: count > 20, "samples of the first primary")
            first.kill()
            backups = [broker for broker in brokers.brokers if broker is not first]
            for backup in backups:
                backup.wait_for("joining")
            # As the daemons do: one that has less would let the better one win first, and take over from it in a second change.
            third, second = sorted(backups, key=lambda backup: int(backup.status()["lastIndex"]))
            brokers.promote(second)
            eventually(lambda: of_each(second.address), lambda of: of[first.address] > 12, "samples of the dead backup")
            first.start()
            first.wait_for("ready")
            run.finish()
        eventually(
            lambda: [line for line in samples_of(second.address, None) if line["backup"] == first.address][-1],
            lambda newest: newest["connected"] and newest["in_sync"] and newest["lag_records"] == 0,
            "a sample of the first broker level again",
        )
        eventually(lambda: of_each(second.address), lambda of: of[third.address] > 5, "samples of both backups")
        for broker in (third, first, second):
            assert broker.stop() == 0
    return Story(folder, first.address, second.address, written(folder.glob("*.jsonl")))
