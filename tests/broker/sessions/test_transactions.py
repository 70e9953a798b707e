"""What a client does in a transaction takes effect at once, or not at all."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any, cast

import proton
import pytest

from broker.amqp.data import Condition
from broker.core import limits
from broker.core.records import Batch
from broker.core.transactions import DECLARED, LOCAL_TRANSACTIONS, TRANSACTIONAL, Budget
from broker.sessions.pending import DEQUEUE_DELAY_S
from broker.sessions.transactions import Poster, Transaction
from tests.broker.clients import Bench, Client

A, R = proton.Delivery.ACCEPTED, proton.Delivery.REJECTED


class Transactor:
    """A client with a link to the coordinator."""

    def __init__(self, bench: Bench, *capabilities: str, client: Client | None = None) -> None:
        self.bench = bench
        self.client = client if client is not None else bench.client()
        self.client.auto_accept = False
        self.control: Any = self.client.session.sender(f"control-{len(self.client.events)}")
        self.control.target.type = proton.Terminus.COORDINATOR
        names: Any = [proton.symbol(name) for name in capabilities or (LOCAL_TRANSACTIONS,)]
        undescribed: Any = proton.UNDESCRIBED
        self.control.target.capabilities.put_object(proton.Array(undescribed, proton.Data.SYMBOL, *names))
        self.control.open()
        bench.settle()

    def ask(self, descriptor: str, fields: list[Any], *, settle: bool = True) -> Any:
        """A request; returns its delivery."""
        body = proton.Described(proton.symbol(descriptor), fields)
        return self.client.send(self.control, body, settle=settle)[0]

    def declare(self) -> bytes:
        """The id of a new transaction."""
        delivery = self.ask("amqp:declare:list", [None])
        assert delivery.remote_state == DECLARED
        (txn_id,) = delivery.remote.data
        assert delivery.settled
        return bytes(txn_id)

    def discharge(self, txn_id: bytes, *, fail: bool = False) -> Any:
        """Discharge it; returns the delivery of the request."""
        return self.ask("amqp:discharge:list", [txn_id, fail])

    def post(self, link: Any, txn_id: bytes, *bodies: Any, settle: bool = True, **fields: Any) -> list[Any]:
        """Send messages in a transaction; returns their deliveries."""
        encoded = [proton.Message(body=body, **fields).encode() for body in bodies]
        return [self.post_encoded(link, txn_id, data, settle=settle) for data in encoded]

    def post_encoded(self, link: Any, txn_id: bytes, data: bytes, *, settle: bool = True) -> Any:
        """Send one in a transaction."""
        (delivery,) = self.client.send_encoded(link, data, settle=False)
        delivery.local.data = [txn_id]
        delivery.update(TRANSACTIONAL)
        if settle:
            self.bench.settle()
        return delivery

    def give(
        self, delivery: Any, txn_id: bytes, outcome: int = 0x24, fields: Any = (), *, settle: bool = True, at_once: bool = True
    ) -> None:
        """Give a received message an outcome in a transaction, and send it `at_once`, or with what comes next."""
        delivery.local.data = [txn_id, proton.Described(proton.ulong(outcome), list(fields))]
        delivery.update(TRANSACTIONAL)
        if settle:
            delivery.settle()
        if at_once:
            self.bench.settle()


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    for name in ("orders", "bills"):
        made.queue(name)
    return made


def refusal(delivery: Any) -> tuple[str, str]:
    assert delivery.remote_state == R
    return delivery.remote.condition.name, delivery.remote.condition.description


def test_messages_of_a_transaction_come_to_their_queues_with_its_discharge(bench: Bench) -> None:
    one = Transactor(bench)
    txn_id = one.declare()
    orders, bills = one.client.sender("orders"), one.client.sender("bills")
    first, second = one.post(orders, txn_id, "a", "b")
    one.post(bills, txn_id, "c")
    assert first.remote_state == second.remote_state == TRANSACTIONAL
    assert first.remote.data[0] == txn_id
    assert first.remote.data[1].descriptor == 0x24
    assert first.settled
    assert (bench.depth("orders"), bench.depth("bills")) == (0, 0)
    before = len(bench.lead.committed)
    assert one.discharge(txn_id).remote_state == A
    assert (bench.depth("orders"), bench.depth("bills")) == (2, 1)
    assert len(bench.lead.committed) == before + 1


def test_what_is_consumed_and_sent_in_a_transaction_is_one_batch(bench: Bench) -> None:
    one = Transactor(bench)
    sender = one.client.sender("orders")
    one.client.send(sender, "in")
    receiver = one.client.receiver("orders")
    ((delivery, _),) = one.client.received[receiver.name]
    txn_id = one.declare()
    one.give(delivery, txn_id)
    one.post(one.client.sender("bills"), txn_id, "out")
    assert bench.depth("orders") == 1
    one.discharge(txn_id)
    runs = Batch.parse(bench.lead.committed[-1]).runs
    assert [run.kind.name for run in runs] == ["ENQUEUE", "DEQUEUE"]
    assert (bench.depth("orders"), bench.depth("bills")) == (0, 1)


def test_ten_thousand_operations_are_one_batch_and_one_more_is_refused(bench: Bench) -> None:
    one = Transactor(bench)
    txn_id = one.declare()
    sender = one.client.sender("orders")
    body = bytes(300)
    deliveries: list[Any] = []
    while len(deliveries) < limits.MAX_TRANSACTION_OPERATIONS:
        for delivery in one.client.send(sender, *[body] * 500, settle=False):
            delivery.local.data = [txn_id]
            delivery.update(TRANSACTIONAL)
            deliveries.append(delivery)
        bench.settle()
    before = len(bench.lead.committed)
    assert one.discharge(txn_id).remote_state == A
    assert len(bench.lead.committed) == before + 1
    assert bench.depth("orders") == limits.MAX_TRANSACTION_OPERATIONS
    again = one.declare()
    for _ in range(limits.MAX_TRANSACTION_OPERATIONS // 500):
        for delivery in one.client.send(sender, *[b""] * 500, settle=False):
            delivery.local.data = [again]
            delivery.update(TRANSACTIONAL)
        bench.settle()
    (beyond,) = one.post(sender, again, "one more")
    assert refusal(beyond) == ("amqp:resource-limit-exceeded", "a transaction may have 10000 operations")
    name, text = refusal(one.discharge(again))
    assert (name, text) == ("amqp:transaction:rollback", "the transaction was undone: a transaction may have 10000 operations")
    assert bench.depth("orders") == limits.MAX_TRANSACTION_OPERATIONS


def test_a_transaction_that_fails_leaves_no_message_and_gives_back_what_was_consumed(bench: Bench) -> None:
    one = Transactor(bench)
    one.client.send(one.client.sender("orders"), "in", "later")
    receiver = one.client.receiver("orders", credit=1)
    ((delivery, first),) = one.client.received[receiver.name]
    assert first.delivery_count == 0
    txn_id = one.declare()
    one.give(delivery, txn_id)
    one.post(one.client.sender("bills"), txn_id, "out")
    assert one.discharge(txn_id, fail=True).remote_state == A
    assert (bench.depth("orders"), bench.depth("bills")) == (2, 0)
    receiver.flow(1)
    bench.settle()
    _, (_, again) = one.client.received[receiver.name]
    assert (again.body, again.delivery_count) == ("in", 1)


@pytest.mark.parametrize("end", ["control", "connection", "socket"])
def test_a_transaction_is_undone_when_whoever_declared_it_goes(bench: Bench, end: str) -> None:
    one = Transactor(bench)
    one.client.send(one.client.sender("orders"), "in")
    receiver = one.client.receiver("orders", credit=1)
    txn_id = one.declare()
    one.give(one.client.received[receiver.name][0][0], txn_id)
    one.post(one.client.sender("bills"), txn_id, "out")
    receiver.close()
    bench.settle()
    other = bench.client()
    waiting = other.receiver("orders")
    assert other.bodies(waiting) == []
    if end == "control":
        one.control.close()
    elif end == "connection":
        one.client.connection.close()
    else:
        one.client.lose()
    bench.settle()
    assert other.bodies(waiting) == ["in"]
    assert other.received[waiting.name][0][1].delivery_count == 0
    assert bench.depth("bills") == 0


@pytest.mark.parametrize("end", ["close", "detach", "session"])
@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_what_was_consumed_over_a_link_that_has_ended_stays_in_its_transaction(
    bench: Bench, end: str, fail: bool, at_once: bool
) -> None:
    one = Transactor(bench)
    one.client.send(one.client.sender("orders"), "in")
    first, one.client.session = one.client.session, one.client.connection.session()
    one.client.session.open()
    receiver, session = one.client.receiver("orders", credit=1), one.client.session
    one.client.session = first
    delivery, txn_id = one.client.received[receiver.name][0][0], one.declare()
    one.give(delivery, txn_id, at_once=not at_once)
    {"close": receiver.close, "detach": receiver.detach, "session": session.close}[end]()
    bench.settle()
    other = bench.client()
    waiting = other.receiver("orders")
    assert other.bodies(waiting) == []
    assert one.discharge(txn_id, fail=fail).remote_state == A
    assert other.bodies(waiting) == (["in"] if fail else [])


@pytest.mark.parametrize("what", ["accept", "post"])
def test_a_discharge_counts_all_that_has_come_before_it_in_one_read(bench: Bench, what: str) -> None:
    """Breaks when a request to the coordinator that came first takes the discharge with it, before what lies between them: a
    transaction is committed, and a message that it has accepted is delivered again."""
    one = Transactor(bench)
    orders, bills = one.client.sender("orders"), one.client.sender("bills")
    one.client.send(orders, "in")
    receiver = one.client.receiver("orders", credit=1)
    ((delivery, _),) = one.client.received[receiver.name]
    txn_id = one.declare()
    one.ask("amqp:declare:list", [None], settle=False)
    came = output(one.client)
    if what == "accept":
        one.give(delivery, txn_id, at_once=False)
    else:
        posted = one.post(bills, txn_id, "out", settle=False)
    came += output(one.client)
    discharge = one.ask("amqp:discharge:list", [txn_id, False], settle=False)
    one.client.say(came + output(one.client))
    bench.settle()
    assert discharge.remote_state == A
    receiver.flow(1)
    bench.settle()
    assert one.client.bodies(receiver) == ["in"]
    assert (bench.depth("orders"), bench.depth("bills")) == ((0, 0) if what == "accept" else (1, 1))
    assert what == "accept" or [each.remote_state for each in posted] == [TRANSACTIONAL]


def output(client: Client) -> bytes:
    """What a client has to send, taken from it."""
    waiting = client.transport.pending()
    data = bytes(client.transport.peek(waiting))
    client.transport.pop(len(data))
    return data


def test_a_new_term_knows_no_transaction_of_the_last_one() -> None:
    bench = Bench(clustered=True)
    bench.queue("orders", replicate="all")
    one = Transactor(bench)
    txn_id = one.declare()
    one.post(one.client.sender("orders"), txn_id, "out")
    bench.lead.become("ready", "other")
    bench.settle()
    assert one.client.lost
    bench.lead.become("active")
    bench.settle()
    two = Transactor(bench)
    assert refusal(two.discharge(txn_id)) == (
        "amqp:transaction:unknown-id",
        "this connection has no such transaction: if another connection, or another primary, has discharged it, check whether "
        "its messages have arrived",
    )
    assert bench.depth("orders") == 0


def test_what_was_under_way_when_a_term_ended_holds_no_memory_in_the_next_one() -> None:
    """Breaks when only a commit gives the memory back: then after some failovers no transaction has room any more."""
    bench = Bench(clustered=True)
    bench.queue("orders", replicate="all")
    budget = bench.broker.transactions.budget
    budget.limit_bytes = 5000
    for _ in range(3):
        one = Transactor(bench)
        txn_id = one.declare()
        (post,) = one.post(one.client.sender("orders"), txn_id, bytes(3000))
        assert post.remote_state == TRANSACTIONAL
        bench.lead.automatic = False
        one.discharge(txn_id)
        assert (budget.nbytes > 3000, budget.n_open, len(bench.lead.waiting)) == (True, 1, 1)
        bench.lead.become("ready", "other")
        bench.settle()
        assert one.client.lost
        assert (budget.nbytes, budget.n_open) == (0, 0)
        bench.lead.automatic = True
        bench.lead.become("active")
        bench.settle()
    assert bench.depth("orders") == 0


def test_a_part_for_this_brokers_log_is_committed_after_the_term_and_gives_its_memory_back_once() -> None:
    bench = Bench(clustered=True)
    bench.queue("shared", replicate="all")
    bench.queue("own", replicate="none")
    one = Transactor(bench)
    txn_id = one.declare()
    one.post(one.client.sender("own"), txn_id, "a")
    one.post(one.client.sender("shared"), txn_id, "b")
    bench.logs["local"].automatic = False
    one.discharge(txn_id)
    budget = bench.broker.transactions.budget
    assert (len(bench.logs["local"].waiting), budget.n_open) == (1, 1)
    bench.lead.become("ready", "other")
    bench.settle()
    assert (budget.nbytes, budget.n_open) == (0, 0)
    bench.logs["local"].commit()
    bench.settle()
    assert (budget.nbytes, budget.n_open) == (0, 0)


@pytest.mark.parametrize("back", ["before the commit", "after it"])
@pytest.mark.parametrize("outcome", [0x25, 0x26, 0x27])
def test_other_outcomes_have_no_effect_if_the_part_for_this_brokers_log_is_committed_after_the_term(
    outcome: int, back: str
) -> None:
    """Breaks when a message that another consumer has by then is removed, or given to a third one."""
    bench = Bench(clustered=True)
    bench.queue("own", replicate="none")
    bench.queue("out", replicate="none")
    one = Transactor(bench)
    one.client.send(one.client.sender("own"), "m")
    ((delivery, _),) = one.client.received[one.client.receiver("own").name]
    txn_id = one.declare()
    one.post(one.client.sender("out"), txn_id, "result")
    one.give(delivery, txn_id, outcome)
    local = bench.logs["local"]
    local.automatic = False
    one.ask("amqp:discharge:list", [txn_id, False], settle=False)
    bench.settle()
    assert len(local.waiting) == 1

    def commit() -> None:
        local.commit()
        bench.settle()
        local.automatic = True

    bench.lead.become("ready", "other")
    bench.settle()
    if back == "after it":
        commit()
    bench.lead.epoch += 1
    bench.lead.become("active")
    bench.settle()
    client = bench.client()
    client.auto_accept = False
    receiver = client.receiver("own")
    if back == "before the commit":
        commit()
    third = bench.client()
    assert third.bodies(third.receiver("own")) == []
    assert client.bodies(receiver) == ["m"]
    bench.clock.advance(DEQUEUE_DELAY_S)
    bench.settle()
    assert (bench.depth("own"), bench.depth("out")) == (1, 1)
    client.give(client.received[receiver.name][0][0], A)
    bench.clock.advance(DEQUEUE_DELAY_S)
    bench.settle()
    assert bench.depth("own") == 0


@pytest.mark.parametrize(
    "outcome, fields, depth, count",
    [(0x25, (), 0, 0), (0x26, (), 1, 0), (0x27, (), 1, 0), (0x27, (True,), 1, 1), (0x27, (None, True), 0, 0)],
)
def test_other_outcomes_count_when_the_transaction_is_discharged(
    bench: Bench, outcome: int, fields: tuple[bool | None, ...], depth: int, count: int
) -> None:
    one = Transactor(bench)
    one.client.send(one.client.sender("orders"), "in")
    receiver = one.client.receiver("orders", credit=1)
    txn_id = one.declare()
    one.give(one.client.received[receiver.name][0][0], txn_id, outcome, fields)
    receiver.flow(1)
    bench.settle()
    assert len(one.client.received[receiver.name]) == 1
    assert bench.depth("orders") == 1
    assert one.discharge(txn_id).remote_state == A
    bench.clock.advance(DEQUEUE_DELAY_S)
    bench.settle()
    assert bench.depth("orders") == depth
    assert [each.delivery_count for _, each in one.client.received[receiver.name][1:]] == [count] * depth


def test_an_outcome_that_the_client_has_not_settled_is_settled_when_it_is_enlisted(bench: Bench) -> None:
    one = Transactor(bench)
    one.client.send(one.client.sender("orders"), "in")
    receiver = one.client.receiver("orders", credit=1)
    delivery = one.client.received[receiver.name][0][0]
    txn_id = one.declare()
    one.give(delivery, txn_id, settle=False)
    assert delivery.settled
    one.discharge(txn_id)
    assert bench.depth("orders") == 0


def test_an_unknown_transaction_takes_nothing_and_gives_back_what_was_consumed(bench: Bench) -> None:
    one = Transactor(bench)
    sender = one.client.sender("orders")
    (delivery,) = one.post(sender, b"none", "a")
    assert refusal(delivery)[0] == "amqp:transaction:unknown-id"
    one.client.send(sender, "in")
    receiver = one.client.receiver("orders", credit=2)
    one.give(one.client.received[receiver.name][0][0], b"none")
    assert one.client.bodies(receiver) == ["in", "in"]
    assert refusal(one.discharge(b"none"))[0] == "amqp:transaction:unknown-id"
    assert bench.depth("orders") == 1


def test_messages_outside_of_a_transaction_pass_those_inside(bench: Bench) -> None:
    one = Transactor(bench)
    txn_id = one.declare()
    sender = one.client.sender("orders")
    deliveries = one.client.send(sender, "out 1", "in 1", "in 2", "out 2", settle=False)
    for delivery in deliveries[1:3]:
        delivery.local.data = [txn_id]
        delivery.update(TRANSACTIONAL)
    bench.settle()
    assert [each.remote_state for each in deliveries] == [A, TRANSACTIONAL, TRANSACTIONAL, A]
    assert bench.depth("orders") == 2
    one.discharge(txn_id)
    browser = one.client.receiver("orders", browse=True)
    assert one.client.bodies(browser) == ["out 1", "out 2", "in 1", "in 2"]


def test_messages_that_come_settled_are_part_of_their_transaction(bench: Bench) -> None:
    one = Transactor(bench)
    txn_id = one.declare()
    sender = one.client.sender("orders", presettled=True)
    delivery = sender.delivery("settled")
    sender.stream(proton.Message(body="a").encode())
    delivery.local.data = [txn_id]
    delivery.update(TRANSACTIONAL)
    sender.advance()
    delivery.settle()
    bench.settle()
    assert bench.depth("orders") == 0
    one.discharge(txn_id)
    assert bench.depth("orders") == 1


def test_an_exchange_routes_when_the_transaction_is_discharged(bench: Bench) -> None:
    one = Transactor(bench)
    txn_id = one.declare()
    one.post(one.client.sender("amq.topic/news"), txn_id, "early")
    relay = one.client.sender(None)
    one.post(relay, txn_id, "direct", address="orders")
    listener = bench.client()
    news = listener.receiver("amq.topic/news")
    assert listener.bodies(news) == []
    assert one.discharge(txn_id).remote_state == A
    assert listener.bodies(news) == ["early"]
    assert bench.depth("orders") == 1


@pytest.mark.parametrize(
    "what, why",
    [
        ("full", "queue 'small' holds 0 messages, 0 bytes: 3 more of "),
        ("deleted", "queue 'small' was deleted"),
        ("missing", "there is no queue and no exchange named 'nowhere'"),
        ("mailbox", "cannot be part of a transaction: send it without one"),
        ("broken", "one of its messages is not a valid AMQP message"),
    ],
)
def test_a_transaction_that_cannot_be_carried_out_whole_is_undone_whole(bench: Bench, what: str, why: str) -> None:
    bench.queue("small", arguments={"qpid.max_count": 2})
    one = Transactor(bench)
    txn_id = one.declare()
    one.post(one.client.sender("orders"), txn_id, "fits")
    if what == "full":
        one.post(one.client.sender("small"), txn_id, *"abc")
    elif what == "deleted":
        one.post(one.client.sender("small"), txn_id, "a")
        assert one.client.request("DELETE", "queue", "small")[0] == 204
    elif what == "missing":
        one.post(one.client.sender(None), txn_id, "a", address="nowhere")
    elif what == "mailbox":
        reply = one.client.receiver(None, dynamic=True)
        one.post(one.client.sender(None), txn_id, "a", address=reply.remote_source.address)
    else:
        assert refusal(one.post_encoded(one.client.sender("orders"), txn_id, b"\x00\x53"))[0] == "amqp:decode-error"
    name, text = refusal(one.discharge(txn_id))
    assert name == "amqp:transaction:rollback"
    assert why in text
    assert bench.depth("orders") == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"qpid.policy_type": "ring", "qpid.max_size": 400},
        {"qpid.policy_type": "ring_strict", "qpid.max_count": 3},
        {"qpid.policy_type": "ring_strict", "qpid.max_size": 400},
    ],
)
def test_a_full_ring_takes_a_transaction_of_several_messages_as_it_takes_them_one_by_one(
    bench: Bench, arguments: dict[str, Any]
) -> None:
    bench.queue("ring", arguments=arguments)
    one = Transactor(bench)
    link = one.client.sender("ring")
    one.client.send(link, *("x" * 100 + str(n) for n in range(6)))
    for n in (2, 5):
        txn_id = one.declare()
        one.post(link, txn_id, *("y" * 100 + str(at) for at in range(n)))
        assert one.discharge(txn_id).remote_state == A
    browser = bench.client()
    assert browser.bodies(browser.receiver("ring", browse=True)) == ["y" * 100 + str(at) for at in (2, 3, 4)]
    txn_id = one.declare()
    one.post(link, txn_id, "small", "z" * 600)
    if "qpid.max_size" in arguments:
        assert "bytes are more than all of the 400 that it may hold" in refusal(one.discharge(txn_id))[1]
    else:
        assert one.discharge(txn_id).remote_state == A


@pytest.mark.parametrize("kind", ["ring_strict", "last values"])
def test_a_transaction_that_a_full_queue_does_not_take_is_undone_with_the_reason(bench: Bench, kind: str) -> None:
    kinds = {"ring_strict": {"qpid.policy_type": "ring_strict"}, "last values": {"qpid.last_value_queue_key": "k"}}
    bench.queue("full", arguments={"qpid.max_count": 3, **kinds[kind]})
    one = Transactor(bench)
    link = one.client.sender("full")
    one.client.send(link, 1, 2, 3)
    one.client.receiver("full", credit=1)
    txn_id = one.declare()
    one.post(link, txn_id, *range(4))
    name, text = refusal(one.discharge(txn_id))
    reasons = {
        "ring_strict": "its oldest message would have to leave, and a consumer has acquired that",
        "last values": "it would hold 5 messages, where 3 are allowed",
    }
    assert name == "amqp:transaction:rollback"
    assert "queue 'full' does not take 4 messages of " in text
    assert text.endswith(f" bytes in all: {reasons[kind]}")


def test_what_a_node_of_no_queue_is_sent_in_a_transaction_is_refused(bench: Bench) -> None:
    one = Transactor(bench)
    txn_id = one.declare()
    reply = one.client.receiver(None, dynamic=True)
    text = "messages to this node cannot be part of a transaction: send them without one"
    for address in ("$management", reply.remote_source.address):
        (delivery,) = one.post(one.client.sender(address), txn_id, "a")
        assert refusal(delivery) == ("amqp:not-implemented", text)
    assert refusal(one.discharge(txn_id)) == ("amqp:transaction:rollback", f"the transaction was undone: {text}")


def test_a_message_that_comes_by_the_part_is_refused_in_a_transaction() -> None:
    bench = Bench(clustered=True, part_bytes=4096)
    bench.queue("orders", replicate="all")
    bench.upgraded()
    one = Transactor(bench)
    txn_id = one.declare()
    (delivery,) = one.post(one.client.sender("orders"), txn_id, bytes(200_000))
    name, text = refusal(delivery)
    assert name == "amqp:link:message-size-exceeded"
    assert refusal(one.discharge(txn_id)) == ("amqp:transaction:rollback", f"the transaction was undone: {text}")


def test_bytes_of_a_transaction_and_of_all_of_them_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_TRANSACTION_BYTES", 3000)
    one = Transactor(bench)
    txn_id = one.declare()
    sender = one.client.sender("orders")
    small, large = one.post(sender, txn_id, bytes(2000), bytes(2000))
    assert small.remote_state == TRANSACTIONAL
    assert refusal(large) == ("amqp:resource-limit-exceeded", "the messages of a transaction may have 3000 bytes in all")
    bench.broker.transactions.budget.limit_bytes = 4000
    other = Transactor(bench)
    (beyond,) = other.post(other.client.sender("orders"), other.declare(), bytes(2500))
    text = "the open transactions of all clients hold 4000 bytes, their limit; try again"
    assert refusal(beyond) == ("amqp:resource-limit-exceeded", text)
    one.discharge(txn_id)
    (fits,) = other.post(other.client.sender("orders"), other.declare(), bytes(2500))
    assert fits.remote_state == TRANSACTIONAL


def test_a_transaction_that_an_exchange_makes_too_large_for_a_batch_is_undone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each queue gets its own copy, in the same batch. Breaks when only what the client has sent counts: such a batch passed no
    link between brokers, and the cluster committed nothing any more."""
    listener = bench.client()
    queues = [listener.receiver("amq.fanout") for _ in range(4)]
    one = Transactor(bench)
    sender = one.client.sender("amq.fanout")
    txn_id = one.declare()
    one.post(sender, txn_id, bytes(1000))
    monkeypatch.setattr(limits, "MAX_BATCH_BYTES", 4000)
    name, text = refusal(one.discharge(txn_id))
    assert name == "amqp:transaction:rollback"
    assert re.search(r"its messages are 4\d\d\d bytes in all the queues that they are routed to, and 4000 are the most", text)
    assert [listener.bodies(queue) for queue in queues] == [[]] * 4
    txn_id = one.declare()
    one.post(sender, txn_id, bytes(900))
    assert one.discharge(txn_id).remote_state == A
    assert [listener.bodies(queue) for queue in queues] == [[bytes(900)]] * 4


