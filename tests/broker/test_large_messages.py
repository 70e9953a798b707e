"""Large messages through a broker: taken, stored, sent and redelivered by the part, whole or not at all."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits
from broker.core.nodes import CLUSTER, LOCAL
from broker.sessions.ledger import Ledger
from tests.broker.clients import Bench, Client, bench

PART = 1000
LARGE = bytes(range(256)) * 200
"""More than fifty parts of a test's size."""


def parts_of(b: Bench, name: str = LOCAL) -> int:
    """How many parts are alive in a log."""
    return b.broker.ledgers[name].state.parts.order.depth


def ledger(b: Bench) -> Ledger:
    return b.broker.lead


def begin(client: Client, link: Any, data: bytes, tag: str = "begun") -> Any:
    """Send the beginning of a message."""
    delivery = link.delivery(tag)
    link.stream(data)
    client.bench.settle()
    return delivery


def encoded(body: bytes = LARGE, **fields: Any) -> bytes:
    return bytes(proton.Message(body=body, **fields).encode())


def outcome(client: Client) -> Any:
    """The outcome of the last delivery that has one."""
    return client.outcomes[-1][1]


def test_a_large_message_goes_through_a_queue_as_it_came() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), b"before", LARGE, b"after")
        assert [each.remote_state for _, each in client.outcomes] == [proton.Delivery.ACCEPTED] * 3
        assert parts_of(b) > len(LARGE) // PART
        assert b.broker.nodes.queues["q"].depth == 3
        receiver = client.receiver("q")
        assert client.bodies(receiver) == [b"before", LARGE, b"after"]
        b.pass_time(0.1, 0.02)
        assert (b.depth("q"), parts_of(b)) == (0, 0), "the parts go with the message"


def test_a_message_that_is_not_large_is_a_record_of_its_own() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), b"x" * (PART * limits.LARGE_PARTS - 100))
        assert parts_of(b) == 0
        assert client.bodies(client.receiver("q")) == [b"x" * (PART * limits.LARGE_PARTS - 100)]


def test_limits_and_statistics_count_the_whole_message() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), LARGE)
        messages = b.broker.nodes.queues["q"].messages
        assert messages is not None
        assert messages.live_bytes == len(encoded())
        assert messages.enqueued_bytes == len(encoded())


def test_a_large_message_is_accepted_only_when_its_manifest_is_committed() -> None:
    with bench(part_bytes=PART, automatic=False) as b:
        log = b.lead
        client = b.client({"qpid.ha-admin": True})
        log.automatic = True
        b.queue("q")
        link = client.sender("q")
        log.automatic = False
        client.send(link, LARGE)
        while log.waiting:
            assert not client.outcomes
            log.commit(1)
            b.settle()
        assert outcome(client).remote_state == proton.Delivery.ACCEPTED


