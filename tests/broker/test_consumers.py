"""What consumers and browsers get, in which order, and what becomes of what they do not want."""

from __future__ import annotations

import struct
from typing import Any

import proton
import pytest

from broker.amqp.sender import Sender
from broker.core import limits
from broker.core.nodes import LOCAL
from tests.broker.clients import (
    ACCEPTED,
    Client,
    bench,
    condition,
    creating,
    statuses,
)
from tests.broker.core.stream import frame


def test_messages_come_in_order_as_they_were_sent_and_leave_the_queue_when_accepted() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        producer = client.sender("q")
        client.send(producer, *range(300))
        assert statuses(client, producer) == [ACCEPTED] * 300
        assert producer.credit == limits.CREDIT_WINDOW, "the credit comes back with the accept"
        consumer = client.receiver("q", credit=1000)
        assert client.bodies(consumer) == list(range(300))
        b.pass_time(1)
        assert b.depth("q") == 0


def test_a_consumer_that_wants_everything_settled_takes_messages_off_as_they_go() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), "one", "two")
        consumer = client.receiver("q", presettled=True)
        assert [delivery.settled for delivery, _ in client.received[consumer.name]] == [True, True]
        b.pass_time(1)
        assert b.depth("q") == 0


def test_a_consumer_that_settles_second_hears_accepted_when_the_dequeue_is_committed() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), "one")
        b.lead.automatic = False
        consumer = client.receiver("q", second=True)
        ((delivery, _),) = client.received[consumer.name]
        b.pass_time(1)
        assert not delivery.settled
        assert b.depth("q") == 1
        b.lead.commit()
        b.settle()
        assert delivery.settled
        assert str(delivery.remote_state) == ACCEPTED
        assert b.depth("q") == 0


def test_a_browser_sees_every_message_and_takes_none() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), *range(5))
        browser = client.receiver("q", browse=True)
        other = client.receiver("q", browse=True, presettled=True)
        assert client.bodies(browser) == client.bodies(other) == list(range(5))
        b.pass_time(1)
        assert b.depth("q") == 5
        assert client.bodies(client.receiver("q")) == list(range(5))


def test_competing_consumers_share_a_queue_in_turn() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        first, second = client.receiver("q", credit=1000), client.receiver("q", credit=1000)
        producer = client.sender("q")
        for i in range(40):
            client.send(producer, i)
        shares = [client.bodies(first), client.bodies(second)]
        assert sorted(shares[0] + shares[1]) == list(range(40))
        assert [len(share) for share in shares] == [20, 20]
        assert shares[0] == sorted(shares[0])


def test_a_consumer_gets_no_more_than_its_credit() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), *range(10))
        consumer = client.receiver("q", credit=3)
        assert client.bodies(consumer) == [0, 1, 2]
        consumer.flow(2)
        b.settle()
        assert client.bodies(consumer) == [0, 1, 2, 3, 4]


def test_a_consumer_that_drains_gets_what_is_there_and_its_credit_back() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), "one")
        consumer = client.receiver("q", credit=0)
        consumer.drain(10)
        b.settle()
        assert client.bodies(consumer) == ["one"]
        assert consumer.credit == 0, "the broker gave the rest of the credit back"


def test_a_consumer_that_drains_gets_messages_that_go_out_in_pieces_and_the_rest_of_its_credit_back() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        bodies = [bytes([number]) * (limits.PIECE_BYTES + 1) for number in range(3)]
        client.send(client.sender("q"), *bodies)
        consumer = client.receiver("q", credit=0)
        consumer.drain(10)
        b.settle()
        assert client.bodies(consumer) == bodies
        assert (consumer.credit, consumer.drained()) == (0, 7)


