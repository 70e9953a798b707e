"""The few lines of the story that are no samples: events, and lines that went bad on their way.

Both are lists for the whole story, in order of time: a page of them, whatever its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from spark_analytics.demo_data.plan import DETECTION_MS, SWITCH_MS, Plan, draw

MANAGER: Final = "resource-manager"
REPEATED: Final = 25
FAILED: Final = "closed the connection"
PROBLEMS: Final = {
    "torn": 3,
    "not telemetry in JSON": 2,
    "two records on one line": 2,
    "written by a newer version": 3,
    "no version or kind": 1,
    "unknown kind": 1,
    "no valid time": 1,
    "time in the future": 1,
    "a field is missing": 2,
    "impossible value": 1,
}
"""How many lines have which problem, by the summary's name for it."""


@dataclass(frozen=True, slots=True)
class Event:
    """Told by `sender` (a broker's place, or None: the resource manager) at `at_ms` from the story's start."""

    at_ms: int
    sender: int | None
    epoch: int
    fields: dict[str, Any]


class Spoil(NamedTuple):
    """Something that is wrong with the first primary's lines in a slot: a problem, or "" for lines that come again."""

    slot: int
    problem: str


def events(plan: Plan) -> list[Event]:
    """Every event but those of lost telemetry, which are told with it."""
    told = [*_beginning(plan), *_slow_starts(plan), *_failover(plan), *_outage(plan), *_switchover(plan)]
    return sorted(told, key=lambda event: event.at_ms)


class _Teller:
    """Makes events of one epoch."""

    def __init__(self, plan: Plan, epoch: int, primary: int) -> None:
        self.names = plan.shape.brokers
        self.epoch, self.primary = epoch, self.names[primary]

    def of(self, at_ms: int, sender: int | None, type_: str, about: int, **fields: Any) -> Event:
        """Told by `sender` of `about`."""
        named = {"from" if name == "from_" else name: value for name, value in fields.items()}
        return Event(at_ms, sender, self.epoch, {"broker": self.names[about], "type": type_} | named)

    def served(self, at_ms: int, sender: int, *, gap_ms: float | None, why: str, index: int) -> list[Event]:
        """A new primary begins to serve."""
        return [
            self.of(at_ms, sender, "role", sender, from_="recovering", to="active", peer=self.primary),
            self.of(at_ms, sender, "failover_done", sender, to=self.primary, index=index, duration_ms=gap_ms, detail=why),
            self.of(at_ms + 5, None, "discovery", sender, to=self.primary),
        ]


def _beginning(plan: Plan) -> list[Event]:
    """A resource manager that looks at the start and, started anew, at the very end: so the story's span is its whole length."""
    first, last = _Teller(plan, 1, 0), _Teller(plan, 4, 2)
    end_ms = plan.shape.seconds * 1000 - 1
    return [first.of(0, None, "discovery", 0, to=first.primary), last.of(end_ms, None, "discovery", 2, to=last.primary)]


def _slow_starts(plan: Plan) -> list[Event]:
    """Backups that fetch what they lack: one that stood still, and the first primary when it is back."""
    found = []
    for epoch, primary, backup, over in ((1, 0, plan.last, plan.stall_over), (2, 1, 0, plan.down_over)):
        tell = _Teller(plan, epoch, primary)
        begin_ms, end_ms = (slot * plan.interval_ms + 20 for slot in over)
        look = plan.look(over.begin, backup)
        assert look is not None
        found += [
            tell.of(begin_ms, backup, "catch_up_begin", backup, peer=tell.primary, index=plan.acked(over.begin, look)),
            tell.of(
                end_ms,
                backup,
                "catch_up_end",
                backup,
                to="ready",
                peer=tell.primary,
                index=plan.committed(end_ms),
                duration_ms=float(end_ms - begin_ms),
            ),
        ]
    return found


