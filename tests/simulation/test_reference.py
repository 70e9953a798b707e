"""What the committed log says, and the faults that are found in logs that say otherwise."""

from collections.abc import Sequence
from typing import Any

import pytest

from broker.core.queues.blocks import FILE_SHIFT
from broker.core.queues.lane import LANE_SHIFT
from broker.core.records import Batch, BatchBuilder
from broker.core.state import State
from tests.simulation.checks.reference import Reference, digest_of, has_rot, size_of
from tests.simulation.history import History, Key, body


def nowhere(spans: Sequence[tuple[int, int]]) -> list[bytes]:
    raise AssertionError("everything is in memory")


class Log:
    """A log that a test writes, and a broker that applies it."""

    def __init__(self) -> None:
        self.history = History()
        self.faults: list[str] = []
        self.reference = Reference(self.history, self.faults)
        self.state = State()
        self.index = 0

    def batch(self, write: Any, *, epoch: int = 1, index: int = 0) -> Batch:
        builder = BatchBuilder()
        write(builder)
        return Batch.parse(builder.seal(epoch, index or self.index + 1, 0))

    def apply(self, write: Any, *, epoch: int = 1) -> None:
        batch = self.batch(write, epoch=epoch)
        self.index += 1
        self.reference.applied("a", batch)
        self.state.apply(batch)

    def queue(self, name: str) -> None:
        self.history.queue_created(name)
        change = {"op": "queue-add", "uuid": f"uuid of {name}", "name": name, "level": "all"}
        self.apply(lambda builder: builder.define(change))

    def enqueue(self, queue: int, name: str, first_seq: int, *numbers: int, link: int = 0) -> None:
        bodies = [self.history.sent("alice", name, number, 0.0, link=link) for number in numbers]
        self.apply(lambda builder: builder.messages_for(queue, first_seq).extend(bodies))

    def dequeue(self, queue: int, *sequences: int) -> None:
        self.apply(lambda builder: builder.dequeues_for(queue).extend(sequences))

    @property
    def agrees(self) -> bool:
        index = self.state.index
        found = size_of(self.state), digest_of(self.state, nowhere)
        return found == (self.reference.sizes[index], self.reference.digests[index])


@pytest.fixture
def log() -> Log:
    made = Log()
    made.queue("one")
    made.queue("two")
    return made


def key(number: int, queue: str = "one", link: int = 0) -> Key:
    return Key("alice", link, number, queue)


def test_the_reference_and_a_broker_s_state_agree_at_every_index(log: Log) -> None:
    assert log.agrees
    log.enqueue(1, "one", 1, 1, 2, 3)
    assert log.agrees
    log.enqueue(2, "two", 1, 4)
    log.apply(lambda builder: builder.count(1, 2))
    assert log.agrees
    log.history.taken(key(1))
    log.dequeue(1, 1)
    assert log.agrees
    bind = {"op": "bind", "exchange": "amq.topic", "queue": "uuid of one", "key": "#", "arguments": {}}
    log.apply(lambda builder: builder.define(bind))
    assert log.agrees
    log.history.queue_deleted("one")
    log.apply(lambda builder: builder.define({"op": "queue-del", "uuid": "uuid of one"}))
    assert log.agrees
    assert log.reference.left() == [key(4, "two")]
    assert log.faults == []


@pytest.mark.parametrize("spoil", ["a message less", "a delivery count", "a queue less", "another body"])
def test_a_state_that_differs_in_anything_is_seen_to_differ(log: Log, spoil: str) -> None:
    log.enqueue(1, "one", 1, 1, 2)
    match spoil:
        case "a message less":
            log.state.messages[1].order.remove(1, 1)
        case "a delivery count":
            log.state.messages[1].order.lane_of(1).raise_count(1, 1, 1)
        case "a queue less":
            log.state.apply(log.batch(lambda builder: builder.define({"op": "queue-del", "uuid": "uuid of two"}), index=99))
            log.state.index = log.index
        case "another body":
            log.state.messages[1].order.lane_of(1).blocks[0].bodies[0] = (b"x" * 1000, 0)
    assert not log.agrees


