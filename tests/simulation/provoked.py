"""Plans that repeatedly create the situation in which certain planted bugs (`mutations.py`) show themselves.

Seeds find those bugs too, but only one in dozens of seeds, and which one changes with every change of the plans or of
production code. So each plan here is a small cluster with few other events, and catches its bug with most of its own
seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from broker.core.commands import MACHINE_VERSION as NEW
from tests.simulation import departures, takeovers
from tests.simulation.bugs_of_departures import OF_DEPARTURES, RACES
from tests.simulation.bugs_of_takeovers import OF_TAKEOVERS
from tests.simulation.clients import ClientPlan
from tests.simulation.history import Violation
from tests.simulation.layouts import (
    KEPT,
    SELECTS,
    settling,
    with_brief,
    with_duplicates,
    with_groups,
    with_hoard,
    with_hub,
    with_kept,
    with_letters,
    with_levels,
    with_moves,
    with_numbers,
    with_operator,
    with_overdue,
    with_ring,
    with_route,
    with_selectors,
    with_shares,
    with_subscriptions,
    with_ticker,
    with_times,
    with_transactions,
    with_values,
)
from tests.simulation.plan import Action, Plan
from tests.simulation.regressions import quiet
from tests.simulation.world import outcome_of

_LOG_KEPT = 1 << 20
_SLOW_LINKS_S = (0.002, 0.03)
_SLOW_SYNC_S = 0.02
_RECOVERS_S = 15.0
"""Longer than any of these plans needs to be well again, and short for bugs that keep it from that for good."""
_PRODUCERS = [ClientPlan("producer", name, "q0", count=300, burst=8, gap_s=0.02, window=50) for name in ("p", "q")]
_CONSUMER = ClientPlan("consumer", "c", "q0", window=20)
BUSY = [*_PRODUCERS, _CONSUMER]
LARGE = [ClientPlan("producer", "p", "q0", count=600, burst=8, gap_s=0.01, window=50, size=(1500, 6000)), _CONSUMER]
MODIFYING = [
    ClientPlan("producer", "p", "q0", count=200, burst=4, gap_s=0.03, window=50),
    ClientPlan("consumer", "c", "q0", window=20, modify=0.3, settle_delay_s=0.5),
]


def _plan(clients: list[ClientPlan], *actions: Action, **fields: Any) -> Plan:
    return replace(quiet(*actions, **{"recovers_s": _RECOVERS_S} | fields), items=dict(enumerate([*clients, *actions])))


def _repeated(times: tuple[float, ...], actions: Callable[[float], list[Action]]) -> list[Action]:
    return [action for at_s in times for action in actions(at_s)]


def _keeping(*actions: Action, **fields: Any) -> Plan:
    """One more queue, of which each broker keeps what it took; its clients soon notice when a host is silent."""
    busy = {"window": 20, "count": 3000, "gap_s": 0.02, "idle_s": 0.4}
    return with_kept(_plan(BUSY, *actions, **fields), KEPT, "configuration", busy)


def _routed(kind: str, subject: str, *actions: Action, **fields: Any) -> Plan:
    """A producer sends through an exchange."""
    return with_hub(_keeping(*actions, **fields), kind, "all", subject, kept=True)


def _two_are_asked(at_s: float) -> list[Action]:
    """The primary dies, and at once several pairs of others are asked to take its place."""
    pairs = ((1, 2), (0, 1), (2, 3))
    return [Action(at_s, "kill", "primary", seconds=0.4), *(Action(at_s + 0.02, "promote-two", a, b) for a, b in pairs)]


def _a_tail_diverges(at_s: float) -> list[Action]:
    """The primary is cut off from the other brokers, not from its clients, for longer than it takes to elect another."""
    return [Action(at_s, "isolate", "primary", seconds=1.2, choice=0.2), Action(at_s + 0.75, "promote", "backup")]


def _an_old_primary_comes_back(at_s: float) -> list[Action]:
    """The same, and the old one is heard again as soon as another is elected."""
    asked = [Action(at_s + wait_s, "promote", "backup") for wait_s in (0.62, 0.65)]
    return [Action(at_s, "isolate", "primary", seconds=0.8, choice=0.2), *asked]


def _the_first_is_cut_off_and_leads_again(at_s: float) -> list[Action]:
    """Its term ends with messages out, which no primary has that hands over in order: it lets its consumers end first."""
    asked = [Action(at_s + 0.6, "promote", "backup"), Action(at_s + 1.1, "promote", 0)]
    return [Action(at_s, "isolate", "primary", seconds=0.8, choice=0.2), *asked]


def _a_term_follows_its_own(at_s: float) -> list[Action]:
    """The first is cut off until its term ends, and leads again before another: what it had not proposed comes to it again."""
    asked = [Action(at_s + wait_s, "promote", 0) for wait_s in (0.68, 0.72, 0.78)]
    return [Action(at_s, "isolate", 0, seconds=0.66, choice=0.2), *asked]


_RIVALS = _plan(BUSY, *_repeated((1.0, 1.8, 2.6, 3.4), _two_are_asked), brokers=5, disk_s=_SLOW_SYNC_S)
_AT_EASE = [*(replace(each, count=160, burst=2, gap_s=0.05) for each in _PRODUCERS), _CONSUMER]
"""Producers that have something to send all the time, and so little that their windows are not full."""
_TAILS = _plan(_AT_EASE, *_repeated((1.0, 2.6, 4.2), _a_tail_diverges), checkpoint_bytes=_LOG_KEPT)
# For so long that the journal, at rest, has marked as synced what is truncated afterwards.
_MARKED_TAILS = _plan(
    BUSY, *(Action(at_s, "isolate", "primary", seconds=2.2, choice=0.2) for at_s in (1.0, 4.5)), checkpoint_bytes=_LOG_KEPT
)
_SLOW_DISKS = [Action(0.9, "slow-disk", number, seconds=3.0, choice=0.5) for number in range(3)]

_ASKED_IN_VAIN = [Action(2.7 + number / 4, "promote", number % 3) for number in range(9)]
LOST_STORES = _plan(BUSY, Action(1.5, "lose-stores", seconds=3.0), *_ASKED_IN_VAIN, duration_s=6.0)
"""All stores but one are lost while that one is down, and operators ask the empty brokers."""


def _damage_and_an_election(at_s: float) -> list[Action]:
    """A bit of a backup's log flips while the other backup is out of the primary's reach; then the primary dies, too."""
    asked = [Action(at_s + 0.2 + 0.04 * number, "promote", number) for number in (0, 1, 2)]
    damage = [Action(at_s, "rot", "backup", seconds=0.1, choice=0.9), Action(at_s + 0.08, "kill", "primary", seconds=0.8)]
    return [Action(at_s - 0.1, "partial", "primary", "backup", seconds=0.3), *damage, *asked]


def _back_and_forth(at_s: float) -> list[Action]:
    """From the primary to a backup and back at once."""
    return [Action(at_s, "switchover", choice=0.5)]


_DAMAGED = _plan(
    BUSY,
    *(Action(1.1 + 0.6 * number, "rot", "backup", seconds=0.05, choice=0.9) for number in range(7)),
    checkpoint_bytes=_LOG_KEPT,
)
_DAMAGED_VOTERS = _plan(BUSY, *_repeated((1.4, 3.4, 5.4), _damage_and_an_election), checkpoint_bytes=_LOG_KEPT)
# A blank store comes back when the primary is gone, and is asked for its vote.
_REPLACED = _plan(
    BUSY,
    Action(1.4, "wipe", "backup", seconds=0.1),
    Action(2.48, "kill", "primary", seconds=1.0),
    *(Action(2.55 + 0.1 * number, "promote", number % 3) for number in range(6)),
    message_links=True,
)
_LATE = _plan(
    BUSY,
    *_repeated((1.0, 1.6, 2.2, 2.8, 3.4), _back_and_forth),
    message_links=True,
    stray=0.5,
    latency_s=(0.0001, 0.0005),
)
_LATE_RIVALS = replace(_RIVALS, message_links=True, stray=1.0, drop=0.5)


_IN_PARTS = ClientPlan("producer", "p", "q0", count=60, burst=4, gap_s=0.03, window=20, size=(600, 12_000), max_frame=512)
_PARTS = [replace(_IN_PARTS, pause_s=0.2), _CONSUMER]
"""Messages of some parts each, with a pause in the middle of each, so that many are cut short."""
_KEPT_PARTS = [_IN_PARTS, replace(_CONSUMER, start_s=4.5)]
"""The same, and they stay on the queue for long."""


def _ranked(*actions: Action, **fields: Any) -> Plan:
    """A queue with ten levels of priority, and a consumer that falls behind and keeps what it gets for a while."""
    return with_levels(_plan([*_PRODUCERS, replace(_CONSUMER, settle_delay_s=0.5)], *actions, **fields), (10,))


_CUTS = [Action(0.8 + 0.15 * number, "client-drop", choice=0.7 + 0.03 * (number % 10)) for number in range(16)]


def _moving(*actions: Action, **fields: Any) -> Plan:
    """Another store's queue is moved here, beside the load; the mover's connection is cut again and again."""
    return with_moves(_plan(BUSY, *_CUTS, *actions, duration_s=4.0, **fields), count=300, window=50)


def _numbering(*actions: Action, **fields: Any) -> Plan:
    """Somebody numbers what it sends, beside the load; its connection is cut again and again."""
    return with_numbers(_plan(BUSY, *_CUTS, *actions, duration_s=4.0, **fields), count=300, window=50)


def _fetching(*actions: Action, **fields: Any) -> Plan:
    """A route within the cluster, beside the load."""
    return with_route(_plan(BUSY, *actions, duration_s=4.0, **fields), count=500, gap_s=0.02, window=50)


_SUBSCRIBED = with_subscriptions(
    _plan(BUSY, *(Action(1.2 + 0.6 * number, "kill", "primary", seconds=0.2) for number in range(4)), duration_s=4.0), (0, 1)
)
_RANKED = _ranked(*(Action(at_s, "kill", "backup", seconds=0.1) for at_s in (1.2, 1.8)), checkpoint_bytes=2048)
_RANKED_AND_RESTARTED = with_levels(
    _plan(
        BUSY,
        *(Action(0.8 + 0.25 * number, "kill", "backup", seconds=0.1) for number in range(8)),
        checkpoint_bytes=1024,
        duration_s=3.0,
    ),
    (10,),
)
"""Levels are often empty when a checkpoint is written, so that only it says what comes next on them."""
_SOME_DIE = [Action(1.2 + 0.5 * number, "kill", "primary", seconds=0.2) for number in range(5)]
_MOVED = _moving(*_SOME_DIE, checkpoint_bytes=2048)
_NUMBERED = _numbering(*_SOME_DIE, checkpoint_bytes=2048)
_FETCHED = _fetching(*_SOME_DIE, checkpoint_bytes=2048)
_FETCHED_SLOWLY = _fetching(
    *(Action(1.4 + 0.9 * number, "kill", "primary", seconds=0.1) for number in range(3)), latency_s=_SLOW_LINKS_S
)
_MOVES = with_moves(
    _plan(BUSY, *_repeated((0.9, 1.9, 2.9), _a_term_follows_its_own), disk_s=_SLOW_SYNC_S, duration_s=4.0),
    count=300,
    window=50,
    gap_s=0.06,
    burst=5,
)
_SWITCHES = with_brief(
    _plan(BUSY, *_repeated((1.5, 2.6, 3.7), _back_and_forth), duration_s=5.0), "all", away_s=0.6, made_at_s=(0.5, 3.0)
)
_RING = with_ring(_plan(BUSY, disk_s=_SLOW_SYNC_S, duration_s=2.5), 5)
_HOARD = with_hoard(_plan(LARGE, checkpoint_bytes=4096, duration_s=4.0))
FORCED = _plan(
    BUSY, Action(0.06, "kill", 2, seconds=2.0), Action(0.5, "bootstrap", 0), Action(1.5, "promote", "backup"), duration_s=4.0
)
"""A member is away when the cluster begins, and an operator begins it without that one, by force."""


def _the_best_are_not_asked(at_s: float) -> list[Action]:
    """The primary dies when a backup has just come back that lacks the last second; an operator insists on that one, and no
    daemon asks for another. Then, with all of them there, on the one that lags most."""
    away = [Action(at_s, "kill", 2, seconds=0.8), Action(at_s + 0.7, "manager-freeze", seconds=3.0)]
    died = [Action(at_s + 0.79, "kill", "primary", seconds=2.5), Action(at_s + 0.9, "promote-laggiest")]
    return [*away, *died, Action(at_s + 4.0, "promote-laggiest"), Action(at_s + 6.2, "promote-laggiest")]


INSISTED = _plan(BUSY, *_the_best_are_not_asked(1.0), duration_s=10.0)
"""Whoever is insisted on becomes the primary."""
PAUSED = _plan(
    BUSY,
    Action(0.8, "pause", seconds=2.0),
    Action(1.4, "kill", "primary", seconds=0.3),
    Action(3.4, "promote-laggiest"),
    Action(5.6, "resume"),
    duration_s=6.5,
)
"""The primary dies in a pause, and nobody takes its place before a person asks for it."""
PAUSED_OVER_ALL = _plan(
    BUSY,
    Action(0.8, "pause", seconds=6.0),
    Action(1.8, "blackout", choice=0.2, seconds=0.4),
    Action(1.8, "manager-kill", seconds=0.2),
    Action(7.6, "promote-laggiest"),
    Action(9.6, "resume"),
    duration_s=10.5,
    checkpoint_bytes=1 << 25,
    segment_bytes=1 << 22,
)
"""All brokers and the daemon die at once in a pause, and come back: still nobody is promoted before a person asks for it. The
log is too short for a checkpoint by its growth."""
TWO_KINDS = _plan(BUSY, *(Action(1.0 + 0.8 * number, "promote-as", "backup", seconds=0.7) for number in range(3)), duration_s=4.0)
"""The daemons have made a primary, and a second kind of manager asks for another one."""
SCHEDULED = _plan(BUSY, Action(0.8, "tag", 1), Action(1.0, "schedule", seconds=2.0), duration_s=6.0)
"""A switchover is planned, and comes at its time."""
_TAGGED = _plan(
    BUSY,
    *(Action(0.8 + 0.2 * number, "tag", number) for number in range(3)),
    *(Action(1.6 + 0.3 * number, "kill", "backup", seconds=0.1) for number in range(4)),
    checkpoint_bytes=2048,
)
_COUNTED = _plan([_PRODUCERS[0], ClientPlan("consumer", "c", "q0", window=20, modify=0.6)], repeats=True, duration_s=3.0)
_BEHIND = _plan(BUSY, *(Action(at_s, "kill", "backup", seconds=1.2) for at_s in (1.0, 2.6)), checkpoint_bytes=2048)
_KILLS = [Action(1.2 + 0.4 * number, "kill", "primary", seconds=0.1) for number in range(6)]
_MODIFIED = _plan(
    MODIFYING, *(Action(1.0 + 0.3 * number, "kill", "backup", seconds=0.1) for number in range(8)), checkpoint_bytes=2048
)
_CUT_SHORT = _plan(_PARTS, *_KILLS, part_bytes=512)
_GROUPED = with_groups(_plan(BUSY, duration_s=3.0), 3, shared=True)
_OWNED = with_groups(
    _plan(
        BUSY,
        *(Action(1.2 + 0.6 * number, "kill", "primary", seconds=0.1) for number in range(4)),
        checkpoint_bytes=2048,
        duration_s=4.0,
    ),
    10,
    owned=True,
)
_SHARED = with_shares(_plan(BUSY, duration_s=2.5), 2)
_VALUES = with_values(_plan(BUSY, *_KILLS, message_memory=0, disk_s=_SLOW_SYNC_S, duration_s=4.0), 4)
_REJECTING = with_letters(_plan(BUSY), "all", reject=0.3)
_TIMED = with_times(
    _plan([*_PRODUCERS, replace(_CONSUMER, settle_delay_s=0.3)], *_KILLS, checkpoint_bytes=2048), (0, 40, 400), (0, 30, 600)
)
_FAILING = with_letters(_plan(BUSY, *_KILLS, disk_s=0.004), "all", reject=0.05, limit=1, fail=0.5)
_STORMS = _plan(
    BUSY,
    Action(1.0, "storm", seconds=0.75, choice=1.0),
    Action(5.0, "storm", seconds=0.65, choice=1.0),
    checkpoint_bytes=_LOG_KEPT,
    latency_s=_SLOW_LINKS_S,
)

_SELECTED = with_selectors(
    _plan(BUSY, duration_s=4.0), SELECTS[0], levels=0, window=5, release=0.1, modify=0.1, settle_delay_s=0.3
)
_PRIMARIES_DIE = _plan(BUSY, *(Action(1.0 + 0.7 * number, "kill", "primary", seconds=0.2) for number in range(4)))
TRANSACTIONS = with_transactions(_PRIMARIES_DIE)
"""Primaries die in the midst of transactions."""
_LEAVING = with_transactions(_plan(BUSY, duration_s=4.0), stay_s=0.4, away_s=0.2, settle_delay_s=0.3)

_DROPS = [Action(0.8 + 0.15 * number, "client-drop", choice=0.7 + 0.03 * (number % 10)) for number in range(16)]
DUPLICATES = with_duplicates(
    _plan(BUSY, *(Action(1.0 + 0.9 * number, "kill", "primary", seconds=0.1) for number in range(3)), *_DROPS),
    count=400,
    gap_s=0.015,
)
"""Connections break and primaries die, and a client sends again what it does not know the outcome of."""
_RESTARTED = with_duplicates(
    _plan(BUSY, *(Action(0.9 + 0.8 * number, "blackout", seconds=0.1) for number in range(6)), checkpoint_bytes=300),
    count=400,
    gap_s=0.015,
)
_SLOWLY = with_duplicates(_plan(BUSY, *_DROPS, *_SLOW_DISKS), count=400, gap_s=0.015)


def _alone_and_then_the_other(at_s: float) -> list[Action]:
    """One broker accepts alone, beside the witness, and dies; the other one comes back before it does, and is asked to lead."""
    return [
        Action(at_s, "kill", 1, seconds=0.9),
        Action(at_s + 0.05, "promote", 0),
        Action(at_s + 0.7, "kill", 0, seconds=1.2),
        Action(at_s + 0.75, "kill", 2, seconds=0.05),
        *(Action(at_s + wait_s, "promote", 1) for wait_s in (1.1, 1.4, 1.7)),
    ]


_WITNESSED = _plan(BUSY, *_repeated((1.0, 3.4), _alone_and_then_the_other), witness=True, disk_s=_SLOW_SYNC_S)

_DYING = _plan(
    BUSY,
    Action(0.6, "move"),
    *(Action(1.0 + 0.4 * number, "kill", "primary", seconds=0.2) for number in range(6)),
    disk_s=_SLOW_SYNC_S,
    duration_s=4.0,
)
_OPERATED = with_operator(_DYING)
_DELETED = with_operator(_DYING, deletes=True)
_OUT_OF_A_RING = with_operator(
    _plan(BUSY, Action(0.6, "move"), disk_s=_SLOW_SYNC_S, duration_s=2.0, part_bytes=128),
    arguments={"qpid.policy_type": "ring", "qpid.max_count": 3},
    sure=False,
    size=(400, 3000),
)
"""Of many messages in parts, the oldest leave for newer ones while an operator moves them."""
_ALTERED = _plan(
    BUSY,
    *(Action(0.8 + 0.3 * number, "alter") for number in range(6)),
    *(Action(1.5 + 0.6 * number, "kill", "backup", seconds=0.2) for number in range(3)),
    checkpoint_bytes=2048,
    duration_s=4.0,
)
_DECREED = _plan(
    BUSY,
    *(Action(0.9 + 0.4 * number, "policy") for number in range(3)),
    *(Action(1.6 + 0.5 * number, "kill", "primary" if number % 2 else "backup", seconds=0.2) for number in range(5)),
    *(Action(2.6 + 0.3 * number, "new-queue", choice=0.1) for number in range(5)),
    checkpoint_bytes=2048,
    duration_s=4.5,
)

_TICKING = with_ticker(_plan(BUSY, *_KILLS, checkpoint_bytes=2048, duration_s=4.0, disk_s=0.004), count=400, gap_s=0.02)
_BINDING = with_ticker(
    _plan(
        BUSY,
        *(Action(1.2 + 0.45 * number, "kill", "primary", seconds=0.1) for number in range(10)),
        disk_s=0.03,
        duration_s=6.0,
    )
)

PROVOKED: dict[str, Plan] = {
    "raises-who-is-to-follow": _plan(BUSY, Action(1.0, "role", 2), Action(2.0, "role", 2), Action(3.0, "role", 3), spares=1),
    "witness-votes-for-whoever-asks": _WITNESSED,
    "attests-before-it-is-saved": _WITNESSED,
    "forgets-what-it-attests": _WITNESSED,
    "asks-for-what-no-disk-has": _WITNESSED,
    "keeps-what-was-altered": _ALTERED,
    "checkpoint-forgets-alterations": _ALTERED,
    "makes-without-policies": _DECREED,
    "checkpoint-forgets-policies": _DECREED,
    "forgets-that-a-policy-has-changed": _DECREED,
    "numbers-begin-anew": _TICKING,
    "checkpoint-forgets-numbers": _TICKING,
    "numbers-without-saying": _TICKING,
    "owes-for-ever": _BINDING,
    "moves-in-two-batches": _OPERATED,
    "moves-before-it-puts": _OPERATED,
    "moves-what-leaves": _OUT_OF_A_RING,
    "deletes-without-rerouting": _DELETED,
    "deletes-before-it-reroutes": _DELETED,
    "backups-know-no-duplicates": DUPLICATES,
    "checkpoint-forgets-duplicates": _RESTARTED,
    "knows-no-duplicates-under-way": _SLOWLY,
    "tears-a-transaction": TRANSACTIONS,
    "carries-out-what-failed": TRANSACTIONS,
    "forgets-what-was-consumed": TRANSACTIONS,
    "keeps-transactions-of-the-gone": _LEAVING,
    "hands-over-without-quiet": _plan(BUSY, *_repeated((1.0, 1.6, 2.2, 2.8), _back_and_forth), once=True),
    "begins-anew": LOST_STORES,
    "gives-up-on-newer-logs": INSISTED,
    "leaves-it-at-the-better-one": INSISTED,
    "forgets-that-it-is-paused": PAUSED,
    "lets-two-kinds-move-it": TWO_KINDS,
    "checkpoint-forgets-settings": _TAGGED,
    "votes-twice": _RIVALS,
    "wins-with-refusals": _RIVALS,
    "counts-learners": _plan(BUSY, *(replace(each, choice=1.0) for each in _SLOW_DISKS[1:]), Action(1.05, "add"), spares=1),
    "two-member-changes": _plan(BUSY, *_SLOW_DISKS, Action(1.0, "change-two"), Action(1.5, "change-two"), spares=2),
    "follows-old-primaries": _plan(BUSY, *_repeated((1.0, 2.4, 3.8), _an_old_primary_comes_back)),
    "keeps-a-diverged-tail": _TAILS,
    "commits-unverified": _TAILS,
    "accepts-when-deposed": _TAILS,
    "matches-without-epoch": _STORMS,
    "torn-tail-taken-as-whole": _plan(
        LARGE,
        *(Action(1.0 + number / 5, "power", 1 + number % 2, seconds=0.05) for number in range(20)),
        disk_s=_SLOW_SYNC_S,
        checkpoint_bytes=_LOG_KEPT,
        segment_bytes=1 << 17,
    ),
    "checkpoint-forgets-delivery-counts": _MODIFIED,
    "gives-what-nobody-selects": _SELECTED,
    "selects-what-another-has": _SELECTED,
    "never-selects-again": _SELECTED,
    "stops-at-a-dead-message": _COUNTED,
    "counts-up-to-a-gap": _COUNTED,
    "whole-at-the-first-word": _DAMAGED,
    "cuts-without-a-floor": _DAMAGED,
    "floor-of-what-is-left": _DAMAGED,
    "votes-below-its-floor": _DAMAGED_VOTERS,
    "stands-below-its-floor": _DAMAGED_VOTERS,
    "counts-old-acknowledgements": _LATE,
    "counts-answers-to-other-campaigns": _LATE_RIVALS,
    "lets-go-late": _LATE,
    "marks-what-it-truncates": _MARKED_TAILS,
    "leaves-what-it-truncates": _STORMS,
    "reset-keeps-segments": _BEHIND,
    "installs-unsynced": _BEHIND,
    "installs-under-an-unsynced-name": _BEHIND,
    "checkpoint-under-an-unsynced-name": _BEHIND,
    "waits-for-a-silent-reader": _plan(
        LARGE, *(Action(1.0 + 1.5 * number, "power", "backup", seconds=1.3) for number in range(3)), duration_s=5.0
    ),
    "counts-blank-votes": _REPLACED,
    "promises-blank-votes": _REPLACED,
    "counts-provisional-votes": _REPLACED,
    "lowest-level-first": _RANKED,
    "overtakes-a-level-that-is-read": _RANKED,
    "puts-without-saying": _MOVED,
    "forgets-without-asking": _FETCHED_SLOWLY,
    "holds-for-ever": _FETCHED,
    "fetches-again": _FETCHED_SLOWLY,
    "checkpoint-forgets-routes": _FETCHED,
    "says-before-it-puts": _MOVED,
    "takes-the-lost-for-held": _MOVES,
    "checkpoint-forgets-what-came": _MOVED,
    "takes-back-for-nobody": with_overdue(_plan(BUSY, duration_s=2.0), alone=False),
    "checkpoint-forgets-notes": _MODIFIED,
    "knows-links-by-their-connections": _NUMBERED,
    "checkpoint-forgets-links": _NUMBERED,
    "keeps-subscriptions-to-itself": _SUBSCRIBED,
    "subscription-goes-with-its-connection": _SUBSCRIBED,
    "knows-filters-of-its-own-term": _SUBSCRIBED,
    "unsubscribes-before-it-is-committed": _SUBSCRIBED,
    "unsubscribes-nobody": _SUBSCRIBED,
    "levels-by-the-batch": _RANKED,
    "checkpoint-forgets-levels": _RANKED_AND_RESTARTED,
    "releases-the-lowest-level": _ranked(*_the_first_is_cut_off_and_leads_again(1.0)),
    "frees-a-group-with-its-first": _GROUPED,
    "behind-its-group": _GROUPED,
    "gives-what-is-not-given": _OWNED,
    "begins-without-owners": _OWNED,
    "checkpoint-forgets-owners": _OWNED,
    "takes-more-than-its-share": _SHARED,
    "keeps-old-values": _VALUES,
    "gives-out-unread-values": _VALUES,
    "ring-lets-the-newest-go": _RING,
    "ring-counts-what-is-committed": _RING,
    "ring-lets-go-in-a-batch-of-its-own": _RING,
    "backups-delete-by-their-own-clocks": _SWITCHES,
    "counts-the-time-of-old-terms": _SWITCHES,
    "forgets-what-was-due": with_brief(
        _plan(BUSY, *(Action(1.1 + number / 10, "promote", "backup") for number in range(3)), duration_s=3.0),
        "all",
        away_s=9.0,
        made_at_s=(0.5,),
    ),
    "producers-use-nothing": with_brief(_plan(BUSY, duration_s=5.0), "all", away_s=5.0, made_at_s=(0.5,), sends_s=3.0),
    "leaves-parts": _CUT_SHORT,
    "sweeps-what-is-held": _plan(_KEPT_PARTS, *_KILLS, part_bytes=512),
    "lets-go-for-all": with_hub(
        _plan(
            [*_KEPT_PARTS, replace(_CONSUMER, name="d", queue="q1")],
            part_bytes=512,
            queues=("q0", "q1"),
            max_counts=(0, 0),
            levels=(0, 0),
        ),
        "fanout",
        "all",
        "",
        kept=False,
    ),
    "manifest-lacks-a-part": _CUT_SHORT,
    "delivers-what-is-read": _CUT_SHORT,
    "compacts-nothing": _HOARD,
    "keeps-dead-files": _HOARD,
    "stretch-ends-at-a-file": _HOARD,
    "keeps-files-for-nobody": with_hoard(
        _plan(
            LARGE,
            *(Action(0.9 + 0.6 * number, "kill", "backup", seconds=0.4) for number in range(5)),
            message_links=True,
            double=0.4,
            stray=0.5,
            reorder_s=0.05,
            checkpoint_bytes=2048,
            chunk_bytes=1024,
        )
    ),
    "keeps-what-went-settled": settling(_plan(BUSY), "consumer"),
    "routes-to-one": _routed("fanout", ""),
    "forgets-the-star": _routed("topic", "/a.b"),
    "drops-what-nobody-wants": _routed("direct", "/z"),
    "binds-for-itself": _routed("direct", "/x", Action(1.2, "switchover", "backup")),
    "accepts-at-the-first-log": _routed("direct", "/x", disk_s=_SLOW_SYNC_S, duration_s=3.0),
    "drops-the-rejected": _REJECTING,
    "keeps-the-rejected": _REJECTING,
    "letters-twice": _REJECTING,
    "gives-out-what-has-expired": _TIMED,
    "gives-out-what-is-to-wait": _TIMED,
    "lets-go-early": _TIMED,
    "times-of-the-next": _TIMED,
    "checkpoint-forgets-times": _TIMED,
    "forgets-what-waits": _TIMED,
    "drops-what-failed-too-often": _FAILING,
    "retries-at-once": with_letters(_plan(BUSY), "all", reject=0.0, limit=3, fail=0.3),
    "gives-out-what-failed-too-often": _FAILING,
    "forgets-what-failed-too-often": _FAILING,
    "checkpoint-forgets-places": _keeping(*_KILLS, checkpoint_bytes=2048),
    "passes-over-the-unknown": _plan(
        BUSY,
        *(Action(1.2 + 0.5 * number, "kill", number, seconds=0.2) for number in (1, 2)),
        releases=((NEW,), (NEW, 1, NEW), (NEW, 1, NEW)),
    ),
    "raises-the-version-early": _plan(
        BUSY, Action(1.0, "kill", 2, seconds=1.5), Action(1.6, "promote", "backup"), releases=((NEW,), (NEW,), (1, NEW))
    ),
}


def provoke(plan: Plan) -> Callable[[int], None]:
    """A run of this plan under a seed; Violation when a promise is broken."""

    def run(seed: int) -> None:
        outcome = outcome_of(replace(plan, seed=seed))
        if outcome.violation:
            raise Violation(outcome.violation)

    return run


_RUNS = {id(plan): provoke(plan) for plan in PROVOKED.values()}
RUNS: dict[str, Callable[[int], object]] = {
    **{name: _RUNS[id(plan)] for name, plan in PROVOKED.items()},
    **dict.fromkeys(OF_TAKEOVERS, takeovers.run),
    **{name: departures.race if name in RACES else departures.run for name in OF_DEPARTURES},
}
"""By bug: the run of its own plan, which is the same one for all bugs that share it, or of another kind of world."""
