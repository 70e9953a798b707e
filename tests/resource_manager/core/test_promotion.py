"""Whether and whom to promote, told as what three brokers say at which time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resource_manager.core.arbiter import NEVER
from resource_manager.core.detector import Members, Reach, Seen, Sight, View
from resource_manager.core.promotion import (
    AskAll,
    AskToPromote,
    Effect,
    FailureDetected,
    PrimarySeen,
    PromoteRefused,
    PromoteWon,
    Promotion,
    PromotionSettings,
    Waiting,
    WakeAt,
)

SETTINGS = PromotionSettings()


def says(
    name: str,
    status: str,
    at_s: float,
    *,
    primary: str = "",
    last: tuple[int, int] = (3, 70),
    epoch: int = 3,
    learner: bool = False,
    blank: bool = False,
) -> Seen:
    return Seen(name, Reach.REACHABLE, "", View(status, epoch, *last, primary, learner, blank), at_s)


def gone(name: str) -> Seen:
    return Seen(name, Reach.ABSENT, "closed the connection", View("active", 3, 3, 70, ""), 0.0)


def silent(name: str) -> Seen:
    return Seen(name, Reach.SILENT, "no answer for 1 s", View("active", 3, 3, 70, ""), 0.0)


def at_once(since_s: float, now_s: float) -> float:
    return since_s


class Story:
    """A Promotion, and what it has had to say so far."""

    def __init__(self, **settings: Any) -> None:
        self.promotion = Promotion(PromotionSettings(**settings), started_s=0.0)

    def see(self, now_s: float, *brokers: Seen, acts_at: Any = at_once) -> list[Effect]:
        return self.promotion.step(Sight(brokers), now_s, acts_at)

    @classmethod
    def with_a_failed_primary(cls, now_s: float = 10.0, **settings: Any) -> Story:
        """Broker a served until it was killed at `now_s`; b and c have not yet been asked what they see."""
        story = cls(**settings)
        story.see(5.0, says("a", "active", 5.0), says("b", "ready", 5.0, primary="a"), says("c", "ready", 5.0, primary="a"))
        assert AskAll() in story.see(now_s, gone("a"), says("b", "ready", 9.9, primary="a"), says("c", "ready", 9.9, primary="a"))
        return story


def asked(effects: list[Effect]) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, AskToPromote)]


def reasons(effects: list[Effect]) -> list[str]:
    return [effect.reason for effect in effects if isinstance(effect, Waiting)]


def test_a_primary_is_reported_once_and_then_left_alone() -> None:
    story = Story()
    assert story.see(1.0, says("a", "active", 1.0), says("b", "ready", 1.0)) == [PrimarySeen("a", 3)]
    assert story.see(1.2, says("a", "active", 1.2), says("b", "ready", 1.2)) == []
    assert not story.promotion.wants_turn
    assert story.see(1.4, says("a", "active", 1.4, epoch=4)) == [PrimarySeen("a", 4)]


def test_after_a_kill_the_others_are_asked_before_anything_is_done() -> None:
    """Breaks when a view from before the kill decides: both backups said then that all is well."""
    story = Story.with_a_failed_primary()
    effects = story.see(10.001, gone("a"), says("b", "joining", 10.001), says("c", "ready", 9.9, primary="a"))
    assert asked(effects) == []
    effects = story.see(10.002, gone("a"), says("b", "joining", 10.001), says("c", "joining", 10.002))
    assert effects == [
        FailureDetected("a", 3, "closed the connection"),
        AskToPromote("b", "the primary a failed: closed the connection", SETTINGS.promote_timeout_s),
    ]


def test_a_primary_that_was_reported_as_failed_and_serves_on_is_reported_again() -> None:
    """Breaks when etcd says that there is no primary until the next failover."""
    story = Story.with_a_failed_primary()
    seen = [gone("a"), says("b", "joining", 10.01), says("c", "joining", 10.01)]
    assert FailureDetected("a", 3, "closed the connection") in story.see(10.02, *seen)
    story.promotion.refused("b", "it hears the primary a", 10.03)
    back = [says("a", "active", 10.1), says("b", "ready", 10.1, primary="a"), says("c", "ready", 10.1, primary="a")]
    assert story.see(10.1, *back) == [PrimarySeen("a", 3)]
    assert story.see(10.2, *back) == []


def test_a_primary_that_was_only_out_of_sight_is_not_reported_again() -> None:
    story = Story.with_a_failed_primary()
    back = [says("a", "active", 10.1), says("b", "ready", 10.1, primary="a"), says("c", "ready", 10.1, primary="a")]
    assert story.see(10.1, *back) == []


def test_a_daemon_that_loses_its_majority_leaves_the_turn_to_others() -> None:
    """Breaks when a daemon that was cut off keeps a turn with which it can do nothing, while another one could act."""
    story = Story.with_a_failed_primary()
    wanted = [story.promotion.wants_turn]  # it was not told yet that the others are silent, too
    cut_off = [gone("a"), silent("b"), silent("c")]
    assert reasons(story.see(10.5, *cut_off)) == ["0 of 3 brokers answer, and 2 are needed"]
    wanted.append(story.promotion.wants_turn)
    story.see(11.0, gone("a"), says("b", "joining", 11.0), says("c", "joining", 11.0))
    assert [*wanted, story.promotion.wants_turn] == [True, False, True]


def test_who_waits_for_an_answer_keeps_its_turn() -> None:
    story = Story.with_a_failed_primary()
    seen = [gone("a"), says("b", "joining", 10.01), says("c", "joining", 10.01)]
    assert asked(story.see(10.02, *seen)) == ["b"]
    assert story.see(10.03, *seen) == []
    assert story.promotion.wants_turn


def test_a_silent_primary_is_replaced_once_its_backups_have_given_it_up() -> None:
    story = Story()
    story.see(5.0, says("a", "active", 5.0), says("b", "ready", 5.0, primary="a"), says("c", "ready", 5.0, primary="a"))
    story.see(6.0, silent("a"), says("b", "ready", 5.9, primary="a"), says("c", "ready", 5.9, primary="a"))
    effects = story.see(6.01, silent("a"), says("b", "joining", 6.01), says("c", "joining", 6.01))
    assert asked(effects) == ["b"]
    assert FailureDetected("a", 3, "no answer for 1 s") in effects


def test_of_two_clusters_a_daemon_acts_for_none_and_says_so_once() -> None:
    """Breaks when the primary of one hides that the other has none, or a broker of one is promoted for the other's failure."""

    def member(name: str, cluster: str, status: str) -> Seen:
        view = View(status, 3, 3, 70, "", cluster_id=cluster, members=Members(1, (name,)))
        return Seen(name, Reach.REACHABLE, "", view, 1.0)

    story = Story()
    two = member("a", "X", "active"), member("b", "Y", "joining")
    text = "the brokers are of 2 clusters, X (a) and Y (b): this daemon acts for none; give it those of one"
    assert story.see(1.0, *two) == [Waiting(text)]
    assert story.see(9.0, *two) == []
    assert story.see(9.1, two[0]) == [PrimarySeen("a", 3)]