def test_a_route_that_somebody_asks_for_again_is_the_one_that_is_there(log: Log) -> None:
    """Who asked for it did not hear that it was made, and asked the next primary."""
    change = {"op": "route-add", "kind": "queue", "source": "amqp:a", "exchange": "one", "key": "from"}
    for uuid in ("first", "first", "second"):
        log.apply(lambda builder, uuid=uuid: builder.define(change | {"uuid": uuid}))
        assert log.agrees
    assert list(log.state.definitions.routes) == ["first"]


@pytest.mark.parametrize("how", ["not at all", "a bit", "unreadable"])
def test_a_body_that_has_rotted_on_its_disk_is_told_from_a_state_that_is_wrong(log: Log, how: str) -> None:
    log.enqueue(1, "one", 1, 1, 2)
    block = log.state.messages[1].order.lane_of(1).blocks[0]
    data, base = block.bodies.pop(0)
    block.places[0] = 1 << FILE_SHIFT

    def read(spans: Sequence[tuple[int, int]]) -> list[bytes]:
        if how == "unreadable":
            raise OSError("no such page")
        bodies = [data[base : base + nbytes] for _, nbytes in spans]
        return bodies if how == "not at all" else [bytes((body[0] ^ 1,)) + body[1:] for body in bodies]

    assert has_rot(log.state, read) == (how != "not at all")
    log.history.taken(key(1))
    log.history.taken(key(2))
    log.dequeue(1, 1, 2)
    assert not has_rot(log.state, read)


def test_a_batch_that_is_applied_with_other_content_than_before_is_a_change_of_what_was_committed(log: Log) -> None:
    other = log.batch(lambda builder: builder.dequeues_for(1).append(1), index=2)
    log.reference.applied("b", other)
    assert [fault.split(":")[0] for fault in log.faults] == ["committed changed"]


def test_a_batch_that_nobody_can_have_committed_yet_is_one_too(log: Log) -> None:
    log.reference.applied("b", log.batch(lambda builder: builder.dequeues_for(1).append(1), index=7))
    assert log.faults == ["committed changed: b applies batch 7, and the newest that anybody has is 2"]


def test_an_epoch_that_falls_along_the_log_is_one_too(log: Log) -> None:
    log.apply(lambda builder: builder.dequeues_for(1).append(1), epoch=3)
    log.apply(lambda builder: builder.dequeues_for(1).append(1), epoch=2)
    assert log.faults == ["committed changed: batch 4 is of epoch 2, after epoch 3"]


def test_a_message_that_nobody_sent_to_that_queue_is_unexpected(log: Log) -> None:
    data = log.history.sent("alice", "one", 1, 0.0)
    log.apply(lambda builder: builder.messages_for(2, 1).append(data))
    assert log.faults == ["unexpected: batch 3 puts b'<alice/0/1>' on two, where nobody sent it"]


def test_a_message_that_was_refused_is_unexpected(log: Log) -> None:
    data = log.history.sent("alice", "one", 1, 0.0)
    log.history.refused("alice", "one", 1, 0.0)
    log.apply(lambda builder: builder.messages_for(1, 1).append(data))
    assert log.faults == ["unexpected: message 1 of alice's link 0 for one was refused, and batch 3 puts it on its queue"]


def test_a_message_that_is_enqueued_twice_is_duplicated(log: Log) -> None:
    data = log.history.sent("alice", "one", 1, 0.0)
    log.apply(lambda builder: builder.messages_for(1, 1).extend([data, data]))
    assert log.faults == ["duplicated: message 1 of alice's link 0 for one is on its queue a second time, by batches 3 and 3"]


def test_one_link_s_messages_out_of_order_are_a_fault_and_those_of_another_link_are_not(log: Log) -> None:
    log.enqueue(1, "one", 1, 2)
    log.enqueue(1, "one", 2, 1, link=1)
    assert log.faults == []
    log.enqueue(1, "one", 3, 1)
    assert log.faults == [
        "order: message 1 of alice's link 0 for one comes after message 2 of the same link, which was sent later"
    ]


def test_what_a_client_was_told_to_be_not_taken_comes_behind_what_was_sent_after_it(log: Log) -> None:
    log.enqueue(1, "one", 1, 2)
    log.history.given_back.add(key(1, "one"))
    log.enqueue(1, "one", 2, 1)
    assert log.faults == []


