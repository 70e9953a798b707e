"""What the daemon believes of a broker, told as observations with their times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from resource_manager.core.detector import BadView, Detector, Members, Reach, View

ITEM: dict[str, Any] = {"status": "ready", "epoch": 3, "lastEpoch": 3, "lastIndex": 70, "primary": "a:1"}


def view(status: str = "ready", epoch: int = 3, primary: str = "a:1") -> View:
    return View(status, epoch, 3, 70, primary)


def seeing(**views: View) -> Detector:
    """A detector that was told these views at time 10."""
    detector = Detector([f"{name}:1" for name in views], detection_s=1.0)
    for name, told in views.items():
        detector.connected(f"{name}:1", 10.0)
        detector.answered(f"{name}:1", told, 10.0)
    return detector


def test_an_answer_is_read_into_what_promotion_needs() -> None:
    assert View.of(ITEM, "b:1") == View("ready", 3, 3, 70, "a:1", learner=False)


def test_a_broker_that_knows_no_primary_names_none() -> None:
    assert View.of(ITEM | {"primary": ""}, "b:1").primary == ""


def test_a_standalone_broker_is_no_member_of_a_cluster_and_never_its_primary() -> None:
    """Breaks when one that was started without --ha-cluster yes passes for the primary of epoch 0, and nobody is promoted."""
    with pytest.raises(BadView, match="it is in no cluster"):
        View.of({"status": "standalone"}, "b:1")


MEMBERSHIP: dict[str, Any] = {"index": 9, "committed": True, "voters": ["a:1", "b:1"], "learners": ["c:1"]}


@pytest.mark.parametrize(
    "told, members",
    [
        ({"address": "b:1", "membership": MEMBERSHIP}, Members(9, ("a:1", "b:1"), ("c:1",))),
        ({"address": "elsewhere:1", "membership": MEMBERSHIP}, None),
        ({"address": "b:1", "membership": MEMBERSHIP | {"committed": False}}, None),
        ({"address": "b:1", "membership": MEMBERSHIP | {"voters": []}}, None),
        ({"address": "b:1"}, None),
    ],
)
def test_members_count_when_they_are_committed_and_told_of_the_address_that_was_asked(
    told: dict[str, Any], members: Members | None
) -> None:
    """Breaks when a daemon that reaches the brokers by other addresses than they use drops all of its own."""
    assert View.of(ITEM | told, "b:1").members == members


def of(cluster: str, *voters: str, index: int = 1) -> View:
    """A view of a member of this cluster, which has these voters."""
    members = Members(index, tuple(f"{voter}:1" for voter in voters)) if voters else None
    return View("ready", 3, 3, 70, "", cluster_id=cluster, members=members)


def test_a_cluster_is_served_by_a_primary_of_its_own() -> None:
    """Breaks when a broker of a cluster that was given up, and does not serve, passes for one that lives."""
    served, given_up = replace(view("active"), cluster_id="two"), replace(view("joining"), cluster_id="one")
    sight = seeing(a=served, b=given_up).sight(10.1)
    assert (sight.is_served("two"), sight.is_served("one")) == (True, False)


PAUSED = {"pause": {"since": "then", "reason": "disks"}}


def told(applied: int, settings: dict[str, Any], cluster: str = "X") -> View:
    """A view of a broker that has applied so many batches, with these settings."""
    return replace(view(), applied_index=applied, settings=settings, cluster_id=cluster)


def test_settings_are_remembered_when_all_brokers_are_restarted_and_have_applied_less() -> None:
    """Breaks when a broker's new connection, or its first answer after a restart, wipes out what it has told."""
    detector = seeing(a=told(70, PAUSED), b=told(69, {}))
    for name in ("a:1", "b:1"):
        detector.lost(name, "closed")
        detector.connected(name, 11.0)
    assert detector.sight(11.1).settings == PAUSED
    for name in ("a:1", "b:1"):
        detector.answered(name, told(3, {}), 11.2)
    assert detector.sight(11.3).settings == PAUSED
    views = [seen.view for seen in detector.sight(11.3).brokers]
    assert views == [told(3, {})] * 2, "for anything else the last answer counts"