def test_while_most_backups_hear_the_primary_nothing_is_promoted() -> None:
    """Breaks when a daemon that is cut off from the primary alone makes the whole cluster fail over."""
    story = Story.with_a_failed_primary()
    hearing = [says(name, "ready", 10.01, primary="a") for name in "bc"]
    effects = story.see(10.01, gone("a"), *hearing)
    assert (asked(effects), reasons(effects)) == ([], ["b, c still hear the primary a"])
    assert not any(isinstance(effect, FailureDetected) for effect in effects)


def test_a_primary_that_has_not_answered_and_may_have_a_majority_is_left_alone() -> None:
    """Breaks when a daemon that was away, and knows neither that b was elected nor hears from it in time, moves it: c would ask b
    to hand over, and a, just started, hears nobody yet."""
    story = Story.with_a_failed_primary()
    a, c = says("a", "joining", 10.2, epoch=4), says("c", "ready", 10.2, primary="b", epoch=4)
    effects = story.see(10.2, a, says("b", "ready", 9.9, primary="a"), c)
    assert (asked(effects), reasons(effects)) == ([], ["c still hear the primary b"])
    none = says("b", "joining", 10.3, epoch=4)
    assert asked(story.see(10.3, replace(a, answered_s=10.3), none, replace(c, answered_s=10.3))), (
        "it says itself that it is none"
    )


@pytest.mark.parametrize("hearing, left_alone", [("b", False), ("bc", True)])
def test_of_five_brokers_two_that_hear_a_primary_may_be_its_majority(hearing: str, left_alone: bool) -> None:
    """For a daemon that has never seen it serve, because it was started just now."""
    story = Story()
    story.see(10.0, silent("a"), *(says(name, "ready", 9.9, primary="a") for name in "bcde"))
    views = [
        says(name, "ready" if name in hearing else "joining", 10.2, primary="a" if name in hearing else "") for name in "bcde"
    ]
    assert bool(asked(story.see(10.2, silent("a"), *views))) is not left_alone


