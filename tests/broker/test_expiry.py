"""Messages that expire and messages that wait, as clients see it; the time is that of the test's clock, from 1970 on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import proton
import pytest

from broker.core import limits
from broker.core.nodes import LOCAL
from broker.sessions import due
from broker.sessions.dead_letters import DeadLetters
from tests.broker.clients import ADMIN, Bench, Client, bench
from tests.broker.drain_bench import Taking, send
from tests.broker.sessions.test_transactions import Transactor
from tests.broker.test_dead_letters import figures, letters_of, limited, reasons

BEGUN_S = 1_000_000.0


@contextmanager
def clocked(**options: Any) -> Iterator[Bench]:
    """A broker whose wall clock says so when its clock is at 0."""
    made: list[Bench] = []
    with bench(wall=lambda: BEGUN_S + (made[0].clock.seconds() if made else 0.0), **options) as b:
        made.append(b)
        if options.get("clustered"):
            b.upgraded()
        yield b


def delayed(seconds: float) -> dict[str, Any]:
    return {"annotations": {proton.symbol("x-opt-delivery-delay"): int(seconds * 1000)}}


def seen(client: Client, receiver: Any) -> list[Any]:
    client.bench.settle()
    return client.bodies(receiver)


# ---- expiry


@pytest.mark.parametrize("how", ["ttl", "time", "queue", "both"])
def test_a_message_goes_when_its_time_is_over_and_not_before_and_with_the_reason_where_there_is_a_way(how: str) -> None:
    with clocked() as b:
        letters_of(b, arguments={"x-message-ttl": 10_000} if how == "queue" else {})
        said: dict[str, dict[str, Any]] = {
            "ttl": {"ttl": 10},
            "time": {"expiry_time": BEGUN_S + 10},
            "queue": {},
            "both": {"ttl": 10, "expiry_time": BEGUN_S + 99},
        }
        client = b.client()
        client.send(client.sender("q"), "brief", **said[how])
        b.pass_time(9.5)
        assert (b.depth("q"), b.depth("dead")) == (1, 0)
        b.pass_time(1)
        assert (b.depth("q"), b.depth("dead")) == (0, 1)
        assert reasons(client) == [("brief", "q", "expired")]
        assert figures(b) == (0, 0, 1, 0)
        b.pass_time(60)
        assert b.depth("dead") == 1, "a dead letter does not expire by what its sender has said"


@pytest.mark.parametrize("own", [{}, {"x-message-ttl": 12_000}], ids=["by itself", "by its queue too"])
def test_the_times_of_a_message_in_a_transaction_begin_when_it_arrives_and_not_with_the_discharge(own: dict[str, int]) -> None:
    with clocked() as b:
        letters_of(b, arguments=own)
        one = Transactor(b)
        txn_id, sender = one.declare(), one.client.sender("q")
        one.post(sender, txn_id, "over", ttl=4)
        one.post(sender, txn_id, "brief", ttl=10)
        one.post(sender, txn_id, "late", **delayed(8))
        b.pass_time(5)
        one.post(sender, txn_id, "later", ttl=10)
        one.discharge(txn_id)
        receiver = one.client.receiver("q")
        b.pass_time(0.5)
        assert seen(one.client, receiver) == ["brief", "later"]
        assert reasons(one.client) == [("over", "q", "expired")]
        b.pass_time(2)
        assert seen(one.client, receiver) == ["brief", "later"]
        b.pass_time(1)
        assert seen(one.client, receiver) == ["brief", "later", "late"]
        receiver.close()
        b.pass_time(2)
        assert b.depth("q") == 2, "the first one has had ten seconds"


def test_what_expires_without_a_way_for_dead_letters_is_dropped_and_counted() -> None:
    with clocked() as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), *"abc", ttl=1)
        client.send(client.sender("q"), "stays")
        b.pass_time(2)
        assert (b.depth("q"), figures(b)) == (1, (0, 0, 3, 3))
        assert seen(client, client.receiver("q")) == ["stays"]


@pytest.mark.parametrize("browse", [False, True])
def test_nobody_gets_what_has_expired_though_no_sweep_has_seen_it(browse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due.Due, "_sweep", lambda _: None)
    with clocked() as b:
        letters_of(b)
        client = b.client()
        sender = client.sender("q")
        for body, ttl in (("1", 0), ("2", 5), ("3", 0), ("4", 5), ("5", 50)):
            client.send(sender, body, ttl=ttl)
        b.pass_time(6)
        assert seen(client, client.receiver("q", browse=browse)) == ["1", "3", "5"]
        b.pass_time(1)
        assert b.depth("q") == (5 if browse else 0)
        assert b.depth("dead") == (0 if browse else 2)


def test_what_a_consumer_holds_may_be_accepted_after_its_time_and_goes_when_it_is_given_back() -> None:
    with clocked() as b:
        b.queue("q")
        client = b.client()
        client.auto_accept = False
        client.send(client.sender("q"), "kept", "returned", ttl=5)
        receiver = client.receiver("q", credit=2)
        (kept, _), (returned, _) = client.received[receiver.name]
        b.pass_time(9)
        assert b.depth("q") == 2
        client.give(kept, proton.Delivery.ACCEPTED)
        client.give(returned, proton.Delivery.RELEASED)
        b.pass_time(2)
        assert (b.depth("q"), figures(b)) == (0, (0, 0, 1, 1))


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_a_consumer_is_told_how_much_is_left_and_all_else_is_as_it_was_sent(memory: int) -> None:
    with clocked(message_memory=memory) as b:
        b.queue("q", arguments={"x-message-ttl": 8000})
        client = b.client()
        client.auto_accept = False
        sender = client.sender("q")
        fields: dict[str, Any] = {"priority": 7, "durable": True, "subject": "s", "annotations": {proton.symbol("x"): 1}}
        client.send(sender, "ten", ttl=10, **fields)
        client.send(sender, "five", ttl=5, **fields)
        client.send(sender, "none", **fields)
        b.pass_time(3)
        found = [each for _, each in client.received[client.receiver("q").name]]
        assert [(each.body, each.ttl) for each in found] == [("ten", 5), ("five", 2), ("none", 0)]
        assert {(each.priority, each.durable, each.subject, each.annotations["x"]) for each in found} == {(7, True, "s", 1)}
        b.pass_time(0.5)


def test_a_large_message_expires_and_waits_too_and_says_what_is_left() -> None:
    with clocked(part_bytes=512) as b:
        b.queue("q")
        client = b.client()
        sender = client.sender("q")
        client.send(sender, "x" * 9000, ttl=10, **delayed(2))
        client.send(sender, "y" * 9000, ttl=4)
        receiver = client.receiver("q")
        assert [each[0] for each in seen(client, receiver)] == ["y"]
        b.pass_time(3)
        assert [(each.body[0], each.ttl) for _, each in client.received[receiver.name]][1] == ("x", pytest.approx(8, abs=1.1))
        client.send(sender, "z" * 9000, ttl=4, **delayed(30))
        b.pass_time(5)
        assert (b.depth("q"), figures(b)) == (0, (0, 0, 1, 1))


@pytest.mark.parametrize("levels", [1, 10])
def test_a_new_primary_goes_on_with_all_times_by_the_log(levels: int) -> None:
    """Its own wall clock is an hour behind: the log's time does not go back."""
    with clocked(clustered=True) as b, bench(clustered=True, state="ready", wall=lambda: BEGUN_S - 3600) as other:
        letters_of(b, arguments={"qpid.priorities": levels})
        client = b.client()
        sender = client.sender("q")
        for number in range(4):
            client.send(sender, f"brief {number}", ttl=10, priority=number)
            client.send(sender, f"late {number}", priority=number, **delayed(20))
            client.send(sender, f"plain {number}", priority=number)
        b.pass_time(4)
        b.lead.stamp_ms = int((BEGUN_S + 4) * 1000)
        client.send(sender, "the last of this term", priority=0)
        b.lead.replayed_into(other.lead)
        other.lead.become("active")
        other.pass_time(5.5)
        assert (other.depth("q"), other.depth("dead")) == (13, 0)
        other.pass_time(5)
        assert (other.depth("q"), other.depth("dead")) == (9, 4)
        client = other.client()
        receiver = client.receiver("q")
        assert {each[:5] for each in seen(client, receiver)} == {"plain", "the l"}
        other.pass_time(10)
        assert [each[:4] for each in client.bodies(receiver)[5:]] == ["late"] * 4