def test_parts_are_committed_while_the_message_is_still_coming() -> None:
    """Breaks when a message is gathered whole before anything of it is stored."""
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        data = encoded()
        begin(client, client.sender("q"), data[: len(data) // 2])
        assert parts_of(b) > len(data) // 2 // PART - 3
        assert b.depth("q") == 0


@pytest.mark.parametrize("how", ["abort", "link", "connection", "queue", "exchange"])
def test_a_message_that_never_becomes_whole_leaves_nothing(how: str) -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client, admin = b.client(), b.client({"qpid.ha-admin": True})
        assert admin.request("CREATE", "exchange", "x", {"exchangeType": "fanout"})[0] == 201
        assert admin.request("CREATE", "binding", "", {"exchange": "x", "queue": "q", "key": ""})[0] == 201
        link = client.sender("x" if how == "exchange" else "q")
        delivery = begin(client, link, encoded()[:20_000])
        assert parts_of(b)
        if how == "abort":
            delivery.abort()
        elif how == "link":
            link.close()
        elif how == "connection":
            client.lose()
        else:
            assert admin.request("DELETE", how, "x" if how == "exchange" else "q")[0] == 204
        b.pass_time(0.1, 0.02)
        assert parts_of(b) == 0
        if how == "abort":
            assert link.credit == limits.CREDIT_WINDOW
            client.send(link, LARGE, b"next")
            assert client.bodies(client.receiver("q")) == [LARGE, b"next"]


def test_a_new_primary_removes_the_parts_of_messages_that_never_became_whole() -> None:
    with bench(part_bytes=PART) as first, bench(part_bytes=PART, start=False) as second:
        first.queue("q")
        client = first.client()
        link = client.sender("q")
        client.send(link, LARGE)
        begin(client, link, encoded()[:20_000])
        whole = parts_of(first)
        first.lead.replayed_into(second.lead)
        assert parts_of(second) == whole
        second.start()
        second.pass_time(0.1, 0.02)
        assert parts_of(second) == -(-len(encoded()) // PART)
        reader = second.client()
        reader.send(reader.sender("q"), LARGE[::-1])
        assert reader.bodies(reader.receiver("q")) == [LARGE, LARGE[::-1]], "new parts go behind all others"


def test_an_exchange_puts_one_set_of_parts_on_several_queues() -> None:
    with bench(part_bytes=PART) as b:
        admin = b.client({"qpid.ha-admin": True})
        for name in ("a", "b", "c"):
            b.queue(name)
            admin.request("CREATE", "binding", "", {"exchange": "amq.topic", "queue": name, "key": name if name == "c" else "k"})
        client = b.client()
        client.send(client.sender("amq.topic"), LARGE, subject="k")
        n_parts = parts_of(b)
        assert (b.depth("a"), b.depth("b"), b.depth("c")) == (1, 1, 0)
        assert n_parts < 1.1 * len(LARGE) // PART + 2
        assert client.bodies(client.receiver("a")) == [LARGE]
        b.pass_time(0.1, 0.02)
        assert parts_of(b) == n_parts, "b has it still"
        assert client.bodies(client.receiver("b")) == [LARGE]
        b.pass_time(0.1, 0.02)
        assert parts_of(b) == 0


def test_a_large_message_that_no_queue_wants_is_accepted_and_gone() -> None:
    with bench(part_bytes=PART) as b:
        client = b.client()
        client.send(client.sender("amq.topic"), LARGE, subject="nobody")
        assert outcome(client).remote_state == proton.Delivery.ACCEPTED
        assert parts_of(b) == 0


def test_a_large_message_may_go_to_queues_of_both_logs() -> None:
    with bench(part_bytes=PART, clustered=True) as b:
        b.upgraded()
        admin = b.client({"qpid.ha-admin": True})
        for name, level in (("a", "all"), ("b", "none")):
            b.queue(name, replicate=level)
            admin.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": name, "key": ""})
        client = b.client()
        client.send(client.sender("amq.fanout"), LARGE)
        assert outcome(client).remote_state == proton.Delivery.ACCEPTED
        assert parts_of(b, CLUSTER)
        assert parts_of(b, LOCAL)
        assert client.bodies(client.receiver("a")) == client.bodies(client.receiver("b")) == [LARGE]
        b.pass_time(0.1, 0.02)
        assert parts_of(b, CLUSTER) == parts_of(b, LOCAL) == 0


def test_a_large_message_for_a_queue_that_is_full_is_rejected_and_leaves_nothing() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q", arguments={"qpid.max_size": 30_000})
        client = b.client()
        link = client.sender("q")
        client.send(link, LARGE, b"small")
        first, second = (each for _, each in client.outcomes)
        assert first.remote_state == proton.Delivery.REJECTED
        assert first.remote.condition.name == "amqp:resource-limit-exceeded"
        assert second.remote_state == proton.Delivery.ACCEPTED
        b.pass_time(0.1, 0.02)
        assert (b.depth("q"), parts_of(b)) == (1, 0)
        assert link.credit == limits.CREDIT_WINDOW


def test_a_large_message_that_comes_while_the_disk_is_full_may_come_again() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        link = client.sender("q")
        delivery = begin(client, link, encoded()[:20_000])
        ledger(b).on_storage_low("little room")
        link.stream(encoded()[20_000:])
        link.advance()
        b.pass_time(0.1, 0.02)
        assert delivery.remote_state == proton.Delivery.RELEASED
        assert parts_of(b) == 0, "what it had taken of the disk is given back"
        ledger(b).on_storage_low("")
        client.send(link, LARGE)
        assert outcome(client).remote_state == proton.Delivery.ACCEPTED


def test_what_has_come_of_incomplete_messages_counts_for_the_limit_of_their_queue() -> None:
    """Breaks when many messages that never end fill the disks, each of them a little smaller than the queue's limit."""
    with bench(part_bytes=PART) as b:
        b.queue("q", arguments={"qpid.max_size": 60_000})
        clients = [b.client() for _ in range(4)]
        data = encoded(bytes(40_000))
        links = [client.sender("q") for client in clients]
        begun = [begin(client, link, data[:25_000]) for client, link in zip(clients, links, strict=True)]
        b.pass_time(0.1, 0.02)
        assert parts_of(b) <= 60
        other = b.client()
        other.send(other.sender("q"), b"small")
        assert outcome(other).remote_state == proton.Delivery.ACCEPTED, "it does not wait for them"
        for link in links[::-1]:
            link.stream(data[25_000:])
            link.advance()
            b.settle()
        states = [each.remote_state for each in begun]
        assert states == [proton.Delivery.ACCEPTED, *[proton.Delivery.REJECTED] * 3]
        assert "incomplete messages of" in begun[2].remote.condition.description
        b.pass_time(0.1, 0.02)
        assert (b.depth("q"), parts_of(b)) == (2, -(-len(data) // PART))
        clients[0].bodies(clients[0].receiver("q"))
        b.pass_time(0.1, 0.02)
        assert b.depth("q") == 0
        clients[1].send(links[1], bytes(50_000))
        assert outcome(clients[1]).remote_state == proton.Delivery.ACCEPTED, "the room is free again"


def test_a_silent_incomplete_message_gives_way_to_another_one_and_may_come_again() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q", arguments={"qpid.max_size": 60_000})
        b.queue("p")
        silent, other = b.client(), b.client()
        assert silent.request("CREATE", "exchange", "x", {"exchangeType": "fanout"})[0] == 201
        for queue in ("q", "p"):
            assert silent.request("CREATE", "binding", "", {"exchange": "x", "queue": queue, "key": ""})[0] == 201
        link, data = silent.sender("x"), encoded(bytes(50_000))
        delivery = begin(silent, link, data[:45_000])
        b.pass_time(limits.UPLOAD_SILENT_S - 1)
        other.send(other.sender("q", name="early"), bytes(30_000))
        assert outcome(other).remote_state == proton.Delivery.REJECTED
        b.pass_time(2)
        other.send(other.sender("q", name="late"), bytes(30_000))
        assert outcome(other).remote_state == proton.Delivery.ACCEPTED
        other.bodies(other.receiver("q"))
        link.stream(data[45_000:])
        link.advance()
        b.pass_time(0.1, 0.02)
        assert delivery.remote_state == proton.Delivery.RELEASED, "a part of it is gone, whatever room there is now"
        assert (b.depth("q"), b.depth("p"), parts_of(b)) == (0, 0, 0)
        silent.send(link, bytes(50_000))
        assert outcome(silent).remote_state == proton.Delivery.ACCEPTED
        assert (b.depth("q"), b.depth("p")) == (1, 1)


def test_incomplete_messages_do_not_count_where_messages_replace_others() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q", arguments={"qpid.max_size": 60_000, "qpid.policy_type": "ring"})
        clients, data = [b.client() for _ in range(3)], encoded(bytes(40_000))
        links = [client.sender("q") for client in clients]
        begun = [begin(client, link, data[:35_000]) for client, link in zip(clients, links, strict=True)]
        for link in links:
            link.stream(data[35_000:])
            link.advance()
            b.settle()
        assert [each.remote_state for each in begun] == [proton.Delivery.ACCEPTED] * 3
        b.pass_time(0.1, 0.02)
        assert (b.depth("q"), parts_of(b)) == (1, -(-len(data) // PART))


def test_incomplete_messages_leave_a_disk_that_is_nearly_full_and_others_may_stay() -> None:
    """Breaks when clients that begin large messages and fall silent keep the disk nearly full for all others."""
    with bench(part_bytes=PART, clustered=True, default_level="none") as b:
        b.upgraded()
        b.queue("here")
        b.queue("everywhere", replicate="all")
        clients, data = [b.client() for _ in range(2)], encoded()
        links = [client.sender(queue) for client, queue in zip(clients, ("here", "everywhere"), strict=True)]
        begun = [begin(client, link, data[:20_000]) for client, link in zip(clients, links, strict=True)]
        b.broker.ledgers[LOCAL].on_storage_low("little room", 100_000)
        b.pass_time(0.1, 0.02)
        assert parts_of(b, LOCAL) == 0
        assert parts_of(b, CLUSTER) >= 19
        b.broker.ledgers[LOCAL].on_storage_low("")
        for link in links:
            link.stream(data[20_000:])
            link.advance()
        b.pass_time(0.1, 0.02)
        assert [each.remote_state for each in begun] == [proton.Delivery.RELEASED, proton.Delivery.ACCEPTED]
        assert (parts_of(b, LOCAL), b.depth("everywhere")) == (0, 1)


def test_sections_before_the_body_must_lie_within_the_first_part() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), LARGE, properties={"long": "x" * 2000})
        assert outcome(client).remote_state == proton.Delivery.REJECTED
        assert "must lie within its first 1000 bytes" in outcome(client).remote.condition.description
        assert parts_of(b) == 0


def test_a_message_larger_than_the_largest_ends_its_link() -> None:
    with bench(part_bytes=PART, max_message_bytes=30_000) as b:
        b.queue("q")
        client = b.client()
        link = client.sender("q")
        assert link.remote_max_message_size == 30_000
        client.send(link, LARGE)
        assert link.remote_condition.name == "amqp:link:message-size-exceeded"
        b.pass_time(0.1, 0.02)
        assert parts_of(b) == 0


def test_below_version_3_messages_are_put_together_and_smaller() -> None:
    with bench(part_bytes=PART, clustered=True, default_level="all") as b:
        b.queue("q")
        client = b.client()
        link = client.sender("q")
        assert link.remote_max_message_size == limits.GATHERED_BYTES
        client.send(link, LARGE)
        assert (b.depth("q"), parts_of(b, CLUSTER)) == (1, 0)
        b.upgraded()
        assert client.sender("q", "later").remote_max_message_size == limits.MAX_MESSAGE_BYTES


def test_a_client_that_begins_a_large_message_without_credit_is_detached() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        link = client.sender("q")
        client.server.engine.links[0].account.credit = 0  # type: ignore[index]
        begin(client, link, encoded()[:20_000])
        assert link.remote_condition.name == "amqp:link:transfer-limit-exceeded"
        assert parts_of(b) == 0


# ---- the anonymous terminus, mailboxes


def test_a_large_message_finds_its_queue_by_its_address() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender(None), LARGE, address="q")
        assert parts_of(b)
        assert client.bodies(client.receiver("q")) == [LARGE]
        client.send(client.sender(None), LARGE, address="nowhere")
        assert outcome(client).remote.condition.name == "amqp:not-found"


def test_a_large_message_by_its_address_to_a_queue_that_is_deleted_meanwhile_is_refused() -> None:
    """Breaks when it is accepted, and nobody has it: the link of such a message does not end with the queue."""
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client, data = b.client(), encoded(address="q")
        link = client.sender(None)
        delivery = begin(client, link, data[:20_000])
        assert client.request("DELETE", "queue", "q", {})[0] == 204
        link.stream(data[20_000:])
        link.advance()
        b.pass_time(0.1, 0.02)
        assert delivery.remote_state == proton.Delivery.REJECTED
        assert delivery.remote.condition.name == "amqp:not-found"
        assert delivery.remote.condition.description == "queue 'q' was deleted"
        assert parts_of(b) == 0
        client.send(link, LARGE, address="q")
        assert outcome(client).remote.condition.name == "amqp:not-found"


def test_an_answer_of_some_size_reaches_its_mailbox_and_a_larger_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """JMS sends answers over one link without an address: these need not be small."""
    with bench(part_bytes=PART) as b:
        client = b.client()
        mailbox = client.receiver(None, dynamic=True)
        address = mailbox.remote_source.address
        relay = client.sender(None)
        client.send(relay, LARGE, address=address)
        assert client.bodies(mailbox) == [LARGE]
        monkeypatch.setattr(limits, "GATHERED_BYTES", 30_000)
        client.send(relay, LARGE, address=address)
        assert outcome(client).remote.condition.name == "amqp:link:message-size-exceeded"
        direct = client.sender(address)
        assert direct.remote_max_message_size == 30_000


# ---- out


def test_others_get_messages_while_one_consumer_is_slow_with_a_large_one() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        slow, quick, sender = b.client(), b.client(), b.client()
        link = slow.receiver("q")
        b.lead.holds_reads = True
        sender.send(sender.sender("q"), LARGE, b"one", b"two")
        others = quick.receiver("q")
        assert quick.bodies(others) == [b"one", b"two"]
        assert slow.bodies(link) == []
        b.lead.end_reads()
        b.settle()
        assert slow.bodies(link) == [LARGE]


def test_messages_behind_a_large_one_on_a_link_come_after_it() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), LARGE, b"one", LARGE[::-1], b"two")
        assert client.bodies(client.receiver("q")) == [LARGE, b"one", LARGE[::-1], b"two"]


@pytest.mark.parametrize("presettled", [True, False])
def test_a_consumer_that_goes_while_a_large_message_is_sent_leaves_it_to_others(presettled: bool) -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), LARGE)
        b.lead.holds_reads = True
        first = b.client()
        link = first.receiver("q", presettled=presettled)
        link.close()
        b.settle()
        b.lead.end_reads()
        assert client.bodies(client.receiver("q")) == [LARGE]
        assert first.bodies(link) == []