def test_those_who_hear_the_primary_are_asked_again_less_and_less_often() -> None:
    """Breaks when the daemon sleeps on a stale view, or asks in a hot loop."""
    story = Story.with_a_failed_primary()
    now_s, asked_at = 10.0, []
    while now_s < 12.0:
        effects = story.see(now_s, gone("a"), *(says(name, "ready", now_s, primary="a") for name in "bc"))
        if AskAll() in effects:
            asked_at.append(now_s)
        now_s = min(effect.at_s for effect in effects if isinstance(effect, WakeAt))
    gaps = [round(after - before, 3) for before, after in pairwise(asked_at)]
    assert gaps == sorted(gaps)
    assert (gaps[0], gaps[-1]) == (0.04, 0.25)


def test_one_of_two_backups_that_hears_the_primary_does_not_hold_things_up() -> None:
    story = Story.with_a_failed_primary()
    effects = story.see(10.01, gone("a"), says("b", "ready", 10.01, primary="a"), says("c", "joining", 10.01))
    assert asked(effects) == ["b"]


def test_the_opinion_of_the_old_primary_about_itself_does_not_count() -> None:
    """Breaks when a primary that steps down is counted among the backups that should hear it."""
    story = Story.with_a_failed_primary()
    brokers = [says("a", "joining", 10.01), says("b", "ready", 10.01, primary="a"), says("c", "joining", 10.01)]
    assert len(asked(story.see(10.01, *brokers))) == 1


def test_a_primary_that_steps_down_is_replaced_and_the_cause_says_so() -> None:
    story = Story.with_a_failed_primary()
    story.see(10.0, says("a", "active", 10.0, epoch=4))
    story.see(11.0, *(says(name, "joining", 10.5, epoch=4) for name in "abc"))
    effects = story.see(11.01, *(says(name, "joining", 11.01, epoch=4) for name in "abc"))
    assert effects[0] == FailureDetected("a", 4, "it says that it is joining")


def test_the_log_that_reaches_furthest_is_chosen_before_priority_and_name() -> None:
    """Breaks when a preferred broker with an older log is asked: the others would not vote for it."""
    lasts = {"a": (3, 70), "b": (4, 2), "c": (4, 1)}
    brokers = [says(name, "joining", 1.0, last=last) for name, last in lasts.items()]
    assert asked(Story(priorities={"a": 9, "c": 5}).see(1.0, *brokers)) == ["b"]


def test_among_equal_logs_priority_decides_and_then_the_name() -> None:
    def chosen(**settings: Any) -> list[str]:
        return asked(Story(**settings).see(1.0, *(says(name, "joining", 1.0) for name in "cab")))

    assert chosen(priorities={"c": 1}) == ["c"]
    assert chosen(priorities={"a": -1}) == ["b"]


def agreeing(name: str, applied: int = 1, status: str = "joining", at_s: float = 1.0, **settings: Any) -> Seen:
    """A broker that has applied so much of the log, and found there what the cluster agrees on."""
    view = View(status, 3, 3, 70, "", applied_index=applied, settings={key.replace("_", ":"): settings[key] for key in settings})
    return Seen(name, Reach.REACHABLE, "", view, at_s)


@pytest.mark.parametrize(
    "tags, chosen",
    [
        ({"tags_c": {"priority": 1}}, ["c"]),
        ({"tags_a": {"nofailover": True}, "tags_b": {"priority": -1}}, ["c"]),
        ({"tags_c": {"priority": 1, "nofailover": True}}, ["a"]),
        ({"tags_c": {"site": "east"}}, ["a"]),
    ],
)
def test_tags_decide_among_equal_logs_and_keep_a_broker_back(tags: Any, chosen: list[str]) -> None:
    assert asked(Story().see(1.0, *(agreeing(name, **tags) for name in "abc"))) == chosen


def test_the_tags_of_a_broker_are_those_of_the_name_that_it_gives_itself() -> None:
    """Breaks when a daemon that was given short names promotes a broker with the tag nofailover."""
    tags: Any = {f"tags_{name}.example": value for name, value in {"a": {"nofailover": True}, "b": {"priority": -1}}.items()}
    brokers = [agreeing(name, **tags) for name in "abc"]
    assert asked(Story().see(1.0, *(known_as_example(seen) for seen in brokers))) == ["c"]


def known_as_example(seen: Seen) -> Seen:
    """The same broker, which gives itself a longer name."""
    assert seen.view is not None
    return replace(seen, view=replace(seen.view, address=f"{seen.name}.example"))


