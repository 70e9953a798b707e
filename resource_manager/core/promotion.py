"""Decides whether a broker must be promoted now, and which one.

Life of a need: it begins when no reachable broker serves any more (or none has served since the daemon's start), and
ends when one does. Meanwhile `Promotion.step` goes through the same list each time, and stops at the first point that
says wait:

0. the cluster's settings allow managers of this kind to act (ha.core.cluster_settings), and the brokers are of one
   cluster (single brokers of other clusters do not count if a majority of one cluster's voters answers);
1. a majority of all voting brokers answers (without one no election could be won);
2. at the start: all brokers answer, or `start_grace_s` is over, so that the newest log is among those to choose from;
3. it is this daemon's turn (the arbiter decides when);
4. every reachable broker has answered since the need began; those that do not within `ask_grace_s` are ignored if a
   majority has answered;
5. no broker is being promoted already;
6. no primary is still heard by most of the reachable backups. If this daemon has not seen the primary serve and has no
   answer of it now, fewer backups are enough: so many that the primary may have a majority with them. A primary that
   this daemon cannot reach may work well for all others;
7. if every store that answers is new and empty: all brokers answer, because a first election needs every member
   (docs/adr/0017);
8. there is a candidate that is not a witness and that no tag excludes: the one with the newest log (last epoch, then
   last index, as votes require: Raft §5.4.1), then the highest priority, then the site of the failed primary, then the
   first by name. A learner that can be elected (docs/adr/0041) is one only if no voter that answers has a log as new.

A candidate that refuses is not asked again for a time that doubles with each refusal. The next one is asked after all
brokers were queried again. A wrong or repeated request does no harm: the brokers' votes decide (docs/ARCHITECTURE.md,
"The one idea").

Pure: observations and times in, effects out, to be carried out in order. At most one request to promote is in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite

from ha.core import cluster_settings
from resource_manager.core.detector import Reach, Seen, Sight

_CANDIDATES = frozenset({"joining", "catchup", "ready"})


@dataclass(frozen=True, slots=True)
class PromotionSettings:
    """The settings. All times are in seconds. `priorities`: by broker name, higher is preferred; without one, the
    broker's tag counts. `kind`: the kind of this daemon, which the cluster's authority names.
    """

    start_grace_s: float = 2.0
    ask_grace_s: float = 0.1
    recheck_s: float = 0.02
    max_recheck_s: float = 0.25
    promote_timeout_s: float = 5.0
    retry_s: float = 0.2
    max_retry_s: float = 5.0
    priorities: Mapping[str, int] = field(default_factory=dict)
    kind: str = "builtin"


@dataclass(frozen=True, slots=True)
class AskAll:
    """Query every connected broker at once."""


@dataclass(frozen=True, slots=True)
class AskToPromote:
    """Ask this broker to become the primary; report the result with `promoted` or `refused`."""

    name: str
    reason: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call `step` at this time even if nothing happens."""

    at_s: float