def test_a_presettled_delivery_takes_the_message_off_when_all_of_it_is_sent() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), LARGE, b"next")
        assert client.bodies(client.receiver("q", presettled=True)) == [LARGE, b"next"]
        b.pass_time(0.1, 0.02)
        assert (b.depth("q"), parts_of(b)) == (0, 0)


def test_a_failed_delivery_shows_in_the_header_of_the_next() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        client.auto_accept = False
        client.send(client.sender("q"), LARGE)
        receiver = client.receiver("q")
        client.give(client.received[receiver.name][0][0], proton.Delivery.MODIFIED, failed=True)
        b.settle()
        (_, first), (_, second) = client.received[receiver.name]
        assert (first.delivery_count, second.delivery_count) == (0, 1)
        assert first.body == second.body == LARGE


def test_a_released_large_message_comes_again() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        client.auto_accept = False
        client.send(client.sender("q"), LARGE)
        receiver = client.receiver("q", credit=2)
        client.give(client.received[receiver.name][0][0], proton.Delivery.RELEASED)
        b.settle()
        assert client.bodies(receiver) == [LARGE, LARGE]


def test_a_browser_sees_large_messages_and_takes_none() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), LARGE, b"next")
        assert client.bodies(client.receiver("q", browse=True)) == [LARGE, b"next"]
        assert b.depth("q") == 2