@pytest.mark.parametrize("newer", [told(71, {}), told(70, {}), told(2, {}, "Y")])
def test_settings_are_those_of_the_newest_log_of_the_same_cluster(newer: View) -> None:
    """Breaks when what was unset, or is of a cluster that the broker has left, is in force for ever."""
    detector = seeing(a=told(70, PAUSED))
    detector.answered("a:1", newer, 10.5)
    assert detector.sight(10.6).settings == {}


def test_a_broker_of_a_cluster_that_was_given_up_decides_no_settings_although_its_log_is_longer() -> None:
    """Breaks when the daemons of a new cluster stay paused, because a broker that is gone was paused in the old one."""
    detector = seeing(a=told(70, PAUSED, "old"), b=told(2, {}, "new"))
    detector.lost("a:1", "closed")
    assert detector.sight(10.5).settings == {}


@pytest.mark.parametrize(
    "views, cluster, electors",
    [
        ({"a": of(""), "b": of("")}, "", "ab"),
        ({"a": of("X"), "b": of("X"), "c": of("")}, "X", "abc"),
        ({"a": of("X", *"abc"), "b": of("X", *"abc"), "c": of("Y", *"cde")}, "X", "ab"),
        ({"a": of("X", "a"), "b": of("Y", "b")}, None, ""),
        ({"a": of("X", *"abc"), "b": of("Y", *"bde")}, None, ""),
        ({"a": of("X"), "b": of("Y")}, None, ""),
        ({"a": of("X", *"abc"), "b": of("X", *"ab", index=2), "c": of("Y", *"cde")}, "X", "ab"),
    ],
)
def test_a_daemon_acts_for_one_cluster_and_for_none_of_several(
    views: dict[str, View], cluster: str | None, electors: str
) -> None:
    """A stray of another cluster is left out where a majority of ours answers."""
    sight = seeing(**views).sight(10.0)
    assert sight.cluster == cluster
    if cluster is not None:
        assert [seen.name for seen in sight.electors(cluster).brokers] == [f"{name}:1" for name in electors]


def test_learners_and_removed_brokers_elect_nobody() -> None:
    """Breaks when a majority is counted among brokers that have no vote."""
    learner = View("ready", 3, 3, 70, "", learner=True)
    sight = seeing(a=view(), b=view(), c=learner, d=view("removed")).sight(10.0)
    assert [seen.name for seen in sight.electors("").brokers] == ["a:1", "b:1"]


def test_a_learner_that_has_never_answered_elects_nobody_if_a_voter_names_it() -> None:
    """Breaks when a site that follows is away when the daemon starts: its brokers would count for the majority, and nobody
    would be promoted."""
    members = Members(9, ("a:1", "b:1", "c:1"), ("d:1", "e:1", "f:1"))
    told = replace(view(), members=members, cluster_id="one")
    detector = Detector([f"{name}:1" for name in "abcdef"], detection_s=1.0)
    for name in ("a:1", "b:1"):
        detector.connected(name, 10.0)
        detector.answered(name, told, 10.0)
    electors = detector.sight(10.0).electors("one")
    assert [seen.name for seen in electors.brokers] == ["a:1", "b:1", "c:1"]
    assert electors.majority == 2
    assert len(detector.sight(10.0).electors("").brokers) == 6, "nobody of this cluster names any"


def test_who_is_watched_changes_and_what_is_known_of_the_others_stays() -> None:
    detector = seeing(a=view(), b=view())
    detector.watch(["b:1", "c:1"])
    assert [(seen.name, seen.view is not None) for seen in detector.sight(10.0).brokers] == [("b:1", True), ("c:1", False)]


def test_a_learner_is_known_by_its_own_entry_among_the_members() -> None:
    """Breaks when another member's role is taken for one's own: a voter would never be promoted."""
    members = [{"address": "b:1", "role": "learner"}, {"address": "c:1", "role": "voter"}, "nonsense"]
    assert View.of(ITEM | {"members": members}, "b:1").learner
    assert not View.of(ITEM | {"members": members}, "c:1").learner


