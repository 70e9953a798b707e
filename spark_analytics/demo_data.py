"""Telemetry with known answers: a day in the life of a cluster, squeezed into any length, for demonstrations and tests.

Three brokers; load that swells and ebbs once over the span; and, at fixed fractions of it: a backup whose disk stalls, a
primary that is killed and comes back as a backup, a backup of which nothing is heard, a planned switchover. Among the lines
stand torn, foreign, doubled and repeated ones. `write` returns what a truthful summary must find.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

BROKERS: Final = ("127.0.0.1:5672", "127.0.0.1:5673", "127.0.0.1:5674")
CLUSTER: Final = "demo"
STALL: Final = (0.25, 0.33)
CATCH_UP_SHARE: Final = 0.03
KILL: Final = 0.50
GAP_MS: Final = 1240
BACK: Final = 0.60
LEVEL: Final = 0.64
SILENCE: Final = (0.78, 0.84)
SWITCH: Final = 0.92
SWITCH_MS: Final = 180
_LINES_PER_FILE: Final = 20_000
_REPEATED: Final = 25


@dataclass(frozen=True, slots=True)
class Shape:
    """How much to write: `seconds` of telemetry from `start_ms` on, with `queues` queues, a sample a second."""

    start_ms: int
    seconds: int = 600
    queues: int = 8
    seed: int = 1


class _Sender:
    """One broker's numbered lines."""

    def __init__(self, name: str, start_ms: int) -> None:
        self.name = name
        self.seq = start_ms * 1000
        self.lines: list[str] = []

    def add(self, kind: str, epoch: int, ts_ms: int, **fields: Any) -> None:
        head = {"v": 1, "kind": kind, "cluster": CLUSTER, "epoch": epoch, "sender": self.name, "seq": self.seq, "ts": iso(ts_ms)}
        self.seq += 1
        self.lines.append(json.dumps(head | fields, separators=(",", ":")))


