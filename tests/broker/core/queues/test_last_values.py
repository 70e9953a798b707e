"""What leaves a last value queue, against a model that keeps a dictionary; and the keys of what was there before."""

from __future__ import annotations

from random import Random
from typing import Any

import proton
import pytest

from broker.core import limits
from broker.core.parts import Manifest
from broker.core.queues.discipline import discipline_of
from broker.core.queues.displacement import displacing_of
from broker.core.queues.keys import key_of
from broker.core.queues.last_value import LastValue
from broker.core.queues.residency import Residency
from broker.core.queues.times import Times
from tests.broker.core.queues.files import append, calls_of


def encoded(key: Any = None, body: Any = "", **fields: Any) -> bytes:
    made: Any = proton.Message(body=body, **fields)
    if key is not None:
        made.properties = {"k": key}
    return bytes(made.encode())


class Queue:
    """A queue, and batches that wait to be applied: what is put and what leaves."""

    def __init__(self, **limits_of_it: int) -> None:
        self.order = discipline_of({}, {}, Residency(1 << 40))
        self.lane = self.order.lanes[0]
        self.large: dict[int, Manifest] = {}
        self.delays: Times | None = None
        self.next_seq = 1
        self.waiting: list[tuple[list[tuple[int, bytes]], list[int]]] = []
        self.bounds = (limits_of_it.get("max_count", 0), limits_of_it.get("max_bytes", 0))
        self.begin_term()

    def begin_term(self) -> None:
        self.waiting.clear()
        self.next_seq = self.lane.next_seq
        found = displacing_of({"qpid.last_value_queue_key": "k"}, self, *self.bounds)
        assert isinstance(found, LastValue)
        self.values = found

    def put(self, *messages: bytes) -> list[int]:
        self.values.begin()
        gone: list[int] = []
        put = []
        for data in messages:
            gone += self.values.put(self.next_seq, data, len(data))
            put.append((self.next_seq, data))
            self.next_seq += 1
        self.waiting.append((put, gone))
        return gone

    def apply(self) -> None:
        put, gone = self.waiting.pop(0)
        for sequence, data in put:
            append(self.lane, sequence, [data])
        for sequence in gone:
            self.order.remove(sequence, 1)

    def alive(self) -> list[int]:
        return [sequence for sequence, _ in self.lane.alive_from(0)]


def is_ready(q: Queue) -> bool:
    return q.values.ready


@pytest.mark.parametrize(
    "data, name, key",
    [
        (encoded("x"), "k", "x"),
        (encoded(7), "k", "7"),
        (encoded(), "k", ""),
        (encoded("x"), "other", ""),
        (encoded(subject="s"), "qpid.subject", "s"),
        (encoded(group_id="g"), "JMSXGroupID", "g"),
        (encoded(), "JMSXGroupID", ""),
        (b"no message", "k", ""),
    ],
)
def test_a_key_is_an_application_property_as_a_text_or_what_stands_for_it(data: bytes, name: str, key: str) -> None:
    assert key_of(data, name) == key


def test_the_one_before_with_the_same_key_leaves_even_in_the_same_batch() -> None:
    q = Queue()
    assert q.put(encoded("a"), encoded("b"), encoded("a")) == [1]
    q.apply()
    assert q.alive() == [2, 3]
    assert q.put(encoded("b")) == [2]
    assert q.put(encoded("b")) == [4], "before the one before it is applied"
    q.apply()
    q.apply()
    assert q.alive() == [3, 5]


def test_a_queue_of_values_knows_what_leaves_before_that_is_applied() -> None:
    q = Queue()
    q.put(encoded("a"), encoded("b"))
    q.apply()
    assert q.put(encoded("a")) == [1]
    assert [q.values.leaves(each) for each in (1, 2, 3)] == [True, False, False]
    q.apply()
    q.values.begin()
    assert not q.values.leaves(1), "it has left"


def test_what_was_consumed_is_not_replaced() -> None:
    q = Queue()
    q.put(encoded("a"))
    q.apply()
    q.order.remove(1, 1)
    assert q.put(encoded("a")) == []


def test_the_index_forgets_the_keys_of_what_is_gone() -> None:
    q = Queue()
    for number in range(500):
        q.put(encoded(str(number)))
        q.apply()
        q.order.remove(number + 1, 1)
    assert len(q.values._newest) < 100


def test_a_queue_that_was_empty_is_ready_at_once() -> None:
    assert is_ready(Queue())


