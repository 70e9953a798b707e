"""What a cluster agrees on in its log beside its members: who may promote, whether anybody may, what is planned, and tags.

Life of a setting: a person asks the primary for it, `checked` makes of the request a key and a value, both become one record of
the log (`broker.core.commands.Setting`), and every broker tells them to whoever asks. So it survives every daemon and every
broker. An empty value ends it.

===========  =====================================  ============================================================
key          value                                  means
===========  =====================================  ============================================================
authority    {"kind": text}                         managers of this kind act, all others watch; `hand`: none acts
pause        {"since": text, "reason": text}        no manager promotes anybody
switchover   {"at": text, "candidate": address}     the primary hands over at that time ("": to the best backup)
tags:ADDR    {"priority", "nofailover", "site"}     of one broker: see `Tags`
===========  =====================================  ============================================================

Invariant: no setting binds a person: what `qpid-ha` asks for by hand is decided by the brokers' votes alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

AUTHORITY, PAUSE, SWITCHOVER, TAGS = "authority", "pause", "switchover", "tags:"
ANY, HAND = "any", "hand"
CALM_S = 60.0
"""Managers move a serving primary at most once in this time."""
OTHERS_CALM_S = 600.0
"""After one kind of manager has promoted a broker, another kind moves no serving primary for this time."""
MAX_PRIORITY = 1_000_000
MAX_AHEAD_S = 366 * 86_400.0
_KIND = re.compile(r"[a-z][a-z0-9._-]{0,63}")
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_REASON = 200


class BadSetting(ValueError):
    """This value cannot be set. The text says why."""


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of one broker. `priority`: among equally new logs, the broker with the highest priority is promoted;
    `nofailover`: managers never promote it; `site`: its site. Among brokers of equal priority, those at the site of the
    failed primary are preferred.
    """

    priority: int = 0
    nofailover: bool = False
    site: str = ""

    @classmethod
    def of(cls, value: Any) -> Tags:
        """The tags in a setting's value. Invalid parts are ignored."""
        fields = value if isinstance(value, Mapping) else {}
        priority, site = fields.get("priority"), fields.get("site")
        return cls(
            priority if type(priority) is int else 0, fields.get("nofailover") is True, site if isinstance(site, str) else ""
        )


class Reign(Protocol):
    """What this module needs of a term in the history (`broker.core.commands.Term`)."""

    @property
    def ts(self) -> str:
        """Its begin, in ISO 8601."""

    @property
    def by(self) -> str:
        """The kind of manager that requested it; "" for none."""

    @property
    def planned(self) -> bool:
        """Whether another primary served until then."""


def checked(body: Mapping[str, Any], now_s: float) -> tuple[str, dict[str, Any]]:
    """The key and the value that a request sets. `now_s` is in seconds since 1970. BadSetting says what is wrong."""
    match body.get("setting"):
        case "authority":
            return AUTHORITY, _authority(body.get("kind"))
        case "pause":
            return PAUSE, {"since": _iso(now_s), "reason": _line(body.get("reason"))}
        case "resume":
            return PAUSE, {}
        case "switchover":
            return SWITCHOVER, _switchover(body.get("at"), body.get("candidate"), now_s)
        case "tags":
            address = body.get("address")
            if not isinstance(address, str) or not address:
                raise BadSetting("tags are those of one broker: give its address, host:port")
            return TAGS + address, _tags(body.get("tags"))
    raise BadSetting(f"there is no setting {body.get('setting')!r}; there are authority, pause, resume, switchover and tags")


def moment(text: str) -> float:
    """The seconds since 1970 of a time in ISO 8601; without a zone it is UTC. BadSetting if the text is not a time."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadSetting(f"{text!r:.60} is not a time: write it as 2026-01-31T04:00:00Z") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def objection(
    kind: str,
    settings: Mapping[str, Mapping[str, Any]],
    terms: Sequence[Reign],
    hears: str,
    now_s: float,
    *,
    insists: bool = False,
) -> str:
    """Why a manager of this kind must not promote a broker now, or "".

    `settings` by key; `terms`: the history, newest last; `hears`: the serving primary as far as the broker knows (""
    for none); `now_s` in seconds since 1970. If a clock was set in the meantime, the limits on time may be loosened
    once. `insists`: the manager requests this particular broker because an administrator told it to, and not because it
    considers the primary failed. Then the limits on time do not apply to the manager that has the authority.
    """
    if PAUSE in settings:
        return told_pause(settings[PAUSE])
    authority = str(settings.get(AUTHORITY, {}).get("kind") or kind)
    if authority != kind:
        return f"the authority of this cluster is {authority!r} (qpid-ha authority), and {kind!r} watches"
    if not hears or (insists and AUTHORITY in settings):
        return ""
    for term in reversed(terms):
        age_s = abs(now_s - _seconds_of(term.ts))
        if term.by and term.planned and age_s < CALM_S:
            return f"{hears} serves, and a manager moved the primary {age_s:.0f} s ago: once in {CALM_S:.0f} s is enough"
        if term.by not in ("", kind) and age_s < OTHERS_CALM_S:
            return (
                f"{hears} serves, and {term.by!r} made it so {age_s:.0f} s ago: two kinds of manager act for this cluster, of "
                "which one should be made its authority (qpid-ha authority)"
            )
    return ""


def told_pause(value: Mapping[str, Any]) -> str:
    """Why no manager promotes during this pause."""
    why = f" ({value['reason']})" if value.get("reason") else ""
    return f"the cluster is paused since {value.get('since', '?')}{why}: qpid-ha resume ends that"


def _authority(kind: Any) -> dict[str, Any]:
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise BadSetting(
            f"{kind!r:.80} is not a kind of manager: give builtin, etcd, kubernetes, pacemaker, a plug-in's name, hand, or any"
        )
    return {} if kind == ANY else {"kind": kind}


def _switchover(at: Any, candidate: Any, now_s: float) -> dict[str, Any]:
    if not at:
        return {}
    at_s = moment(str(at))
    if not now_s < at_s <= now_s + MAX_AHEAD_S:
        raise BadSetting(f"{at} is not within the next year; it is {_iso(now_s)} now")
    return {"at": _iso(at_s), "candidate": str(candidate or "")}


def _tags(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise BadSetting(f"{given!r:.80} are not tags")
    strangers = sorted(set(map(str, given)) - {"priority", "nofailover", "site"})
    if strangers:
        raise BadSetting(f"there is no tag {strangers[0]!r:.40}; there are priority, nofailover and site")
    priority, nofailover, site = given.get("priority", 0), given.get("nofailover", False), given.get("site", "")
    if type(priority) is not int or abs(priority) > MAX_PRIORITY:
        raise BadSetting(f"priority {priority!r:.40} is not a number from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    if type(nofailover) is not bool:
        raise BadSetting(f"nofailover {nofailover!r:.40} is neither true nor false")
    if not isinstance(site, str) or (site and not _SITE.fullmatch(site)):
        raise BadSetting(f"site {site!r:.80} is not a name of 1 to 64 letters, digits, '.', '_' and '-'")
    found = {"priority": priority, "nofailover": nofailover, "site": site}
    return {name: value for name, value in found.items() if value}


def _line(text: Any) -> str:
    found = str(text or "")
    if len(found) > _MAX_REASON or not found.isprintable():
        raise BadSetting(f"a reason is one line of at most {_MAX_REASON} characters")
    return found


def _seconds_of(ts: str) -> float:
    try:
        return moment(ts)
    except BadSetting:
        return 0.0


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