def iso(ts_ms: int) -> str:
    """Milliseconds since 1970 as the telemetry writes them."""
    return datetime.fromtimestamp(ts_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{ts_ms % 1000:03d}Z"


def queue_names(count: int) -> list[str]:
    """Names that look like somebody's queues."""
    stems = ("orders", "billing", "mail", "audit", "search", "stock", "fraud", "reports")
    return [
        stem if i < len(stems) else f"{stem}.{i // len(stems)}"
        for i, stem in zip(range(count), stems * (count // 8 + 1), strict=False)
    ]


def write(directory: str | Path, shape: Shape) -> dict[str, Any]:
    """Write the files and return the answers. The same shape gives the same bytes."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    chance = random.Random(shape.seed)
    senders = {name: _Sender(name, shape.start_ms) for name in BROKERS}
    for second in range(shape.seconds):
        _second(shape, second, senders, chance)
    _events(shape, senders)
    bad = _spoil(senders, chance)
    files = sum(_write_files(directory, sender) for sender in senders.values())
    return _answers(shape, bad) | {"files": files, "lines": sum(len(sender.lines) for sender in senders.values())}


def _reign(shape: Shape, second: int) -> tuple[int, int] | None:
    """(epoch, broker number) that reigns in that second; None in the second of the kill, which nobody samples."""
    at = second / shape.seconds
    kill = _at(shape, KILL)
    if kill <= second < kill + 2:
        return None
    return (1, 0) if at < KILL else (2, 1) if second < _at(shape, SWITCH) else (3, 2)


def _at(shape: Shape, share: float) -> int:
    return int(shape.seconds * share)


def _second(shape: Shape, second: int, senders: dict[str, _Sender], chance: random.Random) -> None:
    reign = _reign(shape, second)
    if reign is None:
        return
    epoch, primary = reign
    ts_ms = shape.start_ms + second * 1000 + 500 + chance.randrange(-4, 5)
    queues = queue_names(shape.queues)
    sender = senders[BROKERS[primary]]
    backups = [name for name in BROKERS if name != BROKERS[primary]]
    common = {"interval_ms": 1000, "primary": BROKERS[primary]}
    if second in (0, _at(shape, KILL) + 2, _at(shape, SWITCH)) or second % 300 == 0:
        sender.add("roster", epoch, ts_ms, **common, backups=backups, queues=sorted(queues))
    load = 600 + 500 * math.sin(2 * math.pi * second / shape.seconds - math.pi / 2)
    for backup in backups:
        view = _view(shape, second, BROKERS.index(backup), load, chance)
        if view is None:
            continue
        for number, queue in enumerate([None, *queues]):
            share = 1.0 if queue is None else 1 / (number + 1)
            sender.add("sample", epoch, ts_ms, **common, **_sample(second, backup, queue, share, load, view, chance))


@dataclass(frozen=True, slots=True)
class _View:
    """What the primary sees of one backup in one second."""

    behind_s: float
    stall_s: float
    state: str
    connected: bool
    ms: float


def _view(shape: Shape, second: int, broker: int, load: float, chance: random.Random) -> _View | None:
    base = (2.0, 3.0, 6.0)[broker] * (0.6 + load / 900) * math.exp(chance.gauss(0, 0.45))
    if broker == 2:
        begin, end = _at(shape, STALL[0]), _at(shape, STALL[1])
        level = end + max(1, _at(shape, CATCH_UP_SHARE))
        if begin <= second < end:
            return _View(second - begin + 0.5, second - begin + 0.5, "ready", True, (second - begin + 0.5) * 1000)
        if end <= second < level:
            behind = (end - begin) * (level - second) / (level - end)
            return _View(behind, 0.0, "catchup", True, behind * 1000)
        if _at(shape, SILENCE[0]) <= second < _at(shape, SILENCE[1]):
            return None
    if broker == 0 and second >= _at(shape, KILL):
        killed, back, level = _at(shape, KILL), _at(shape, BACK), _at(shape, LEVEL)
        if second < back:
            return _View(second - killed + 0.5, second - killed + 0.5, "", False, (second - killed + 0.5) * 1000)
        if second < level:
            behind = (back - killed) * (level - second) / (level - back)
            return _View(behind, 0.0, "catchup", True, behind * 1000)
    idle = chance.random() < 0.05
    return _View(0.0 if idle else base / 1000, 0.0, "ready", True, 0.0 if idle else base)


def _sample(
    second: int, backup: str, queue: str | None, share: float, load: float, view: _View, chance: random.Random
) -> dict[str, Any]:
    commit = 1000 + 400 * second
    behind = round(view.behind_s * 400)
    records = 0 if view.ms == 0 else max(1, round(view.behind_s * load * share))
    ms = round(view.ms * (1 if queue is None else chance.uniform(0.7, 1.0)), 3)
    return {
        "backup": backup,
        "queue": queue,
        "replicate": "all",
        "commit_index": commit,
        "sent_index": commit if view.connected else None,
        "received_index": None,
        "acked_index": commit - behind if view.stall_s == 0 else commit - round(view.stall_s * 400) - 1,
        "applied_index": None,
        "lag_records": records,
        "lag_bytes": records * 1024,
        "lag_ms": ms,
        "stall_ms": view.stall_s * 1000,
        "state": view.state,
        "in_sync": view.connected and view.behind_s < 1,
        "connected": view.connected,
        "headroom_bytes": 1 << 30,
    }


def _events(shape: Shape, senders: dict[str, _Sender]) -> None:
    def say(
        broker: int, share: float, epoch: int, type_: str, offset_ms: int = 0, *, about: int | None = None, **fields: Any
    ) -> None:
        ts_ms = shape.start_ms + _at(shape, share) * 1000 + offset_ms
        empty = {"from": None, "to": None, "index": None, "lost_records": None, "duration_ms": None, "detail": None}
        senders[BROKERS[broker]].add(
            "event", epoch, ts_ms, broker=BROKERS[broker if about is None else about], type=type_, **(empty | fields)
        )

    became_active: dict[str, Any] = {"from": "recovering", "to": "active"}
    say(0, 0, 1, "role", 10, **became_active)
    say(1, KILL, 1, "failure_detected", 900, about=0, duration_ms=900.0, detail="connection lost")
    say(1, KILL, 2, "promote_asked", 950, detail="primary lost")
    say(1, KILL, 2, "promote_won", 1100, duration_ms=150.0)
    say(1, KILL, 2, "role", 1240, **became_active)
    say(1, KILL, 2, "failover_done", 1240, duration_ms=float(GAP_MS), lost_records=0, detail="primary lost")
    say(0, BACK, 2, "catch_up_begin", 40)
    say(0, LEVEL, 2, "catch_up_end", 0, duration_ms=float((_at(shape, LEVEL) - _at(shape, BACK)) * 1000))
    say(1, SILENCE[0], 2, "backup_lost", 400, about=2, detail="no word")
    say(2, SWITCH, 3, "promote_asked", -200, detail="planned switchover")
    say(2, SWITCH, 3, "promote_won", -60, duration_ms=140.0)
    say(2, SWITCH, 3, "role", -20, **became_active)
    say(2, SWITCH, 3, "failover_done", -20, duration_ms=float(SWITCH_MS), lost_records=0, detail="planned switchover")


def _spoil(senders: dict[str, _Sender], chance: random.Random) -> dict[str, int]:
    """Put bad lines between the good ones (never instead of them), repeat some, and shuffle a few neighbours."""
    lines = senders[BROKERS[0]].lines
    repeats = lines[10 : 10 + _REPEATED]
    spoiled = [
        lines[3][: len(lines[3]) // 2],
        "not telemetry at all",
        lines[4] + lines[5],
        lines[6].replace('"v":1', '"v":2'),
        lines[7].replace('"ts":"', '"ts":"yesterday '),
        lines[8].replace('"lag_records":', '"lag_records":-'),
    ]
    for bad in [*spoiled, *repeats]:
        lines.insert(chance.randrange(20, len(lines)), bad)
    for _ in range(20):
        at = chance.randrange(len(lines) - 1)
        lines[at], lines[at + 1] = lines[at + 1], lines[at]
    return {"bad_lines": len(spoiled), "repeated_lines": len(repeats)}


def _write_files(directory: Path, sender: _Sender) -> int:
    files = 0
    for first in range(0, len(sender.lines), _LINES_PER_FILE):
        name = f"{sender.name.replace(':', '_')}.{files:015d}"
        part = directory / f".{name}.part"
        part.write_text("\n".join(sender.lines[first : first + _LINES_PER_FILE]) + "\n")
        part.rename(directory / f"{name}.jsonl")
        files += 1
    return files


def _answers(shape: Shape, bad: dict[str, int]) -> dict[str, Any]:
    begin, end = _at(shape, STALL[0]), _at(shape, STALL[1])
    silent = _at(shape, SILENCE[1]) - _at(shape, SILENCE[0])
    return bad | {
        "stalled": {
            "backup": BROKERS[2],
            "from": iso(shape.start_ms + begin * 1000),
            "to": iso(shape.start_ms + end * 1000),
            "longest_stall_ms": (end - begin - 1) * 1000 + 500.0,
        },
        "silent": {"backup": BROKERS[2], "from": iso(shape.start_ms + _at(shape, SILENCE[0]) * 1000), "seconds": silent},
        "stopped": {"backup": BROKERS[0], "seconds": _at(shape, BACK) - _at(shape, KILL) - 2},
        "failovers": [
            {"kind": "failover", "epoch": 2, "from": BROKERS[0], "to": BROKERS[1], "gap_ms": float(GAP_MS)},
            {"kind": "switchover", "epoch": 3, "from": BROKERS[1], "to": BROKERS[2], "gap_ms": float(SWITCH_MS)},
        ],
    }


def describe(answers: dict[str, Any]) -> Iterator[str]:
    """The answers as lines of text."""
    stalled, silent, stopped = answers["stalled"], answers["silent"], answers["stopped"]
    yield f"{answers['lines']:,} lines in {answers['files']} files; a truthful summary finds:"
    yield f"  {stalled['backup']} stalled from {stalled['from']} for {stalled['longest_stall_ms'] / 1000:g} s at the longest"
    for change in answers["failovers"]:
        who = f"{change['kind']} from {change['from']} to {change['to']}"
        yield f"  {who} in epoch {change['epoch']}, gap {change['gap_ms']:g} ms"
    yield f"  {stopped['backup']} not connected for {stopped['seconds']} s after it was killed"
    yield f"  nothing heard of {silent['backup']} for {silent['seconds']} s from {silent['from']}"
    yield f"  {answers['bad_lines']} lines that are no telemetry, {answers['repeated_lines']} lines twice"