def test_a_new_term_finds_what_was_there_and_what_has_been_replaced_meanwhile_leaves() -> None:
    q = Queue()
    before = [encoded("a"), encoded("b"), encoded("c")]
    q.put(*before)
    q.apply()
    q.begin_term()
    assert not is_ready(q)
    assert q.put(encoded("a")) == [], "its key is not known yet"
    assert q.values.found(1, before[0]) == (1,)
    q.values.read_to(2)
    assert q.values.found(2, before[1]) == ()
    assert q.values.next_unread == 2
    assert q.values.found(4, encoded("a")) == (), "what has come meanwhile is read again, and stays"
    q.values.read_to(4)
    assert not is_ready(q), "a value that was replaced is there still"
    q.apply()
    q.order.remove(1, 1)
    assert is_ready(q)
    assert q.put(encoded("b")) == [2]
    assert q.values.found(3, before[2]) == ()
    q.order.remove(3, 1)
    assert q.values.found(3, before[2]) == (), "nothing leaves that is gone"
    assert q.values.found(3, encoded("a")) == ()


def test_what_is_newer_than_the_newest_that_is_known_takes_its_place() -> None:
    """Two messages with one key can only be left by a queue that was not a last value queue before: the older one leaves."""
    q = Queue()
    q.put(encoded("a"))
    q.put(encoded("b"))
    q.apply()
    q.apply()
    q.begin_term()
    assert q.values.found(1, encoded("a")) == ()
    assert q.values.found(2, encoded("a")) == (1,)


def test_limits_count_what_is_on_its_way_and_not_what_is_to_leave() -> None:
    q = Queue(max_count=3, max_bytes=200)
    q.put(encoded("a"), encoded("a"), encoded("a"), encoded("b"))
    assert q.values.fault(1, 1) == ""
    assert q.values.fault(2, 2) == "it would hold 4 messages, where 3 are allowed"
    q.apply()
    assert q.values.fault(1, 1) == ""
    size = sum(nbytes for _, nbytes in q.lane.alive_from(0))
    assert q.values.fault(1, 200 - size) == ""
    assert q.values.fault(1, 201 - size) == "it would hold 201 bytes, where 200 are allowed"


@pytest.mark.costs
def test_messages_that_come_one_by_one_cost_the_same_each_however_many_are_under_way() -> None:
    """Through an exchange they do, in one turn. Breaks when each one counts again all that were put since the last commit."""
    q = Queue(max_count=2000)
    values = [encoded(str(key)) for key in range(500)]
    q.put(*values)
    q.apply()
    gone: list[int] = []

    def come(some: list[bytes]) -> None:
        for data in some:
            assert q.values.fault(1, len(data)) == ""
            gone.extend(q.put(data))

    first, rest = calls_of(lambda: come(values[:10])), calls_of(lambda: come(values[10:]))
    assert rest < 2 * 49 * first
    assert gone == list(range(1, 501))
    while q.waiting:
        q.apply()
        assert q.values.fault(1501, 0) == "it would hold 2001 messages, where 2000 are allowed"
    assert q.alive() == list(range(501, 1001))


def test_a_large_message_counts_with_all_of_its_parts_and_leaves_as_any_other() -> None:
    q = Queue(max_bytes=1000)
    manifest = Manifest(900, ((1, 2),))
    q.values.begin()
    assert q.values.put(1, encoded("a"), 900) == ()
    append(q.lane, 1, [manifest.to_bytes()])
    q.large[1] = manifest
    q.next_seq = 2
    assert q.values.fault(1, 101).startswith("it would hold 1001 bytes")
    assert q.put(encoded("a")) == [1]
    assert q.values.fault(1, 800) == ""


def test_the_number_of_values_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LAST_VALUES", 2)
    q = Queue()
    q.put(encoded("a"), encoded("b"))
    assert q.values.fault(1, 1) == "it would hold 3 messages, where 2 are allowed"


@pytest.mark.parametrize("seed", range(8))
def test_after_every_batch_each_key_has_its_newest_message_alone(seed: int) -> None:
    rng = Random(seed)
    q = Queue()
    newest: dict[str, int] = {}
    for _ in range(300):
        if rng.random() < 0.5 or not q.waiting:
            keys = [rng.choice("abcdef") for _ in range(rng.randint(1, 6))]
            first = q.next_seq
            q.put(*map(encoded, keys))
            q.waiting[-1] = (q.waiting[-1][0], q.waiting[-1][1])
            newest |= {key: first + at for at, key in enumerate(keys)}
        else:
            q.apply()
            keys_there = [key_of(lot.messages()[0], "k") for s in q.alive() if (lot := q.lane.lot_of(s)) is not None]
            assert len(set(keys_there)) == len(keys_there)
    while q.waiting:
        q.apply()
    assert q.alive() == sorted(newest.values())
