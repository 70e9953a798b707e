"""The observers: what they see of a broker that is right, and of one that is made to do wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import proton
import pytest
from twisted.internet.task import Clock

from broker.amqp.receiver import Receiver
from broker.core import limits
from broker.core.filters import SELECTOR
from broker.core.queues.fifo import Fifo
from broker.core.queues.priority import Priority
from broker.core.queues.scan import Scan
from broker.disk import checkpoint as checkpoints
from broker.disk import segments
from broker.disk.durable import replace_durably
from broker.disk.journal import Journal
from broker.disk.recovery import Recovered
from broker.sessions.consumer import Subscription
from broker.sessions.ledger import Ledger
from broker.sessions.producer import Producer
from ha.replicated_log import ReplicatedLog
from tests.broker.clients import ACCEPTED, Bench, bench, statuses
from tests.broker.test_dead_letters import limited
from tests.simulation.checks import Checks
from tests.simulation.checks.limits import broken_limits
from tests.simulation.disk import SimulatedDisk
from tests.simulation.history import History, Key, Violation
from tests.simulation.threads import SimulatedThreads


class Watched:
    """A primary with a queue, under observation; alice sends, and what she is told is in the history."""

    def __init__(self, b: Bench, checks: Checks) -> None:
        self.bench = b
        self.checks = checks
        self.history = checks.history
        self.history.queue_created("q")
        b.queue("q", replicate="all")
        self.client = b.client()
        self.producer = self.client.sender("q")

    def send(self, *numbers: int) -> None:
        bodies = [self.history.sent("alice", "q", number, 0.0).decode() for number in numbers]
        self.client.send(self.producer, *bodies)
        assert statuses(self.client, self.producer)[-len(numbers) :] == [ACCEPTED] * len(numbers)
        for number in numbers:
            self.history.accepted("alice", "q", number, 0.1)

    def receive(self, *bodies: str) -> list[Key | None]:
        return [self.history.received("bob", "q", body.encode(), 0.2) for body in bodies]

    @property
    def fifo(self) -> Fifo:
        messages = self.bench.broker.nodes.queues["q"].messages
        assert messages is not None
        assert isinstance(messages.order, Fifo)
        return messages.order


@pytest.fixture
def watched() -> Iterator[Watched]:
    with bench(clustered=True) as b, Checks(History()) as checks:
        yield Watched(b, checks)


def key(number: int) -> Key:
    return Key("alice", 0, number, "q")


def test_a_broker_that_does_right_gives_no_cause(watched: Watched) -> None:
    watched.send(1, 2, 3)
    consumer = watched.client.receiver("q")
    for found in watched.receive(*watched.client.bodies(consumer)):
        assert found is not None
        watched.history.taken(found)
    watched.bench.pass_time(1)
    assert watched.bench.depth("q") == 0
    for number in (1, 2, 3):
        watched.history.settled(key(number))
    watched.checks.step(1.0)
    assert watched.checks.faults == []
    assert sorted(watched.checks.book.dequeued) == [key(1), key(2), key(3)]


def test_the_first_fault_is_raised_with_its_time(watched: Watched) -> None:
    watched.checks.faults += ["lost: one", "lost: two"]
    with pytest.raises(Violation, match=r"^lost: one \(at 1\.500000 s\)$"):
        watched.checks.step(1.5)


def test_an_accept_of_what_is_not_committed(watched: Watched) -> None:
    watched.history.sent("alice", "q", 7, 0.0)
    watched.history.accepted("alice", "q", 7, 0.1)
    assert watched.checks.faults == [f"accepted: {key(7)} was accepted, and no committed batch holds it"]


def test_a_message_that_is_not_committed_and_comes_to_a_consumer(watched: Watched) -> None:
    body = watched.history.sent("alice", "q", 7, 0.0)
    watched.receive(body.decode())
    assert watched.checks.faults == [f"unexpected: bob got {key(7)}, and no committed batch holds it"]


def test_a_confirmation_of_what_is_still_on_its_queue(watched: Watched) -> None:
    watched.send(1)
    watched.history.settled(key(1))
    assert watched.checks.faults == [
        f"settled: the accept of {key(1)} was confirmed, and no committed batch takes it off its queue"
    ]


def test_messages_of_one_link_that_come_the_wrong_way_round_unless_one_was_given_back(watched: Watched) -> None:
    watched.send(1, 2, 3)
    watched.checks.acquired.update([key(1), key(1), key(2), key(3)])
    watched.receive("<alice/0/2>", "<alice/0/1>")
    assert watched.checks.faults == []
    watched.receive("<alice/0/3>", "<alice/0/2>")
    assert watched.checks.faults == [f"order: bob got {key(2)} after message 3 of the same link, and for the first time"]


def test_a_lower_level_that_goes_out_while_a_higher_one_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(clustered=True) as b, Checks(History()) as checks:
        checks.history.queue_created("q", levels=10)
        b.upgraded()
        b.queue("q", replicate="all", arguments={"qpid.priorities": 10})
        client = b.client()
        producer = client.sender("q")
        for number, priority in ((1, 0), (2, 9), (3, 0)):
            body = checks.history.sent("alice", "q", number, 0.0, priority=priority).decode()
            client.send(producer, body, priority=priority)
        monkeypatch.setattr(Priority, "acquire", lambda order, consumer, n, size: order._by_level[0].acquire(consumer, n, size))
        client.receiver("q", credit=1)
        assert checks.faults == [f"order: {key(2)} is passed over, and what comes later on q goes out"]


def test_what_a_selector_names_that_goes_out_too_late_and_what_it_does_not_name(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 4):
        body = watched.history.sent("alice", "q", number, 0.0).decode()
        watched.client.send(watched.producer, body, properties={"third": number % 3})
        watched.history.accepted("alice", "q", number, 0.1)
    filters = {proton.symbol("mine"): proton.Described(proton.symbol(SELECTOR), "third IN (1)")}
    watched.client.auto_accept = False
    consumer = watched.client.receiver("q", credit=1, filters=filters)
    monkeypatch.setattr(Scan, "_read", lambda scan, upcoming: True)
    watched.client.give(watched.client.received[consumer.name][0][0], proton.Delivery.RELEASED)
    consumer.flow(1)
    watched.bench.settle()
    watched.history.unselected("bob", key(2))
    assert watched.checks.faults == [
        f"order: {key(1)} is passed over, and what comes later on q goes out",
        f"selected: bob got {key(2)}, which its selector does not name",
    ]


def test_what_was_sent_again_because_it_was_not_taken_comes_behind_what_was_sent_after_it(watched: Watched) -> None:
    watched.send(1, 2, 3)
    watched.checks.acquired.update([key(1), key(2), key(3)])
    watched.history.given_back.add(key(1))
    watched.receive("<alice/0/3>", "<alice/0/1>")
    assert watched.checks.faults == []
    watched.receive("<alice/0/2>")
    assert len(watched.checks.faults) == 1


def test_messages_of_one_link_may_come_the_wrong_way_round_from_two_levels(watched: Watched) -> None:
    watched.send(1, 2, 3)
    watched.history.levels["q"] = 10
    watched.history.notes[key(2)].priority = watched.history.notes[key(3)].priority = 9
    watched.checks.acquired.update([key(1), key(2), key(3)])
    watched.receive("<alice/0/3>", "<alice/0/1>")
    assert watched.checks.faults == []
    watched.receive("<alice/0/2>")
    assert watched.checks.faults == [f"order: bob got {key(2)} after message 3 of the same link, and for the first time"]


def test_a_message_that_is_given_to_a_second_consumer(watched: Watched) -> None:
    watched.send(1)
    watched.client.auto_accept = False
    watched.client.receiver("q", name="one")
    watched.fifo._cursor, watched.fifo.acquired = 1, 0
    watched.client.receiver("q", name="two")
    assert watched.checks.faults[:1] == [f"acquired: {key(1)} is given out, and another consumer has it and has not settled it"]


@pytest.mark.parametrize("returns", [True, False])
def test_an_expired_message_of_a_group_is_nobodys_unless_a_consumer_has_it(returns: bool) -> None:
    """A consumer is lost, its message has expired meanwhile, and the next one of the group goes to another consumer."""
    with bench(clustered=True) as b, Checks(History()) as checks:
        checks.history.queue_created("q", groups=2)
        b.upgraded()
        b.queue("q", replicate="all", arguments={"qpid.group_header_key": "k", "qpid.shared_msg_group": 1})
        producer, one, two = b.client(), b.client(), b.client()
        one.auto_accept = two.auto_accept = False
        sender, got = producer.sender("q"), one.receiver("q", credit=1)
        for number, ttl in ((1, 2), (3, 0)):
            producer.send(sender, checks.history.sent("alice", "q", number, 0.0).decode(), properties={"k": 1}, ttl=ttl)
        two.receiver("q", credit=2)
        assert (len(one.received[got.name]), sum(map(len, two.received.values()))) == (1, 0)
        b.pass_time(3)
        if returns:
            one.lose()
        else:
            messages = b.broker.nodes.queues["q"].messages
            assert messages is not None
            messages.order.set_aside([1])
            two.receiver("q", name="more", credit=1)
        b.settle()
        assert sum(map(len, two.received.values())) == 1
        wrong = f"group: {Key('alice', 0, 3, 'q')} is given out, and another consumer has {Key('alice', 0, 1, 'q')}"
        assert checks.faults == ([] if returns else [wrong])


def test_a_message_of_a_lost_consumer_whose_failure_is_not_committed_yet_is_kept_for_nobody(watched: Watched) -> None:
    """It must not be given out before its count is known, which a batch says."""
    watched.bench.upgraded()
    limited(watched.bench, 3)
    watched.send(1)
    consumer = watched.bench.client()
    consumer.auto_accept = False
    assert len(consumer.received[consumer.receiver("q").name]) == 1
    consumer.lose()
    watched.bench.settle()
    assert watched.checks.faults == []
    assert watched.fifo.available == 1


def test_a_message_that_stays_with_a_consumer_that_is_gone(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.send(1)
    watched.client.auto_accept = False
    consumer = watched.client.receiver("q")
    monkeypatch.setattr("broker.core.queues.fifo.Fifo.release", lambda fifo, sequences: None)
    consumer.close()
    watched.bench.settle()
    assert watched.checks.faults == [f"acquired: {key(1)} is kept for a consumer that is gone"]


def test_a_state_that_is_not_what_the_log_says(watched: Watched) -> None:
    watched.send(1, 2)
    watched.fifo.remove(1, 1)
    watched.send(3)
    assert watched.checks.faults == [
        "state: a broker that is stopping has 2 messages of 3 ever after batch 3; the log says 3 of 3"
    ]


def test_serving_before_a_batch_of_the_own_epoch_is_applied(watched: Watched) -> None:
    watched.bench.lead.become("ready")
    watched.bench.lead.epoch += 1
    watched.bench.lead.become("active")
    (fault,) = watched.checks.faults
    assert fault.startswith("term: ")


def test_a_bound_that_is_not_kept(watched: Watched) -> None:
    broker = watched.bench.broker
    assert list(broken_limits(broker)) == []
    links = [link for connection in broker.connections.values() for link in connection.engine.links]
    (link,) = [link for link in links if isinstance(link, Receiver) and isinstance(link.context, Producer)]
    link.flow(1)
    assert list(broken_limits(broker)) == [
        f"a producer with credit for {limits.CREDIT_WINDOW + 1} messages, where {limits.CREDIT_WINDOW} are allowed"
    ]
    broker.max_connections = -limits.SPARE_CONNECTIONS
    assert "1 connections, where 0 are allowed" in list(broken_limits(broker))


def test_a_consumer_that_is_given_more_than_it_asked_for(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's engine holds back what is beyond the credit, so that what the client says of it is another thing."""
    monkeypatch.setattr(Subscription, "room", lambda subscription: subscription.link.credit + 1)
    watched.send(1, 2, 3)
    watched.client.receiver("q", credit=2)
    watched.history.overdrawn("bob", 4, 1)
    assert watched.checks.faults == [
        "credit: a consumer of q is given messages beyond its credit: 1",
        "credit: bob got messages on its link 4 beyond the credit that it had given: 1",
    ]


