"""The arguments of a queue: their names, values, machine versions and effects.

Life of an argument: a client requests it; `fault_of` returns why it is refused, or which other argument it needs; `version_of`
returns the machine version that is needed to apply it, and the command that creates the queue `needs` this version. Code that
creates something from the command uses `in_force`, so that a queue of an older release keeps its behaviour, whatever its
arguments say.

Names and meanings are those of qpidd (QueueSettings.cpp); docs/reference/queue-arguments.md has the whole table, including
refused arguments.

Invariants: every argument that this module names is honoured; every accepted value has an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from broker.core import duplicates, limits
from broker.core.queues import alerts, fairshare, groups, owned, priority

MAX_COUNT, MAX_BYTES, POLICY = "qpid.max_count", "qpid.max_size", "qpid.policy_type"
STOP_COUNT, STOP_BYTES = "qpid.flow_stop_count", "qpid.flow_stop_size"
RESUME_COUNT, RESUME_BYTES = "qpid.flow_resume_count", "qpid.flow_resume_size"
BROWSE_ONLY = "qpid.browse-only"
LAST_VALUE_KEY = "qpid.last_value_queue_key"
SINGLE_ACTIVE = "x-single-active-consumer"
CONSUMER_MS = ("x-consumer-timeout-ms", "x-consumer-timeout")
GROUP_KEY = groups.KEY
OWNER_TIMEOUT = owned.TIMEOUT

REJECT, RING, RING_STRICT = "reject", "ring", "ring_strict"
_POLICIES = {"none": REJECT, "reject": REJECT, "ring": RING, "ring_strict": RING_STRICT, "ring-strict": RING_STRICT}
"""Names of a policy -> the policy. `none` means no particular one, which is the default."""

Check = Callable[[str, Any], str]
"""Takes an argument's name and value; returns what is wrong, or ""."""


class Unknown(ValueError):
    """A value that has a meaning elsewhere, and none here."""


class Flow(NamedTuple):
    """Above `stop_*` a queue's producers get no more credit, until it holds less than `resume_*`. 0: no such bound."""

    stop_count: int = 0
    stop_bytes: int = 0
    resume_count: int = 0
    resume_bytes: int = 0