@pytest.mark.parametrize("presettled", [True, False])
def test_a_consumer_that_drains_more_than_its_session_s_window_gets_the_rest_of_its_credit_back(presettled: bool) -> None:
    """Breaks when the credit is given back while messages wait in proton for the window: proton would never say so."""
    with bench() as b:
        b.queue("q")
        other = b.client()
        bodies = list(range(20))
        other.send(other.sender("q"), *bodies)
        client = Client(b)
        client.transport.max_frame_size = 512
        client.session.incoming_capacity = 4 * 512
        b.clients.append(client)
        consumer = client.open().receiver("q", credit=0, presettled=presettled)
        consumer.drain(50)
        b.settle()
        assert client.bodies(consumer) == bodies
        assert (consumer.credit, consumer.drained()) == (0, 30)
        other.send(other.sender("q"), "later")
        consumer.drain(1)
        b.settle()
        assert client.bodies(consumer) == [*bodies, "later"]
        assert consumer.credit == 0


def test_a_consumer_with_more_credit_than_may_be_unsettled_goes_on_when_it_has_settled() -> None:
    """The credit was granted once: if settling did not ask for the next messages, nothing would."""
    with bench() as b:
        b.queue("q")
        client = b.client()
        producer = client.sender("q")
        total = limits.MAX_UNSETTLED_PER_LINK + 200
        for start in range(0, total, 900):
            client.send(producer, *range(start, min(start + 900, total)))
        client.auto_accept = False
        consumer = client.receiver("q", credit=2 * total)
        assert len(client.received[consumer.name]) == limits.MAX_UNSETTLED_PER_LINK
        accepted, last = b"\x00\x53\x24\x45", struct.pack(">I", limits.MAX_UNSETTLED_PER_LINK - 1)
        fields = b"\x41\x43\x70" + last + b"\x42" + accepted  # from a receiver: deliveries 0 to the last, not settled, accepted
        client.say(frame(b"\x00\x53\x15\xc0" + bytes([len(fields) + 1, 5]) + fields))
        b.settle()
        assert len(client.received[consumer.name]) == total


def test_a_consumer_that_holds_as_many_as_may_be_unsettled_gets_the_next_for_each_that_it_settles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its messages have come one by one, so no output waits for it that would ask for more when it has left."""
    monkeypatch.setattr(limits, "MAX_UNSETTLED_PER_LINK", 4)
    with bench() as b:
        b.queue("q")
        client = b.client()
        client.auto_accept = False
        producer, consumer = client.sender("q"), client.receiver("q", credit=100)
        for number in range(7):
            client.send(producer, number)
        assert client.bodies(consumer) == [0, 1, 2, 3]
        for number in range(3):
            client.give(client.received[consumer.name][number][0], proton.Delivery.ACCEPTED)
            assert client.bodies(consumer) == list(range(5 + number))


def test_all_links_of_a_connection_hold_so_many_messages_and_go_on_when_some_are_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Breaks when browsing links that never settle take memory without end: 4,096 links with 5,000 messages are 15 GB."""
    monkeypatch.setattr(limits, "MAX_UNSETTLED_PER_CONNECTION", 100)
    with bench() as b:
        b.queue("q")
        other = b.client()
        other.send(other.sender("q"), *range(20))
        client = b.client()
        client.auto_accept = False
        links = [client.receiver("q", credit=30, browse=True) for _ in range(30)]

        def held() -> int:
            return sum(len(client.received[link.name]) for link in links)

        engine = client.server.engine
        assert (held(), engine.unsettled) == (77, 77), "two have all, one what is left of the half, and each has its share"
        late = other.receiver("q", browse=True, credit=30)
        assert len(other.received[late.name]) == 20, "it is another connection"
        for delivery, _ in list(client.received[links[0].name][:7]):
            client.give(delivery, proton.Delivery.ACCEPTED)
        assert (held(), engine.unsettled) == (77, 70)
        links[1].close()
        b.settle()
        assert (held(), engine.unsettled) == (77, 50)
        links[2].close()
        b.settle()
        assert (held(), engine.unsettled) == (87, 50), "there is room again"
        links[-1].drain(0)
        b.settle()
        assert links[-1].credit == 0, "a drain is answered"
        for link in links:
            link.close()
        b.settle()
        assert engine.unsettled == 0