def test_a_backup_lets_nothing_expire() -> None:
    with clocked(clustered=True) as b, bench(clustered=True, state="ready") as other:
        b.queue("q", replicate="all")
        client = b.client()
        client.send(client.sender("q"), "brief", ttl=1)
        b.lead.replayed_into(other.lead)
        other.pass_time(60)
        assert (other.depth("q"), other.lead.committed) == (1, b.lead.committed)


def test_a_queue_of_this_broker_alone_has_times_in_its_own_log() -> None:
    with clocked(clustered=True) as b:
        b.queue("q", replicate="configuration", arguments={"x-message-ttl": 5000})
        b.pass_time(1)
        client = b.client()
        client.send(client.sender("q"), "brief")
        b.logs[LOCAL].become("recovering")
        b.pass_time(9)
        assert b.depth("q") == 1
        b.logs[LOCAL].become("standalone")
        b.pass_time(1)
        assert b.depth("q") == 0


def test_a_cluster_that_an_older_release_may_lead_has_no_times_and_says_so() -> None:
    with bench(clustered=True) as b:
        b.queue("q", replicate="all")
        client = b.client()
        client.send(client.sender("q"), "for ever", ttl=1)
        b.pass_time(5)
        assert b.depth("q") == 1
        body = {"arguments": {"x-message-ttl": 3}, "replicate": "all"}
        assert client.request("CREATE", "queue", "r", body)[0] == 409
        assert not offers_delay(client)
        b.upgraded()
        assert offers_delay(b.client())


