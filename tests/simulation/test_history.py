"""The history records what clients have seen."""

import pytest

from tests.simulation.history import History, Key, Note, Outcome, body, level_of, read


@pytest.mark.parametrize(
    "levels, found", [(10, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]), (5, [0, 0, 0, 1, 2, 3, 4, 4, 4, 4, 4]), (2, [0] * 5 + [1] * 6)]
)
def test_a_message_has_the_level_that_its_priority_gives_it_there(levels: int, found: list[int]) -> None:
    assert [level_of(priority, levels) for priority in range(11)] == found
    assert level_of(None, levels) == level_of(4, levels)
    history = History()
    history.queue_created("q", levels=levels)
    for queue in ("q", "q@01234567", "other"):
        history.sent("alice", queue, 1, 0.0, priority=9)
    at = [history.level_of(Key("alice", 0, 1, queue)) for queue in ("q", "q@01234567", "other")]
    assert at == [levels - 1, levels - 1, 0]


def test_a_message_is_in_order_with_its_group_wherever_the_queue_is_kept() -> None:
    """Breaks when two groups of a queue of level `configuration` must come in one order."""
    history = History()
    history.queue_created("q", groups=3)
    lines = [history.line_of(Key("alice", 0, number, queue)) for queue in ("q", "q@01234567") for number in range(4)]
    assert lines == [0, 1, 2, 0] * 2


class Judge:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Key]] = []

    def on_accepted(self, key: Key) -> None:
        self.told.append(("accepted", key))

    def on_received(self, client: str, link: int, key: Key) -> None:
        self.told.append((f"received by {client} on {link}", key))

    def on_overdrawn(self, client: str, link: int, count: int) -> None:
        raise AssertionError(f"{client} has had {count} messages too many on its link {link}")

    def on_unselected(self, client: str, key: Key) -> None:
        self.told.append((f"not selected by {client}", key))

    def on_settled(self, key: Key) -> None:
        self.told.append(("settled", key))

    def on_unsubscribed(self, queue: str) -> None:
        raise AssertionError(f"nobody has subscribed to {queue}")


def test_a_body_says_whose_message_it_is_wherever_it_stands() -> None:
    data = body("alice", 3, 17, 40)
    assert len(data) == 40
    assert read(b"\x00Sp\xc0\x02" + data, "q") == Key("alice", 3, 17, "q")
    assert read(b"hello", "q") is None


def test_a_message_is_followed_from_its_sending_to_its_end() -> None:
    history, judge = History(), Judge()
    history.observer = judge
    data = history.sent("alice", "q", 1, 0.0)
    history.accepted("alice", "q", 1, 0.1)
    key = history.received("bob", "q", data, 0.2, link=4)
    assert key == Key("alice", 0, 1, "q")
    history.unselected("bob", key)
    history.taken(key)
    history.settled(key)
    assert history.notes == {key: Note(Outcome.ACCEPTED, 1, 1, 1)}
    told = ["accepted", "received by bob on 4", "not selected by bob", "settled"]
    assert judge.told == [(each, key) for each in told]


def test_what_comes_again_after_it_was_taken_is_noted() -> None:
    history = History()
    data = history.sent("alice", "q", 1, 0.0)
    for consumer, notes in (("bob", 0), ("carol", 0), ("dave", 1)):
        key = history.received(consumer, "q", data, 0.1)
        assert key is not None
        assert len(history.repeated) == notes
        if consumer == "carol":
            history.taken(key)


def test_what_nobody_has_sent_to_a_queue_is_unexpected_there() -> None:
    history = History()
    data = history.sent("alice", "one", 1, 0.0)
    assert history.received("bob", "other", data, 0.1) is None
    assert history.received("bob", "one", b"hello", 0.2) is None
    assert [text.split(", which")[0] for text in history.unexpected] == [
        "bob got b'<alice/0/1>' from other at 0.100000",
        "bob got b'hello' from one at 0.200000",
    ]


def test_an_attempt_has_one_outcome_and_another_attempt_goes_over_another_link() -> None:
    history = History()
    history.sent("alice", "q", 1, 0.0)
    history.unknown("alice", "q", 1, 0.1)
    with pytest.raises(AssertionError, match=r"is accepted at 0\.2, and was unknown before"):
        history.accepted("alice", "q", 1, 0.2)
    with pytest.raises(AssertionError, match="sent twice"):
        history.sent("alice", "q", 1, 0.3)
    history.sent("alice", "q", 1, 0.4, link=1)
    history.refused("alice", "q", 1, 0.5, link=1)
    assert [note.outcome for note in history.notes.values()] == [Outcome.UNKNOWN, Outcome.REFUSED]
