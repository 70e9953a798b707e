"""One daemon's candidacy in a store (etcd, Kubernetes): its lease, and its turn, which is a key that belongs to the
lease.

Life: the candidate gets a lease and renews it each `interval_s`. With each renewal it reads which daemon has the turn.
The renewals also show its health: it is reachable while they are answered. When a promotion is needed (`wants`) it
campaigns: one transaction creates the key if it does not exist. Either it wins, or it learns which daemon was first and
waits until the key is deleted. A watch reports this at once, and the next reading at the latest. It resigns when no
promotion is needed any more (`rest`), and when its turn has had no success for `max_turn_s`; then it lets others go
first for a moment.

Invariants:

- only one request at a time is in progress, not counting the watch; each ends with `succeeded` or `failed`;
- it has its turn only while its lease is valid, counted from when the renewal was *sent*, minus a tenth for clocks that
  differ in speed;
- a lost answer leaves nothing behind: a repeated campaign finds its own key, and a lease that no daemon knows ends by
  itself;
- for one cause, it does not campaign, renew or publish more often than each `recheck_s`, and after failures less and
  less often;
- a state that cannot be published changes neither its health nor its turns: a login may have no right to write it.

A store that accepts no writes any more (etcd's NOSPACE alarm, an API server that refuses them) answers readings, but
cannot decide turns. It counts as unreachable until a grant, which is tried each interval, succeeds. A store may also
grant leases, or answer readings, to a login that may not write the turn. So a grant alone does not show that the store
is reachable. After a campaign that failed, only a campaign that is answered does, as long as the promotion is needed. It
is tried again even if another daemon has the turn.

A store without leases of its own (Kubernetes) can be used too: its candidate has a lease from the start, and the turn
is a record that its holder renews. The store's arbiter reports the turn as free when its record has not changed for its
duration.

Pure: times are in seconds of a monotonic clock, passed in; events in, effects out, to be carried out in order. A
`WakeAt` replaces the previous one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import assert_never

from resource_manager.core.arbiter import NEVER, Health, Published

NO_LEASE = 0


@dataclass(frozen=True, slots=True)
class CandidateSettings:
    """The settings. All times are in seconds."""

    ttl_s: float = 5.0
    max_turn_s: float = 10.0
    """The longest turn. A daemon that could not promote a broker in this time lets others try."""
    barred_s: float = 1.0
    recheck_s: float = 0.5
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0
    longest_interval_s: float = 2.0
    longest_publish_pause_s: float = 60.0

    @property
    def interval_s(self) -> float:
        """The time between two renewals. Two of them may fail without loss of the lease. With a long lease they are more
        frequent than that, because only they show that the store is reachable.
        """
        return min(self.ttl_s / 3, self.longest_interval_s)


@dataclass(frozen=True, slots=True)
class Holder:
    """The daemon with the turn, at a revision of the store; `lease` is NO_LEASE if no daemon has it."""

    lease: int
    name: str
    revision: int


# Requests and their answers. One request is in progress at a time.


@dataclass(frozen=True, slots=True)
class Grant:
    """Request a new lease."""

    ttl_s: float


@dataclass(frozen=True, slots=True)
class Granted:
    """The lease, and its duration."""

    lease: int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the lease; then read which daemon has the turn, not from a member's copy that may be stale."""

    lease: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """The remaining duration of the lease, 0 if it no longer exists, and the daemon with the turn. `written`: this was
    read by a write, so the store accepts writes.
    """

    ttl_s: float
    holder: Holder
    written: bool = False


@dataclass(frozen=True, slots=True)
class Campaign:
    """Create the key of the turn with this lease, if it does not exist."""

    lease: int


@dataclass(frozen=True, slots=True)
class Campaigned:
    """The daemon with the turn now."""

    holder: Holder


@dataclass(frozen=True, slots=True)
class Resign:
    """Delete the key of the turn, if it belongs to this lease."""

    lease: int