def test_a_primary_that_was_seen_to_serve_is_recognised_by_its_own_name() -> None:
    """One backup that still hears it holds up nothing then. Breaks when a daemon with short names waits for that one, too."""
    story = Story()
    hearing = [says(name, "ready", 5.0, primary="a.example") for name in "bcde"]
    story.see(5.0, *map(known_as_example, [says("a", "active", 5.0), *hearing]))
    lost = [says(name, "joining", 10.1) for name in "bd"] + [says(name, "ready", 10.1, primary="a.example") for name in "ce"]
    effects = [
        *story.see(10.0, *map(known_as_example, [gone("a"), *lost])),
        *story.see(10.2, *map(known_as_example, [gone("a"), *lost])),
    ]
    assert asked(effects) == ["b"]


def test_a_witness_is_counted_and_never_chosen_whatever_it_attests() -> None:
    """Breaks when the daemon asks it again and again, because nobody's log seems newer."""
    witness = Seen("a", Reach.REACHABLE, "", View("joining", 3, 3, 90, "", witness=True), 1.0)
    assert asked(Story().see(1.0, witness, agreeing("b"), gone("c"))) == []
    story = Story()
    assert asked(story.see(1.0, witness, agreeing("b"), agreeing("c"))) == ["b"]


def test_an_option_of_the_daemon_goes_before_the_tag() -> None:
    brokers = [agreeing(name, tags_c={"priority": 1}) for name in "abc"]
    assert asked(Story(priorities={"b": 2, "c": 0}).see(1.0, *brokers)) == ["b"]


def test_of_equal_priority_the_site_of_the_failed_primary_is_preferred() -> None:
    story = Story()
    tags: Any = {"tags_a": {"site": "east"}, "tags_c": {"site": "east"}}
    story.see(1.0, agreeing("a", status="active", **tags), agreeing("b", **tags), agreeing("c", **tags))
    assert asked(story.see(2.0, gone("a"), agreeing("b", at_s=2.0, **tags), agreeing("c", at_s=2.0, **tags))) == ["c"]


def test_when_tags_keep_every_broker_back_the_log_says_so() -> None:
    brokers = [agreeing(name, tags_a={"nofailover": True}, tags_b={"nofailover": True}) for name in "ab"]
    assert reasons(Story().see(1.0, *brokers)) == ["no broker that answers can be promoted"]


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"pause": {"since": "then"}}, "the cluster is paused since then: qpid-ha resume ends that"),
        (
            {"authority": {"kind": "pacemaker"}},
            "the authority of this cluster is 'pacemaker' (qpid-ha authority), and 'builtin' watches",
        ),
        ({"authority": {"kind": "builtin"}}, ""),
    ],
)
def test_a_daemon_keeps_to_what_the_broker_says_that_has_applied_most(settings: Any, said: str) -> None:
    """Be that one gone by now. Breaks when a pause ends with the primary that took it."""
    brokers = [agreeing("a"), agreeing("b"), replace(agreeing("c", 2, **settings), reach=Reach.ABSENT, reason="gone")]
    effects = Story(start_grace_s=0.0).see(1.0, *brokers)
    assert (asked(effects), reasons(effects)) == (([], [said]) if said else (["a"], []))


def test_a_learner_is_never_asked() -> None:
    story = Story()
    brokers = [says("a", "joining", 1.0, last=(9, 9), learner=True), says("b", "joining", 1.0), says("c", "joining", 1.0)]
    assert asked(story.see(1.0, *brokers)) == ["b"]


def lowered(name: str, at_s: float, index: int, status: str = "joining") -> Seen:
    """A learner that does not know whether its vote is taken for good. Its log ends at this index of epoch 3."""
    item = {"status": status, "epoch": 3, "lastEpoch": 3, "lastIndex": index, "electable": True}
    return Seen(name, Reach.REACHABLE, "", View.of(item | {"members": [{"address": name, "role": "learner"}]}, name), at_s)


@pytest.mark.parametrize("index, chosen", [(70, ["b"]), (71, ["a"])])
def test_a_learner_that_can_be_elected_is_asked_only_if_no_voter_that_answers_has_a_log_as_new(
    index: int, chosen: list[str]
) -> None:
    """After a restart of all brokers, one whose vote was taken long ago may not know that this is committed. Breaks when it
    becomes the primary, and steps down at once. If only it has the batch that takes its vote, nobody else can be elected.
    """
    assert asked(Story().see(1.0, lowered("a", 1.0, index), says("b", "joining", 1.0), says("c", "joining", 1.0))) == chosen
    witness = Seen("c", Reach.REACHABLE, "", View("joining", 3, 3, 90, "", witness=True), 1.0)
    told = asked(Story().see(1.0, lowered("a", 1.0, index), says("b", "joining", 1.0), witness))
    assert told == chosen, "a witness is no candidate, whatever it attests"