def _number(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return f"{name} must be a number of 0 (no limit) or more, not {value!r}"
    return ""


def _time(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limits.MAX_CONSUMER_MS:
        return f"{name} must be a number of milliseconds from 1 to {limits.MAX_CONSUMER_MS}, not {value!r}"
    return ""


def _owner_time(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limits.MAX_OWNER_S:
        return f"{name} must be a whole number of seconds from 1 to {limits.MAX_OWNER_S}, not {value!r}"
    return ""


def _policy(name: str, value: Any) -> str:
    if not isinstance(value, str) or value not in _POLICIES:
        raise Unknown(f"this broker does not have the limit policy {value!r} (it knows {', '.join(_POLICIES)})")
    return ""


def _flag(name: str, value: Any) -> str:
    return "" if value in (0, 1) else f"{name} must be 0 or 1 (or false, true), not {value!r}"


def _window(name: str, value: Any) -> str:
    try:
        duplicates.window_of({duplicates.COUNT: 1, name: value})
    except ValueError as error:
        return str(error)
    return ""


def _name(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value.encode()) <= limits.MAX_NAME_BYTES:
        return f"{name} must be the name of a property, of up to {limits.MAX_NAME_BYTES} bytes, not {value!r:.80}"
    return ""


def _levels(name: str, value: Any) -> str:
    try:
        priority.levels_of({name: value})
    except ValueError as error:
        return str(error)
    return ""


_TABLE: dict[str, tuple[int, Check]] = {
    MAX_COUNT: (1, _number),
    MAX_BYTES: (1, _number),
    POLICY: (1, _policy),
    **dict.fromkeys((*priority.LEVELS, priority.HIGHEST), (2, _levels)),
    **dict.fromkeys((STOP_COUNT, STOP_BYTES, RESUME_COUNT, RESUME_BYTES), (5, _number)),
    BROWSE_ONLY: (5, _flag),
    **dict.fromkeys((duplicates.COUNT, duplicates.TIME_MS), (5, _window)),
    LAST_VALUE_KEY: (5, _name),
    GROUP_KEY: (5, _name),
    groups.SHARED: (5, _flag),
    OWNER_TIMEOUT: (9, _owner_time),
    **dict.fromkeys(fairshare.NAMES, (5, _number)),
    **dict.fromkeys(CONSUMER_MS, (6, _time)),
    SINGLE_ACTIVE: (6, _flag),
    **dict.fromkeys(alerts.NAMES, (6, _number)),
}
"""Argument -> the machine version that introduced it, and the check of its value. The share of each level has its own name."""
_SHARE = _TABLE[fairshare.NAMES[0]]
_SYNONYMS = ((*priority.LEVELS, priority.HIGHEST), fairshare.NAMES, CONSUMER_MS, *alerts.SYNONYMS)
_FIRST = {name: names[0] for names in _SYNONYMS for name in names}
"""Argument with several names -> the first of them. The share of a level has two names, too."""

NAMES = frozenset(_TABLE)
ALTERABLE = frozenset({MAX_COUNT, MAX_BYTES, STOP_COUNT, STOP_BYTES, RESUME_COUNT, RESUME_BYTES, *alerts.NAMES})
"""Arguments that an existing queue may get or lose."""
INSTEAD = {
    **dict.fromkeys(("qpid.last_value_queue", "qpid.last_value_queue_no_browse", "qpid.LVQ_key"), f"use {LAST_VALUE_KEY!r}"),
    "qpid.filter": "set a filter on the link",
    "qpid.lifetime-policy": "use the attribute 'autoDelete' or the argument 'qpid.auto_delete_timeout'",
    **dict.fromkeys(
        ("qpid.paging", "qpid.max_pages_loaded", "qpid.page_factor"), "every queue keeps bodies on disk, within --message-memory"
    ),
}
"""Arguments of qpidd that this module does not have -> what to do instead, for people."""
REFUSED = frozenset({"no-local"})
"""Arguments of qpidd that have no effect here and do not begin with `qpid.` or `x-`, by which others are known."""


def _since(name: str, value: Any) -> int:
    """The machine version that applies this argument with this value."""
    if name == POLICY and _POLICIES.get(value if isinstance(value, str) else "") in (RING, RING_STRICT):
        return 5
    return _row(name)[0]


def _row(name: str) -> tuple[int, Check]:
    return _TABLE.get(name, _SHARE)


def is_known(name: str) -> bool:
    """Whether this module has an argument of this name."""
    return name in _TABLE or fairshare.is_share(name)


def first_name(name: str) -> str:
    """The first of the names of this argument."""
    return f"{fairshare.NAMES[0]}-{name.rpartition('-')[2]}" if fairshare.is_share(name) else _FIRST.get(name, name)


def repeated(arguments: Mapping[str, Any]) -> str:
    """Which of these arguments is named twice, for people; "" if none is. A queue of an earlier release may have some: of the
    levels, `x-max-priority` has no effect then."""
    said: dict[str, str] = {}
    for name in arguments:
        other = said.setdefault(first_name(name), name)
        if other != name:
            return f"{other} and {name} are names of one argument: say one of them"
    return ""


def version_of(arguments: Mapping[str, Any]) -> int:
    """The machine version that a queue with these arguments, which have no fault, needs."""
    return max((_since(name, value) for name, value in arguments.items() if is_known(name) and _counts(name, value)), default=1)


def _counts(name: str, value: Any) -> bool:
    """Whether an argument with this value makes a queue another one than it is without: one level is none."""
    return _row(name)[1] is not _levels or priority.levels_of({name: value}) > 1


def in_force(arguments: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Those of the arguments that a broker of this machine version applies: for others the queue was never meant."""
    return {name: value for name, value in arguments.items() if is_known(name) and _since(name, value) <= version}


def fault_of(arguments: Mapping[str, Any]) -> str:
    """Why a queue cannot have these arguments, or "". An unknown one is refused, because another broker may give it a meaning."""
    for name in arguments.keys() & REFUSED:
        raise Unknown(f"this broker does not have {name!r}")
    for name, (_, check) in _TABLE.items():
        if name in arguments and (fault := check(name, arguments[name])):
            return fault
    ranked = any(name in arguments for name in (*priority.LEVELS, priority.HIGHEST))
    kinds = [name for name in (LAST_VALUE_KEY, GROUP_KEY) if name in arguments] + ["levels of priority"] * ranked
    if len(kinds) > 1:
        return f"a queue cannot have {' and '.join(kinds)}"
    if arguments.get(groups.SHARED) and GROUP_KEY not in arguments:
        return f"{groups.SHARED} needs {GROUP_KEY}"
    if OWNER_TIMEOUT in arguments and (fault := _fault_of_owners(arguments)):
        return fault
    if LAST_VALUE_KEY in arguments and policy_of(arguments) != REJECT:
        raise Unknown("this broker has no last value queues that are rings: use the policy reject")
    if policy_of(arguments) == RING_STRICT and ranked:
        raise Unknown("this broker has no priority queues with the limit policy ring_strict: use ring")
    try:
        fairshare.shares_of(arguments)
    except ValueError as error:
        return str(error)
    if duplicates.TIME_MS in arguments and duplicates.COUNT not in arguments:
        return f"{duplicates.TIME_MS} needs {duplicates.COUNT}"
    if all(name in arguments for name in CONSUMER_MS):
        return f"{' and '.join(CONSUMER_MS)} are two names of one argument"
    return _fault_of_flow(arguments) or alerts.fault_of(arguments)


def _fault_of_owners(arguments: Mapping[str, Any]) -> str:
    if GROUP_KEY not in arguments:
        return f"{OWNER_TIMEOUT} needs {GROUP_KEY}"
    if arguments.get(groups.SHARED):
        return f"{OWNER_TIMEOUT} is for groups that a consumer keeps, and with {groups.SHARED} it does not keep them"
    if arguments.get(SINGLE_ACTIVE):
        return f"{OWNER_TIMEOUT} and {SINGLE_ACTIVE} exclude each other: a single active consumer has all groups"
    return ""


def _fault_of_flow(arguments: Mapping[str, Any]) -> str:
    for most, stop, resume in ((MAX_COUNT, STOP_COUNT, RESUME_COUNT), (MAX_BYTES, STOP_BYTES, RESUME_BYTES)):
        if (stop in arguments or resume in arguments) and policy_of(arguments) != REJECT:
            return f"{stop} and {resume} are for the policy reject: a ring never holds its producers back"
        if resume in arguments and not arguments.get(stop):
            return f"{resume} needs {stop}"
        if arguments.get(resume, 0) > arguments.get(stop, 0):
            return f"{resume} must not be more than {stop}: {arguments[resume]} is, than {arguments[stop]}"
        if arguments.get(most) and arguments.get(stop, 0) > arguments[most]:
            return f"{stop} must not be more than {most}: {arguments[stop]} is, than {arguments[most]}"
    return ""


def policy_of(arguments: Mapping[str, Any]) -> str:
    """The queue's policy for a message that would exceed its limits: REJECT, RING or RING_STRICT."""
    return _POLICIES[arguments.get(POLICY, "none")]


def policy_names(name: str) -> tuple[str, ...]:
    """All names of the limit policy that has this name; this name alone if there is no such policy."""
    meant = _POLICIES.get(name)
    return tuple(each for each, policy in _POLICIES.items() if policy == meant) or (name,)


def consumer_ms_of(arguments: Mapping[str, Any]) -> int:
    """For how long a consumer may keep a message without an outcome, in ms; 0: the broker's setting applies."""
    return next((int(arguments[name]) for name in CONSUMER_MS if name in arguments), 0)


def flow_of(arguments: Mapping[str, Any], max_count: int, max_bytes: int, stop_ratio: float, resume_ratio: float) -> Flow:
    """When the producers wait: as asked for, else at these parts of the limits."""
    if policy_of(arguments) != REJECT:
        return Flow()
    return Flow(
        *(int(arguments.get(name, most * stop_ratio)) for name, most in ((STOP_COUNT, max_count), (STOP_BYTES, max_bytes))),
        *(
            int(arguments.get(resume, arguments.get(stop, most * resume_ratio)))
            for resume, stop, most in ((RESUME_COUNT, STOP_COUNT, max_count), (RESUME_BYTES, STOP_BYTES, max_bytes))
        ),
    )
