"""What a cluster agrees on: what may be set, and what that forbids to cluster managers."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.commands import Term
from ha.core.cluster_settings import BadSetting, Tags, checked, moment, objection

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z


@pytest.mark.parametrize(
    "body, key, value",
    [
        ({"setting": "authority", "kind": "etcd"}, "authority", {"kind": "etcd"}),
        ({"setting": "authority", "kind": "any"}, "authority", {}),
        ({"setting": "pause", "reason": "disks"}, "pause", {"since": "2027-01-15T08:00:00Z", "reason": "disks"}),
        ({"setting": "pause"}, "pause", {"since": "2027-01-15T08:00:00Z", "reason": ""}),
        ({"setting": "resume"}, "pause", {}),
        (
            {"setting": "switchover", "at": "2027-01-15T10:00:00+01:00", "candidate": "b:1"},
            "switchover",
            {"at": "2027-01-15T09:00:00Z", "candidate": "b:1"},
        ),
        ({"setting": "switchover", "at": "2027-01-15T09:00"}, "switchover", {"at": "2027-01-15T09:00:00Z", "candidate": ""}),
        ({"setting": "switchover", "at": ""}, "switchover", {}),
        (
            {"setting": "tags", "address": "b:1", "tags": {"priority": 5, "nofailover": False, "site": "east"}},
            "tags:b:1",
            {"priority": 5, "site": "east"},
        ),
        ({"setting": "tags", "address": "b:1", "tags": {"nofailover": True}}, "tags:b:1", {"nofailover": True}),
        ({"setting": "tags", "address": "b:1", "tags": {}}, "tags:b:1", {}),
    ],
)
def test_a_request_becomes_a_key_and_a_value_and_an_empty_one_ends_it(body: Any, key: str, value: Any) -> None:
    assert checked(body, NOW) == (key, value)


@pytest.mark.parametrize(
    "body, said",
    [
        ({}, "there is no setting None"),
        ({"setting": "colour"}, "there is no setting 'colour'"),
        ({"setting": "authority"}, "None is not a kind of manager: give builtin"),
        ({"setting": "authority", "kind": "A B"}, "'A B' is not a kind of manager: give builtin"),
        ({"setting": "pause", "reason": "two\nlines"}, "a reason is one line"),
        ({"setting": "pause", "reason": "x" * 201}, "a reason is one line"),
        ({"setting": "switchover", "at": "soon"}, "'soon' is not a time: write it as"),
        (
            {"setting": "switchover", "at": "2027-01-15T08:00:00Z"},
            "is not within the next year; it is 2027-01-15T08:00:00Z now",
        ),
        ({"setting": "switchover", "at": "2029-01-15T08:00:00Z"}, "is not within the next year"),
        ({"setting": "tags", "tags": {}}, "give its address"),
        ({"setting": "tags", "address": "b:1"}, "None are not tags"),
        ({"setting": "tags", "address": "b:1", "tags": {"size": 1}}, "there is no tag 'size'"),
        ({"setting": "tags", "address": "b:1", "tags": {"priority": True}}, "priority True is not a number"),
        ({"setting": "tags", "address": "b:1", "tags": {"priority": 1_000_001}}, "priority 1000001 is not a number"),
        ({"setting": "tags", "address": "b:1", "tags": {"nofailover": "yes"}}, "nofailover 'yes' is neither"),
        ({"setting": "tags", "address": "b:1", "tags": {"site": "a b"}}, "site 'a b' is not a name"),
        ({"setting": "tags", "address": "b:1", "tags": {"site": 5}}, "site 5 is not a name"),
    ],
)
def test_what_cannot_be_set_is_refused_with_the_reason(body: Any, said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        checked(body, NOW)


@pytest.mark.parametrize(
    "value, tags",
    [
        ({"priority": 5, "nofailover": True, "site": "east"}, Tags(5, nofailover=True, site="east")),
        ({"priority": "5", "nofailover": 1, "site": 7}, Tags()),
        (None, Tags()),
    ],
)
def test_tags_that_another_release_has_written_otherwise_count_as_not_said(value: Any, tags: Tags) -> None:
    assert Tags.of(value) == tags


def term(ago_s: float, by: str = "", *, planned: bool = False) -> Term:
    """A term that began so long ago."""
    return Term(ts=f"2027-01-15T07:{59 - int(ago_s) // 60:02d}:{59 - int(ago_s) % 60:02d}.500Z", by=by, planned=planned)


PAUSED = {"pause": {"since": "then", "reason": "disks"}}
PACEMAKER = {"authority": {"kind": "pacemaker"}}


@pytest.mark.parametrize(
    "settings, terms, hears, said",
    [
        ({}, [], "", ""),
        ({}, [], "a:1", ""),
        (PAUSED, [], "", "the cluster is paused since then (disks): qpid-ha resume ends that"),
        ({"pause": {}}, [], "", "the cluster is paused since ?: qpid-ha resume ends that"),
        (PACEMAKER, [], "", "the authority of this cluster is 'pacemaker' (qpid-ha authority), and 'builtin' watches"),
        ({"authority": {"kind": "builtin"}}, [], "a:1", ""),
        ({}, [term(30, "builtin", planned=True)], "a:1", "a:1 serves, and a manager moved the primary 30 s ago: once in 60 s"),
        ({}, [term(30, "builtin", planned=True)], "", ""),
        ({}, [term(61, "builtin", planned=True)], "a:1", ""),
        ({}, [term(30, "builtin")], "a:1", ""),
        ({}, [term(30, planned=True)], "a:1", ""),
        ({}, [term(590, "etcd")], "a:1", "a:1 serves, and 'etcd' made it so 59"),
        ({}, [term(590, "etcd"), term(200, "builtin")], "a:1", "a:1 serves, and 'etcd' made it so 59"),
        ({}, [term(601, "etcd")], "a:1", ""),
        ({}, [term(5, "etcd")], "", ""),
        ({}, [Term(ts="garbled", by="etcd", planned=True)], "a:1", ""),
    ],
)
def test_a_manager_is_told_why_it_must_not_promote(settings: Any, terms: list[Term], hears: str, said: str) -> None:
    """Breaks when two kinds of manager push a primary that serves to and fro, or a pause ends with a daemon."""
    found = objection("builtin", settings, terms, hears, NOW)
    assert found.startswith(said) if said else found == ""


@pytest.mark.parametrize(
    "settings, insists, refused",
    [({}, True, True), (PACEMAKER, False, True), (PACEMAKER, True, False), (PACEMAKER | PAUSED, True, True)],
)
def test_the_manager_that_the_cluster_agrees_on_moves_its_primary_as_often_as_it_is_told(
    settings: Any, insists: bool, refused: bool
) -> None:
    """Twenty moves in a row by an administrator are not a failure; a daemon that calls a primary failed again and again is."""
    terms = [term(200, "etcd", planned=True), term(5, "pacemaker", planned=True)]
    assert bool(objection("pacemaker", settings, terms, "a:1", NOW, insists=insists)) is refused


def test_a_time_without_a_zone_is_utc() -> None:
    assert moment("2027-01-15T08:00:00") == moment("2027-01-15T09:00:00+01:00") == NOW