def test_a_browser_is_told_that_a_message_is_none_when_somebody_takes_it_meanwhile() -> None:
    """A message that is not whole must not look whole: its delivery is aborted, and the next one comes."""
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client, browser = b.client(), b.client()
        client.send(client.sender("q"), LARGE, b"next")
        b.lead.holds_reads = True
        link = browser.receiver("q", browse=True)
        read, found = b.lead.held_reads.pop(0)
        read.callback(found)
        b.settle()
        number = b.broker.nodes.queues["q"].messages.number  # type: ignore[union-attr]
        ledger(b).dequeue(number, [1])
        b.pass_time(0.1, 0.02)
        b.lead.end_reads()
        b.settle()
        assert browser.bodies(link) == [b"next"]
        assert client.bodies(client.receiver("q")) == [b"next"]


def test_a_part_that_cannot_be_read_ends_the_delivery_and_the_next_message_comes() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), LARGE, b"next")
        lane = b.broker.lead.state.parts.order.lanes[0]
        block = lane.block_of(20)
        assert block is not None
        b.lead.spoiled.add(block.places[block.run_of(20 - block.first_seq)])
        receiver = client.receiver("q")
        b.pass_time(0.1, 0.02)
        assert client.bodies(receiver) == [b"next"]
        assert b.lead.rotted == ["a part of a large message cannot be delivered: it has rotted"]
        assert b.depth("q") == 1, "it is left on the queue, undelivered"
        receiver.close()
        b.settle()
        again = client.receiver("q")
        assert client.bodies(again) == []
        assert len(b.lead.rotted) == 1, "and not tried again"