def test_the_answer_of_a_learner_that_can_be_elected_is_waited_for_and_its_promotion_not_disturbed() -> None:
    story = Story.with_a_failed_primary()
    voters = [says(name, "joining", 10.01) for name in "bc"]
    assert asked(story.see(10.02, gone("a"), *voters, lowered("d", 9.9, 71))) == []
    assert asked(story.see(10.03, gone("a"), *voters, lowered("d", 10.03, 71))) == ["d"]
    assert story.see(10.04, gone("a"), *voters, lowered("d", 10.04, 71, "recovering")) == []
    story = Story.with_a_failed_primary()
    effects = story.see(10.02, gone("a"), *voters, lowered("d", 10.02, 71, "recovering"))
    assert reasons(effects) == ["d is being promoted"]


def test_a_primary_that_takes_its_own_vote_still_serves() -> None:
    """Until this is committed. Breaks when the daemon sees no primary among the voters."""
    brokers = [lowered("a", 1.0, 71, "active"), says("b", "ready", 1.0, primary="a"), says("c", "ready", 1.0, primary="a")]
    assert Story().see(1.0, *brokers) == [PrimarySeen("a", 3)]


def test_without_a_majority_nothing_is_asked_and_the_log_says_why_once() -> None:
    """Breaks when a daemon on the small side of a partition keeps asking for elections that nobody can win."""
    story = Story()
    assert reasons(story.see(9.0, says("a", "joining", 9.0), gone("b"), gone("c"))) == ["1 of 3 brokers answer, and 2 are needed"]
    assert story.see(9.1, says("a", "joining", 9.1), gone("b"), gone("c")) == []


def test_at_the_start_all_brokers_are_waited_for_but_not_for_ever() -> None:
    """Breaks when the first two of three are taken, and the third had the newest log."""
    story = Story(start_grace_s=2.0)
    effects = story.see(0.5, says("a", "joining", 0.5), says("b", "joining", 0.5), gone("c"))
    assert reasons(effects) == ["2 of 3 brokers answer, and the start waits for all"]
    assert WakeAt(2.0) in effects
    effects = story.see(2.0, says("a", "joining", 2.0), says("b", "joining", 2.0), gone("c"))
    assert asked(effects) == ["a"]
    assert not any(isinstance(effect, FailureDetected) for effect in effects)


def test_new_stores_wait_for_every_broker_and_the_log_says_for_which() -> None:
    """Their brokers would refuse (docs/adr/0017); a person must know which one to start."""
    story = Story()
    new: dict[str, Any] = {"last": (0, 0), "epoch": 0, "blank": True}
    story.see(0.1, says("a", "joining", 0.1, **new), says("b", "joining", 0.1, **new), gone("c"))
    effects = story.see(9.0, says("a", "joining", 9.0, **new), says("b", "joining", 9.0, **new), gone("c"))
    assert not asked(effects)
    (reason,) = reasons(effects)
    assert reason == ("every store that answers is new, and c may hold messages: a first election needs every broker; start c")
    assert AskAll() in story.see(9.5, says("a", "joining", 9.0, **new), says("b", "joining", 9.0, **new), gone("c"))
    all_new = [says(name, "joining", 9.6, **new) for name in "abc"]
    assert asked(story.see(9.6, *all_new)) == ["a"]


def test_a_store_with_messages_among_new_ones_is_asked() -> None:
    """Whether it may be elected without the missing one, the votes decide."""
    story = Story()
    views = [says("a", "joining", 9.0, last=(0, 0), blank=True), says("b", "joining", 9.0, last=(3, 70)), gone("c")]
    story.see(0.1, *views)
    assert asked(story.see(9.0, *views)) == ["b"]


def test_once_all_have_come_the_start_waits_no_longer() -> None:
    story = Story(start_grace_s=2.0)
    story.see(0.1, says("a", "joining", 0.1), says("b", "joining", 0.1), gone("c"))
    assert asked(story.see(0.3, *(says(name, "joining", 0.3) for name in "abc"))) == ["a"]


def test_a_failure_later_on_waits_for_nobody_who_is_away() -> None:
    """Breaks when the start's grace delays a failover shortly after the daemon's start."""
    story = Story(start_grace_s=100.0)
    story.see(5.0, says("a", "active", 5.0))
    assert asked(story.see(6.0, gone("a"), says("b", "joining", 6.0), says("c", "joining", 6.0))) == ["b"]