def test_a_broker_that_is_reached_by_another_name_has_the_role_that_the_cluster_gives_its_own() -> None:
    """Breaks when a daemon with short names counts a learner for the majority, and nobody is promoted."""
    members = [{"address": "b.example:1", "role": "learner"}, {"address": "b:1", "role": "voter"}]
    told = ITEM | {"address": "b.example:1", "members": members}
    assert (View.of(told, "b:1").learner, View.of(told, "b:1").address) == (True, "b.example:1")
    assert not View.of(told | {"address": "b:1"}, "b.example:1").learner


def test_a_broker_is_known_by_its_own_name_and_has_its_tags_while_it_is_connected_again() -> None:
    """Breaks when a broker with the tag nofailover is promoted, because the daemon has a short name for it."""
    settings = {"tags:a.example:1": {"nofailover": True}}
    detector = seeing(a=replace(told(70, settings), address="a.example:1"), b=told(69, {}))
    for _ in range(2):
        sight = detector.sight(10.1)
        assert (sight.member("a:1"), sight.member("b:1"), sight.member("x:1")) == ("a.example:1", "b:1", "x:1")
        assert (sight.tags("a:1").nofailover, sight.tags("b:1").nofailover) == (True, False)
        detector.connected("a:1", 10.1)
    assert detector.sight(10.1).brokers[0].view is None


def test_roles_that_others_tell_are_of_the_names_that_brokers_give_themselves() -> None:
    """As some were given by short names. Breaks when these are not counted for their cluster, or a learner of it is."""
    members = Members(9, ("a:1", "b.example:1", "c.example:1"), ("d.example:1",))
    a = View("ready", 3, 3, 70, "", cluster_id="X", members=members)
    b, d = (replace(a, members=None, address=f"{name}.example:1") for name in "bd")
    stray = View("ready", 3, 3, 70, "", cluster_id="Y", members=Members(1, ("x:1", "y:1", "z:1")))
    detector = seeing(a=a, b=b, d=d, x=stray)
    detector.lost("d:1", "closed")
    assert detector.sight(10.1).cluster == "X"
    assert [seen.name for seen in detector.sight(10.1).electors("X").brokers] == ["a:1", "b:1"]


def test_a_learner_that_can_be_elected_is_known_and_elects_nobody() -> None:
    """The batch that takes its vote is perhaps not committed, and only in its log. Breaks when the only one that could win is
    not known as such, or when it counts for the majority: no candidate counts its vote.
    """
    item = ITEM | {"members": [{"address": "b:1", "role": "learner"}], "clusterId": "one"}
    views = {"a": view(), "b": View.of(item | {"electable": True}, "b:1"), "c": View.of(item | {"electable": False}, "b:1")}
    sight = seeing(**views).sight(10.0)
    for cluster, lowered in (("", ["b:1"]), ("one", ["b:1"]), ("two", [])):
        electors = sight.electors(cluster)
        assert "b:1" not in [seen.name for seen in electors.brokers]
        assert [seen.name for seen in electors.lowered] == lowered
    assert not View.of(ITEM | {"electable": True, "members": [{"address": "b:1", "role": "voter"}]}, "b:1").electable


def test_a_witness_says_that_it_is_one_and_votes() -> None:
    assert (View.of(ITEM | {"witness": True}, "b:1").witness, View.of(ITEM, "b:1").witness) == (True, False)
    witness = View("ready", 3, 3, 70, "", witness=True)
    assert [seen.name for seen in seeing(a=view(), w=witness).sight(10.0).electors("").brokers] == ["a:1", "w:1"]


@pytest.mark.parametrize(
    "wrong", [{"status": "dancing"}, {"status": None}, {"epoch": None}, {"lastEpoch": "3"}, {"lastIndex": -1}]
)
def test_an_answer_with_something_missing_or_wrong_is_refused(wrong: dict[str, Any]) -> None:
    """Breaks when a broker of another kind can be counted as a candidate."""
    with pytest.raises(BadView):
        View.of(ITEM | wrong, "b:1")


