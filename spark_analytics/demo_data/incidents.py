"""The few lines of the story that are not samples, as tables: events, and lines that were damaged on their way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from spark_analytics.demo_data.plan import DETECTION_MS, FAILED, SWITCH_MS, Plan, draw

REPEATED: Final = 25
Event = tuple[int, int, int, str, int, dict[str, Any]]
"""The time (ms since 1970), the sender (a broker's place; the place after the last broker is the resource manager), the epoch,
the type, the broker of the event, and the other fields by the names of `telemetry.lines.event_record`."""


def events(plan: Plan) -> Iterator[Event]:
    """All events, those of one time in order."""
    names, manager, last = plan.shape.brokers, len(plan.everybody), plan.last
    killed, back, switched = plan.terms[1:]
    noticed_ms, among = plan.kill_ms + DETECTION_MS, f"looking for the primary among {', '.join(names)}"
    # The first and last lines are of resource managers, so the span of the lines is the whole length of the story.
    yield plan.begin_ms(0), manager, 1, "discovery", 0, {"to": names[0]}
    yield plan.begin_ms(plan.shape.slots) - 1, manager, 4, "discovery", 2, {"to": names[2]}
    yield noticed_ms, 1, 1, "failure_detected", 0, {"detail": "nothing was heard of the primary"}
    yield noticed_ms + 10, manager, 1, "failure_detected", 0, {"detail": FAILED}
    yield killed.served_ms - 40, 1, 2, "role", 1, {"from_": "ready", "to": "recovering"}
    yield plan.begin_ms(plan.silent.begin) + 20, 1, 2, "backup_lost", last, {"peer": names[1]}
    for broker in plan.everybody:
        yield plan.begin_ms(plan.outage.end) + 20, broker, 2, "discovery", broker, {"detail": among}
    yield switched.served_ms - SWITCH_MS, 1, 4, "role", 1, {"from_": "active", "to": "ready", "peer": names[2]}
    yield switched.served_ms - 40, 2, 4, "role", 2, {"from_": "ready", "to": "recovering"}
    for term, sender, before_ms, after_ms, took_ms in (
        (killed, manager, 290, 8, 340),
        (killed, 1, 280, 2, 280),
        (back, manager, 120, 8, 120),
        (back, 1, 110, 2, 112),
        (switched, 2, 200, 2, 200),
    ):
        yield term.served_ms - before_ms, sender, term.epoch - 1, "promote_asked", term.primary, {"detail": term.why}
        yield term.served_ms + after_ms, sender, term.epoch, "promote_won", term.primary, {"duration_ms": float(took_ms)}
    for term in plan.terms[1:]:
        at_ms, broker, epoch, to = term.served_ms, term.primary, term.epoch, {"to": names[term.primary]}
        done = to | {"index": plan.committed(at_ms), "duration_ms": term.gap_ms, "detail": term.why}
        yield at_ms, broker, epoch, "role", broker, {"from_": "recovering", "to": "active", "peer": names[broker]}
        yield at_ms, broker, epoch, "failover_done", broker, done
        yield at_ms + 5, manager, epoch, "discovery", broker, to
    for span, broker in ((plan.stalled.after(), last), (plan.stopped.after(), 0)):
        epoch, primary = plan.term(span.begin)[:2]
        begin_ms, end_ms = (plan.begin_ms(slot) + 20 for slot in (span.begin, span.end))
        peer, acked = {"peer": names[primary]}, plan.acked(span.begin, plan.look(span.begin, broker))
        done = {"to": "ready", "index": plan.committed(end_ms), "duration_ms": float(end_ms - begin_ms)}
        yield begin_ms, broker, epoch, "catch_up_begin", broker, peer | {"index": acked}
        yield end_ms, broker, epoch, "catch_up_end", broker, peer | done
    for slot, (reason, number) in plan.drops.items():
        epoch, primary = plan.term(slot)[:2]
        yield plan.sample_ms(slot) + 10, primary, epoch, "drop", primary, {"lost_records": number, "detail": reason}


_DAMAGES: Final[dict[str, tuple[int, Callable[[str, str], str]]]] = {
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
PROBLEMS: Final = {problem: number for problem, (number, _) in _DAMAGES.items()}


def damages(plan: Plan) -> list[tuple[int, str]]:
    """Slots early in the first term, each with a problem of a line of the primary; "" stands for lines that are repeated."""
    begin, end = (int(plan.shape.slots * share) for share in (0.02, 0.09))
    problems = ["", *(problem for problem, number in PROBLEMS.items() for _ in range(number))]
    key = draw(plan.shape.seed & 0xFFFF_FFFF, 3)
    return [(begin + draw(key, i) % (end - begin), problem) for i, problem in enumerate(problems)]


def damaged(problem: str, samples: list[str]) -> list[str]:
    """What is written besides a slot's samples: one of them with that problem, or some of them once more, backwards."""
    good, other = (sample.rstrip("\n") for sample in samples[:2])
    return [_DAMAGES[problem][1](good, other) + "\n"] if problem else samples[REPEATED - 1 :: -1]
