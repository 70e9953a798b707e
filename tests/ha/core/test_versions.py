"""What members know of each other's versions, and when the cluster's version may rise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.core.membership import Membership
from ha.core.versions import (
    WIRE_OLDEST,
    WIRE_VERSION,
    WITNESS_SINCE,
    Versions,
    next_version,
    objection_to,
    objection_to_part,
    versions_of,
)

HERE = Versions(2)


@given(st.integers(1, 99), st.integers(1, 99), st.integers(1, 99))
def test_what_a_member_says_in_its_open_is_what_the_other_reads(machine: int, wire: int, oldest: int) -> None:
    said = Versions(machine, wire, oldest)
    assert versions_of({"product": "understudy"} | said.properties()) == said


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"qpid.ha-machine-version": 2},
        {"qpid.ha-machine-version": True, "qpid.ha-wire-version": 1, "qpid.ha-wire-oldest": 1},
        {"qpid.ha-machine-version": 2, "qpid.ha-wire-version": "1", "qpid.ha-wire-oldest": 1},
        {"qpid.ha-machine-version": 0, "qpid.ha-wire-version": 1, "qpid.ha-wire-oldest": 1},
    ],
)
def test_who_says_nothing_that_can_be_read_is_the_first_release(properties: dict[str, Any]) -> None:
    assert versions_of(properties) == Versions(1, 1, 1, stated=False)


def test_members_whose_forms_of_messages_do_not_meet_have_no_link_and_the_older_one_is_named() -> None:
    newer = Versions(9, WIRE_VERSION + 2, WIRE_VERSION + 1)
    assert "this broker must be upgraded before it can connect to b:1" in objection_to(newer, HERE, "b:1", 1)
    assert "b:1 must be upgraded before it can connect to this broker" in objection_to(HERE, newer, "b:1", 1)
    assert objection_to(Versions(9, WIRE_VERSION + 2, WIRE_OLDEST), HERE, "b:1", 1) == "", "it still reads ours"


def test_the_first_release_is_linked_until_the_cluster_has_risen_beyond_it() -> None:
    """It would apply the log past what it does not know, and call itself level."""
    first = versions_of({})
    assert objection_to(first, HERE, "b:1", 1) == ""
    assert "upgrade b:1" in objection_to(first, HERE, "b:1", 2)
    assert objection_to(Versions(1), HERE, "b:1", 2) == "", "one that states its version stops by itself"


MEMBERS = ("a:1", "b:1", "c:1")


@pytest.mark.parametrize(
    "mine,cluster,said,expected",
    [
        (2, 1, {"b:1": 2, "c:1": 2}, 2),
        (2, 1, {"b:1": 3, "c:1": 3}, 2),
        (3, 1, {"b:1": 3, "c:1": 2}, 2),
        (2, 1, {"b:1": 2, "c:1": 1}, 1),
        (2, 1, {"b:1": 2}, 1),
        (2, 1, {"b:1": 2, "d:1": 2}, 1),
        (1, 1, {"b:1": 2, "c:1": 2}, 1),
        (1, 2, {"b:1": 2, "c:1": 2}, 2),
        (3, 2, {}, 2),
        (2, 1, {"a:1": 1, "b:1": 2, "c:1": 2}, 2),
    ],
)
def test_the_version_rises_to_what_every_member_says_and_never_falls(
    mine: int, cluster: int, said: dict[str, int], expected: int
) -> None:
    assert next_version(mine, cluster, "a:1", MEMBERS, said) == expected


def test_a_cluster_of_one_rises_by_itself() -> None:
    assert next_version(2, 1, "a:1", ("a:1",), {}) == 2


def test_two_members_speak_the_newest_form_that_both_read() -> None:
    assert Versions(2, 3).wire_with(Versions(2, 2)) == Versions(2, 2).wire_with(Versions(2, 3)) == 2
    assert HERE.wire_with(versions_of({})) == 1


WITH_W = Membership.of(["a:1", "b:1", "w:1"], witness="w:1")


@pytest.mark.parametrize(
    "peer,theirs,members,text",
    [
        ("w:1", Versions(5, witness=True), WITH_W, ""),
        ("b:1", Versions(5), WITH_W, ""),
        ("x:1", Versions(5, witness=True), WITH_W, ""),
        ("b:1", Versions(4, WITNESS_SINCE - 1), Membership.of(["a:1", "b:1"]), ""),
        ("b:1", Versions(4, WITNESS_SINCE - 1), WITH_W, "b:1 is of a release that knows no witness, and w:1 is the witness"),
        (
            "b:1",
            Versions(4, WITNESS_SINCE - 1),
            Membership.of(["a:1", "b:1"], ["x:1"], standby=["x:1"]),
            "b:1 is of a release that would let x:1 vote, which are to stay learners: upgrade b:1",
        ),
        ("b:1", Versions(5, witness=True), WITH_W, "b:1 runs as a witness, and is a voter among this broker's members"),
        ("w:1", Versions(5), WITH_W, "w:1 is the witness among this broker's members, and does not run as one"),
    ],
)
def test_members_that_disagree_on_the_witness_or_do_not_know_one_have_no_link(
    peer: str, theirs: Versions, members: Membership, text: str
) -> None:
    """A broker that takes the witness for a store waits for it for ever, or sends it what it does not keep."""
    found = objection_to_part(theirs, peer, members)
    assert found.startswith(text)
    assert bool(found) == bool(text)
    assert versions_of(theirs.properties()) == theirs