def test_a_broker_is_absent_until_it_has_answered() -> None:
    """Breaks when an open TCP connection counts as a broker: a process that hangs at its start would make a majority."""
    detector = Detector(["a:1"], detection_s=1.0)
    assert detector.sight(10.0).brokers[0].reason == "not connected yet"
    detector.connected("a:1", 10.0)
    assert detector.sight(10.5).brokers[0].reach is Reach.ABSENT
    detector.answered("a:1", view(), 10.6)
    assert detector.sight(10.7).brokers[0].reach is Reach.REACHABLE


def test_a_killed_broker_is_absent_at_once() -> None:
    detector = seeing(a=view("active"))
    detector.lost("a:1", "closed the connection")
    seen = detector.sight(10.0).brokers[0]
    assert (seen.reach, seen.reason, seen.serves) == (Reach.ABSENT, "closed the connection", False)


def test_a_broker_is_silent_after_the_detection_time_and_not_before() -> None:
    detector = seeing(a=view("active"))
    assert detector.sight(10.999).brokers[0].serves
    seen = detector.sight(11.0).brokers[0]
    assert (seen.reach, seen.reason, seen.serves) == (Reach.SILENT, "no answer for 1 s", False)


def test_a_silent_broker_that_answers_again_is_reachable() -> None:
    detector = seeing(a=view())
    assert detector.sight(15.0).brokers[0].reach is Reach.SILENT
    detector.answered("a:1", view(), 15.0)
    assert detector.sight(15.1).brokers[0].reach is Reach.REACHABLE


def test_an_answer_that_comes_after_the_end_of_its_connection_is_ignored() -> None:
    detector = seeing(a=view())
    detector.lost("a:1", "closed the connection")
    detector.answered("a:1", view("active"), 10.5)
    assert detector.sight(10.5).primary is None


def test_a_view_from_before_a_reconnection_is_forgotten() -> None:
    """Breaks when a broker that was the primary in its former life still counts as one."""
    detector = seeing(a=view("active"))
    detector.lost("a:1", "closed the connection")
    detector.connected("a:1", 10.5)
    assert detector.sight(10.6).primary is None


def test_silence_is_due_when_the_first_broker_would_become_silent() -> None:
    """Breaks when the daemon sleeps through a detection time."""
    detector = seeing(a=view(), b=view())
    detector.answered("a:1", view(), 10.4)
    assert detector.next_silence_s(10.4) == 11.0
    assert detector.next_silence_s(11.0) == 11.4
    assert detector.next_silence_s(12.0) is None
    detector.lost("a:1", "gone")
    detector.lost("b:1", "gone")
    assert detector.next_silence_s(10.0) is None


def test_the_primary_of_the_highest_epoch_is_the_primary() -> None:
    """Breaks when a primary that was cut off and does not know it hides the new one."""
    sight = seeing(a=view("active", epoch=3), b=view("active", epoch=4), c=view()).sight(10.5)
    assert sight.primary is not None
    assert sight.primary.name == "b:1"


def test_a_majority_is_more_than_half_of_all_configured_brokers() -> None:
    assert [seeing(**{name: view() for name in "abcde"[:n]}).sight(10.0).majority for n in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


def test_a_broker_is_found_by_its_name_or_not_at_all() -> None:
    sight = seeing(a=view()).sight(10.0)
    assert sight.seen("a:1") is sight.brokers[0]
    assert sight.seen("z:1") is None


def test_only_a_following_backup_hears_a_primary() -> None:
    """Breaks when a backup that looks for a primary counts as one that has it on the line."""
    sight = seeing(b=view("ready"), c=view("catchup"), d=view("joining"), e=view("ready", primary="b:1")).sight(10.0)
    assert [seen.hears("a:1") for seen in sight.brokers] == [True, True, False, False]
    assert [seen.has_answered_since(10.0) for seen in sight.brokers] == [True] * 4
    assert [seen.has_answered_since(10.1) for seen in sight.brokers] == [False] * 4
