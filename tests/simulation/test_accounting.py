"""What went in against what came out."""

from tests.simulation.checks.accounting import account
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


def test_queues_that_were_deleted_or_may_drop_messages_owe_nothing() -> None:
    history = History()
    history.queue_created("lossy", lossy=True)
    sent(history, 1, "accepted", "gone")
    sent(history, 1, "accepted", "lossy")
    history.queue_deleted("gone")
    assert account(history).faults() == []
