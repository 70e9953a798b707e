"""The changes of the primary: the new primary, the reason, how long none served, and the loss.

A change is a term that follows another. Its times come from the events of the brokers and the resource manager that took
part. Clocks differ, so a duration is only computed between two events of one sender: the new primary if it has both events,
the resource manager otherwise.

    old primary's end -- detection -- noticed -- decision -- asked -- promotion -- served

The new primary knows how long it had waited for the old one when it noticed the failure (`failure_detected`, `duration_ms`),
and since when there was no primary (`failover_done`, `duration_ms`). The second time begins when it noticed, unless its clock
shows an earlier start. If no event has a duration, it is estimated from the old primary's last line, which is only accurate
to the sampling interval; then `measured` of the change is false. A false alarm, after which the primary continued, is no
cause of a change: causes come after the old primary's last line, and in its epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

TYPES: Final = ("failure_detected", "promote_asked", "promote_won", "failover_done", "role")
"""The events about a change."""
_SKEW_MS: Final = 2000
"""How far the clock of the sender that noticed may be behind the old primary's."""
_SAME_MS: Final = 5
Event = Mapping[str, Any]
Change = dict[str, Any]


def failovers(terms: Sequence[Mapping[str, Any]], events: Iterable[Event]) -> list[Change]:
    """The changes of primary, in order: `at_ms`, `epoch`, `primary`, `previous`, `kind`, `gap_ms`, `measured`, `detected_ms`,
    `asked_ms`, `detection_ms`, `decision_ms`, `promotion_ms`, `lost_records`, `detail`.

    `terms` have `epoch`, `primary`, `begin_ms`, `last_said_ms` and `interval_ms`; `events` are of TYPES. `kind` is `failover`
    (a failure was noticed, or the old primary fell silent first) or `switchover` (requested while the old primary still
    reported).
    """
    order = sorted(terms, key=lambda term: (term["epoch"], term["begin_ms"]))
    told = sorted(events, key=lambda event: event["ts_ms"])
    return [_change(old, new, told) for old, new in pairwise(order)]


def _change(old: Mapping[str, Any], new: Mapping[str, Any], told: Sequence[Event]) -> Change:
    own = [event for event in told if event["sender"] == new["primary"] and event["epoch"] == new["epoch"]]
    won = _last(own, "promote_won")
    done = _last(own, "failover_done")
    active = _last((event for event in own if event["to"] == "active"), "role")
    served_ms = next((event["ts_ms"] for event in (done, active, won) if event is not None), new["begin_ms"])
    said_ms = min(old["last_said_ms"], served_ms)
    causes = [event for event in told if old["epoch"] <= event["epoch"] < new["epoch"]]
    noticed = _cause(causes, "failure_detected", old["primary"], new["primary"], said_ms - _SKEW_MS, served_ms)
    asked = _asked(causes, noticed, new["primary"], said_ms - _SKEW_MS, served_ms)
    decision = _decision(causes, noticed, asked, new["primary"])
    lengths = _lengths(noticed, asked, done, decision, served_ms, said_ms, new["primary"])
    silent_before_asked = asked is not None and asked["ts_ms"] - said_ms > 2 * max(1000, old["interval_ms"] or 0)
    planned = noticed is None and asked is not None and not silent_before_asked
    if planned:
        lengths |= {"detection_ms": None, "decision_ms": None}
    facts = [event for event in (done, won, _last((e for e in told if e["epoch"] == new["epoch"]), "promote_won")) if event]
    return {
        "at_ms": served_ms,
        "epoch": new["epoch"],
        "primary": new["primary"],
        "previous": old["primary"],
        "kind": "switchover" if planned else "failover",
        **lengths,
        "detected_ms": noticed["ts_ms"] if noticed else None,
        "asked_ms": asked["ts_ms"] if asked else None,
        "lost_records": max((event["lost_records"] for event in facts if event["lost_records"] is not None), default=None),
        "detail": next((event["detail"] for event in facts if event["detail"]), None),
    }


def _last(events: Iterable[Event], type_: str) -> Event | None:
    return next((event for event in reversed(list(events)) if event["type"] == type_), None)


def _cause(causes: Iterable[Event], type_: str, about: str, taker: str, since_ms: int, until_ms: int) -> Event | None:
    """The event of that type about that broker which led to the change: the last one of the new primary, or else the first
    one of the others (by their clocks, which may be ahead of the start of service).
    """
    fitting = [event for event in causes if event["type"] == type_ and event["broker"] == about and event["ts_ms"] >= since_ms]
    own = [event for event in fitting if event["sender"] == taker and event["ts_ms"] <= until_ms]
    return own[-1] if own else next(iter(fitting), None)


def _asked(causes: Sequence[Event], noticed: Event | None, new: str, since_ms: int, until_ms: int) -> Event | None:
    """The request for promotion: the new primary's event, or a slightly earlier one of the requester if its clock fits."""
    asked = _cause(causes, "promote_asked", new, new, since_ms, until_ms)
    if asked is None or noticed is None or noticed["sender"] != asked["sender"]:
        return asked
    fits = (e for e in causes if e["type"] == "promote_asked" and e["broker"] == new and e["ts_ms"] >= noticed["ts_ms"])
    return min([asked, *fits], key=lambda event: event["ts_ms"])


def _decision(causes: Iterable[Event], noticed: Event | None, asked: Event | None, new: str) -> float | None:
    """From noticing to the request, by the clock of the sender that noticed."""
    if noticed is None or asked is None:
        return None
    if noticed["sender"] == new:
        return _between(noticed, asked["ts_ms"])
    own = (e for e in causes if e["type"] == "promote_asked" and e["broker"] == new and e["sender"] == noticed["sender"])
    return next((_between(noticed, event["ts_ms"]) for event in own if event["ts_ms"] >= noticed["ts_ms"]), None)


def _lengths(
    noticed: Event | None,
    asked: Event | None,
    done: Event | None,
    decision: float | None,
    served_ms: int,
    said_ms: int,
    new: str,
) -> dict[str, Any]:
    """The gap, whether it was measured, and its parts."""
    known = float(done["duration_ms"]) if done is not None and done["duration_ms"] is not None else None
    own = noticed is not None and noticed["sender"] == new
    promotion = _between(asked, served_ms) if asked is not None and (own or asked["sender"] == new) else None
    since_noticed = _between(noticed, served_ms) if own else None
    detection = noticed["duration_ms"] if noticed is not None and own else None
    if detection is None and known is not None and since_noticed is not None and known > since_noticed + _SAME_MS:
        detection = known - since_noticed
    measured = known is not None and (noticed is None or not own or detection is not None)
    if detection is None and since_noticed is not None:
        detection = max(0.0, served_ms - said_ms - since_noticed)
    gap = known if known is not None else float(served_ms - said_ms)
    if since_noticed is not None and detection is not None:
        gap = detection + since_noticed
    elif noticed is not None:
        if known is not None and promotion is not None:
            detection = max(0.0, known - promotion - (decision or 0.0))
        else:
            detection = min(gap, max(0.0, float(noticed["ts_ms"] - said_ms)))
    if promotion is None and (asked is not None or noticed is not None):
        promotion = max(0.0, gap - (detection or 0.0) - (decision or 0.0))
    return {
        "gap_ms": gap,
        "measured": measured,
        "detection_ms": None if detection is None else float(detection),
        "decision_ms": decision,
        "promotion_ms": promotion,
    }


def _between(event: Event | None, served_ms: int) -> float | None:
    return None if event is None else max(0.0, float(served_ms - event["ts_ms"]))
