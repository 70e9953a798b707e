"""The state of each broker as the resource manager knows it, and how reliable this knowledge is.

Life of a broker here: absent until a connection to it is open; reachable while it answers; silent when it has not answered for
`detection_s` although the connection is open (a frozen process, a host that hangs); absent again as soon as the connection ends
(a killed process). Its last answer is kept with its time, because an old answer must never decide.

The settings of the cluster are the exception: they are committed, so they stay valid until newer ones are told. A broker that
was restarted tells only what is in its checkpoint, until it hears a primary. So of each broker the answer is also kept that had
applied most of its cluster's log.

A broker is known here by its name in the configuration. The cluster knows it by the name that it gives itself (`Seen.member`),
which its role, its tags and the other brokers' primary are told by. If the two differ, the members that it tells are not used.

`Detector` takes observations with their times and returns a `Sight`: all brokers at one moment, frozen, for `promotion` to
judge.

Pure: times are float seconds of a monotonic clock, passed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ha.core.cluster_settings import TAGS, Tags

SERVING = "active"
FOLLOWING = frozenset({"catchup", "ready"})
_STATUSES = frozenset({"joining", "catchup", "ready", "recovering", "active", "removed"})


class BadView(ValueError):
    """The broker's answer to QUERY ha is invalid. The text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Members:
    """A committed membership by address, and its index in the log."""

    index: int
    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Members | None:
        """The membership in an answer; None if it has no committed one."""
        match item.get("membership"):
            case {"index": int(index), "committed": True, "voters": [_, *_] as voters, "learners": [*learners]}:
                return cls(index, tuple(map(str, voters)), tuple(map(str, learners)))
        return None