def test_a_small_message_of_an_open_transaction_takes_no_more_memory_than_it_counts_with() -> None:
    """Each comes at another time, which is kept with it."""
    budget, nobody, count = Budget(), cast("Poster", None), 10_000
    tracemalloc.start()
    try:
        one = Transaction(b"", nobody, budget)
        for each in range(count):
            assert one.post(nobody, [b"%04d" % each], 10**12 + each)
        assert budget.nbytes / 2 < tracemalloc.get_traced_memory()[0] <= budget.nbytes
    finally:
        tracemalloc.stop()


def test_a_connection_has_a_bounded_number_of_transactions(bench: Bench) -> None:
    one = Transactor(bench)
    ids = [one.declare() for _ in range(limits.MAX_TRANSACTIONS_PER_CONNECTION)]
    assert len(set(ids)) == len(ids)
    name, text = refusal(one.ask("amqp:declare:list", [None]))
    assert (name, text) == ("amqp:resource-limit-exceeded", "a connection may have 100 transactions open: discharge some first")
    one.discharge(ids[0])
    one.declare()


@pytest.mark.parametrize(
    "descriptor, fields, name, text",
    [
        ("amqp:declare:list", [b"global"], "amqp:not-implemented", "distributed transactions"),
        ("amqp:discharge:list", [], "amqp:decode-error", "needs the id of a transaction"),
        ("amqp:accepted:list", [], "amqp:decode-error", "accepts only a declare or a discharge"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(bench: Bench, descriptor: str, fields: list[Any], name: str, text: str) -> None:
    found = refusal(Transactor(bench).ask(descriptor, fields))
    assert found[0] == name
    assert text in found[1]


def test_a_body_that_is_no_value_is_no_request(bench: Bench) -> None:
    one = Transactor(bench)
    (delivery,) = one.client.send(one.control, b"data", inferred=True)
    assert refusal(delivery)[0] == "amqp:decode-error"


def test_a_coordinator_that_is_asked_for_more_than_it_can_is_refused(bench: Bench) -> None:
    one = Transactor(bench, LOCAL_TRANSACTIONS, "amqp:distributed-transactions")
    assert one.control.remote_condition.name == "amqp:not-implemented"
    assert "this broker's coordinator has no amqp:distributed-transactions" in one.control.remote_condition.description
    assert one.control.remote_target.type == proton.Terminus.UNSPECIFIED


def test_a_transaction_over_both_logs_is_in_the_clusters_first() -> None:
    bench = Bench(clustered=True, automatic=False)
    local, cluster = bench.logs["local"], bench.lead
    for log in (local, cluster):
        log.automatic = True
    bench.queue("shared", replicate="all")
    bench.queue("own", replicate="none")
    one = Transactor(bench)
    txn_id = one.declare()
    one.post(one.client.sender("own"), txn_id, "a")
    one.post(one.client.sender("shared"), txn_id, "b")
    cluster.automatic = local.automatic = False
    request = one.discharge(txn_id)
    assert (len(cluster.waiting), len(local.waiting)) == (1, 0)
    cluster.commit()
    bench.settle()
    assert (request.remote_state, len(local.waiting)) == (0, 1)
    local.commit()
    bench.settle()
    assert request.remote_state == A
    assert (bench.depth("own"), bench.depth("shared")) == (1, 1)


def test_a_transaction_without_work_is_discharged_at_once(bench: Bench) -> None:
    one = Transactor(bench)
    before = len(bench.lead.committed)
    assert one.discharge(one.declare()).remote_state == A
    assert len(bench.lead.committed) == before


def test_a_transaction_with_a_message_for_a_queue_that_is_being_deleted_is_undone(bench: Bench) -> None:
    """Breaks when it is committed behind the end of the queue: what it has consumed and what it has sent are lost then."""
    one = Transactor(bench)
    one.client.send(one.client.sender("orders"), "in")
    receiver, bills = one.client.receiver("orders", credit=1), one.client.sender("bills")
    ((delivery, _),) = one.client.received[receiver.name]
    txn_id = one.declare()
    one.give(delivery, txn_id)
    one.post(bills, txn_id, "out")
    bench.begin_deletion("bills", ifEmpty=True)
    asked = one.ask("amqp:discharge:list", [txn_id, False])
    bench.commit_all()
    assert refusal(asked)[0] == "amqp:transaction:rollback"
    assert ("bills" in bench.broker.nodes.queues, bench.depth("orders")) == (False, 1)


def ended(bench: Bench, queue: str) -> None:
    """The broker ends the producers of a queue; their clients do not know of it yet."""
    node = bench.broker.nodes.queues[queue]
    for producer in list(bench.broker.queues.at(node).producers):
        producer.session.end_link(producer.link, Condition("amqp:unauthorized-access", "other rules are in force"))


@pytest.mark.parametrize("settled", [False, True])
def test_a_transaction_with_a_message_on_a_link_that_the_broker_has_ended_is_undone(bench: Bench, settled: bool) -> None:
    """Breaks when the message, which was on its way, is dropped and the others are committed without it."""
    one = Transactor(bench)
    orders = one.client.sender("orders")
    bills = one.client.sender("bills", "b", presettled=settled)
    txn_id, other = one.declare(), one.declare()
    one.post(orders, txn_id, "kept")
    one.post(orders, other, "of another transaction")
    ended(bench, "bills")
    one.post(bills, txn_id, "dropped", settle=False)
    asked = one.ask("amqp:discharge:list", [txn_id, False])
    assert refusal(asked) == (
        "amqp:transaction:rollback",
        "the transaction was undone: one of its messages came on a link that the broker has ended, and was dropped",
    )
    assert one.discharge(other).remote_state == A
    assert (bench.depth("orders"), bench.depth("bills")) == (1, 0)


@pytest.mark.parametrize("what", ["too large", "without credit"])
def test_a_transaction_that_loses_messages_with_a_link_that_breaks_a_rule_is_undone(what: str) -> None:
    """Breaks when those that came just before are dropped with the link, and what else is in the transaction is committed."""
    made = Bench(max_message_bytes=200_000)
    for name in ("orders", "bills"):
        made.queue(name)
    one = Transactor(made)
    orders, bills = one.client.sender("orders"), one.client.sender("bills")
    txn_id = one.declare()
    one.post(orders, txn_id, "kept")
    if what == "too large":
        one.post(bills, txn_id, "small", settle=False)
        one.post(bills, txn_id, bytes(250_000), settle=False)
    else:
        (producer,) = made.broker.queues.at(made.broker.nodes.queues["bills"]).producers
        producer.link.account.credit = 1  # less than the client has been given
        for _ in range(2):
            one.post(bills, txn_id, "m", settle=False)
    asked = one.ask("amqp:discharge:list", [txn_id, False])
    assert refusal(asked)[0] == "amqp:transaction:rollback"
    assert (made.depth("orders"), made.depth("bills")) == (0, 0)
    made.close()
