"""The few lines of the story that are not samples, as tables: events, and lines that were damaged on their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from spark_analytics.demo_data.plan import DETECTION_MS, SWITCH_MS, Plan, draw

MANAGER: Final = "resource-manager"
REPEATED: Final = 25
FAILED: Final = "closed the connection"
Event = tuple[int, int, int, str, int, dict[str, Any]]
"""The time (ms from the story's start), the sender (a broker's place; the place after the last broker is the resource
manager), the epoch, the type, the broker of the event, and the other fields by the names of `telemetry.lines.event_record`."""


def events(plan: Plan) -> list[Event]:
    """All events in order of time, except those of dropped lines, which are written with the drops."""
    names, manager, last = plan.shape.brokers, plan.shape.backups + 1, plan.last
    killed_ms, switched_ms, back_ms = plan.serving_ms, switch_served_ms(plan), outage_served_ms(plan)
    noticed_ms, silent_ms = plan.kill_ms + DETECTION_MS, plan.silence.begin * plan.interval_ms + 20
    failed, missing, planned = f"the primary {names[0]} failed: {FAILED}", "there is no primary yet", "planned switchover"
    among = f"looking for the primary among {', '.join(names)}"
    found: list[Event] = [
        # The first and last lines are of resource managers, so the span of the lines is the whole length of the story.
        (0, manager, 1, "discovery", 0, {"to": names[0]}),
        (plan.shape.seconds * 1000 - 1, manager, 4, "discovery", 2, {"to": names[2]}),
        (noticed_ms, 1, 1, "failure_detected", 0, {"detail": "nothing was heard of the primary"}),
        (noticed_ms + 10, manager, 1, "failure_detected", 0, {"detail": FAILED}),
        (noticed_ms + 50, manager, 1, "promote_asked", 1, {"detail": failed}),
        (noticed_ms + 60, 1, 1, "promote_asked", 1, {"detail": failed}),
        (killed_ms - 40, 1, 2, "role", 1, {"from_": "ready", "to": "recovering"}),
        (killed_ms + 2, 1, 2, "promote_won", 1, {"duration_ms": float(killed_ms - noticed_ms - 60)}),
        (killed_ms + 8, manager, 2, "promote_won", 1, {"duration_ms": float(killed_ms - noticed_ms)}),
        (silent_ms, 1, 2, "backup_lost", last, {"peer": names[1]}),
        *((plan.outage.end * plan.interval_ms + 20, b, 2, "discovery", b, {"detail": among}) for b in plan.everybody),
        (back_ms - 120, manager, 2, "promote_asked", 1, {"detail": missing}),
        (back_ms - 110, 1, 2, "promote_asked", 1, {"detail": missing}),
        (back_ms + 2, 1, 3, "promote_won", 1, {"duration_ms": 112.0}),
        (back_ms + 8, manager, 3, "promote_won", 1, {"duration_ms": 120.0}),
        (switched_ms - SWITCH_MS - 20, 2, 3, "promote_asked", 2, {"detail": planned}),
        (switched_ms - SWITCH_MS, 1, 4, "role", 1, {"from_": "active", "to": "ready", "peer": names[2]}),
        (switched_ms - 40, 2, 4, "role", 2, {"from_": "ready", "to": "recovering"}),
        (switched_ms + 2, 2, 4, "promote_won", 2, {"duration_ms": float(SWITCH_MS + 20)}),
    ]
    for ms, broker, epoch, gap_ms, why in (
        (killed_ms, 1, 2, float(killed_ms - plan.kill_ms), failed),
        (back_ms, 1, 3, None, missing),
        (switched_ms, 2, 4, float(SWITCH_MS), planned),
    ):
        name, done = names[broker], {"index": plan.committed(ms), "duration_ms": gap_ms, "detail": why}
        found += [
            (ms, broker, epoch, "role", broker, {"from_": "recovering", "to": "active", "peer": name}),
            (ms, broker, epoch, "failover_done", broker, {"to": name} | done),
            (ms + 5, manager, epoch, "discovery", broker, {"to": name}),
        ]
    for behind, broker, epoch, primary in ((plan.stall, last, 1, 0), (plan.down, 0, 2, 1)):
        over, peer = behind.after(), {"peer": names[primary]}
        begin_ms, end_ms = (slot * plan.interval_ms + 20 for slot in over)
        look = plan.look(over.begin, broker)
        assert look is not None, "who catches up is there"
        ready = {"to": "ready", "index": plan.committed(end_ms), "duration_ms": float(end_ms - begin_ms)}
        found += [
            (begin_ms, broker, epoch, "catch_up_begin", broker, peer | {"index": plan.acked(over.begin, look)}),
            (end_ms, broker, epoch, "catch_up_end", broker, peer | ready),
        ]
    return sorted(found, key=lambda event: event[0])


def outage_served_ms(plan: Plan) -> int:
    """When the second broker serves again."""
    return plan.outage.end * plan.interval_ms + 230


def switch_served_ms(plan: Plan) -> int:
    """When the third broker begins to serve."""
    return plan.switch * plan.interval_ms + 100 + SWITCH_MS


_SPOILED: Final[dict[str, tuple[int, Callable[[str, str], str]]]] = {
    "torn": (3, lambda good, _: good[: len(good) // 2]),
    "not telemetry in JSON": (2, lambda good, _: good.replace('"lag_records":', '"lag_records":some ')),
    "two records on one line": (2, lambda good, other: good + other),
    "written by a newer version": (3, lambda good, _: good.replace('"v":1', '"v":2')),
    "no version or kind": (1, lambda good, _: '{"hello":"world"}'),
    "unknown kind": (1, lambda good, _: good.replace('"kind":"sample"', '"kind":"trace"')),
    "no valid time": (1, lambda good, _: good.replace('"ts":"', '"ts":"yesterday ')),
    "time in the future": (1, lambda good, _: good.replace('"ts":"2', '"ts":"9')),
    "a field is missing": (2, lambda good, _: good.replace('"backup":', '"backed_up":')),
    "impossible value": (1, lambda good, _: good.replace('"lag_records":', '"lag_records":-1')),
}
"""By the summary's name for the problem: how many lines have it, and how a good line (with another line) is changed to have
it."""
PROBLEMS: Final = {problem: number for problem, (number, _) in _SPOILED.items()}


def spoils(plan: Plan) -> dict[int, list[str]]:
    """By slot, early in the first term: the problems of the primary's lines; "" stands for lines that are repeated."""
    begin, end = (int(plan.shape.slots * share) for share in (0.02, 0.09))
    key, found = draw(plan.shape.seed & 0xFFFF_FFFF, 3), dict[int, list[str]]()
    for i, problem in enumerate(["", *(problem for problem, number in PROBLEMS.items() for _ in range(number))]):
        found.setdefault(begin + draw(key, i) % (end - begin), []).append(problem)
    return found


def spoiled(problem: str, good: str, other: str) -> str:
    """A good line with that problem; the result may contain other lines."""
    return _SPOILED[problem][1](good.rstrip("\n"), other.rstrip("\n")) + "\n"