def test_a_broker_that_does_not_say_what_it_sees_is_left_out_after_a_moment() -> None:
    """Breaks when one slow broker of five delays the failover until it counts as silent."""
    story = Story(ask_grace_s=0.1)
    story.see(5.0, says("a", "active", 5.0))
    others = [says(name, "joining", 10.01) for name in "bcd"]
    slow = says("e", "ready", 9.9, primary="a")
    story.see(10.0, gone("a"), *others, slow)
    assert asked(story.see(10.09, gone("a"), *others, slow)) == []
    assert asked(story.see(10.1, gone("a"), *others, slow)) == ["b"]


def test_a_promotion_that_somebody_else_has_asked_for_is_waited_for() -> None:
    """Breaks when a second daemon's request disturbs an election that is being won."""
    story = Story.with_a_failed_primary()
    effects = story.see(10.01, gone("a"), says("b", "recovering", 10.01, epoch=4), says("c", "joining", 10.01))
    assert (asked(effects), reasons(effects)) == ([], ["b is being promoted"])


def test_when_it_is_anothers_turn_the_daemon_waits_and_then_looks_again() -> None:
    """Breaks when a daemon that waited asks on what it saw before: the first one's promotion would be disturbed."""
    story = Story.with_a_failed_primary()
    joining = [gone("a"), says("b", "joining", 10.01), says("c", "joining", 10.01)]
    effects = story.see(10.01, *joining, acts_at=lambda since_s, _: since_s + 0.2)
    assert effects == [Waiting("it is not this daemon's turn yet"), WakeAt(10.2)]
    effects = story.see(10.2, *joining, acts_at=lambda since_s, _: since_s + 0.2)
    assert (asked(effects), AskAll() in effects) == ([], True)
    again = [gone("a"), says("b", "joining", 10.21), says("c", "joining", 10.21)]
    assert asked(story.see(10.21, *again, acts_at=lambda since_s, _: since_s + 0.2)) == ["b"]


def test_a_daemon_whose_turn_never_comes_sets_no_timer() -> None:
    story = Story.with_a_failed_primary()
    effects = story.see(10.01, gone("a"), *(says(n, "joining", 10.01) for n in "bc"), acts_at=lambda *_: NEVER)
    assert effects == [Waiting("it is not this daemon's turn yet")]


def test_while_a_request_is_under_way_no_other_is_made() -> None:
    story = Story.with_a_failed_primary()
    joining = [gone("a"), says("b", "joining", 10.01), says("c", "joining", 10.01)]
    assert asked(story.see(10.01, *joining)) == ["b"]
    assert story.see(10.02, *joining) == []


def test_a_promotion_that_is_won_is_confirmed_by_another_look() -> None:
    story = Story.with_a_failed_primary()
    joining = [gone("a"), says("b", "joining", 10.01), says("c", "joining", 10.01)]
    story.see(10.01, *joining)
    won, look = story.promotion.promoted("b", 4, 10.25)
    assert won == PromoteWon("b", 4, 0.25)
    assert look == AskAll()
    assert asked(story.see(10.25, *joining)) == []
    assert story.see(10.26, gone("a"), says("b", "active", 10.26, epoch=4)) == [PrimarySeen("b", 4)]


def test_a_promotion_whose_success_shows_before_its_answer_comes_is_won_once() -> None:
    """Breaks when the broker's view overtakes its answer, and the promotion is reported never or twice."""
    story = Story.with_a_failed_primary()
    story.see(10.01, gone("a"), says("b", "joining", 10.01), says("c", "joining", 10.01))
    effects = story.see(10.25, gone("a"), says("b", "active", 10.25, epoch=4), says("c", "joining", 10.01))
    assert effects == [PromoteWon("b", 4, 0.25), PrimarySeen("b", 4)]
    assert story.promotion.promoted("b", 4, 10.26) == []


def test_after_a_refusal_the_next_candidate_is_asked_on_fresh_views() -> None:
    """Breaks when the same broker is asked for ever, or the next one before anybody looked whether it is still needed."""
    story = Story.with_a_failed_primary()
    story.see(10.01, gone("a"), says("b", "joining", 10.01), says("c", "joining", 10.01))
    assert story.promotion.refused("b", "not enough votes", 10.05) == [PromoteRefused("b", "not enough votes", 0.2), AskAll()]
    assert asked(story.see(10.05, gone("a"), says("b", "joining", 10.01), says("c", "joining", 10.01))) == []
    assert asked(story.see(10.06, gone("a"), says("b", "joining", 10.06), says("c", "joining", 10.06))) == ["c"]


