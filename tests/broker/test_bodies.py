"""A broker whose bodies do not fit in memory: what is read back, in which order it goes out, and what happens when it cannot."""

from __future__ import annotations

import proton
import pytest
from twisted.internet.defer import fail

from broker.core import limits
from broker.core.queues.blocks import Move
from broker.core.queues.lane import Lane
from broker.core.queues.residency import RUN_BYTES
from tests.broker.clients import Bench, bench

SMALL = 10 * (100 + RUN_BYTES)


def put(b: Bench, *bodies: str, queue: str = "q") -> None:
    """Each in a batch of its own."""
    client = b.client()
    sender = client.sender(queue)
    for body in bodies:
        client.send(sender, body)


def lane_of(b: Bench) -> Lane:
    messages = b.broker.nodes.queues["q"].messages
    assert messages is not None
    return messages.order.lanes[0]


def numbered(count: int) -> list[str]:
    return [f"{n:04d}" + "x" * 96 for n in range(count)]


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_AHEAD_BYTES", 1500)
    monkeypatch.setattr(limits, "MIN_READ_AHEAD_BYTES", 1500)


@pytest.mark.parametrize("memory", [0, SMALL, 1 << 30])
def test_a_queue_beyond_the_bound_comes_out_whole_and_in_order(memory: int, small_windows: None) -> None:
    with bench(message_memory=memory) as b:
        b.queue("q")
        put(b, *numbered(100))
        assert b.broker.logs.residency.held_bytes <= memory
        client = b.client()
        receiver = client.receiver("q")
        assert client.bodies(receiver) == numbered(100)
        b.pass_time(1)
        assert b.depth("q") == 0
        assert b.broker.logs.residency.held_bytes == 0
        assert (b.lead.reads == 0) == (memory == 1 << 30)


def test_what_is_read_is_read_once_and_by_the_window(small_windows: None) -> None:
    """A read for each message would cost a turn of a thread for each."""
    with bench(message_memory=0) as b:
        b.queue("q")
        put(b, *numbered(100))
        client = b.client()
        client.receiver("q")
        assert 7 <= b.lead.reads <= 20


def test_a_consumer_with_little_credit_gets_its_messages_in_order(small_windows: None) -> None:
    with bench(message_memory=SMALL) as b:
        b.queue("q")
        put(b, *numbered(50))
        client = b.client()
        receiver = client.receiver("q", credit=1)
        for _ in range(49):
            receiver.flow(1)
            b.settle()
        assert client.bodies(receiver) == numbered(50)


def test_who_browses_reads_for_himself_and_takes_nothing(small_windows: None) -> None:
    with bench(message_memory=SMALL) as b:
        b.queue("q")
        put(b, *numbered(50))
        client = b.client()
        browser, other = client.receiver("q", browse=True), client.receiver("q", browse=True, name="other")
        assert client.bodies(browser) == client.bodies(other) == numbered(50)
        assert b.depth("q") == 50


def test_a_released_message_is_read_again_and_comes_before_younger_ones(small_windows: None) -> None:
    with bench(message_memory=0) as b:
        b.queue("q")
        put(b, *numbered(20))
        client = b.client()
        client.auto_accept = False
        receiver = client.receiver("q", credit=5)
        assert client.bodies(receiver) == numbered(5)
        receiver.close()
        b.settle()
        client.auto_accept = True
        assert client.bodies(client.receiver("q", name="again")) == numbered(20)


def test_what_a_reader_reads_from_a_deleted_queue_goes_nowhere() -> None:
    with bench(message_memory=0) as b:
        b.queue("q")
        put(b, *numbered(20))
        client = b.client()
        b.lead.holds_reads = True
        receiver = client.receiver("q")
        client.request("DELETE", "queue", "q")
        b.lead.end_reads()
        b.settle()
        assert client.bodies(receiver) == []
        assert b.broker.logs.residency.held_bytes == 0
        assert b.fatal == []


def test_a_message_that_has_rotted_is_passed_over_and_said_once(small_windows: None) -> None:
    """No other broker has it: the rest of the queue is worth more than an error that repeats."""
    with bench(message_memory=0) as b:
        b.queue("q")
        put(b, *numbered(20))
        block = lane_of(b).blocks[0]
        b.lead.spoiled.add(block.places[3])
        client = b.client()
        got = client.bodies(client.receiver("q"))
        assert got == [body for n, body in enumerate(numbered(20)) if n != 3]
        b.pass_time(1)
        assert b.depth("q") == 1
        (text,) = b.lead.rotted
        assert text == "1 messages of queue 'q' from sequence 4 on cannot be delivered: it has rotted"