@pytest.mark.parametrize("how", ["one by one", "in advance"])
def test_no_link_of_a_connection_with_many_unsettled_messages_is_left_out(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when links that settle a message and give a credit for it at once leave no room for the other links."""
    monkeypatch.setattr(limits, "MAX_UNSETTLED_PER_CONNECTION", 100)
    with bench() as b:
        other, client = b.client(), b.client()
        client.auto_accept = False
        for n in range(15):
            b.queue(f"q{n}")
            other.send(other.sender(f"q{n}"), *range(40))
        links = [client.receiver(f"q{n}", credit=10 if how == "one by one" else 40) for n in range(15)]
        b.settle()
        assert all(client.received[link.name] for link in links), "a client may wait for any before it settles one"
        done = dict.fromkeys(links, 0)
        for _ in range(80):
            for link in links:
                for delivery, _ in client.received[link.name][done[link] : done[link] + 1]:
                    delivery.update(proton.Delivery.ACCEPTED)
                    delivery.settle()
                    done[link] += 1
                    if how == "one by one":
                        link.flow(1)
            b.settle()
            b.pass_time(0.01)
            assert client.server.engine.unsettled <= 100
        assert [done[link] for link in links] == [40] * 15


@pytest.mark.parametrize("size", [1, limits.PIECE_BYTES + 1, limits.LARGE_PARTS * limits.PART_BYTES + 1])
def test_a_consumer_that_drains_and_holds_as_many_as_may_be_unsettled_gets_its_credit_back(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait for this before it settles anything. The messages that are left come for the next credit."""
    monkeypatch.setattr(limits, "MAX_UNSETTLED_PER_LINK", 2)
    with bench() as b:
        b.queue("q")
        client = b.client()
        client.auto_accept = False
        bodies = [bytes([number]) * size for number in range(3)]
        client.send(client.sender("q"), *bodies)
        consumer = client.receiver("q", credit=0)
        consumer.drain(10)
        b.settle()
        assert client.bodies(consumer) == bodies[:2]
        assert (consumer.credit, consumer.drained()) == (0, 8)
        consumer.drain(5)
        b.settle()
        assert (consumer.credit, consumer.drained(), len(client.bodies(consumer))) == (0, 5, 2), "it holds two already"
        consumer.drain_mode = False
        consumer.flow(1)
        client.give(client.received[consumer.name][0][0], proton.Delivery.ACCEPTED)
        assert client.bodies(consumer) == bodies


def test_a_consumer_whose_session_window_was_full_goes_on_when_it_has_read() -> None:
    """Its window opens by a flow of the session that names no link: output that leaves must ask for the next messages."""
    with bench() as b:
        b.queue("q")
        client = b.client()
        producer = client.sender("q")
        for _ in range(10):
            client.send(producer, *([b"x" * 200_000] * 4))
        reader = Client(b)
        reader.session.incoming_capacity = 1 << 20
        reader._delivery = lambda delivery: None  # type: ignore[method-assign]
        b.clients.append(reader)
        reader.open().receiver("q", credit=100)
        (link,) = [each for each in reader.server.engine.links if isinstance(each, Sender)]
        assert link.account.n_unsettled < 40, "the window of its session is closed"
        reader.pump = lambda: False  # type: ignore[method-assign]
        many = b"\x70\x00\x00\xff\xff"
        reader.say(frame(b"\x00\x53\x13\xc0\x0d\x04\x40" + many + b"\x43" + many))
        b.settle()
        assert link.account.n_unsettled == 40


# ---- outcomes that give messages back


def test_a_released_message_comes_again_unchanged_and_in_its_old_place() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), "one", "two")
        client.auto_accept = False
        consumer = client.receiver("q", credit=1)
        client.give(client.received[consumer.name][0][0], proton.Delivery.RELEASED)
        consumer.flow(2)
        b.settle()
        assert client.bodies(consumer) == ["one", "one", "two"]
        assert client.received[consumer.name][1][1].delivery_count == 0


