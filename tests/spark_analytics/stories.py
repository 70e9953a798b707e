"""Hand-made telemetry: a few brokers on a clock of seconds, and what they say. No code of the product makes these lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

START_MS = 1_767_600_000_000
Line = dict[str, Any]


def at(second: float) -> str:
    """A time, so many seconds from the start, as brokers write it."""
    moment = datetime.fromtimestamp((START_MS + round(second * 1000)) / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def moment_ms(line: Line) -> int:
    """When it was said, by its own word."""
    return round(datetime.fromisoformat(line["ts"]).timestamp() * 1000)


class Teller:
    """A broker or a resource manager, which numbers its lines; `ahead_s` is how far its clock is ahead."""

    def __init__(self, name: str, *, interval_s: float = 1.0, ahead_s: float = 0.0) -> None:
        self.name, self.interval_s, self.ahead_s = name, interval_s, ahead_s
        self.lines: list[Line] = []

    def _line(self, kind: str, second: float, epoch: int, **fields: Any) -> None:
        head = {"v": 1, "kind": kind, "cluster": "c", "epoch": epoch, "sender": self.name}
        number = {"seq": START_MS * 1000 + len(self.lines), "ts": at(second + self.ahead_s)}
        self.lines.append(head | number | fields)

    def sample(
        self, second: float, backup: str, lag_ms: float = 0.0, *, epoch: int = 1, queue: str | None = None, **changed: Any
    ) -> None:
        """What the primary says of a backup, which is well unless something else is said."""
        waits = 1 if lag_ms else 0
        fields = {
            "interval_ms": round(self.interval_s * 1000),
            "primary": self.name,
            "backup": backup,
            "queue": queue,
            "replicate": "all",
            "commit_index": 1000 + int(second),
            "sent_index": None,
            "received_index": None,
            "acked_index": 1000 + int(second),
            "applied_index": None,
            "lag_records": waits,
            "lag_bytes": 100 * waits,
            "lag_ms": lag_ms,
            "stall_ms": 0.0,
            "state": "ready",
            "in_sync": True,
            "connected": True,
            "headroom_bytes": None,
        }
        self._line("sample", second, epoch, **(fields | changed))

    def event(self, second: float, type_: str, about: str | None = None, *, epoch: int = 1, **fields: Any) -> None:
        """An event, of the teller unless `about` says of whom."""
        self._line("event", second, epoch, broker=about or self.name, type=type_, **fields)

    def roster(self, second: float, backups: Iterable[str], queues: Iterable[str] = (), *, epoch: int = 1, **more: Any) -> None:
        """Whom to expect from now on, and perhaps who has a vote."""
        names = {"backups": list(backups), "queues": list(queues)}
        self._line("roster", second, epoch, interval_ms=round(self.interval_s * 1000), primary=self.name, **names, **more)

    def probe(self, second: float, broker: str) -> None:
        """What a resource manager got from a broker."""
        fields = {"interval_ms": 1000, "broker": broker, "reach": "reachable", "asked": 5, "answered": 5}
        self._line("probe", second, 1, **fields)

    def write(self, folder: Path, *, hidden_from_s: float | None = None) -> None:
        """The lines as files: those from `hidden_from_s` on in one that is still being written."""
        edge = None if hidden_from_s is None else at(hidden_from_s + self.ahead_s)
        whole = [line for line in self.lines if edge is None or line["ts"] < edge]
        rest = self.lines[len(whole) :]
        folder.mkdir(exist_ok=True)
        (folder / f"{self.name}.000000000000001.jsonl").write_text("".join(json.dumps(line) + "\n" for line in whole))
        if rest:
            text = "".join(json.dumps(line) + "\n" for line in rest)
            (folder / f".{self.name}.000000000000002.part").write_text(text + '{"v":1,"kind":"sam')


def middles(first: int, last: int, step_s: float = 1.0) -> list[float]:
    """The times of samples from one second to another: the middles of the intervals."""
    count = round((last - first) / step_s)
    return [first + (number + 0.5) * step_s for number in range(count)]