def test_one_who_refuses_again_and_again_rests_longer_but_not_for_ever() -> None:
    story = Story(retry_s=0.2, max_retry_s=1.0)
    now_s, rests = 10.0, []
    for _ in range(5):
        now_s += 0.01
        assert asked(story.see(now_s, says("b", "joining", now_s))) == ["b"]
        refusal = story.promotion.refused("b", "no", now_s)[0]
        assert isinstance(refusal, PromoteRefused)
        rests.append(refusal.rest_s)
        effects = story.see(now_s + 0.001, says("b", "joining", now_s + 0.001))
        assert reasons(effects) == ["every candidate has refused"]
        wake = next(effect for effect in effects if isinstance(effect, WakeAt))
        assert wake.at_s == pytest.approx(now_s + refusal.rest_s)
        now_s = wake.at_s
    assert rests == [0.2, 0.4, 0.8, 1.0, 1.0]


def test_when_all_have_refused_the_first_to_be_rested_is_asked_as_soon_as_it_is() -> None:
    """Breaks when one broker that refuses again and again keeps the daemon from another that would accept."""
    story = Story(retry_s=0.2)
    now_s = 10.0
    for name in ("b", "b", "c"):  # b is preferred, and rests for 0.2 s and then 0.4 s; c for 0.2 s
        now_s += 0.21
        assert asked(story.see(now_s, says(name, "joining", now_s))) == [name]
        story.promotion.refused(name, "no", now_s)
    both = [says("b", "joining", now_s), says("c", "joining", now_s)]
    (due_s,) = [effect.at_s for effect in story.see(now_s, *both) if isinstance(effect, WakeAt)]
    assert due_s == pytest.approx(now_s + 0.19)
    assert asked(story.see(due_s, *both)) == ["b"]


def test_learners_make_no_majority() -> None:
    """Breaks when brokers without a vote are counted: an election would be asked for that cannot be won."""
    brokers = [says("a", "joining", 3.0), gone("b"), *(says(name, "joining", 3.0, learner=True) for name in "cd")]
    assert reasons(Story().see(3.0, *brokers)) == ["1 of 2 brokers answer, and 2 are needed"]
    assert reasons(Story().see(3.0, *brokers[:2], lowered("c", 3.0, 71))) == ["1 of 2 brokers answer, and 2 are needed"]


def test_a_candidate_that_dies_while_being_asked_has_refused() -> None:
    """Breaks when the daemon waits out the whole timeout of a dead candidate."""
    story = Story.with_a_failed_primary()
    story.see(10.01, gone("a"), says("b", "joining", 10.01), says("c", "joining", 10.01))
    effects = story.see(10.02, gone("a"), gone("b"), says("c", "joining", 10.02))
    assert PromoteRefused("b", "closed the connection", 0.2) in effects
    assert story.promotion.promoted("b", 4, 10.03) == [], "its answer came too late: its view will tell"
    assert story.promotion.refused("b", "too late", 10.03) == []


def test_a_candidate_that_is_no_longer_configured_has_refused() -> None:
    story = Story.with_a_failed_primary()
    story.see(10.01, gone("a"), says("b", "joining", 10.01), says("c", "joining", 10.01))
    assert PromoteRefused("b", "it is not configured", 0.2) in story.see(10.02, gone("a"), says("c", "joining", 10.02))


def test_the_cause_of_a_primary_that_is_no_longer_configured_is_named() -> None:
    story = Story()
    story.see(5.0, says("a", "active", 5.0))
    assert FailureDetected("a", 3, "it is not configured any more") in story.see(6.0, says("b", "joining", 6.0))


def test_answers_about_a_promotion_that_is_over_are_ignored() -> None:
    """Breaks when a late refusal puts a broker to rest that serves by now."""
    story = Story.with_a_failed_primary()
    story.see(10.01, gone("a"), says("b", "joining", 10.01), says("c", "joining", 10.01))
    story.see(10.02, gone("a"), says("b", "joining", 10.02), says("c", "active", 10.02, epoch=4))
    assert story.promotion.refused("b", "c was elected", 10.03) == []
    assert story.promotion.promoted("b", 4, 10.03) == []


_STATUS = st.sampled_from(["joining", "catchup", "ready", "recovering", "active"])
_BROKERS = st.lists(st.tuples(_STATUS, st.sampled_from(["", "a", "b", "c"]), st.booleans()), min_size=3, max_size=3)