@dataclass(frozen=True, slots=True)
class View:
    """One broker's description of itself (QUERY ha, docs/reference/management.md): the fields that a promotion needs."""

    status: str
    epoch: int
    last_epoch: int
    last_index: int
    primary: str
    """The member name of the primary that it follows; "" if it knows none."""
    learner: bool = False
    blank: bool = False
    """Whether its store has never caught up with a primary."""
    cluster_id: str = ""
    """The cluster's id; "" while the broker belongs to no cluster."""
    members: Members | None = None
    """The members of its cluster; None if it does not report them, or if it reports another own address than the one
    that is asked.
    """
    applied_index: int = 0
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The settings of the cluster, as far as this broker has applied the log."""
    witness: bool = False
    """Whether it only votes, and stores no messages."""
    electable: bool = False
    """Whether it is a learner that can be elected all the same: it does not know whether its vote is taken for good."""
    address: str = ""
    """The name that it gives itself; "" if it gives none."""

    @classmethod
    def of(cls, item: Mapping[str, Any], member: str) -> View:
        """Read the item of an answer of the broker that is configured as `member`. BadView if a field is missing or has a
        wrong type, or the broker is in no cluster.
        """
        status = item.get("status")
        if status == "standalone":
            raise BadView("it is in no cluster (standalone): start it with --ha-cluster yes")
        if status not in _STATUSES:
            raise BadView(f"status {status!r} is none of {', '.join(sorted(_STATUSES))}")
        numbers = [item.get(field) for field in ("epoch", "lastEpoch", "lastIndex")]
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise BadView(f"epoch, lastEpoch, lastIndex are {numbers}, not numbers")
        epoch, last_epoch, last_index = (int(number or 0) for number in numbers)
        roles = {entry.get("address"): entry.get("role") for entry in item.get("members") or () if isinstance(entry, Mapping)}
        address = str(item.get("address") or "")
        return cls(
            status,
            epoch,
            last_epoch,
            last_index,
            str(item.get("primary") or ""),
            learner := roles.get(address or member) == "learner",
            item.get("blank") is True,
            str(item.get("clusterId") or ""),
            Members.of(item) if address == member else None,
            applied if isinstance(applied := item.get("appliedIndex"), int) else 0,
            _settings_of(item),
            item.get("witness") is True,
            learner and item.get("electable") is True,
            address,
        )


def _settings_of(item: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    told = item.get("settings")
    return {str(key): value for key, value in told.items() if isinstance(value, Mapping)} if isinstance(told, Mapping) else {}


class Reach(Enum):
    """How a broker can be reached."""

    ABSENT = "no connection"
    SILENT = "no answer"
    REACHABLE = "answers"


@dataclass(frozen=True, slots=True)
class Seen:
    """One broker at one moment. `answered_s` is the time of the answer `view`; both are None if it has never answered."""

    name: str
    reach: Reach
    reason: str
    """Why it is not reachable; "" if it is."""
    view: View | None
    answered_s: float | None
    fullest: View | None = None
    """Of its answers about the same cluster, the one that had applied most, of whatever age."""

    @property
    def member(self) -> str:
        """Its name among the members, as it has told; until then the configured one."""
        told = self.view or self.fullest
        return (told.address if told else "") or self.name

    @property
    def serves(self) -> bool:
        """Whether it is reachable and reports that it is the primary."""
        return self.reach is Reach.REACHABLE and self.view is not None and self.view.status == SERVING

    def has_answered_since(self, moment_s: float) -> bool:
        """Whether its view is at least as new as that time."""
        return self.reach is Reach.REACHABLE and self.answered_s is not None and self.answered_s >= moment_s

    def hears(self, primary: str) -> bool:
        """Whether it is a backup that is connected to that primary."""
        view = self.view
        return self.reach is Reach.REACHABLE and view is not None and view.status in FOLLOWING and view.primary == primary


@dataclass(frozen=True, slots=True)
class Sight:
    """All brokers at one moment, in the order of the configuration. `lowered`: the learners among them that can be elected, if
    `brokers` are only those whose votes count.
    """

    brokers: tuple[Seen, ...]
    lowered: tuple[Seen, ...] = ()

    @property
    def majority(self) -> int:
        """The number of brokers that is more than half."""
        return len(self.brokers) // 2 + 1

    @property
    def reachable(self) -> tuple[Seen, ...]:
        """The brokers that answer."""
        return tuple(seen for seen in self.brokers if seen.reach is Reach.REACHABLE)

    @property
    def primary(self) -> Seen | None:
        """The broker that serves. If several do, the one with the highest epoch, because the others will soon learn of
        it.
        """
        serving = [seen for seen in (*self.brokers, *self.lowered) if seen.serves]
        return max(serving, key=lambda seen: seen.view.epoch if seen.view else 0, default=None)

    def is_served(self, cluster: str) -> bool:
        """Whether a broker of this cluster serves."""
        return any(seen.serves and seen.view is not None and seen.view.cluster_id == cluster for seen in self.brokers)

    @property
    def clusters(self) -> dict[str, tuple[str, ...]]:
        """The clusters of the reachable brokers, by id, with these brokers."""
        ids = dict.fromkeys(seen.view.cluster_id for seen in self.reachable if seen.view is not None and seen.view.cluster_id)
        return {one: tuple(seen.name for seen in self.reachable if seen.view and seen.view.cluster_id == one) for one in ids}

    @property
    def cluster(self) -> str | None:
        """The one cluster to act for: the only one ("" while there is none), or the only one of which a majority of the
        voters answers, while single brokers of other clusters are ignored. None if there are several.
        """
        found = self.clusters
        if len(found) < 2:
            return next(iter(found), "")
        living = [one for one, names in found.items() if self._lives(one, names)]
        return living[0] if len(living) == 1 else None

    def _lives(self, cluster: str, names: tuple[str, ...]) -> bool:
        members = self.newest_members(cluster)
        return members is None or 2 * sum(self.member(name) in members.voters for name in names) > len(members.voters)

    def newest_members(self, cluster: str) -> Members | None:
        """The newest membership that a reachable broker of this cluster reports."""
        views = [seen.view for seen in self.reachable if seen.view is not None and seen.view.cluster_id == cluster]
        told = [view.members for view in views if view.members is not None]
        return max(told, key=lambda members: members.index, default=None)

    @property
    def settings(self) -> Mapping[str, Mapping[str, Any]]:
        """The settings of the cluster to act for, from the answer that had applied most, even if its broker is unreachable
        now or was restarted since, because committed settings stay valid.
        """
        told = [view for seen in self.brokers for view in (seen.view, seen.fullest) if view is not None]
        cluster = self.cluster or ""
        views = [view for view in told if _is_of(view, cluster)]
        newest = max(views, key=lambda view: view.applied_index, default=None)
        return {} if newest is None else newest.settings

    def tags(self, name: str) -> Tags:
        """The tags of this broker."""
        return Tags.of(self.settings.get(TAGS + self.member(name)))

    def member(self, name: str) -> str:
        """The name among the members of the broker with this name in the configuration, as far as it is known."""
        seen = self.seen(name)
        return name if seen is None else seen.member

    def electors(self, cluster: str) -> Sight:
        """The brokers whose votes count in an election of this cluster, as far as is known: no learners, and no members
        of other clusters. While no reachable broker reports its cluster (""), those of any cluster: then this daemon is
        disconnected, and they still exist. Whether an unreachable broker is a learner is what the reachable ones say.
        Learners that can be elected are `lowered`: no candidate counts their votes.
        """
        members = self.newest_members(cluster)
        learners = () if members is None else members.learners
        known = (seen for seen in self.brokers if seen.reach is Reach.REACHABLE or seen.member not in learners)
        lowered = (seen for seen in self.brokers if seen.view is not None and seen.view.electable and _is_of(seen.view, cluster))
        return Sight(tuple(seen for seen in known if seen.view is None or _elects(seen.view, cluster)), tuple(lowered))

    def seen(self, name: str) -> Seen | None:
        """The broker of that name, if it is watched."""
        return next((seen for seen in (*self.brokers, *self.lowered) if seen.name == name), None)


def _elects(view: View, cluster: str) -> bool:
    return not view.learner and view.status != "removed" and _is_of(view, cluster)


def _is_of(view: View, cluster: str) -> bool:
    return not cluster or view.cluster_id in ("", cluster)


@dataclass(slots=True)
class _Record:
    connected_s: float | None = None
    answered_s: float | None = None
    view: View | None = None
    reason: str = "not connected yet"
    fullest: View | None = None


class Detector:
    """Takes observations of the brokers, and returns the Sight at a moment."""

    def __init__(self, names: Iterable[str], detection_s: float) -> None:
        self._records = {name: _Record() for name in names}
        self._detection_s = detection_s

    def watch(self, names: Iterable[str]) -> None:
        """Watch these brokers from now on. Knowledge of brokers that stay is kept."""
        self._records = {name: self._records.get(name) or _Record() for name in names}

    def connected(self, name: str, now_s: float) -> None:
        """A connection to the broker is open. It has not answered yet."""
        self._records[name] = _Record(connected_s=now_s, reason="", fullest=self._records[name].fullest)

    def lost(self, name: str, reason: str) -> None:
        """The connection has ended, or could not be made."""
        record = self._records[name]
        record.connected_s, record.reason = None, reason

    def answered(self, name: str, view: View, now_s: float) -> None:
        """The broker has answered. If the connection has ended before the answer arrives, the broker stays absent."""
        record = self._records[name]
        record.view, record.answered_s = view, now_s
        before = record.fullest
        if before is None or view.cluster_id != before.cluster_id or view.applied_index >= before.applied_index:
            record.fullest = view

    def sight(self, now_s: float) -> Sight:
        """All brokers now."""
        return Sight(tuple(self._seen(name, record, now_s) for name, record in self._records.items()))

    def next_silence_s(self, now_s: float) -> float | None:
        """When the next broker becomes silent if it does not answer; None if no connection is open or all are silent."""
        ends = [self._silent_at(record) for record in self._records.values() if record.connected_s is not None]
        return min((end for end in ends if end > now_s), default=None)

    def _silent_at(self, record: _Record) -> float:
        heard_s = max(record.connected_s or 0.0, record.answered_s or 0.0)
        return heard_s + self._detection_s

    def _seen(self, name: str, record: _Record, now_s: float) -> Seen:
        if record.connected_s is None:
            return Seen(name, Reach.ABSENT, record.reason, record.view, record.answered_s, record.fullest)
        if now_s >= self._silent_at(record):
            return Seen(
                name, Reach.SILENT, f"no answer for {self._detection_s:g} s", record.view, record.answered_s, record.fullest
            )
        reach = Reach.REACHABLE if record.view is not None else Reach.ABSENT
        return Seen(name, reach, "" if record.view else "no answer yet", record.view, record.answered_s, record.fullest)