@pytest.fixture
def ranked(log: Log) -> Log:
    """A queue with ten levels, its number is 3; message 1 has priority 9, message 2 has 0, and message 3 says nothing."""
    log.history.queue_created("ranked", levels=10)
    change = {"op": "queue-add", "uuid": "r", "name": "ranked", "level": "all", "needs": 2, "arguments": {"qpid.priorities": 10}}
    log.apply(lambda builder: builder.define(change))
    for number, priority in ((1, 9), (2, 0), (3, None), (4, 0)):
        log.history.sent("alice", "ranked", number, 0.0, priority=priority)
    return log


def put(log: Log, *ranked: tuple[int, int, int]) -> None:
    """One batch with these messages: level, number within it, number of the message."""

    def write(builder: BatchBuilder) -> None:
        for level, count, number in ranked:
            builder.messages_for(3, (level << LANE_SHIFT) + count).append(body("alice", 0, number))

    log.apply(write)


def test_the_reference_and_a_broker_s_state_agree_on_queues_with_levels(ranked: Log) -> None:
    put(ranked, (9, 1, 1), (0, 1, 2))
    assert ranked.agrees
    put(ranked, (4, 1, 3), (0, 2, 4))
    assert ranked.agrees
    ranked.history.taken(key(2, "ranked"))
    ranked.dequeue(3, 1)
    assert ranked.agrees
    queue = ranked.reference.queues[3]
    assert [(each >> LANE_SHIFT, each & 0xFF) for each in queue.heads(1)] == [(9, 1), (4, 1), (0, 2)]
    ranked.history.queue_deleted("ranked")
    ranked.apply(lambda builder: builder.define({"op": "queue-del", "uuid": "r"}))
    assert ranked.agrees
    assert ranked.faults == []


def test_a_message_on_another_level_than_its_priority_gives_it_is_a_fault(ranked: Log) -> None:
    put(ranked, (9, 1, 1), (1, 1, 2), (4, 1, 3))
    assert ranked.faults == [f"level: {key(2, 'ranked')} has priority 0, and batch 4 puts it on level 1 of ranked"]


def test_the_order_of_a_link_is_kept_within_a_level_and_not_between_two(ranked: Log) -> None:
    put(ranked, (0, 1, 4))
    put(ranked, (9, 1, 1))
    assert ranked.faults == []
    put(ranked, (0, 2, 2))
    assert ranked.faults == [f"order: {key(2, 'ranked')} comes after message 4 of the same link, which was sent later"]


def test_a_sequence_that_is_given_again_is_a_fault(log: Log) -> None:
    log.enqueue(1, "one", 5, 1)
    bodies = [log.history.sent("alice", "one", 2, 0.0)]
    log.reference.applied("a", log.batch(lambda builder: builder.messages_for(1, 5).extend(bodies)))
    assert log.faults == ["order: batch 4 gives sequence 5 of one again"]


def test_a_message_that_leaves_though_nobody_took_it_is_lost(log: Log) -> None:
    log.enqueue(1, "one", 1, 1, 2)
    log.history.taken(key(1))
    log.dequeue(1, 1, 2)
    assert log.faults == ["lost: message 2 of alice's link 0 for one left its queue by batch 4, and nobody had taken it"]


def test_what_a_deleted_queue_held_is_gone_and_what_comes_too_late_for_it_too(log: Log) -> None:
    log.enqueue(1, "one", 1, 1, 2)
    log.history.taken(key(1))
    log.dequeue(1, 1)
    log.history.queue_deleted("one")
    log.apply(lambda builder: builder.define({"op": "queue-del", "uuid": "uuid of one"}))
    log.enqueue(1, "one", 3, 3)
    assert log.reference.book.gone == {key(2): 5, key(3): 6}
    assert log.agrees
    assert log.faults == []


@pytest.fixture
def rejecting(log: Log) -> Log:
    """What is rejected on one goes to three."""
    log.history.letters["one"] = "three"
    log.queue("three")
    log.enqueue(1, "one", 1, 1)
    log.history.rejected(key(1))
    return log


def letter(log: Log, *sequences: int) -> None:
    """The dead letter of message 1, in the batch that takes the message off its queue."""

    def write(builder: BatchBuilder) -> None:
        for sequence in sequences:
            builder.messages_for(3, sequence).append(body("alice", 0, 1))
        builder.dequeues_for(1).append(1)

    log.apply(write)