@dataclass(frozen=True, slots=True)
class Resigned:
    """This daemon does not have the turn, from this revision on."""

    revision: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish this, unless a higher epoch is published."""

    view: Published


@dataclass(frozen=True, slots=True)
class PublishDone:
    """This is published, or a newer state is."""


Request = Grant | Renew | Campaign | Resign | Publish
Answer = Granted | Renewed | Campaigned | Resigned | PublishDone


class Trouble(Enum):
    """Why a request failed."""

    AWAY = "no usable answer"
    LEASE_GONE = "the lease is not known"
    READ_ONLY = "the store takes no writes"


# Other effects.


@dataclass(frozen=True, slots=True)
class Watch:
    """Report every change of the turn's key after this revision with `watched`, and the watch's end with `watch_ended`."""

    revision: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call `wake` at this time."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Changed:
    """The turn or the reachability has changed."""


Effect = Request | Watch | WakeAt | Changed


class Candidate:
    """See the module. Call `start` first; then any event."""

    def __init__(self, settings: CandidateSettings) -> None:
        self._settings = settings
        self._lease = NO_LEASE
        self._lease_ends_s = -inf
        self._holder = Holder(NO_LEASE, "", 0)
        self._turn_s: float | None = None
        self._turn_ends_s = -inf
        self._gives_up = False
        self._wanted_s = -inf
        self._barred_until_s = -inf
        self._pending: Request | None = None
        self._due_s = -inf
        self._retry_s = -inf
        self._failures = 0
        self._publish_failures = 0
        self._publish_from_s = -inf
        self._read_only = False
        self._undecided = False
        self._watching = False
        self._view: Published | None = None
        self._told: Published | None = None
        self._health = Health(False, None, "it has not been asked yet")
        self._was = self._state()

    # What is known.

    @property
    def lease(self) -> int:
        """Its lease; NO_LEASE without one."""
        return self._lease

    @property
    def health(self) -> Health:
        """See Arbiter."""
        return self._health

    @property
    def holder(self) -> str:
        """The daemon that had the turn when the store last answered; "" for none."""
        return self._holder.name

    def acts_at(self, now_s: float) -> float:
        """The start of its turn; NEVER without one."""
        return NEVER if self._turn_s is None or now_s >= self._lease_ends_s else self._turn_s

    # Events.

    def start(self, now_s: float) -> list[Effect]:
        """Begin."""
        return self._go_on(now_s)

    def wake(self, now_s: float) -> list[Effect]:
        """A WakeAt is due."""
        return self._go_on(now_s)

    def wants(self, now_s: float) -> list[Effect]:
        """A promotion is needed, and this daemon could request it. Call this repeatedly while this is so."""
        self._wanted_s = now_s
        self._due_s = min(self._due_s, now_s + self._settings.recheck_s)
        return self._go_on(now_s)

    def rest(self, now_s: float) -> list[Effect]:
        """No promotion is needed any more."""
        self._wanted_s = -inf
        return self._go_on(now_s)

    def publish(self, view: Published, now_s: float) -> list[Effect]:
        """Publish this; the last call counts."""
        if view != self._view:
            self._publish_failures, self._publish_from_s = 0, -inf
        self._view = view
        return self._go_on(now_s)

    def watched(self, holder: Holder, now_s: float) -> list[Effect]:
        """The watch reports a change."""
        self._learn(holder, now_s)
        return self._go_on(now_s)

    def watch_ended(self, now_s: float) -> list[Effect]:
        """The watch has ended, for any reason. The next reading, which comes soon, begins another one."""
        self._watching = False
        self._due_s = min(self._due_s, now_s + self._settings.recheck_s)
        return self._go_on(now_s)

    def failed(self, trouble: Trouble, reason: str, now_s: float, wait_s: float = 0.0) -> list[Effect]:
        """The request in progress has failed. `wait_s`: the store asks for this pause."""
        request, self._pending = self._pending, None
        settings = self._settings
        if isinstance(request, Publish):
            self._told = None  # without an answer we do not know whether it was published
            if trouble is Trouble.AWAY:
                self._not_published(now_s, wait_s)
                return self._go_on(now_s)
        pause_s = min(settings.first_pause_s * 2.0 ** min(self._failures, 30), settings.longest_pause_s)
        self._failures += 1
        self._retry_s = now_s + max(pause_s, wait_s)
        if trouble is Trouble.LEASE_GONE:
            self._lose_lease()
            return self._go_on(now_s)
        if trouble is Trouble.READ_ONLY:
            self._read_only = True
            self._due_s = max(self._due_s, now_s + settings.recheck_s)
        self._undecided = self._undecided or isinstance(request, Campaign)
        self._health = Health(False, self._health.answered_s, reason)
        return self._go_on(now_s)

    def succeeded(self, answer: Answer, sent_s: float, now_s: float) -> list[Effect]:
        """The request in progress, which was sent at `sent_s`, was answered."""
        request, self._pending = self._pending, None
        self._failures = 0
        self._undecided = self._undecided and self._wants(now_s)
        effects: list[Effect] = []
        match answer:
            case Granted(lease, ttl_s):
                self._lease, self._read_only, self._due_s = lease, False, now_s
                self._lease_runs(sent_s, ttl_s)
            case Renewed(ttl_s, holder, written):
                self._read_only = self._read_only and not written
                self._due_s = now_s + (self._settings.recheck_s if self._waits(now_s) else self._settings.interval_s)
                if ttl_s <= 0:
                    self._lose_lease()
                elif self._lease:  # otherwise it expired while the answer was on its way
                    self._lease_runs(sent_s, ttl_s)
                self._learn(holder, now_s)
                if not self._watching:
                    self._watching = True
                    effects.append(Watch(holder.revision))
            case Campaigned(holder):
                self._read_only = self._undecided = False
                self._learn(holder, now_s)
            case Resigned(revision):
                self._gives_up = False
                self._learn(Holder(NO_LEASE, "", revision), now_s)
            case PublishDone():
                self._read_only, self._publish_failures = False, 0
                self._told = request.view if isinstance(request, Publish) else None
            case _:
                assert_never(answer)
        if not (self._read_only or self._undecided or isinstance(answer, Granted)):
            self._health = Health(True, sent_s)
        return [*effects, *self._go_on(now_s)]

    # The consequences of the events.

    def _not_published(self, now_s: float, wait_s: float) -> None:
        settings = self._settings
        pause_s = min(settings.recheck_s * 2.0 ** min(self._publish_failures, 30), settings.longest_publish_pause_s)
        self._publish_failures += 1
        self._publish_from_s = now_s + max(pause_s, wait_s)
        self._retry_s = now_s + wait_s

    def _to_publish(self) -> Published | None:
        return None if self._view == self._told or self._read_only else self._view

    def _wants(self, now_s: float) -> bool:
        return now_s < self._wanted_s + self._settings.max_turn_s

    def _waits(self, now_s: float) -> bool:
        return self._turn_s is None and self._wants(now_s)

    def _lease_runs(self, sent_s: float, ttl_s: float) -> None:
        self._lease_ends_s = sent_s + 0.9 * ttl_s

    def _lose_lease(self) -> None:
        self._lease, self._lease_ends_s, self._turn_s, self._gives_up = NO_LEASE, -inf, None, False

    def _learn(self, holder: Holder, now_s: float) -> None:
        """Record which daemon has the turn. Older information than the known one is ignored."""
        if holder.revision < self._holder.revision:
            return
        self._holder = holder
        if holder.lease == NO_LEASE or holder.lease != self._lease:
            self._turn_s = None
        elif self._turn_s is None and not self._gives_up and self._wants(now_s):
            self._turn_s, self._turn_ends_s = now_s, now_s + self._settings.max_turn_s

    def _go_on(self, now_s: float) -> list[Effect]:
        """The next request, or the next time to look; and whether anything has changed."""
        effects: list[Effect] = []
        if self._lease and now_s >= self._lease_ends_s:
            self._lose_lease()
        if self._turn_s is not None and not (self._wants(now_s) and now_s < self._turn_ends_s):
            if self._wants(now_s):
                self._barred_until_s = now_s + self._settings.barred_s
            self._turn_s, self._gives_up = None, True
        if self._pending is None:
            request = self._request(now_s) if now_s >= self._retry_s else None
            self._pending = request
            effects.append(WakeAt(self._wake_s(now_s)) if request is None else request)
        if self._state() != self._was:
            self._was = self._state()
            effects.append(Changed())
        return effects

    def _request(self, now_s: float) -> Request | None:
        if not self._lease:
            return Grant(self._settings.ttl_s)
        if self._gives_up or (self._holder.lease == self._lease and self._turn_s is None and not self._wants(now_s)):
            return Resign(self._lease)
        tries = self._undecided or self._holder.lease in (NO_LEASE, self._lease)
        if self._waits(now_s) and tries and not self._read_only and now_s >= self._barred_until_s:
            return Campaign(self._lease)
        if now_s >= self._due_s:
            return Grant(self._settings.ttl_s) if self._read_only and self._turn_s is None else Renew(self._lease)
        if (view := self._to_publish()) is not None and now_s >= self._publish_from_s:
            return Publish(view)
        return None

    def _wake_s(self, now_s: float) -> float:
        """When to look again if there is nothing to do now: after the pause, or when a renewal is due at the latest."""
        if now_s < self._retry_s:
            return self._retry_s
        turn_s = inf if self._turn_s is None else min(self._turn_ends_s, self._wanted_s + self._settings.max_turn_s)
        barred_s = self._barred_until_s if self._waits(now_s) and self._barred_until_s > now_s else inf
        publish_s = inf if self._to_publish() is None else self._publish_from_s
        return min(self._due_s, turn_s, barred_s, publish_s)

    def _state(self) -> tuple[float | None, bool]:
        return self._turn_s, self._health.reachable
