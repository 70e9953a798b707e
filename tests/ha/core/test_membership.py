"""Memberships: one step at a time, and nothing but well-formed ones from outside."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.core.membership import BadMembership, Membership

ABC = Membership.of(["c", "a", "b"], cluster_id="x")


def test_members_are_sorted_and_survive_json() -> None:
    """Brokers whose URLs name the members in different orders must agree on what the membership is."""
    with_d = ABC.with_learner("d")
    assert ABC.voters == ("a", "b", "c")
    assert Membership.from_dict(json.loads(json.dumps(with_d.to_dict()))) == with_d
    assert with_d.addresses == ("a", "b", "c", "d")
    assert [with_d.role(address) for address in "ade"] == ["voter", "learner", ""]
    assert ABC.majority == 2


@given(st.sets(st.sampled_from("abcdef"), min_size=1), st.sampled_from("abcdefg"))
def test_majorities_before_and_after_a_step_share_a_voter(voters: set[str], address: str) -> None:
    """§4.1 of the dissertation: otherwise two primaries could be elected in one epoch, one by each membership."""
    before = Membership.of(voters)
    try:
        after = before.without(address) if address in voters else before.with_learner(address).with_voter(address)
    except BadMembership:
        assert voters == {address}
        return
    assert before.majority + after.majority > len(set(before.voters) | set(after.voters))


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda: Membership.of([]), "at least one voting member"),
        (lambda: Membership.of(["a", ""]), "address is empty"),
        (lambda: Membership.of(["a"], ["a"]), "twice"),
        (lambda: ABC.with_learner("b"), "b is a member already"),
        (lambda: ABC.with_voter("d"), "d is not a learner"),
        (lambda: ABC.without("d"), "d is not a member"),
        (lambda: Membership.of("a").without("a"), "last voting member"),
    ],
)
def test_an_impossible_change_says_why(change: Any, text: str) -> None:
    """The text goes to whoever asked for the change."""
    with pytest.raises(BadMembership, match=text):
        change()


def test_a_learner_can_be_removed() -> None:
    """One that was added by mistake has to go again."""
    assert ABC.with_learner("d").without("d") == ABC


@pytest.mark.parametrize(
    "fields",
    [
        *(None, [], {}),
        {"voters": "abc", "learners": [], "cluster_id": ""},
        {"voters": [1], "learners": [], "cluster_id": ""},
        {"voters": ["a"], "learners": ["b"], "cluster_id": "", "standby": "b"},
    ],
)
def test_a_description_that_is_none_is_refused(fields: Any) -> None:
    """Memberships come out of batches of other brokers."""
    with pytest.raises(BadMembership, match="not a description"):
        Membership.from_dict(fields)