def offers_delay(client: Client) -> bool:
    """Whether Qpid JMS would send messages with a delay."""
    return "DELAYED_DELIVERY" in (client.connection.remote_offered_capabilities or ())


@pytest.mark.parametrize("alternate", [False, True])
def test_many_that_expire_at_once_leave_by_turns_of_which_none_is_long(alternate: bool) -> None:
    with clocked() as b:
        letters_of(b, alternateExchange="dlx" if alternate else "")
        client = b.client()
        client.send(client.sender("q"), *map(str, range(900)), ttl=1)
        terminus = b.broker.queues.named("q")
        assert terminus is not None
        before = len(b.lead.committed)
        b.pass_time(3, step=0.05)
        assert (b.depth("q"), b.depth("dead")) == (0, 900 if alternate else 0)
        assert figures(b) == (0, 0, 900, 0 if alternate else 900)
        assert len(b.lead.committed) > before


def test_a_consumer_that_meets_many_expired_ones_leaves_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.core.limits.MAX_HELD_BACK", 100)
    monkeypatch.setattr(due.Due, "_sweep", lambda _: None)
    with clocked() as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), *map(str, range(900)), ttl=1)
        client.send(client.sender("q"), "sound")
        b.pass_time(2)
        receiver = client.receiver("q", credit=10)
        b.pass_time(1)
        assert (client.bodies(receiver), b.depth("q")) == (["sound"], 0)