@given(st.lists(st.tuples(_BROKERS, st.booleans()), max_size=30))
def test_whatever_is_seen_a_request_is_made_only_with_a_majority_and_without_a_primary(moments: Any) -> None:
    """Breaks when any order of events makes the daemon ask on a minority, on stale views, twice at once, or against a primary."""
    promotion, now_s, waiting = Promotion(SETTINGS, started_s=0.0), 0.0, ""
    for brokers, answer in moments:
        now_s += 0.05
        sight = Sight(
            tuple(
                says(name, status, now_s, primary=primary) if there else gone(name)
                for name, (status, primary, there) in zip("abc", brokers, strict=True)
            )
        )
        for effect in promotion.step(sight, now_s, at_once):
            if isinstance(effect, AskToPromote):
                assert not waiting or sight.seen(waiting) is not None
                assert sight.primary is None
                assert len(sight.reachable) >= 2
                chosen = sight.seen(effect.name)
                assert chosen is not None
                assert chosen.has_answered_since(now_s)
                waiting = effect.name
        if waiting and answer:
            promotion.refused(waiting, "no", now_s)
            waiting = ""


def test_a_turn_whose_moment_moves_on_with_each_answer_is_used_all_the_same() -> None:
    """Breaks when a careless plug-in, which always answers "from now on", makes each view too old as soon as it has come."""
    story = Story.with_a_failed_primary()
    brokers = gone("a"), says("b", "joining", 10.1), says("c", "joining", 10.1)
    assert (
        asked(story.see(10.05, gone("a"), *[says(name, "joining", 9.9) for name in "bc"], acts_at=lambda _, now_s: now_s)) == []
    )
    assert asked(story.see(10.2, *brokers, acts_at=lambda _, now_s: now_s)) == ["b"]


def test_after_a_turn_was_lost_the_next_one_asks_for_new_views() -> None:
    story = Story.with_a_failed_primary()
    old = gone("a"), says("b", "joining", 10.01), says("c", "joining", 9.9)
    assert asked(story.see(10.02, *old, acts_at=lambda since_s, now_s: now_s)) == []
    assert reasons(story.see(10.05, *old, acts_at=lambda since_s, now_s: NEVER)) == ["it is not this daemon's turn yet"]
    seen = gone("a"), says("b", "joining", 10.5), says("c", "joining", 10.5)
    assert asked(story.see(11.0, *seen, acts_at=lambda since_s, now_s: 11.0)) == []
    fresh = gone("a"), says("b", "joining", 11.1), says("c", "joining", 11.1)
    assert asked(story.see(11.2, *fresh, acts_at=lambda since_s, now_s: 11.0)) == ["b"]


def test_while_a_primary_serves_nobody_asks_the_arbiter() -> None:
    """Breaks when an arbiter, whatever it says, could touch a healthy primary."""
    asked_at: list[float] = []

    def notes(since_s: float, now_s: float) -> float:
        asked_at.append(now_s)
        return since_s

    story = Story()
    backups = says("b", "ready", 9.0, primary="a"), says("c", "ready", 9.0, primary="a")
    for now_s in (1.0, 5.0, 9.0):
        story.see(now_s, says("a", "active", now_s), *backups, acts_at=notes)
    assert (asked_at, story.promotion.wants_turn) == ([], False)
    story.see(10.0, gone("a"), *backups, acts_at=notes)
    assert asked_at == [10.0]


def test_a_daemon_that_is_cut_off_still_knows_which_brokers_there_are() -> None:
    """Breaks when nobody counts as a voter because nobody who answers says of which cluster he is: then new brokers that answer
    would be a majority, and a silent primary would be told to be none of the brokers."""

    def seen(name: str, reach: Reach, at_s: float, status: str, *, blank: bool = False) -> Seen:
        view = View(status, 3, *((0, 0) if blank else (3, 70)), "", blank=blank, cluster_id="" if blank else "X")
        return Seen(name, reach, "" if reach is Reach.REACHABLE else "no answer for 1 s", view, at_s)

    story = Story()
    story.see(5.0, seen("a", Reach.REACHABLE, 5.0, "active"), *(seen(name, Reach.REACHABLE, 5.0, "ready") for name in "bc"))
    cut_off = [seen(name, Reach.SILENT, 5.0, "active" if name == "a" else "ready") for name in "abc"]
    new = [seen(name, Reach.REACHABLE, 6.1, "joining", blank=True) for name in "de"]
    effects = story.see(6.1, *cut_off, *new)
    assert (asked(effects), reasons(effects)) == ([], ["2 of 5 brokers answer, and 3 are needed"])
    back = [replace(each, reach=Reach.REACHABLE, answered_s=6.2) for each in (cut_off[1], cut_off[2])]
    views = [replace(each.view, status="joining") for each in back if each.view is not None]
    others = [replace(each, view=view) for each, view in zip(back, views, strict=True)]
    told = [effect for effect in story.see(6.3, cut_off[0], *others) if isinstance(effect, FailureDetected)]
    assert [each.cause for each in told] == ["no answer for 1 s"]
