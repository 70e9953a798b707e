"""What is due when: in the order of time, each key once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.core.schedule import Agenda


def test_an_agenda_without_entries_has_nothing_due() -> None:
    agenda: Agenda[str] = Agenda()
    assert (len(agenda), agenda.next_s, agenda.take(1e9)) == (0, None, [])


def test_keys_are_due_in_the_order_of_their_times_and_come_once() -> None:
    agenda: Agenda[str] = Agenda()
    for key, when_s in (("b", 2.0), ("a", 1.0), ("c", 2.0), ("d", 3.0)):
        agenda.put(key, when_s)
    assert agenda.next_s == 1.0
    assert agenda.take(0.9) == []
    assert agenda.take(2.0) == ["a", "b", "c"]
    assert (len(agenda), agenda.next_s) == (1, 3.0)
    assert agenda.take(2.0) == []


def test_a_key_that_gets_another_time_is_due_then_alone() -> None:
    agenda: Agenda[str] = Agenda()
    agenda.put("a", 1.0)
    agenda.put("a", 5.0)
    agenda.put("b", 3.0)
    agenda.put("b", 2.0)
    assert agenda.take(4.0) == ["b"]
    assert agenda.take(5.0) == ["a"]


def test_a_key_that_is_dropped_is_not_due_and_one_that_is_not_there_may_be_dropped() -> None:
    agenda: Agenda[str] = Agenda()
    agenda.put("a", 1.0)
    agenda.put("b", 2.0)
    agenda.drop("a")
    agenda.drop("a")
    assert agenda.next_s == 2.0
    agenda.put("a", 3.0)
    assert agenda.take(9.0) == ["b", "a"]


def test_after_it_was_cleared_nothing_is_due() -> None:
    agenda: Agenda[int] = Agenda()
    for key in range(3):
        agenda.put(key, 1.0)
    agenda.clear()
    assert (len(agenda), agenda.next_s, agenda.take(2.0)) == (0, None, [])


def test_what_was_put_again_and_again_takes_no_more_room_than_what_is_there() -> None:
    """Links that come and go put the key of their queue again each time."""
    agenda: Agenda[int] = Agenda()
    for turn in range(10_000):
        agenda.put(turn % 10, 1000.0 + turn)
    assert len(agenda._heap) <= 2 * len(agenda) + 64
    assert agenda.take(1e9) == list(range(10))
    for key in range(10_000):
        agenda.put(key, 1.0)
    for key in range(1, 10_000):
        agenda.drop(key)
    assert len(agenda._heap) <= 2 * len(agenda) + 64
    assert agenda.take(1.0) == [0]


@given(st.lists(st.tuples(st.sampled_from(["put", "drop", "take"]), st.integers(0, 9), st.integers(0, 50)), max_size=200))
def test_an_agenda_does_what_a_plain_dictionary_does(steps: list[tuple[str, int, int]]) -> None:
    agenda: Agenda[int] = Agenda()
    model: dict[int, tuple[int, int]] = {}
    for step, (what, key, when) in enumerate(steps):
        if what == "put":
            agenda.put(key, float(when))
            model[key] = when, step
        elif what == "drop":
            agenda.drop(key)
            model.pop(key, None)
        else:
            due = sorted((found, each) for each, found in model.items() if found[0] <= when)
            assert agenda.take(float(when)) == [each for _, each in due]
            for _, each in due:
                del model[each]
        assert len(agenda) == len(model)
        assert (key in agenda) is (key in model)
        assert agenda.next_s == min((found[0] for found in model.values()), default=None)


def test_of_many_that_are_due_some_are_taken_and_the_others_stay_in_order() -> None:
    agenda: Agenda[int] = Agenda()
    for key in range(5):
        agenda.put(key, 1.0)
    assert agenda.take(1.0, 2) == [0, 1]
    assert (len(agenda), agenda.next_s, 2 in agenda) == (3, 1.0, True)
    assert agenda.take(1.0, 10) == [2, 3, 4]