def test_a_queue_that_is_deleted_while_a_large_message_is_sent_ends_the_link() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), LARGE)
        b.lead.holds_reads = True
        receiver = client.receiver("q")
        b.client({"qpid.ha-admin": True}).request("DELETE", "queue", "q")
        b.settle()
        b.lead.end_reads()
        b.pass_time(0.1, 0.02)
        assert receiver.remote_condition.name == "amqp:resource-deleted"
        assert client.bodies(receiver) == []
        assert parts_of(b) == 0


def test_a_term_that_ends_in_the_middle_of_large_messages_leaves_the_broker_well() -> None:
    with bench(part_bytes=PART, clustered=True, default_level="all") as b:
        b.upgraded()
        b.queue("q")
        client = b.client()
        link = client.sender("q")
        client.send(link, LARGE)
        begin(client, link, encoded()[:20_000])
        b.lead.holds_reads = True
        client.receiver("q")
        b.lead.become("ready")
        b.settle()
        b.lead.end_reads()
        b.lead.become("active")
        b.pass_time(0.1, 0.02)
        assert parts_of(b, CLUSTER) == -(-len(encoded()) // PART)
        again = b.client()
        assert again.bodies(again.receiver("q")) == [LARGE]


# ---- rejected


def alternate(b: Bench, **attributes: Any) -> None:
    """Queue "q" with an alternate exchange that leads to queue "dead"."""
    admin = b.client({"qpid.ha-admin": True})
    admin.request("CREATE", "exchange", "dlx", {"exchangeType": "fanout"})
    b.queue("dead", **attributes)
    admin.request("CREATE", "binding", "", {"exchange": "dlx", "queue": "dead", "key": ""})
    b.queue("q", alternateExchange="dlx")


def rejecting(b: Bench, *bodies: bytes) -> Client:
    """Send these to queue "q", and have them rejected."""
    client = b.client()
    client.auto_accept = False
    client.send(client.sender("q"), *bodies)
    receiver = client.receiver("q")
    for delivery, _ in client.received[receiver.name]:
        client.give(delivery, proton.Delivery.REJECTED)
    receiver.close()
    b.pass_time(0.1, 0.02)
    client.auto_accept = True
    return client


def test_a_rejected_large_message_goes_on_with_the_same_parts() -> None:
    with bench(part_bytes=PART) as b:
        alternate(b)
        client = rejecting(b, b"one", LARGE, b"two")
        assert (b.depth("q"), b.depth("dead")) == (0, 3)
        assert parts_of(b) == -(-len(encoded()) // PART)
        assert client.bodies(client.receiver("dead")) == [b"one", LARGE, b"two"]
        b.pass_time(0.1, 0.02)
        assert parts_of(b) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"qpid.policy_type": "ring", "qpid.max_size": len(LARGE) // 2},
        {"qpid.policy_type": "ring", "qpid.max_count": 1, "qpid.priorities": 10},
    ],
    ids=["smaller than it", "full of higher priorities"],
)
def test_a_rejected_large_message_that_its_ring_does_not_keep_stays_whole_on_another_queue(arguments: dict[str, Any]) -> None:
    with bench(part_bytes=PART) as b:
        alternate(b, arguments=arguments)
        b.queue("other")
        client = b.client({"qpid.ha-admin": True})
        for queue in ("q", "other"):
            body = {"exchange": "amq.topic", "queue": queue, "key": "k"}
            assert client.request("CREATE", "binding", "", body)[0] == 201
        client.send(client.sender("dead"), b"before", priority=9)
        client.send(client.sender("amq.topic"), LARGE, subject="k", priority=1)
        n_parts = parts_of(b)
        client.auto_accept = False
        receiver = client.receiver("q")
        ((delivery, _),) = client.received[receiver.name]
        client.give(delivery, proton.Delivery.REJECTED)
        b.pass_time(0.1, 0.02)
        assert (b.depth("q"), b.depth("dead"), b.depth("other")) == (0, 1, 1)
        assert parts_of(b) == n_parts, "the other queue has it still"
        client.auto_accept = True
        assert client.bodies(client.receiver("other")) == [LARGE]
        b.pass_time(0.1, 0.02)
        assert (b.depth("other"), parts_of(b)) == (0, 0)


