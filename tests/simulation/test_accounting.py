"""Compares what was sent with what was received."""

from collections import Counter

from tests.simulation.checks.accounting import account
from tests.simulation.checks.book import Book
from tests.simulation.history import History, Key


def taken(history: History, key: Key, *, settled: int = 1) -> None:
    history.taken(key)
    for _ in range(settled):
        history.settled(key)


def sent(history: History, number: int, outcome: str = "", queue: str = "q") -> Key:
    history.sent("alice", queue, number, 0.0)
    if outcome:
        getattr(history, outcome)("alice", queue, number, 0.1)
    return Key("alice", 0, number, queue)


def test_what_was_accepted_and_taken_once_is_in_order() -> None:
    history = History()
    for number in range(3):
        taken(history, sent(history, number, "accepted"))
    totals = account(history)
    assert (totals.attempts, totals.acknowledged, totals.dequeued) == (3, 3, 3)
    assert totals.faults() == []


def test_what_was_accepted_and_never_taken_is_lost() -> None:
    history = History()
    taken(history, sent(history, 1, "accepted"))
    sent(history, 2, "accepted")
    assert account(history).faults() == ["lost: message 2 of alice's link 0 for q was accepted, and no consumer ever took it"]


def test_what_was_taken_for_good_more_often_than_it_was_sent_is_duplicated() -> None:
    history = History()
    taken(history, sent(history, 1, "accepted"), settled=2)
    assert account(history).faults() == [
        "duplicated: message 1 of alice's link 0 for q was taken off its queue more often than it was sent"
    ]


def test_what_nobody_sent_or_what_was_refused_is_unexpected() -> None:
    history = History()
    history.received("bob", "q", b"<carol/0/7>", 0.5)
    taken(history, sent(history, 1, "refused"))
    assert account(history).faults() == [
        "unexpected: bob got b'<carol/0/7>' from q at 0.500000, which nobody had sent there",
        "unexpected: message 1 of alice's link 0 for q was refused, and taken off its queue nevertheless",
    ]


def test_what_was_taken_though_its_producer_never_knew_is_recovered_which_is_no_fault() -> None:
    history = History()
    key = sent(history, 1, "unknown")
    sent(history, 2, "unknown")
    taken(history, key)
    totals = account(history)
    assert totals.recovered == [key]
    assert totals.faults() == []


def test_several_accepts_of_which_at_most_one_was_confirmed_are_one_dequeue() -> None:
    history = History()
    key = sent(history, 1, "accepted")
    taken(history, key, settled=0)
    taken(history, key)
    totals = account(history)
    assert (totals.dequeued, totals.faults()) == (1, [])


def test_what_went_with_its_queue_or_is_still_there_is_not_lost_and_what_was_to_be_there_is() -> None:
    history = History()
    history.queue_created("lossy", lossy=True)
    sent(history, 1, "accepted", "lossy")
    gone, left, lost = (sent(history, number, "accepted", "q") for number in (1, 2, 3))
    totals = account(history, Book(gone={gone: 7}), [left])
    assert totals.lost == [lost]


def test_a_message_that_was_rejected_is_accounted_for_by_its_dead_letter() -> None:
    history = History()
    history.letters["q"] = "dead"
    first, second = sent(history, 1, "accepted"), sent(history, 2, "accepted")
    for key in (first, second):
        history.rejected(key)
    letters = [key._replace(queue="dead") for key in (first, second)]
    book = Book(dequeued={first: 5, second: 5}, letters=Counter(letters))
    taken(history, letters[0])
    assert account(history, book).lost == [letters[1]]
    taken(history, letters[1])
    assert account(history, book).faults() == []


def test_a_rejected_message_that_is_still_on_its_queue_is_not_excused() -> None:
    history = History()
    history.letters["q"] = "dead"
    key = sent(history, 1, "accepted")
    history.rejected(key)
    assert account(history).lost == [key]


def test_a_dead_letter_may_be_taken_as_often_as_its_message_was_rejected() -> None:
    history = History()
    history.letters["q"] = "dead"
    key = sent(history, 1, "accepted")
    letter = key._replace(queue="dead")
    history.rejected(key)
    history.rejected(key)
    book = Book(dequeued={key: 5}, letters=Counter({letter: 2}))
    taken(history, letter, settled=2)
    assert account(history, book).faults() == []
    taken(history, letter)
    assert account(history, book).duplicated == [letter]
