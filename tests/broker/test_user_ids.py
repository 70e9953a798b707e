"""A message whose user-id names somebody else than the user who sends it is refused, whichever way it comes."""

from __future__ import annotations

import proton
import pytest

from broker.core import limits
from tests.broker import clients, drain_bench
from tests.broker.clients import ACCEPTED, REJECTED, Bench, Client, statuses
from tests.broker.core.test_user_ids import ANN, BOB, made
from tests.broker.drain_bench import Taking
from tests.broker.sessions.test_transactions import Transactor
from tests.broker.test_bundles import data, refusal, send
from tests.broker.users import as_user, believing, bench


def ann(b: Bench) -> Client:
    return as_user(b, "ann@QPID")


@pytest.mark.parametrize("address", ["q", "amq.fanout", None])
def test_a_message_of_another_user_is_rejected_and_those_around_it_are_taken(address: str | None) -> None:
    with bench() as b:
        b.queue("q")
        client = ann(b)
        link = client.sender(address)
        ids: list[bytes | None] = [None, b"ann", BOB, ANN, b"", b"ann@EXAMPLE"]
        bodies = [made(at, each, address="q", id=7).encode() for at, each in enumerate(ids)]
        deliveries = client.send_encoded(link, *bodies)
        taken = [each.remote_state == proton.Delivery.ACCEPTED for each in deliveries]
        assert taken == [True, True, False, True, True, False]
        assert str(deliveries[2].remote.condition.name) == "amqp:unauthorized-access"
        text = "ann@QPID may not send a message of another user: its user-id is bob@QPID"
        assert deliveries[2].remote.condition.description == text
        if address != "amq.fanout":
            assert b.depth("q") == 4


def test_who_has_not_shown_who_it_is_may_say_what_it_likes() -> None:
    """Breaks when a broker without logins refuses what it has always taken."""
    with bench() as b:
        b.queue("q")
        client = b.client()
        link = client.sender("q")
        client.send(link, "a", user_id=BOB)
        assert statuses(client, link) == [ACCEPTED]


def test_a_broker_may_be_told_to_take_messages_of_other_users() -> None:
    with clients.bench(authentication=lambda clock: believing(clock, checks_user_ids=False)) as b:
        b.queue("q")
        client = ann(b)
        link = client.sender("q")
        client.send(link, "a", user_id=BOB)
        assert statuses(client, link) == [ACCEPTED]


def test_a_transaction_with_a_message_of_another_user_is_rolled_back() -> None:
    with bench() as b:
        b.queue("q")
        work = Transactor(b, client=ann(b))
        txn_id = work.declare()
        out = work.client.sender("q")
        (good,), (bad,) = work.post(out, txn_id, "a", user_id=ANN), work.post(out, txn_id, "b", user_id=BOB)
        discharged = work.discharge(txn_id)
        assert bad.remote_state == discharged.remote_state == proton.Delivery.REJECTED
        assert str(bad.remote.condition.name) == "amqp:unauthorized-access"
        assert good.remote_state != proton.Delivery.REJECTED
        assert b.depth("q") == 0


def test_a_large_message_of_another_user_is_rejected() -> None:
    with bench(part_bytes=16 * 1024) as b:
        b.queue("q")
        client = ann(b)
        link = client.sender("q")
        body = "x" * (limits.LARGE_PARTS * 16 * 1024 + 1)
        client.send(link, body, user_id=BOB)
        client.send(link, body, user_id=ANN)
        assert (statuses(client, link), b.depth("q")) == ([REJECTED, ACCEPTED], 1)


def test_of_several_messages_in_one_delivery_none_is_taken_when_one_is_of_another_user() -> None:
    with bench() as b:
        b.queue("q")
        client = ann(b)
        client.sender("$cbs")
        link = client.sender("q")
        first, second, third = (data(made("x", user).encode()) for user in (None, ANN, BOB))
        send(client, link, first + third)
        assert (statuses(client, link), refusal(client)[0], b.depth("q")) == ([REJECTED], "amqp:unauthorized-access", 0)
        send(client, link, first + second)
        assert (statuses(client, link), b.depth("q")) == ([REJECTED, ACCEPTED], 2)


def test_a_drain_brings_the_messages_of_all_users() -> None:
    """Breaks when a drain leaves behind what others than the user who drains have sent."""
    with bench() as b:
        taking = Taking(b)
        taking.client = as_user(b, "ann@QPID")
        link = taking.link()
        drain_bench.send(taking.client, link, 1, made("x", BOB).encode())
        b.settle()
        assert (statuses(taking.client, link), b.depth("q")) == ([ACCEPTED], 1)
