"""A candidacy, told as what the store answers at which time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resource_manager.core.arbiter import NEVER, Health, Published
from resource_manager.core.candidate import (
    NO_LEASE,
    Answer,
    Campaign,
    Campaigned,
    Candidate,
    CandidateSettings,
    Changed,
    Effect,
    Grant,
    Granted,
    Holder,
    Publish,
    PublishDone,
    Renew,
    Renewed,
    Request,
    Resign,
    Resigned,
    Trouble,
    WakeAt,
    Watch,
)
from resource_manager.core.patience import FRESH_S

SETTINGS = CandidateSettings(ttl_s=6.0)  # renewed each 2 s, and held 5.4 s long
NOBODY = Holder(NO_LEASE, "", 10)


def mine(revision: int = 11) -> Holder:
    return Holder(7, "rm-1", revision)


def other(revision: int = 11) -> Holder:
    return Holder(8, "rm-2", revision)


class Story:
    """A Candidate with lease 7, what it asked for last, and whether the watcher was called since one last looked."""

    def __init__(self, settings: CandidateSettings = SETTINGS) -> None:
        self.candidate = Candidate(settings)
        self.request: Any = None
        self.wakes_s = 0.0
        self.watches: list[int] = []
        self._changed = False
        self.take(self.candidate.start(0.0))

    @classmethod
    def idle(cls, holder: Holder = NOBODY) -> Story:
        """Granted and read at 0."""
        story = cls()
        story.answer(Granted(7, 6.0), 0.0)
        story.answer(Renewed(6.0, holder), 0.0)
        assert story.changed()
        return story

    @classmethod
    def with_the_turn(cls, at_s: float = 1.0) -> Story:
        story = cls.idle()
        story.want(at_s)
        story.answer(Campaigned(mine()), at_s)
        assert story.candidate.acts_at(at_s) == at_s
        assert story.changed()
        return story

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case WakeAt(at_s):
                    self.wakes_s = at_s
                case Watch(revision):
                    self.watches.append(revision)
                case Changed():
                    self._changed = True
                case _:
                    assert self.request is None, "two requests are under way"
                    self.request = effect

    def renews(self) -> bool:
        return isinstance(self.request, Renew)

    def changed(self) -> bool:
        changed, self._changed = self._changed, False
        return changed

    def answer(self, answer: Answer, now_s: float, sent_s: float | None = None) -> None:
        self.request = None
        self.take(self.candidate.succeeded(answer, now_s if sent_s is None else sent_s, now_s))

    def fail(self, now_s: float, trouble: Trouble = Trouble.AWAY, reason: str = "refused", wait_s: float = 0.0) -> None:
        self.request = None
        self.take(self.candidate.failed(trouble, reason, now_s, wait_s))

    def want(self, now_s: float) -> None:
        self.take(self.candidate.wants(now_s))

    def rest(self, now_s: float) -> None:
        self.take(self.candidate.rest(now_s))

    def see(self, holder: Holder, now_s: float) -> None:
        self.take(self.candidate.watched(holder, now_s))

    def wake(self, now_s: float | None = None) -> None:
        self.take(self.candidate.wake(self.wakes_s if now_s is None else now_s))


def test_it_is_granted_a_lease_reads_who_has_the_turn_and_watches_from_there() -> None:
    story = Story()
    assert story.request == Grant(6.0)
    assert story.candidate.health == Health(False, None, "it has not been asked yet")
    story.answer(Granted(7, 6.0), 0.1, sent_s=0.05)
    assert story.request == Renew(7)
    story.answer(Renewed(6.0, other(41)), 0.3, sent_s=0.2)
    assert (story.request, story.watches, story.wakes_s) == (None, [41], 2.3)
    assert story.candidate.health == Health(True, 0.2)
    assert (story.candidate.holder, story.candidate.lease) == ("rm-2", 7)


def test_outside_of_a_need_it_renews_and_holds_no_turn() -> None:
    story = Story.idle()
    for turn in range(1, 5):
        story.wake()
        assert story.request == Renew(7)
        story.answer(Renewed(6.0, NOBODY), 2.0 * turn)
        assert story.candidate.acts_at(2.0 * turn) == NEVER
    assert story.watches == [10], "one watch is enough"
    assert not story.changed()


@pytest.mark.parametrize("ttl_s", [2.0, 5.0, 60.0, 600.0])
def test_however_long_the_lease_is_its_last_good_answer_is_never_old(ttl_s: float) -> None:
    """Breaks when a store that works counts as unreachable, because the next renewal of a long lease is far away."""
    story = Story(CandidateSettings(ttl_s=ttl_s))
    story.answer(Granted(7, ttl_s), 0.0)
    story.answer(Renewed(ttl_s, NOBODY), 0.0)
    for _ in range(20):
        before_s = story.wakes_s
        story.wake()
        story.answer(Renewed(ttl_s, NOBODY), before_s)
        assert story.candidate.health == Health(True, before_s)
        assert story.wakes_s - before_s == pytest.approx(min(ttl_s / 3, 2.0))
        assert 2 * (story.wakes_s - before_s) < FRESH_S


def test_in_a_need_it_campaigns_at_once_and_has_its_turn_from_when_it_won() -> None:
    story = Story.idle()
    story.want(1.0)
    assert story.request == Campaign(7)
    story.answer(Campaigned(mine()), 1.1, sent_s=1.0)
    assert story.changed()
    assert [story.candidate.acts_at(now_s) for now_s in (1.1, 1.2, 5.39)] == [1.1, 1.1, 1.1]


def test_a_renewal_that_is_a_write_shows_that_the_store_takes_writes_again() -> None:
    """Breaks when one write that failed leaves a daemon with its turn unreachable for the rest of it."""
    story = Story.with_the_turn(1.0)
    story.wake(2.0)
    story.fail(2.0, Trouble.READ_ONLY, "503")
    assert story.candidate.health == Health(False, 1.0, "503")
    for now_s, written in ((3.0, False), (5.0, True)):
        story.want(now_s)
        story.wake(now_s)
        assert story.renews()
        story.answer(Renewed(6.0, mine(12), written), now_s)
        assert story.candidate.health == (Health(True, now_s) if written else Health(False, 1.0, "503"))
        assert story.candidate.acts_at(now_s) == 1.0


def test_who_lost_waits_until_the_watch_tells_that_the_turn_is_free() -> None:
    story = Story.idle()
    story.want(1.0)
    story.answer(Campaigned(other()), 1.0)
    assert (story.request, story.candidate.acts_at(1.0)) == (None, NEVER)
    assert story.wakes_s <= 1.5, "and reads, should the watch be deaf"
    story.see(Holder(NO_LEASE, "", 12), 1.2)
    assert story.request == Campaign(7)


def test_a_deaf_watch_costs_half_a_second() -> None:
    story = Story.idle(other())
    story.want(1.0)
    assert (story.request, story.wakes_s) == (None, 1.5)
    story.wake()
    assert story.renews()
    story.answer(Renewed(6.0, Holder(NO_LEASE, "", 12)), 1.5)
    assert story.request == Campaign(7)


def test_when_the_need_is_over_it_gives_the_turn_up_for_others() -> None:
    story = Story.with_the_turn()
    story.rest(1.2)
    assert story.request == Resign(7)
    assert story.candidate.acts_at(1.2) == NEVER
    story.answer(Resigned(12), 1.3)
    assert (story.request, story.candidate.holder) == (None, "")


def test_the_next_need_is_not_kept_waiting_by_the_one_before() -> None:
    """Breaks when a primary that fails just after its promotion costs a second, which is for turns that brought nothing."""
    story = Story.with_the_turn()
    story.rest(1.2)
    story.want(1.21)
    story.answer(Resigned(12), 1.22)
    assert story.request == Campaign(7)


def test_a_need_that_nobody_speaks_of_any_more_is_over() -> None:
    """Breaks when a daemon that has lost sight of the brokers keeps the turn."""
    story = Story.with_the_turn(1.0)
    for now_s in (3.0, 5.0, 7.0, 9.0):
        story.wake(now_s)
        story.answer(Renewed(6.0, mine()), now_s)
    story.wake(11.0)
    assert (story.request, story.candidate.acts_at(11.0)) == (Resign(7), NEVER)


def test_a_turn_that_brings_nothing_ends_and_others_go_first() -> None:
    story = Story.with_the_turn(1.0)
    for tenth in range(11, 111):
        story.want(tenth / 10)
        if story.request == Renew(7):
            story.answer(Renewed(6.0, mine()), tenth / 10)
    assert (story.request, story.candidate.acts_at(11.0)) == (Resign(7), NEVER)
    story.answer(Resigned(12), 11.0)
    story.want(11.5)
    if story.request is not None:
        assert story.renews()
        story.answer(Renewed(6.0, Holder(NO_LEASE, "", 12)), 11.5)
    assert story.wakes_s == 12.0
    story.wake()
    assert story.request == Campaign(7)


def test_it_acts_no_longer_than_its_lease_surely_runs() -> None:
    """From when the renewal was sent, less a tenth. Breaks when two daemons act, of which one was frozen."""
    story = Story.with_the_turn(1.0)
    story.wake(2.0)
    story.answer(Renewed(6.0, mine()), 3.0, sent_s=2.0)
    assert story.candidate.acts_at(7.39) == 1.0
    assert story.candidate.acts_at(7.41) == NEVER
    story.wake(7.41)
    assert story.changed()
    assert story.request == Grant(6.0)


def test_a_renewal_that_is_answered_after_the_lease_ran_out_here_revives_nothing() -> None:
    story = Story.with_the_turn(1.0)
    story.wake(3.0)
    assert story.renews()
    story.want(9.0)
    story.answer(Renewed(6.0, mine()), 9.1, sent_s=3.0)
    assert story.candidate.acts_at(9.1) == NEVER
    assert story.request == Grant(6.0)


def test_a_lease_that_the_store_has_dropped_is_replaced() -> None:
    story = Story.with_the_turn(1.0)
    story.wake(2.0)
    story.answer(Renewed(0.0, Holder(NO_LEASE, "", 12)), 2.0)
    assert (story.request, story.candidate.acts_at(2.0)) == (Grant(6.0), NEVER)
    story = Story.idle()
    story.want(1.0)
    story.fail(1.0, Trouble.LEASE_GONE)
    story.wake()
    assert story.request == Grant(6.0)


def test_a_turn_that_was_taken_away_is_lost() -> None:
    """Somebody deleted the key by hand, or another has it."""
    story = Story.with_the_turn(1.0)
    story.see(other(12), 1.5)
    assert (story.candidate.acts_at(1.5), story.changed()) == (NEVER, True)


def test_old_news_say_nothing() -> None:
    """Breaks when the watch, late by a moment, takes a turn away that was won since."""
    story = Story.with_the_turn(1.0)
    story.see(other(10), 1.5)
    assert story.candidate.acts_at(1.5) == 1.0


def test_a_campaign_whose_answer_was_lost_finds_its_own_key() -> None:
    story = Story.idle()
    story.want(1.0)
    story.fail(1.5)
    story.want(2.0)
    assert story.request == Campaign(7)
    story.answer(Campaigned(mine()), 2.0)
    assert story.candidate.acts_at(2.0) == 2.0


def test_a_turn_that_is_won_when_nobody_wants_it_any_more_is_given_up() -> None:
    story = Story.idle()
    story.want(1.0)
    story.rest(1.1)
    story.answer(Campaigned(mine()), 1.2)
    assert (story.request, story.candidate.acts_at(1.2)) == (Resign(7), NEVER)
    story.fail(1.3)
    story.wake()
    assert story.request == Resign(7), "again, until it is answered"


def test_failures_are_told_and_tried_again_less_and_less_often() -> None:
    story = Story.idle()
    story.wake()
    now_s, pauses = 2.0, []
    for _ in range(9):
        story.fail(now_s)
        pauses.append(story.wakes_s - now_s)
        now_s = story.wakes_s
        story.wake()
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0])
    assert story.changed()
    assert story.candidate.health == Health(False, 0.0, "refused")
    story.answer(Granted(9, 6.0), now_s)
    assert story.candidate.health == Health(False, 0.0, "refused"), "a grant shows nothing of the turn"
    story.answer(Renewed(6.0, NOBODY), now_s)
    assert story.candidate.health == Health(True, now_s)
    assert story.changed()


def test_a_pause_that_the_store_asks_for_is_kept_in_a_need_too() -> None:
    story = Story.idle()
    story.wake()
    story.fail(2.0, wait_s=5.0)
    for tenth in range(20, 70):
        story.want(tenth / 10)
    assert story.request is None
    story.wake(7.0)
    assert story.request is not None


def test_a_store_that_takes_no_writes_counts_as_away_until_it_takes_one() -> None:
    """Breaks when daemons wait for ever for a turn that a full etcd cannot give."""
    story = Story.idle()
    story.want(1.0)
    story.fail(1.0, Trouble.READ_ONLY, "database space exceeded")
    assert story.candidate.health == Health(False, 0.0, "database space exceeded")
    story.wake(1.5)
    assert story.request == Grant(6.0), "whether it takes writes again is asked by a grant"
    story.fail(1.6, Trouble.READ_ONLY, "database space exceeded")
    story.wake(1.8)
    assert (story.request, story.wakes_s) == (None, 2.1), "a full store is not asked again after the short pause"
    story.wake(2.5)
    story.answer(Granted(9, 6.0), 2.5)
    assert story.request == Campaign(9)
    story.answer(Campaigned(Holder(9, "rm-1", 12)), 2.5)
    assert story.candidate.health == Health(True, 2.5)


@pytest.mark.parametrize("may_read", [True, False])
def test_a_store_that_refuses_the_turn_counts_as_away_while_it_grants_leases(may_read: bool) -> None:
    """Breaks when a login without rights keeps its daemon from ever acting alone: leases need no rights."""
    story = Story.idle()
    leases = iter(range(8, 100))
    for tenth in range(10, 210):
        now_s = tenth / 10
        story.want(now_s)
        while story.request is not None:
            match story.request:
                case Grant():
                    story.answer(Granted(next(leases), 6.0), now_s)
                case Renew() if may_read:
                    story.answer(Renewed(6.0, NOBODY), now_s)
                case _:
                    story.fail(now_s, reason="permission denied")
        assert story.candidate.health == Health(False, 0.0, "permission denied")
    assert next(leases) > 10, "several were granted"
    story.rest(21.0)
    while not story.renews():
        story.wake()
    story.answer(Renewed(6.0, NOBODY), 23.0)
    assert story.candidate.health == Health(True, 23.0), "no promotion is needed any more"


def test_a_login_that_may_not_read_the_turn_is_away_from_the_start() -> None:
    story = Story()
    story.answer(Granted(7, 6.0), 0.0)
    while not isinstance(story.request, Grant):
        story.fail(story.wakes_s, reason="permission denied")
        story.wake()
    story.answer(Granted(8, 6.0), story.wakes_s)
    assert story.candidate.health == Health(False, None, "permission denied")


def test_who_failed_to_campaign_asks_again_although_another_has_the_turn() -> None:
    """Breaks when one lost answer makes a daemon act beside another one, whose turn a healthy store has decided."""
    story = Story.idle()
    story.want(1.0)
    story.fail(1.0)
    story.see(other(12), 1.2)
    assert story.request == Campaign(7)
    story.answer(Campaigned(other(12)), 1.3)
    assert story.candidate.health == Health(True, 1.3)
    assert (story.request, story.candidate.acts_at(1.3)) == (None, NEVER)


def test_a_campaign_with_a_lease_that_has_ended_was_answered() -> None:
    story = Story.idle()
    story.want(1.0)
    story.fail(1.0, Trouble.LEASE_GONE)
    story.wake()
    story.answer(Granted(9, 6.0), 1.05)
    assert story.candidate.health == Health(True, 0.0)


def test_who_has_the_turn_when_the_store_becomes_full_renews_it_and_is_no_healthier_for_it() -> None:
    story = Story.with_the_turn(1.0)
    story.take(story.candidate.publish(Published("a:1", 3), 1.0))
    story.fail(1.0, Trouble.READ_ONLY, "database space exceeded")
    story.wake(2.0)
    assert story.request == Renew(7)
    story.answer(Renewed(6.0, mine()), 2.0)
    assert (story.candidate.acts_at(2.0), story.candidate.health.reachable) == (1.0, False)
    story.rest(2.5)
    story.answer(Resigned(12), 2.5)
    assert not story.candidate.health.reachable


def test_what_is_published_last_is_made_known_once() -> None:
    story = Story.idle()
    story.take(story.candidate.publish(Published("", 3), 1.0))
    assert story.request == Publish(Published("", 3))
    story.take(story.candidate.publish(Published("b:1", 4), 1.0))
    story.answer(PublishDone(), 1.0)
    assert story.request == Publish(Published("b:1", 4))
    story.fail(1.1)
    story.wake()
    assert story.request == Publish(Published("b:1", 4))
    story.answer(PublishDone(), 1.2)
    assert story.request is None


def test_what_may_have_been_published_is_replaced_by_what_was_there_before() -> None:
    """Breaks when the answer is lost: the store has the later view, although the earlier one holds again."""
    story = Story.idle()
    for primary in ("b:1", ""):
        story.take(story.candidate.publish(Published(primary, 4), 1.0))
        assert story.request == Publish(Published(primary, 4))
        if primary:
            story.answer(PublishDone(), 1.0)
    story.take(story.candidate.publish(Published("b:1", 4), 1.1))
    story.fail(1.2)
    story.wake()
    assert story.request == Publish(Published("b:1", 4))


def test_a_view_that_cannot_be_published_never_keeps_the_lease_from_its_renewal() -> None:
    story = Story.idle()
    story.take(story.candidate.publish(Published("b:1", 4), 1.0))
    while not story.renews():
        story.fail(max(story.wakes_s, 1.0))
        story.wake()
        assert story.wakes_s < 5.4, "the lease has run out"


def test_a_view_that_cannot_be_published_is_tried_less_and_less_often_and_nothing_else_suffers() -> None:
    """Breaks when a login without the right to write it makes the store count as away, in turns with each renewal."""
    story, tries = Story.idle(), list[float]()
    story.take(story.candidate.publish(Published("b:1", 4), 1.0))
    now_s = 1.0
    while now_s < 200.0:
        if isinstance(story.request, Publish):
            tries.append(now_s)
            story.fail(now_s, reason="permission denied")
        elif story.renews():
            story.answer(Renewed(6.0, NOBODY), now_s)
        assert story.candidate.health.reachable
        now_s = story.wakes_s
        story.wake()
    assert tries == [1.0, 1.5, 2.5, 4.5, 8.5, 16.5, 32.5, 64.5, 124.5, 184.5]
    assert not story.changed()
    story.take(story.candidate.publish(Published("b:1", 4), now_s))
    assert not isinstance(story.request, Publish), "it is the same view"
    if story.renews():
        story.answer(Renewed(6.0, NOBODY), now_s)
    story.take(story.candidate.publish(Published("c:1", 5), now_s))
    assert story.request == Publish(Published("c:1", 5))
    story.fail(now_s)
    assert story.wakes_s == now_s + 0.5
    story.want(now_s)
    assert story.request == Campaign(7), "a turn waits for no view"


def test_a_pause_that_the_store_asks_for_when_a_view_is_published_is_kept_by_all() -> None:
    story = Story.idle()
    story.take(story.candidate.publish(Published("b:1", 4), 1.0))
    story.fail(1.0, wait_s=7.0)
    story.want(1.0)
    assert (story.request, story.wakes_s) == (None, 8.0)


def test_a_watch_that_ended_is_begun_anew_from_the_next_reading() -> None:
    story = Story.idle()
    story.take(story.candidate.watch_ended(0.1))
    assert story.wakes_s == 0.6
    story.wake()
    story.answer(Renewed(6.0, other(55)), 0.6)
    assert story.watches == [10, 55]


class Store:
    """Answers requests as etcd would, dumbly: one key, leases that end when they are told to."""

    def __init__(self) -> None:
        self.leases: set[int] = set()
        self.holder = NOBODY
        self.revision = 10

    def _set(self, lease: int) -> None:
        self.revision += 1
        self.holder = Holder(lease, f"rm-{lease}" if lease else "", self.revision)

    def end(self, lease: int) -> None:
        self.leases.discard(lease)
        if self.holder.lease == lease:
            self._set(NO_LEASE)

    def does(self, request: Request, fresh: int) -> Answer | Trouble:
        match request:
            case Grant():
                self.leases.add(fresh)
                return Granted(fresh, 6.0)
            case Renew(lease):
                return Renewed(6.0 if lease in self.leases else 0.0, self.read())
            case Campaign(lease):
                if self.holder.lease == NO_LEASE:
                    if lease not in self.leases:
                        return Trouble.LEASE_GONE
                    self._set(lease)
                return Campaigned(self.read())
            case Resign(lease):
                if self.holder.lease == lease:
                    self._set(NO_LEASE)
                return Resigned(self.revision)
            case _:
                return PublishDone()

    def read(self) -> Holder:
        return Holder(self.holder.lease, self.holder.name, self.revision)


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from(["answer", "lose", "drop", "want", "want", "rest", "wake", "hear", "deaf"]))
    )
)
def test_whatever_happens_two_candidates_never_have_their_turn_together(steps: list[Any]) -> None:
    """The store ends a lease at the earliest when the candidate must have stopped, as a lease that was never renewed does."""
    store, fresh, now_s = Store(), iter(range(1, 10_000)), 0.0
    two = [Candidate(SETTINGS), Candidate(SETTINGS)]
    pending: list[Request | None] = [None, None]

    def take(who: int, effects: list[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, WakeAt | Watch | Changed):
                assert pending[who] is None
                pending[who] = effect

    take(0, two[0].start(0.0))
    take(1, two[1].start(0.0))
    for who, step in steps:
        candidate, request = two[who], pending[who]
        now_s += 0.2
        match step:
            case "answer" | "lose" if request is not None:
                pending[who] = None
                said = store.does(request, next(fresh))
                if step == "lose" or isinstance(said, Trouble):
                    take(who, candidate.failed(said if isinstance(said, Trouble) else Trouble.AWAY, "lost", now_s))
                else:
                    take(who, candidate.succeeded(said, now_s, now_s))
            case "want":
                take(who, candidate.wants(now_s))
            case "rest":
                take(who, candidate.rest(now_s))
            case "hear":
                take(who, candidate.watched(store.read(), now_s))
            case "deaf":
                take(who, candidate.watch_ended(now_s))
            case "drop" if candidate.acts_at(now_s) == NEVER:
                store.end(candidate.lease)
            case _:
                take(who, candidate.wake(now_s))
        acting = [one for one in two if one.acts_at(now_s) <= now_s]
        assert len(acting) <= 1
