"""Counting, against counting by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ha.core.quorum import Tally, held_by_majority


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9))
def test_a_majority_holds_what_more_than_half_hold(indexes: list[int]) -> None:
    """One too high commits what a minority holds; one too low never commits."""
    held = held_by_majority(indexes)
    assert 2 * sum(index >= held for index in indexes) > len(indexes)
    assert 2 * sum(index > held for index in indexes) <= len(indexes)


def test_a_vote_counts_once_and_a_stranger_never() -> None:
    """Messages may be repeated, and a broker that was removed may still answer."""
    tally = Tally("abc")
    tally.count("x", True)
    tally.count("a", True)
    tally.count("a", True)
    assert not tally.won
    assert not tally.lost
    assert tally.silent == ["b", "c"]
    tally.count("b", True)
    tally.count("b", False, reason="changed its mind")
    assert tally.won, "a grant stands"


def test_a_refusal_may_become_a_grant_when_the_voter_is_asked_again() -> None:
    """Else a promotion would wait for its deadline because one voter saw the primary die a moment after the others."""
    tally = Tally("abc")
    tally.count("a", True)
    tally.count("b", False, reason="hears the primary")
    assert tally.unconvinced == ["b", "c"]
    assert tally.silent == ["c"]
    tally.count("b", True)
    assert tally.won
    assert tally.refused == {}


def test_a_round_is_lost_when_a_majority_cannot_be_reached() -> None:
    """So that a refused promotion says so at once instead of at its deadline."""
    tally = Tally("abcd")
    tally.count("a", False, reason="no")
    assert not tally.lost
    tally.count("b", False, reason="no")
    assert tally.lost


def test_provisional_votes_win_only_together_with_all_others() -> None:
    """Two new stores of three must not elect a broker that lacks what the third holds."""
    tally = Tally("abc")
    tally.count("a", True, provisional=True)
    tally.count("b", True, provisional=True)
    tally.count("b", True)
    assert (tally.won, tally.lost) == (False, False)
    tally.count("c", True)
    assert (tally.won, tally.lost) == (True, False)
    refused = Tally("abc")
    refused.count("a", True, provisional=True)
    refused.count("c", False, reason="its log is newer")
    assert refused.lost