def test_a_rejected_message_leaves_its_queue_when_its_dead_letter_is_there(rejecting: Log) -> None:
    letter(rejecting, 1)
    assert rejecting.agrees
    assert rejecting.faults == []


def test_a_rejected_message_that_leaves_without_a_dead_letter_is_lost(rejecting: Log) -> None:
    letter(rejecting)
    assert rejecting.faults == [f"lost: {key(1)} was rejected, and left its queue by batch 5 without a dead letter"]


def test_a_dead_letter_that_comes_more_often_than_its_message_was_rejected_is_duplicated(rejecting: Log) -> None:
    rejecting.history.rejected(key(1))
    letter(rejecting, 1, 2)
    assert rejecting.faults == []
    letter(rejecting, 3)
    assert rejecting.faults == [f"duplicated: the dead letter of {key(1, 'three')} has come more often than it was rejected"]


def test_a_dead_letter_of_what_nobody_rejected_is_unexpected(rejecting: Log) -> None:
    rejecting.history.sent("alice", "one", 2, 0.0)
    rejecting.apply(lambda builder: builder.messages_for(3, 1).append(body("alice", 0, 2)))
    assert rejecting.faults == ["unexpected: batch 5 puts b'<alice/0/2>' on three, where nobody sent it"]


def test_a_broker_s_own_log_has_the_messages_of_queues_that_the_cluster_s_log_defines(log: Log) -> None:
    log.history.queue_created("kept", drained=False)
    log.apply(lambda builder: builder.define({"op": "queue-add", "uuid": "k", "name": "kept", "level": "configuration"}))
    assert log.agrees
    own = Log()
    own.history = log.history
    own.reference = Reference(log.history, own.faults, store_id="0123456789", names=log.reference.names)
    own.apply(lambda builder: builder.define({"op": "store-add", "uuid": "k"}))
    own.enqueue(1, "kept@01234567", 1, 1, 2)
    assert own.agrees
    assert own.reference.left() == [key(1, "kept@01234567"), key(2, "kept@01234567")]
    own.history.taken(key(1, "kept@01234567"))
    own.dequeue(1, 1, 2)
    assert own.faults == [f"lost: {key(2, 'kept@01234567')} left its queue by batch 3, and nobody had taken it"]


def test_what_a_broker_keeps_for_itself_goes_with_its_disk(log: Log) -> None:
    log.enqueue(1, "one", 1, 1, 2)
    log.history.taken(key(1))
    log.dequeue(1, 1)
    log.reference.abandon()
    assert log.reference.book.gone == {key(2): 4}
    assert log.reference.left() == []


def test_a_queue_that_is_deleted_though_nobody_asked_is_lost(log: Log) -> None:
    log.apply(lambda builder: builder.define({"op": "queue-del", "uuid": "uuid of one"}))
    assert log.faults == ["lost: batch 3 deletes one, which nobody asked for"]


def test_of_a_queue_that_the_history_does_not_know_only_the_state_is_followed(log: Log) -> None:
    log.apply(lambda builder: builder.define({"op": "queue-add", "uuid": "other", "name": "other", "level": "all"}))
    log.apply(lambda builder: builder.messages_for(3, 1).extend([b"whatever", b"whatever"]))
    log.dequeue(3, 1)
    assert log.agrees
    log.apply(lambda builder: builder.define({"op": "queue-del", "uuid": "other"}))
    assert log.agrees
    assert log.faults == []


@pytest.mark.parametrize("what", ["whole", "lacks a message", "consumes later", "consumes alone"])
def test_all_of_a_transaction_is_in_one_batch(log: Log, what: str) -> None:
    """Message 1 of queue one is consumed in a transaction that sends 2 and 3 to queue two."""
    log.enqueue(1, "one", 1, 1)
    history = log.history
    sent = [history.sent("alice", "two", number, 0.0) for number in (2, 3)]
    history.consumed_in_transactions(key(1))
    history.discharging([key(2, "two"), key(3, "two")], [key(1)])

    def write(builder: BatchBuilder) -> None:
        if what != "consumes alone":
            builder.messages_for(2, 1).extend(sent[:1] if what == "lacks a message" else sent)
        if what != "consumes later":
            builder.dequeues_for(1).append(1)

    log.apply(write)
    assert [fault.split(":")[0] for fault in log.faults] == ([] if what == "whole" else ["torn"])