def test_nothing_expires_while_another_broker_is_about_to_take_over() -> None:
    with clocked() as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), "brief", ttl=1)
        b.broker.queues.hold()
        b.pass_time(3)
        assert b.depth("q") == 1
        b.broker.queues.give_out_again()
        b.pass_time(1)
        assert b.depth("q") == 0


def test_a_queue_that_goes_takes_its_times_with_it() -> None:
    with clocked() as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), "brief", ttl=1)
        assert client.request("DELETE", "queue", "q", {})[0] == 204
        b.pass_time(3)
        assert b.broker.schedule._timer is None


def test_a_rollback_behind_the_end_of_a_queue_looks_for_no_times_of_its_messages() -> None:
    """Breaks when a queue that is gone keeps the times of its messages: a sweep would end with an error."""
    with clocked() as b:
        b.queue("q", arguments={"x-message-ttl": 5_000, "x-delayed-retry-min": 100})
        one = Transactor(b)
        one.client.send(one.client.sender("q"), 1, 2, 3)
        receiver = one.client.receiver("q")
        (_, first), (_, second), (third, _) = list(one.client.received[receiver.name])
        assert (first.body, second.body) == (1, 2)
        one.client.give(third, proton.Delivery.MODIFIED, failed=True)  # so that the queue has delayed messages
        txn_id = one.declare()
        for delivery, _ in list(one.client.received[receiver.name])[:2]:
            one.give(delivery, txn_id)
        assert one.client.request("DELETE", "queue", "q")[0] == 204
        one.discharge(txn_id, fail=True)
        b.pass_time(10)


# ---- delay


@pytest.mark.parametrize(
    "annotation, value", [("x-opt-delivery-delay", 5000), ("x-opt-delivery-time", int((BEGUN_S + 5) * 1000))]
)
def test_a_delayed_message_comes_when_its_time_has_come_and_not_before(annotation: str, value: int) -> None:
    with clocked() as b:
        b.queue("q")
        client = b.client()
        sender = client.sender("q")
        client.send(sender, "late", annotations={proton.symbol(annotation): value})
        client.send(sender, "soon")
        receiver = client.receiver("q")
        assert seen(client, receiver) == ["soon"]
        b.pass_time(4.5)
        assert (client.bodies(receiver), b.depth("q")) == (["soon"], 1)
        b.pass_time(1)
        assert client.bodies(receiver) == ["soon", "late"]
        b.pass_time(0.1)
        assert b.depth("q") == 0


def test_a_delayed_message_takes_its_old_place_among_those_that_are_there() -> None:
    with clocked() as b:
        b.queue("q")
        client = b.client()
        sender = client.sender("q")
        client.send(sender, "1", **delayed(3))
        client.send(sender, "2")
        client.send(sender, "3", **delayed(1))
        b.pass_time(4)
        assert seen(client, client.receiver("q")) == ["1", "2", "3"]


def test_a_browser_sees_no_message_before_its_time() -> None:
    with clocked() as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), "late", **delayed(3))
        assert seen(client, client.receiver("q", browse=True)) == []
        b.pass_time(4)
        assert seen(client, client.receiver("q", browse=True)) == ["late"]


def test_a_message_through_an_exchange_and_one_in_a_priority_queue_wait_too() -> None:
    with clocked() as b:
        b.queue("q", arguments={"qpid.priorities": 10})
        client = b.client()
        assert client.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "q", "key": ""})[0] == 201
        client.send(client.sender("amq.fanout"), "late", priority=9, **delayed(3))
        client.send(client.sender("q"), "low", priority=0)
        receiver = client.receiver("q")
        assert seen(client, receiver) == ["low"]
        b.pass_time(4)
        assert client.bodies(receiver) == ["low", "late"]


def test_a_delayed_message_may_fail_and_come_again() -> None:
    with clocked() as b:
        b.queue("q")
        client = b.client()
        client.auto_accept = False
        client.send(client.sender("q"), "late", **delayed(1))
        receiver = client.receiver("q")
        b.pass_time(2)
        for _ in range(3):
            client.give(client.received[receiver.name][-1][0], proton.Delivery.MODIFIED, failed=True)
            b.pass_time(0.1)
        assert [each.delivery_count for _, each in client.received[receiver.name]] == [0, 1, 2, 3]


