"""Alert thresholds of a queue, upwards and downwards, in messages and in bytes.

Life of an alert: it is raised when the queue reaches `up`. It is not raised again before the queue has fallen below `down`, but
it is repeated every `gap_s` seconds if this is configured. Below `down` it ends.

Arguments, with the names of qpidd (QueueSettings.cpp): `qpid.alert_count_up` (or `qpid.alert_count`, or
`x-qpid-maximum-message-count`), `qpid.alert_count_down`, the same with `size` for bytes, and `qpid.alert_repeat_gap` (or
`x-qpid-minimum-alert-repeat-gap`). Without `down`, it is half of `up`; 0 means no threshold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

COUNT, SIZE = "count", "size"
_UP: Final = {
    COUNT: ("qpid.alert_count_up", "qpid.alert_count", "x-qpid-maximum-message-count"),
    SIZE: ("qpid.alert_size_up", "qpid.alert_size", "x-qpid-maximum-message-size"),
}
_DOWN: Final = {COUNT: "qpid.alert_count_down", SIZE: "qpid.alert_size_down"}
_GAP: Final = ("qpid.alert_repeat_gap", "x-qpid-minimum-alert-repeat-gap")
SYNONYMS: Final = (*_UP.values(), _GAP)
"""The names of each argument that has several."""
NAMES: Final = (*_UP[COUNT], *_UP[SIZE], *_DOWN.values(), *_GAP)


class Threshold(NamedTuple):
    """An alert is raised at `up`, and over below `down`. `up` 0: it never is."""

    up: int
    down: int


class Thresholds(NamedTuple):
    """The thresholds of a queue. `gap_s`: interval for repeating an alert that has not ended; 0: never."""

    of: Mapping[str, Threshold]
    gap_s: int

    def crossed(self, raised: Collection[str], depth: int, nbytes: int) -> list[str]:
        """The alerts, of `COUNT` and `SIZE`, that are to be raised on a queue which holds so much, or are over, if raised."""
        held = {COUNT: depth, SIZE: nbytes}
        return [what for what, (up, down) in self.of.items() if (held[what] < down if what in raised else 0 < up <= held[what])]


def thresholds_of(asked: Mapping[str, Any]) -> Thresholds | None:
    """The thresholds in these arguments, which are in force; None if there are none, as for most queues."""
    found = {}
    for what, names in _UP.items():
        up = _first(asked, names)
        if up:
            found[what] = Threshold(up, asked.get(_DOWN[what], max(up // 2, 1)))
    return Thresholds(found, _first(asked, _GAP)) if found else None


def fault_of(arguments: Mapping[str, Any]) -> str:
    """Why a queue cannot have these arguments, each of which is a number of 0 or more; "" when it can."""
    for names in SYNONYMS:
        said = [name for name in names if name in arguments]
        if len(said) > 1:
            return f"{' and '.join(said)} are names of one threshold: say one of them"
    for what, names in _UP.items():
        up, down = _first(arguments, names), arguments.get(_DOWN[what])
        if down is not None and down > up:
            return f"{_DOWN[what]} must not be more than {names[0]}: {down} is, than {up}"
        if down == 0 < up:
            return f"{_DOWN[what]} must be 1 or more: a queue never holds less than 0"
    return ""


def _first(asked: Mapping[str, Any], names: Collection[str]) -> int:
    return next((int(asked[name]) for name in names if name in asked), 0)