def test_a_client_that_hears_of_the_end_of_a_subscription_which_is_there(watched: Watched) -> None:
    watched.history.unsubscribed("q")
    watched.history.unsubscribed("r")
    assert watched.checks.faults == ["unsubscribed: a client has heard that q is gone, and by what is committed it is there"]


def test_what_comes_by_an_exchange_is_a_copy_that_comes_once_and_in_order(watched: Watched) -> None:
    watched.history.volatile.add("news")
    for number in (1, 2, 3):
        watched.history.sent("alice", "news", number, 0.0)

    def receive(number: int) -> None:
        watched.history.received("bob", "news", b"<alice/0/%d>" % number, 0.2)

    receive(1)
    receive(3)
    assert watched.checks.faults == []
    receive(3)
    receive(2)
    assert watched.checks.faults == [
        f"duplicated: bob got {key(3)._replace(queue='news')} twice on one link",
        f"order: bob got {key(2)._replace(queue='news')} after message 3 of the same link, and for the first time",
    ]


def test_a_file_that_is_renamed_before_it_is_synced() -> None:
    disk = SimulatedDisk(Random(0))
    aside, name = Path("/some.tmp"), Path("/some")
    with Checks(History()) as checks:
        replace_durably(disk, name, b"content")
        fd = disk.open(aside, os.O_RDWR | os.O_CREAT)
        disk.write(fd, [b"content"], 0)
        disk.replace(aside, Path("/damaged-some"))
        assert checks.faults == []
        disk.write(disk.open(aside, os.O_RDWR | os.O_CREAT), [b"content"], 0)
        disk.replace(aside, name)
    assert checks.faults == ["disk: /some.tmp is renamed to some, and what it holds is not synced"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_log_that_is_let_go_for_a_checkpoint_that_may_go_too(durable: bool) -> None:
    disk, folder = SimulatedDisk(Random(0)), Path("/store")
    disk.make_folder(folder)
    found = checkpoints.write(folder, 7, 1, {}, [], disk=disk)
    clock = Clock()
    threads = SimulatedThreads(clock.callLater, clock.seconds)
    segment = segments.create(folder, 1, segments.Position(1, 7), 8192, disk)
    if not durable:
        disk.replace(found.path, folder / "aside")
        disk.replace(folder / "aside", found.path)
    journal = Journal(
        folder,
        [segment],
        Recovered(1, None, found, [], False, None, 0, [], {}, 2),
        origin=1,
        call_in_reactor=lambda call: call(),
        on_error=lambda text, fatal: None,
        segment_bytes=8192,
        disk=disk,
        threads=threads,
    )
    with Checks(History()) as checks:
        journal.release(8)
    wrong = f"disk: a broker lets go of its log's beginning for {found.path}, which a power cut may still take away"
    assert checks.faults == ([] if durable else [wrong])


def test_a_checkpoint_that_is_removed_for_one_that_may_go_too() -> None:
    disk, folder = SimulatedDisk(Random(0)), Path("/store")
    disk.make_folder(folder)
    old, new, newest = (checkpoints.write(folder, index, 1, {}, [], disk=disk) for index in (7, 8, 9))
    with Checks(History()) as checks:
        disk.unlink(old.path)
        assert checks.faults == []
        disk.replace(newest.path, folder / "aside")
        disk.replace(folder / "aside", newest.path)
        disk.unlink(new.path)
    assert checks.faults == [f"disk: {new.path} is removed for {newest.path.name}, which a power cut may still take away"]


def test_every_method_is_put_back() -> None:
    owners = (ReplicatedLog, Ledger, Subscription, Journal, SimulatedDisk)
    before = [dict(vars(owner)) for owner in owners]
    with Checks(History()):
        assert [dict(vars(owner)) for owner in owners] != before
    assert [dict(vars(owner)) for owner in owners] == before