def test_a_broker_of_a_cluster_that_stops_for_rot_gives_nothing_more_out(small_windows: None) -> None:
    """What comes behind the rotten message would overtake it: the next primary gives both out, in order."""
    with bench(message_memory=0) as b:
        b.queue("q")
        put(b, *numbered(20))
        b.lead.stops_at_rot = True
        b.lead.spoiled.add(lane_of(b).blocks[0].places[3])
        client = b.client()
        got = client.bodies(client.receiver("q"))
        assert got == numbered(3)[: len(got)]
        assert b.fatal == ["1 messages of queue 'q' from sequence 4 on cannot be delivered: it has rotted"]


def test_a_body_that_moved_while_it_was_read_has_not_rotted() -> None:
    """Compaction gives its old file up: what cannot be read there is asked for where it lies now."""
    with bench(message_memory=0) as b:
        b.queue("q")
        put(b, *numbered(1))
        lane = lane_of(b)
        (run,) = lane.live_runs_in(lane.blocks[0].file_numbers[0])
        b.lead.spoiled.add(run.place)
        client = b.client()
        b.lead.holds_reads = True
        receiver = client.receiver("q")
        copy = b.lead.files.write(b.lead.files.read(run.place, run.nbytes))
        lane.moved([Move(run.first_seq, 1, run.place, copy, run.crc)])
        b.lead.end_reads()
        b.settle()
        assert b.lead.rotted == []
        assert client.bodies(receiver) == numbered(1)


def test_rejected_messages_leave_in_order_though_some_must_be_read_first(small_windows: None) -> None:
    with bench(message_memory=SMALL) as b:
        b.queue("dead")
        b.client().request("CREATE", "exchange", "dlx", {"exchangeType": "fanout"})
        b.client().request("CREATE", "binding", "", {"exchange": "dlx", "queue": "dead", "key": ""})
        b.queue("q", alternateExchange="dlx")
        put(b, *numbered(20))
        client = b.client()
        client.auto_accept = False
        receiver = client.receiver("q")
        assert len(client.received[receiver.name]) == 20
        put(b, *numbered(30), queue="dead")
        for delivery, _ in client.received[receiver.name]:
            client.give(delivery, proton.Delivery.REJECTED)
        b.settle()
        assert b.depth("q") == 0
        client.auto_accept = True
        assert client.bodies(client.receiver("dead")) == numbered(30) + numbered(20)


def test_a_dead_letter_that_cannot_be_read_stays_and_is_not_counted_as_gone(small_windows: None) -> None:
    with bench(message_memory=SMALL) as b:
        b.queue("dead")
        b.client().request("CREATE", "exchange", "dlx", {"exchangeType": "fanout"})
        b.client().request("CREATE", "binding", "", {"exchange": "dlx", "queue": "dead", "key": ""})
        b.queue("q", alternateExchange="dlx")
        put(b, *numbered(20))
        client = b.client()
        client.auto_accept = False
        receiver = client.receiver("q")
        put(b, *numbered(30), queue="dead")
        b.lead.spoiled.update(place for block in lane_of(b).blocks for place in block.places)
        for delivery, _ in client.received[receiver.name]:
            client.give(delivery, proton.Delivery.REJECTED)
        b.settle()
        (item,) = client.request("QUERY", "queue", "q")[2]["items"]
        gone = 20 - b.depth("q")
        assert gone < 20
        assert b.depth("dead") == 30 + gone
        assert (item["rejected"], item["dropped"]) == (gone, 0)


def test_a_backup_keeps_no_bodies_and_a_new_primary_reads_them() -> None:
    with bench(clustered=True) as b:
        b.queue("q", replicate="all")
        put(b, *numbered(20))
        assert b.broker.logs.residency.held_bytes > 0
        b.lead.become("ready")
        assert b.broker.logs.residency.held_bytes == 0
        b.lead.become("active")
        client = b.client()
        assert client.bodies(client.receiver("q")) == numbered(20)


def test_a_log_that_cannot_read_for_another_reason_stops_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(message_memory=0) as b:
        b.queue("q")
        put(b, *numbered(1))
        monkeypatch.setattr(b.lead, "read_bodies", lambda bodies: fail(RuntimeError("no threads")))
        b.client().receiver("q")
        assert b.fatal == ["bodies of the local log cannot be read: no threads"]