# ---- from another store


@pytest.mark.parametrize("padding", [0, 9000])
def test_what_a_drain_brings_expires_and_has_waited_already(padding: int) -> None:
    """Its header says what the other broker has left of its time to live."""
    with clocked(part_bytes=512) as b:
        taking = Taking(b)
        link = taking.link()
        for sequence in (1, 2):
            data = proton.Message(body="x" * padding, ttl=5 if sequence == 1 else 0, **delayed(60)).encode()
            send(taking.client, link, sequence, bytes(data))
        b.settle()
        receiver = taking.client.receiver("q", browse=True)
        b.pass_time(1)
        assert len(taking.client.bodies(receiver)) == b.depth("q") == 2
        b.pass_time(6)
        assert b.depth("q") == 1


# ---- what has failed


def failing(b: Bench, **arguments: Any) -> tuple[Client, Any]:
    """A consumer of a queue with these arguments and one message, which it fails to take at once."""
    b.queue("q", replicate="all", arguments={"x-delayed-retry-min": 2000, "x-delayed-retry-max": 5000} | arguments)
    client = b.client()
    client.auto_accept = False
    client.send(client.sender("q"), "poison")
    receiver = client.receiver("q", credit=100)
    fail_last(b, client, receiver)
    return client, receiver


def fail_last(b: Bench, client: Client, receiver: Any) -> None:
    client.give(client.received[receiver.name][-1][0], proton.Delivery.MODIFIED, failed=True)
    b.settle()


def test_what_has_failed_waits_longer_each_time_up_to_a_bound_and_others_go_before_it() -> None:
    with clocked() as b:
        client, receiver = failing(b)
        for count, wait_s in enumerate((2, 4, 5, 5), 1):
            client.send(client.sender("q"), f"other {count}")
            b.pass_time(wait_s - 0.5)
            client.give(client.received[receiver.name][-1][0], proton.Delivery.ACCEPTED)
            assert client.bodies(receiver)[-1] == f"other {count}"
            b.pass_time(1)
            assert client.bodies(receiver)[-1] == "poison"
            assert client.received[receiver.name][-1][1].delivery_count == count
            fail_last(b, client, receiver)


def test_a_delay_ends_in_time_while_many_dead_letters_cannot_leave() -> None:
    """Breaks when what has failed once, or was sent with a delay, waits for as long as a disk is nearly full."""
    with clocked() as b:
        letters_of(b, arguments={"x-delayed-retry-min": 100})
        client = b.client()
        client.auto_accept = False
        link = client.sender("q")
        for _ in range(11):
            client.send(link, *range(100), ttl=5)
        client.send(link, "good", "other")
        b.lead.ledger.on_storage_low("the disk is nearly full", 0)
        b.pass_time(6)
        assert (b.depth("q"), b.depth("dead")) == (1102, 0)
        receiver = client.receiver("q", credit=10)
        client.give(client.received[receiver.name][0][0], proton.Delivery.MODIFIED, failed=True)
        b.pass_time(1)
        assert client.bodies(receiver) == ["good", "other", "good"]


def expired_behind_a_full_disk(b: Bench, n: int = 2000) -> tuple[Client, DeadLetters]:
    """A queue "q" with a message for a consumer, which has it, behind `n` that have expired and cannot leave."""
    letters_of(b)
    client = b.client()
    client.auto_accept = False
    for first in range(0, n, 100):
        client.send(client.sender("q", name=f"l{first}"), *range(first, first + 100), ttl=5)
    client.send(client.sender("q"), "good")
    b.lead.ledger.on_storage_low("the disk is nearly full", 0)
    b.pass_time(6)
    receiver = client.receiver("q", credit=10)
    b.pass_time(3)
    assert client.bodies(receiver) == ["good"]
    return client, b.broker.queues.at(b.broker.nodes.queues["q"]).letters