def test_a_rejected_large_message_whose_parts_are_gone_stays_and_the_next_one_leaves() -> None:
    """Earlier releases could write a log that removes the parts of a message which is still on a queue."""
    with bench(part_bytes=PART) as b:
        alternate(b)
        client = b.client()
        client.auto_accept = False
        client.send(client.sender("q"), LARGE, b"two")
        receiver = client.receiver("q")
        (manifest,) = b.broker.nodes.queues["q"].messages.large.values()  # type: ignore[union-attr]
        ledger(b).drop_parts(manifest.ranges)
        b.pass_time(0.1, 0.02)
        for delivery, _ in client.received[receiver.name]:
            client.give(delivery, proton.Delivery.REJECTED)
        b.pass_time(0.1, 0.02)
        assert (b.depth("q"), b.depth("dead")) == (1, 1)


def test_a_rejected_large_message_without_an_alternate_exchange_is_gone() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        rejecting(b, LARGE)
        assert (b.depth("q"), parts_of(b)) == (0, 0)


def test_a_rejected_large_message_for_a_queue_of_another_log_stays() -> None:
    """Its parts are not there. Small messages go."""
    with bench(part_bytes=PART, clustered=True, default_level="all") as b:
        b.upgraded()
        alternate(b, replicate="none")
        rejecting(b, b"one", LARGE)
        assert (b.depth("q"), b.depth("dead")) == (1, 1)