def _failover(plan: Plan) -> list[Event]:
    """The first primary is killed, and the second broker takes over; later the weakest backup's connection is lost."""
    old, new = _Teller(plan, 1, 0), _Teller(plan, 2, 1)
    noticed_ms, served_ms = plan.kill_ms + DETECTION_MS, plan.serving_ms
    why = f"the primary {old.primary} failed: {FAILED}"
    lost_ms = plan.silence.begin * plan.interval_ms + 20
    return [
        old.of(noticed_ms, 1, "failure_detected", 0, detail="nothing was heard of the primary"),
        old.of(noticed_ms + 10, None, "failure_detected", 0, detail=FAILED),
        old.of(noticed_ms + 50, None, "promote_asked", 1, detail=why),
        old.of(noticed_ms + 60, 1, "promote_asked", 1, detail=why),
        new.of(served_ms - 40, 1, "role", 1, from_="ready", to="recovering"),
        *new.served(served_ms, 1, gap_ms=float(served_ms - plan.kill_ms), why=why, index=plan.committed(served_ms)),
        new.of(served_ms + 2, 1, "promote_won", 1, duration_ms=float(served_ms - noticed_ms - 60)),
        new.of(served_ms + 8, None, "promote_won", 1, duration_ms=float(served_ms - noticed_ms)),
        new.of(lost_ms, 1, "backup_lost", plan.last, peer=new.primary),
    ]


def _outage(plan: Plan) -> list[Event]:
    """Everything comes back at once; nobody knows of a primary before, nor how long there was none."""
    tell = _Teller(plan, 3, 1)
    begin_ms = plan.outage.end * plan.interval_ms
    why = "there is no primary yet"
    brokers = range(plan.shape.backups + 1)
    among = f"looking for the primary among {', '.join(tell.names)}"
    served_ms = outage_served_ms(plan)
    return [
        *(Event(begin_ms + 20, broker, 2, tell.of(0, broker, "discovery", broker, detail=among).fields) for broker in brokers),
        Event(served_ms - 120, None, 2, tell.of(0, None, "promote_asked", 1, detail=why).fields),
        Event(served_ms - 110, 1, 2, tell.of(0, 1, "promote_asked", 1, detail=why).fields),
        *tell.served(served_ms, 1, gap_ms=None, why=why, index=plan.committed(served_ms)),
        tell.of(served_ms + 2, 1, "promote_won", 1, duration_ms=112.0),
        tell.of(served_ms + 8, None, "promote_won", 1, duration_ms=120.0),
    ]


def outage_served_ms(plan: Plan) -> int:
    """When the second broker serves again."""
    return plan.outage.end * plan.interval_ms + 230


def _switchover(plan: Plan) -> list[Event]:
    """Asked for by a person, on a healthy primary."""
    old, new = _Teller(plan, 3, 1), _Teller(plan, 4, 2)
    served_ms = switch_served_ms(plan)
    why = "planned switchover"
    return [
        old.of(served_ms - SWITCH_MS - 20, 2, "promote_asked", 2, detail=why),
        new.of(served_ms - SWITCH_MS, 1, "role", 1, from_="active", to="ready", peer=new.primary),
        new.of(served_ms - 40, 2, "role", 2, from_="ready", to="recovering"),
        *new.served(served_ms, 2, gap_ms=float(SWITCH_MS), why=why, index=plan.committed(served_ms)),
        new.of(served_ms + 2, 2, "promote_won", 2, duration_ms=float(SWITCH_MS + 20)),
    ]


def switch_served_ms(plan: Plan) -> int:
    """When the third broker serves."""
    return plan.switch * plan.interval_ms + 100 + SWITCH_MS


# ---- lines that went bad


def spoils(plan: Plan) -> list[Spoil]:
    """All of them, early in the first reign."""
    begin, end = (int(plan.shape.slots * share) for share in (0.02, 0.09))
    key = draw(plan.shape.seed & 0xFFFF_FFFF, 3)
    wanted = ["", *(problem for problem, number in PROBLEMS.items() for _ in range(number))]
    return [Spoil(begin + draw(key, i) % (end - begin), problem) for i, problem in enumerate(wanted)]


def spoiled(problem: str, good: str, other: str) -> str:
    """A good line (and another) with that problem, without its end."""
    text = good.rstrip("\n")
    match problem:
        case "torn":
            return text[: len(text) // 2]
        case "not telemetry in JSON":
            return text.replace('"lag_records":', '"lag_records":some ')
        case "two records on one line":
            return text + other.rstrip("\n")
        case "written by a newer version":
            return text.replace('"v":1', '"v":2')
        case "no version or kind":
            return '{"hello":"world"}'
        case "unknown kind":
            return text.replace('"kind":"sample"', '"kind":"trace"')
        case "no valid time":
            return text.replace('"ts":"', '"ts":"yesterday ')
        case "time in the future":
            return text.replace('"ts":"2', '"ts":"9')
        case "a field is missing":
            return text.replace('"backup":', '"backed_up":')
        case _:
            return text.replace('"lag_records":', '"lag_records":-1')