@dataclass(frozen=True, slots=True)
class FailureDetected:
    """The primary no longer serves: this daemon cannot reach it, and the other brokers do not hear it."""

    primary: str
    epoch: int
    cause: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """A promotion is needed, and waits for this. Reported once for each reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class PrimarySeen:
    """This broker serves. Reported when the broker or the epoch is new, or its failure was reported before."""

    primary: str
    epoch: int


@dataclass(frozen=True, slots=True)
class PromoteWon:
    """The broker that was asked is the primary now, this long after the need arose."""

    name: str
    epoch: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class PromoteRefused:
    """The broker that was asked refuses, and is not asked again for `rest_s`."""

    name: str
    reason: str
    rest_s: float


Effect = AskAll | AskToPromote | WakeAt | FailureDetected | Waiting | PrimarySeen | PromoteWon | PromoteRefused


@dataclass(slots=True)
class _Need:
    """A promotion that is needed: the reason, the time since then, and the oldest view that counts."""

    since_s: float
    reason: str
    fresh_from_s: float
    asked_s: float
    recheck_s: float
    failure: FailureDetected | None = None
    """Reported once, when the other brokers have confirmed it."""
    wants_turn: bool = False
    has_turn: bool = False


@dataclass(slots=True)
class _Refusal:
    times: int
    until_s: float


class Promotion:
    """Decides. Call `step` after every observation, and when a WakeAt is due."""

    def __init__(self, settings: PromotionSettings, started_s: float) -> None:
        self._settings = settings
        self._started_s = started_s
        self._served: tuple[str, int] | None = None
        self._told_failed = False
        self._need: _Need | None = None
        self._asked: str | None = None
        self._refusals: dict[str, _Refusal] = {}
        self._said = ""

    @property
    def wants_turn(self) -> bool:
        """Whether this daemon would act in its turn. A daemon that cannot act, because it reaches too few brokers,
        leaves the turn to others.
        """
        return self._need is not None and self._need.wants_turn

    def step(self, sight: Sight, now_s: float, acts_at: Callable[[float, float], float]) -> list[Effect]:
        """What to do now. `acts_at` is the arbiter's: (needed since, now) to the time of our turn. It is called only if
        a promotion is needed, and only if no earlier point of the list says wait.
        """
        cluster = sight.cluster
        if cluster is None:
            return self._wait(f"the brokers are of {_told(sight.clusters)}: this daemon acts for none; give it those of one")
        sight = sight.electors(cluster)
        primary = sight.primary
        if primary is not None and primary.view is not None:
            return self._served_by(primary.name, primary.view.epoch, now_s)
        effects: list[Effect] = []
        if self._need is None:
            effects += self._begin(sight, now_s)
        need = self._need
        assert need is not None
        if self._asked is not None:
            return effects + self._await_answer(sight, need, now_s)
        return effects + self._judge(sight, need, now_s, acts_at)

    def promoted(self, name: str, epoch: int, now_s: float) -> list[Effect]:
        """The broker that was asked reports that it serves now. The next answers will show it."""
        if self._asked != name or self._need is None:
            return []
        self._asked = None
        self._need.fresh_from_s = self._need.asked_s = now_s
        return [PromoteWon(name, epoch, now_s - self._need.since_s), AskAll()]

    def refused(self, name: str, reason: str, now_s: float) -> list[Effect]:
        """The broker that was asked refuses, or has not answered in time."""
        if self._asked != name or self._need is None:
            return []
        self._asked = None
        times = self._refusals[name].times + 1 if name in self._refusals else 0
        rest_s = min(self._settings.retry_s * 2.0 ** min(times, 30), self._settings.max_retry_s)
        self._refusals[name] = _Refusal(times, now_s + rest_s)
        self._need.fresh_from_s = self._need.asked_s = now_s
        return [PromoteRefused(name, reason, rest_s), AskAll()]

    # The steps of the list in the module's docstring.

    def _served_by(self, name: str, epoch: int, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        if self._need is not None and self._asked == name:  # its answer to the request comes later than its view
            effects.append(PromoteWon(name, epoch, now_s - self._need.since_s))
        self._need, self._asked, self._said = None, None, ""
        self._refusals.clear()
        if self._served == (name, epoch) and not self._told_failed:
            return effects
        self._served, self._told_failed = (name, epoch), False
        return [*effects, PrimarySeen(name, epoch)]

    def _begin(self, sight: Sight, now_s: float) -> list[Effect]:
        settings = self._settings
        if self._served is None:
            self._need = _Need(now_s, "there is no primary yet", now_s, now_s, settings.recheck_s)
            return [AskAll()]
        name, epoch = self._served
        cause = _cause(sight.seen(name))
        failure = FailureDetected(name, epoch, cause)
        self._need = _Need(now_s, f"the primary {name} failed: {cause}", now_s, now_s, settings.recheck_s, failure)
        return [AskAll()]

    def _await_answer(self, sight: Sight, need: _Need, now_s: float) -> list[Effect]:
        asked = sight.seen(self._asked or "")
        if asked is not None and asked.reach is Reach.REACHABLE:
            return []
        return self.refused(self._asked or "", asked.reason if asked else "it is not configured", now_s)

    def _judge(self, sight: Sight, need: _Need, now_s: float, acts_at: Callable[[float, float], float]) -> list[Effect]:
        settings, reachable, total = self._settings, sight.reachable, len(sight.brokers)
        need.wants_turn = False
        watches = cluster_settings.objection(settings.kind, sight.settings, (), "", 0.0)
        if watches:
            return self._wait(watches)
        if len(reachable) < sight.majority:
            return self._wait(f"{len(reachable)} of {total} brokers answer, and {sight.majority} are needed")
        grace_ends_s = self._started_s + settings.start_grace_s
        if self._served is None and len(reachable) < total and now_s < grace_ends_s:
            return [*self._wait(f"{len(reachable)} of {total} brokers answer, and the start waits for all"), WakeAt(grace_ends_s)]
        need.wants_turn = True
        turn_s = acts_at(need.since_s, now_s)
        if turn_s > now_s:
            need.has_turn = False
            return [*self._wait("it is not this daemon's turn yet"), *([WakeAt(turn_s)] if isfinite(turn_s) else [])]
        # Only the first time: an arbiter that moves its turn with each answer must not make the views too old for ever.
        if not need.has_turn:
            need.has_turn, need.fresh_from_s = True, max(need.fresh_from_s, turn_s)
        return self._look(sight, need, now_s)

    def _look(self, sight: Sight, need: _Need, now_s: float) -> list[Effect]:
        fresh = [seen for seen in sight.reachable if seen.has_answered_since(need.fresh_from_s)]
        lowered = [seen for seen in sight.lowered if seen.has_answered_since(need.fresh_from_s)]
        awaited = len(sight.reachable) - len(fresh) + sum(seen.reach is Reach.REACHABLE for seen in sight.lowered) - len(lowered)
        if len(fresh) < sight.majority or (awaited and now_s < need.fresh_from_s + self._settings.ask_grace_s):
            return self._ask_again(need, now_s)
        promoting = [seen.name for seen in (*fresh, *lowered) if seen.view is not None and seen.view.status == "recovering"]
        if promoting:
            return [*self._wait(f"{promoting[0]} is being promoted"), *self._ask_again(need, now_s)]
        for primary in sorted({seen.view.primary for seen in fresh if seen.view is not None and seen.view.primary}):
            hearing = [seen.name for seen in fresh if seen.hears(primary)]
            others = [seen for seen in fresh if seen.member != primary]
            known = len(others) < len(fresh) or (self._served is not None and sight.member(self._served[0]) == primary)
            may_serve = not known and 1 + len(hearing) >= sight.majority
            if hearing and (may_serve or 2 * len(hearing) > len(others)):
                return [*self._wait(f"{', '.join(hearing)} still hear the primary {primary}"), *self._ask_again(need, now_s)]
        missing = [seen.name for seen in sight.brokers if seen not in fresh]
        if missing and all(seen.view is not None and seen.view.blank and not seen.view.last_index for seen in fresh):
            names = ", ".join(missing)
            text = f"every store that answers is new, and {names} may hold messages: a first election needs every broker"
            return [*self._wait(f"{text}; start {names}"), *self._ask_again(need, now_s)]
        newest = max((_end(seen) for seen in fresh if seen.view is not None and not seen.view.witness), default=(0, 0))
        return self._choose(sight, [*fresh, *(seen for seen in lowered if _end(seen) > newest)], need, now_s)

    def _choose(self, sight: Sight, fresh: list[Seen], need: _Need, now_s: float) -> list[Effect]:
        candidates = [seen for seen in fresh if seen.view and seen.view.status in _CANDIDATES and not seen.view.witness]
        candidates = [seen for seen in candidates if not sight.tags(seen.name).nofailover]
        rested = [seen for seen in candidates if seen.name not in self._refusals or self._refusals[seen.name].until_s <= now_s]
        if not rested:
            awake_s = [self._refusals[seen.name].until_s for seen in candidates]
            why = "every candidate has refused" if candidates else "no broker that answers can be promoted"
            return [*self._wait(why), *([WakeAt(min(awake_s))] if awake_s else [])]
        best = min(rested, key=lambda seen: self._order(sight, seen))
        self._asked, self._said = best.name, ""
        confirmed, need.failure = need.failure, None
        self._told_failed = self._told_failed or confirmed is not None
        request = AskToPromote(best.name, need.reason, self._settings.promote_timeout_s)
        return [request] if confirmed is None else [confirmed, request]

    def _order(self, sight: Sight, seen: Seen) -> tuple[int, int, int, bool, str]:
        last_epoch, last_index = _end(seen)
        tags, served = sight.tags(seen.name), self._served
        priority = self._settings.priorities.get(seen.name, tags.priority)
        elsewhere = served is None or tags.site != sight.tags(served[0]).site
        return -last_epoch, -last_index, -priority, elsewhere, seen.name

    def _ask_again(self, need: _Need, now_s: float) -> list[Effect]:
        due_s = need.asked_s + need.recheck_s if need.asked_s >= need.fresh_from_s else now_s
        if now_s < due_s:
            return [WakeAt(due_s)]
        need.asked_s = now_s
        need.recheck_s = min(2 * need.recheck_s, self._settings.max_recheck_s)
        return [AskAll(), WakeAt(now_s + need.recheck_s)]

    def _wait(self, reason: str) -> list[Effect]:
        if reason == self._said:
            return []
        self._said = reason
        return [Waiting(reason)]


def _end(seen: Seen) -> tuple[int, int]:
    """The end of its log, by which logs are compared."""
    assert seen.view is not None
    return seen.view.last_epoch, seen.view.last_index


def _told(clusters: Mapping[str, tuple[str, ...]]) -> str:
    each = " and ".join(f"{cluster} ({', '.join(names)})" for cluster, names in clusters.items())
    return f"{len(clusters)} clusters, {each}"


def _cause(primary: Seen | None) -> str:
    if primary is None:
        return "it is not configured any more"
    if primary.reach is not Reach.REACHABLE or primary.view is None:
        return primary.reason
    return f"it says that it is {primary.view.status}"
