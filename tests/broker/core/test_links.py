"""The account of a link, alone and beside a model that keeps one entry a delivery."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core import limits
from broker.core.links import ACCEPTED, FAILED, MODIFIED, RELEASED, Incoming, Outgoing, add_ids


def flat(ranges: list[range]) -> list[int]:
    return [sequence for each in ranges for sequence in each]


def test_deliveries_are_numbered_one_after_another_settled_ones_too() -> None:
    account = Outgoing()
    account.credit = 10
    assert [account.sent(100, 3, False), account.sent(200, 2, True), account.sent(103, 1, False)] == [0, 3, 5]
    assert (account.credit, account.n_unsettled, account.next_id) == (4, 4, 6)
    assert account.unsettled() == [range(100, 103), range(103, 104)], "the ids between them went out settled"


def test_lots_that_follow_one_another_are_one_run() -> None:
    account = Outgoing()
    for first in range(0, 1000, 10):
        account.sent(first, 10, False)
    assert account.unsettled() == [range(1000)]
    account.sent(2000, 1, False)
    assert account.unsettled() == [range(1000), range(2000, 2001)]


def test_what_is_taken_from_the_middle_leaves_both_sides() -> None:
    account = Outgoing()
    account.sent(50, 10, False)
    assert account.take(4, 2) == [range(54, 56)]
    assert account.unsettled() == [range(50, 54), range(56, 60)]
    assert account.take(4, 2) == [], "each sequence is given out once"
    assert account.take(0, 10) == [range(50, 54), range(56, 60)]
    assert (account.n_unsettled, account.unsettled()) == (0, [])
    assert account.take(0, 10) == []


def test_what_is_taken_from_the_front_leaves_the_rest_in_its_place() -> None:
    account = Outgoing()
    account.sent(50, 10, False)
    assert account.take(0, 3) == [range(50, 53)]
    assert account.take(3, 1) == [range(53, 54)]
    assert (account.n_unsettled, account.unsettled()) == (6, [range(54, 60)])
    assert account.take(0, 4) == []
    assert account.take(4, 6) == [range(54, 60)]
    assert (account.n_unsettled, account.unsettled()) == (0, [])


def test_a_run_over_several_lots_gives_the_sequences_of_each() -> None:
    account = Outgoing()
    account.sent(7, 2, False)
    account.sent(1, 1, False)
    account.sent(9, 4, False)
    assert account.take(1, 4) == [range(8, 9), range(1, 2), range(9, 11)]
    assert account.take_rest() == [range(7, 8), range(11, 13)]
    assert (account.n_unsettled, account.take_rest()) == (0, [])


def test_outcomes_are_summed_while_they_are_alike_and_follow_one_another() -> None:
    account = Outgoing()
    came = [
        (0, 1, ACCEPTED, True),
        (1, 1, ACCEPTED, True),
        (2, 1, ACCEPTED, False),
        (3, 1, ACCEPTED, False),
        (5, 1, ACCEPTED, False),
        (6, 1, RELEASED, False),
        (7, 1, MODIFIED, False),
        (8, 3, MODIFIED | FAILED, False),
    ]
    for each in came:
        account.came(*each)
    assert account.take_outcomes() == [
        (0, 2, ACCEPTED, True),
        (2, 2, ACCEPTED, False),
        (5, 1, ACCEPTED, False),
        (6, 1, RELEASED, False),
        (7, 1, MODIFIED, False),
        (8, 3, MODIFIED | FAILED, False),
    ]
    assert account.take_outcomes() == []


def test_no_more_goes_out_than_the_credit_the_unsettled_and_a_turn_allow() -> None:
    account = Outgoing()
    assert account.room() == 0
    account.credit = 7
    assert account.room() == 7
    account.credit = 1 << 31
    assert account.room() == limits.MAX_TURN_MESSAGES
    account.sent(0, limits.MAX_UNSETTLED_PER_LINK - 3, False)
    assert (account.room(), account.is_full) == (3, False)
    account.sent(9_000, 3, False)
    assert (account.room(), account.is_full) == (0, True)
    account.credit = -1
    account.take_rest()
    assert account.room() == 0


def test_credit_that_is_held_comes_back_with_the_next_that_may_flow() -> None:
    account = Incoming()
    assert account.give_back(10, True) == 10
    assert (account.came(4), account.came(3)) == (0, 4)
    assert (account.credit, account.next_id) == (3, 7)
    assert account.give_back(4, False) == 0
    assert account.held == 4
    assert account.give_back(3, True) == 7
    assert (account.credit, account.held) == (10, 0)
    account.came(12)
    assert account.credit == -2, "the peer sent two more than it might"


def test_ids_that_follow_one_another_are_one_run() -> None:
    runs: list[tuple[int, int]] = []
    for first, count in ((0, 2), (2, 3), (6, 1), (7, 1), (3, 1)):
        add_ids(runs, first, count)
    assert runs == [(0, 5), (6, 2), (3, 1)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("sent"), st.integers(0, 60), st.integers(1, 6), st.booleans()),
        st.tuples(st.just("take"), st.integers(0, 80), st.integers(1, 12), st.booleans()),
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(STEPS)
def test_an_account_agrees_with_one_entry_a_delivery(steps: list[tuple[str, int, int, bool]]) -> None:
    account, model, next_id = Outgoing(), dict[int, int](), 0
    for step, number, count, is_settled in steps:
        if step == "sent":
            assert account.sent(number, count, is_settled) == next_id
            if not is_settled:
                model |= {next_id + i: number + i for i in range(count)}
            next_id += count
        else:
            wanted = [model.pop(each) for each in range(number, number + count) if each in model]
            assert flat(account.take(number, count)) == wanted
        assert account.n_unsettled == len(model)
        assert flat(account.unsettled()) == list(model.values())
        ids, counts = account._ids, account._counts
        assert all(ids[i] + counts[i] <= ids[i + 1] for i in range(len(ids) - 1))
    assert flat(account.take_rest()) == list(model.values())


def test_credit_that_the_peer_has_used_up_without_messages_is_due_again() -> None:
    account = Incoming()
    account.give_back(10, True)
    account.passed_over(4)
    assert (account.credit, account.held, account.next_id) == (6, 4, 0)
    assert account.give_back(0, False) == 0
    assert (account.give_back(0, True), account.credit, account.held) == (4, 10, 0)
    account.passed_over(11)
    assert account.credit == -1, "more than it had"