def test_a_message_whose_delivery_failed_comes_again_with_its_count_raised() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), "one")
        client.auto_accept = False
        consumer = client.receiver("q", credit=10)
        for n in range(3):
            delivery, message = client.received[consumer.name][-1]
            assert message.delivery_count == n
            client.give(delivery, proton.Delivery.MODIFIED, failed=True)
            consumer.flow(1)
            b.settle()


def test_a_message_with_an_unreadable_header_survives_a_failed_delivery() -> None:
    """The broker cannot raise a count in a header that it cannot read (durable is a number); it must not fall over it either."""
    with bench() as b:
        unreadable = b"\x00\x53\x70\xc0\x02\x01\x43\x00\x53\x77\x40"
        b.queue("q")
        client = b.client()
        client.send_encoded(client.sender("q"), unreadable)
        client.auto_accept = False
        consumer = b.client()
        seen: list[bytes] = []

        def take(delivery: Any) -> None:
            if delivery.link.is_receiver and delivery.readable:
                seen.append(delivery.link.recv(delivery.pending))
                delivery.link.advance()
                if len(seen) == 1:
                    delivery.local.failed = True
                    delivery.update(proton.Delivery.MODIFIED)
                    delivery.settle()

        consumer._delivery = take  # type: ignore[method-assign]
        consumer.receiver("q", credit=4)
        assert seen == [unreadable] * 2


def test_what_a_lost_connection_had_goes_to_the_next_consumer() -> None:
    with bench() as b:
        b.queue("q")
        client, other = b.client(), b.client()
        client.send(client.sender("q"), "one", "two")
        client.auto_accept = False
        client.receiver("q")
        waiting = other.receiver("q")
        assert other.bodies(waiting) == []
        client.lose()
        b.settle()
        assert other.bodies(waiting) == ["one", "two"]


def test_what_a_connection_had_that_closed_but_keeps_its_socket_goes_on_at_once() -> None:
    with bench() as b:
        b.queue("q")
        client, other = b.client(), b.client()
        client.send(client.sender("q"), "one")
        client.auto_accept = False
        client.receiver("q")
        waiting = other.receiver("q")
        client.socket.loseConnection = lambda: None  # type: ignore[method-assign]
        client.connection.close()
        b.settle()
        assert other.bodies(waiting) == ["one"]


def test_a_connection_that_closed_and_never_reads_its_end_is_cut_off() -> None:
    with bench() as b:
        client = b.client()
        cut: list[bool] = []
        client.socket.loseConnection = lambda: None  # type: ignore[method-assign]
        client.socket.abortConnection = lambda: cut.append(True)  # type: ignore[method-assign]
        client.connection.close()
        b.settle()
        b.pass_time(limits.OPEN_TIMEOUT_S - 1)
        assert not cut
        b.pass_time(3)
        assert cut == [True]


def test_a_detached_link_gives_back_what_it_had_not_settled_and_keeps_what_it_had() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), "one", "two")
        client.auto_accept = False
        consumer = client.receiver("q")
        first = client.received[consumer.name][0][0]
        first.update(proton.Delivery.ACCEPTED)
        first.settle()
        consumer.close()
        b.settle()
        b.pass_time(1)
        assert client.bodies(client.receiver("q")) == ["two"]


# ---- dead letters


@pytest.mark.parametrize("outcome,options", [("REJECTED", {}), ("MODIFIED", {"undeliverable": True})])
@pytest.mark.parametrize("clustered", [False, True])
def test_a_rejected_message_goes_to_the_alternate_exchange_by_its_subject(
    outcome: str, options: dict[str, bool], clustered: bool
) -> None:
    with bench(clustered=clustered) as b:
        client = b.client()
        assert client.request("CREATE", "exchange", "dead", {"exchangeType": "direct", "replicate": "all"})[0] == 201
        assert client.request("CREATE", "queue", "morgue", {})[0] == 201
        bind = {"exchange": "dead", "queue": "morgue", "key": "bad"}
        assert client.request("CREATE", "binding", "", bind)[0] == 201
        assert client.request("CREATE", "queue", "q", {"alternateExchange": "dead", "replicate": "all"})[0] == 201
        client.send(client.sender("q"), "a corpse", subject="bad")
        client.send(client.sender("q"), "nobody's", subject="other")
        client.auto_accept = False
        consumer = client.receiver("q")
        for delivery, _ in client.received[consumer.name]:
            client.give(delivery, getattr(proton.Delivery, outcome), **options)
        b.pass_time(1)
        assert (b.depth("q"), b.depth("morgue")) == (0, 1)
        found = client.receiver("morgue")
        assert client.bodies(found) == ["a corpse"]