def test_a_backlog_that_expires_under_its_consumer_is_remembered_in_runs_and_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when each message takes memory of its own for as long as the disk is nearly full, or when those in runs stay."""
    monkeypatch.setattr(limits, "MAX_LETTERS_WAITING", 100)
    with clocked() as b:
        client, letters = expired_behind_a_full_disk(b)
        assert letters.has_more
        assert len(letters.waiting) < 1700
        assert all(sequence in letters for sequence in range(1, 2001))
        b.lead.ledger.on_storage_low("")
        b.pass_time(10)
        assert (b.depth("q"), b.depth("dead")) == (1, 2000)
        assert (letters.waiting, letters.has_more) == ({}, False)
        assert client.bodies(client.receiver("dead", browse=True, credit=2001)) == list(range(2000))


def test_what_waits_in_runs_is_purged_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LETTERS_WAITING", 100)
    with clocked() as b:
        _, letters = expired_behind_a_full_disk(b)
        status, _, _ = b.client(ADMIN).request("PURGE", "queue", "q")
        b.pass_time(5)
        assert (status, b.depth("q"), b.depth("dead")) == (200, 1, 0)
        assert (letters.waiting, letters.has_more) == ({}, False)


def test_what_waits_in_runs_stays_for_the_drain_of_a_broker_that_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LETTERS_WAITING", 100)
    with clocked() as b:
        _, letters = expired_behind_a_full_disk(b)
        terminus = b.broker.queues.at(b.broker.nodes.queues["q"])
        terminus.due.stay()
        assert (letters.waiting, letters.has_more) == ({}, False)
        messages = terminus.node.messages
        assert messages is not None
        assert messages.order.available == 2000


@pytest.mark.parametrize("consumer", [True, False])
def test_a_dead_letter_that_stays_by_a_new_limit_after_its_time_expires(consumer: bool) -> None:
    """Breaks when it is never delivered and never expires: its time has come while it was on its way out for another reason."""
    with clocked() as b:
        letters_of(b, arguments={"x-delivery-limit": 1})
        client = b.client()
        client.auto_accept = False
        client.send(client.sender("q"), "m", ttl=5)
        b.lead.ledger.on_storage_low("the disk is nearly full", 0)
        receiver = client.receiver("q", credit=1)
        client.give(client.received[receiver.name][0][0], proton.Delivery.MODIFIED, failed=True)
        if consumer:
            receiver.flow(10)
        else:
            receiver.close()
        b.pass_time(7)
        assert (b.depth("q"), b.depth("dead")) == (1, 0)
        limited(b, 10)
        b.lead.ledger.on_storage_low("")
        b.pass_time(3)
        assert (b.depth("q"), reasons(client)) == (0, [("m", "q", "expired")])
        assert len(client.received[receiver.name]) == 1


def test_one_that_fails_for_the_last_time_waits_for_nothing() -> None:
    with clocked() as b:
        client, receiver = failing(b, **{"x-delivery-limit": 2})
        b.pass_time(3)
        fail_last(b, client, receiver)
        b.pass_time(0.5)
        assert (b.depth("q"), figures(b)) == (0, (0, 1, 0, 1))


def test_a_new_primary_lets_it_wait_as_long() -> None:
    with clocked(clustered=True) as b, bench(clustered=True, state="ready", wall=lambda: BEGUN_S) as other:
        failing(b)
        b.lead.replayed_into(other.lead)
        other.lead.become("active")
        client = other.client()
        receiver = client.receiver("q")
        other.pass_time(1.5)
        assert client.bodies(receiver) == []
        other.pass_time(1)
        assert client.bodies(receiver) == ["poison"]