def test_a_rejected_large_message_for_a_queue_of_groups_stays() -> None:
    """Its group would have to be read from its first part. Small messages go."""
    with bench(part_bytes=PART) as b:
        alternate(b, arguments={"qpid.group_header_key": "g"})
        rejecting(b, b"one", LARGE)
        assert (b.depth("q"), b.depth("dead")) == (1, 1)


def test_a_rejected_large_message_that_cannot_leave_does_not_come_to_its_consumer_again() -> None:
    """Breaks when a consumer that rejects it gets it in a loop, as fast as the network carries it, and nothing counts that."""
    with bench(part_bytes=PART) as b:
        alternate(b, arguments={"qpid.group_header_key": "g"})
        client = b.client()
        client.auto_accept = False
        client.send(client.sender("q"), LARGE)
        receiver = client.receiver("q", credit=1000)
        client.give(client.received[receiver.name][0][0], proton.Delivery.REJECTED)
        b.pass_time(5)
        client.send(client.sender("q"), b"two")
        assert client.bodies(receiver)[1:] == [b"two"], "it is in nobody's way"
        assert (b.depth("q"), b.depth("dead")) == (2, 0)
        assert client.request("UPDATE", "queue", "q", {"alternateExchange": ""})[0] == 200
        b.pass_time(2)
        assert b.depth("q") == 1


def test_a_rejected_large_message_whose_head_cannot_be_read_stays() -> None:
    with bench(part_bytes=PART) as b:
        alternate(b)
        client = b.client()
        client.auto_accept = False
        client.send(client.sender("q"), LARGE, b"two")
        receiver = client.receiver("q")
        lane = b.broker.lead.state.parts.order.lanes[0]
        block = lane.block_of(1)
        assert block is not None
        b.lead.spoiled.add(block.places[0])
        for delivery, _ in client.received[receiver.name]:
            client.give(delivery, proton.Delivery.REJECTED)
        b.pass_time(0.1, 0.02)
        assert (b.depth("q"), b.depth("dead")) == (1, 1)
        assert len(b.lead.rotted) == 1


# ---- priorities


def test_a_large_message_has_its_priority() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q", arguments={"x-max-priority": 9})
        client = b.client()
        link = client.sender("q")
        client.send(link, b"low", priority=1)
        client.send(link, LARGE, priority=9)
        client.send(link, b"middle", priority=5)
        assert client.bodies(client.receiver("q")) == [LARGE, b"middle", b"low"]