def test_a_rejected_message_stays_while_the_queue_for_dead_letters_has_no_place_yet() -> None:
    with bench(clustered=True) as b:
        b.logs[LOCAL].automatic = False
        b.lead.take(creating("morgue", level="configuration"))
        client = b.client()
        assert client.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "morgue", "key": ""})[0] == 201
        assert client.request("CREATE", "queue", "q", {"alternateExchange": "amq.fanout", "replicate": "all"})[0] == 201
        client.send(client.sender("q"), "a corpse")
        client.auto_accept = False
        consumer = client.receiver("q", credit=1)
        client.give(client.received[consumer.name][0][0], proton.Delivery.REJECTED)
        b.pass_time(1)
        assert b.depth("q") == 1
        b.logs[LOCAL].commit()
        b.logs[LOCAL].automatic = True
        b.settle()
        consumer.flow(1)
        b.settle()
        client.give(client.received[consumer.name][1][0], proton.Delivery.REJECTED)
        b.pass_time(1)
        assert (b.depth("q"), b.depth("morgue")) == (0, 1)


def test_a_rejected_message_with_nowhere_to_go_is_gone() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        assert client.request("CREATE", "queue", "h", {"alternateExchange": "amq.match"})[0] == 201
        client.auto_accept = False
        for queue in ("q", "h"):
            client.send_encoded(client.sender(queue), b"", proton.Message(body=1).encode())
            consumer = client.receiver(queue)
            for delivery, _ in client.received[consumer.name]:
                client.give(delivery, proton.Delivery.REJECTED)
        b.pass_time(1)
        assert (b.depth("q"), b.depth("h")) == (0, 0)


# ---- exclusive, auto-delete, deleted


def test_an_exclusive_queue_has_one_consumer_and_any_browsers() -> None:
    with bench() as b:
        b.queue("q", exclusive=True)
        client = b.client()
        first = client.receiver("q")
        second = client.receiver("q")
        assert condition(second) == "amqp:resource-locked"
        browser = client.receiver("q", browse=True)
        assert condition(browser) == ""
        first.close()
        b.settle()
        assert condition(client.receiver("q")) == ""


def test_an_auto_delete_queue_goes_with_its_last_consumer() -> None:
    with bench() as b:
        b.queue("q", autoDelete=True)
        client, other = b.client(), b.client()
        first, _ = client.receiver("q"), other.receiver("q")
        first.close()
        b.settle()
        assert "q" in b.broker.nodes.queues
        other.lose()
        b.settle()
        assert "q" not in b.broker.nodes.queues


def test_a_queue_that_is_deleted_closes_the_links_of_its_producers_and_consumers() -> None:
    with bench() as b:
        b.queue("q")
        client, admin = b.client(), b.client()
        producer, consumer = client.sender("q"), client.receiver("q")
        client.auto_accept = False
        client.send(producer, "one")
        delivery = client.received[consumer.name][0][0]
        assert admin.request("DELETE", "queue", "q", {"ifUnused": True})[0] == 409
        assert admin.request("DELETE", "queue", "q", {"ifEmpty": True})[0] == 409
        assert admin.request("DELETE", "queue", "q")[0] == 204
        assert [condition(producer), condition(consumer)] == ["amqp:resource-deleted"] * 2
        delivery.update(proton.Delivery.ACCEPTED)
        delivery.settle()
        b.settle()
        assert admin.request("DELETE", "queue", "q")[0] == 404
        assert condition(client.receiver("q")) == "amqp:not-found"
