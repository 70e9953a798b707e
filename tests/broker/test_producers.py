"""What producers hear of their messages, and where these go: addresses, exchanges, limits and credit."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits
from broker.core.filters import SELECTOR
from broker.core.nodes import CLUSTER, LOCAL
from tests.broker.clients import (
    ACCEPTED,
    ADMIN,
    REJECTED,
    RELEASED,
    bench,
    condition,
    creating,
    request,
    statuses,
)
from tests.broker.core.stream import transfer


def test_a_message_is_accepted_when_it_is_committed_and_not_before() -> None:
    with bench(automatic=False) as b:
        b.clock.callLater(0, b.lead.commit)
        client = b.client()
        link = client.receiver(None, dynamic=True)
        sender = client.sender("$management")
        client.send_encoded(sender, request("CREATE", "queue", "q", link.remote_source.address))
        assert not client.received[link.name], "the answer came before the queue was committed"
        b.lead.commit()
        b.settle()
        assert client.received[link.name][0][1].properties["statusCode"] == 201

        producer = client.sender("q")
        client.send(producer, "one", "two")
        assert statuses(client, producer) == []
        b.lead.commit()
        b.settle()
        assert statuses(client, producer) == [ACCEPTED, ACCEPTED]
        assert b.depth("q") == 2


def test_a_message_that_is_sent_settled_is_queued_and_its_credit_comes_back() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        producer = client.sender("q", presettled=True)
        client.send(producer, "one", "two")
        assert b.depth("q") == 2
        assert producer.credit == limits.CREDIT_WINDOW


# ---- limits


@pytest.mark.parametrize("sent_to", ["q", "amq.fanout", None])
def test_while_room_on_the_disk_runs_out_few_bytes_are_taken_and_the_rest_may_come_again(sent_to: str | None) -> None:
    """Credit is counted in messages, and a thousand large ones fill a disk that is nearly full: then consuming frees nothing."""
    with bench() as b:
        b.queue("q")
        client = b.client()
        assert client.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "q", "key": ""})[0] == 201
        producer = client.sender(sent_to)
        message = bytes(proton.Message(body=b"x" * 800, address=None if sent_to else "q").encode())
        ledger = b.broker.ledgers[LOCAL]
        ledger.on_storage_low("little room", 3000)
        small = bytes(proton.Message(body=b"x", address=None if sent_to else "q").encode())
        deliveries = client.send_encoded(producer, *[message] * 5, small)
        taken, not_taken = proton.Delivery.ACCEPTED, proton.Delivery.RELEASED
        found = [delivery.remote_state for delivery in deliveries]
        assert found == [taken] * 3 + [not_taken] * 3, "nothing overtakes what did not fit"
        assert b.depth("q") == 3
        assert producer.credit == limits.CREDIT_WINDOW - (6 if sent_to else 3), "none, or none for those"
        ledger.on_storage_low("")
        if not sent_to:
            b.clock.advance(limits.RELEASED_PAUSE_S)
        b.settle()
        assert producer.credit == limits.CREDIT_WINDOW
        client.send_encoded(producer, *[message] * 6)
        assert b.depth("q") == 9
        ledger.on_storage_error("cannot write: full", fatal=False)
        client.send_encoded(producer, message)
        assert b.depth("q") == 10, "what is full and not low takes what clients have credit for, and waits"
        ledger.on_writable()
        b.settle()
        assert producer.credit == limits.CREDIT_WINDOW


def test_a_producer_of_an_exchange_that_leaves_while_it_waits_for_the_disk_is_forgotten() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        producer = client.sender("amq.fanout")
        b.broker.ledgers[LOCAL].on_storage_low("little room", 0)
        client.send(producer, "one")
        assert len(b.broker.queues.wait_for_disk) == 1
        client.lose()
        assert not b.broker.queues.wait_for_disk


def test_a_full_queue_rejects_and_says_which_limit_is_reached() -> None:
    with bench() as b:
        b.queue("q", arguments={"qpid.max_count": 10})
        client = b.client()
        producer = client.sender("q")
        deliveries = client.send(producer, *range(12))
        assert statuses(client, producer).count(ACCEPTED) == 10
        assert statuses(client, producer).count(REJECTED) == 2
        fault = deliveries[-1].remote.condition
        assert fault.name == "amqp:resource-limit-exceeded"
        assert "10 messages" in fault.description
        assert "'q'" in fault.description
        assert fault.info == {proton.symbol("queue"): "q", proton.symbol("reason"): "maxlen"}
        assert b.depth("q") == 10


def test_a_queue_that_is_full_of_bytes_says_so() -> None:
    with bench() as b:
        b.queue("q", arguments={"qpid.max_size": 1000})
        client = b.client()
        producer = client.sender("q")
        (delivery,) = client.send(producer, "x" * 2000)
        assert "1000 bytes" in delivery.remote.condition.description
        assert b.depth("q") == 0


def test_credit_stops_when_a_queue_is_four_fifths_full_and_comes_back_when_there_is_room() -> None:
    with bench() as b:
        b.queue("q", arguments={"qpid.max_count": 1000})
        client = b.client()
        producer = client.sender("q")
        client.send(producer, *range(700))
        client.send(producer, *range(101))
        assert producer.credit == limits.CREDIT_WINDOW - 101, "above 80 % no credit comes back"
        late = client.sender("q")
        assert late.credit == 0, "nor does a new producer get any"
        client.receiver("q", credit=50)
        b.pass_time(1)
        assert b.depth("q") == 751
        assert (producer.credit, late.credit) == (limits.CREDIT_WINDOW - 101, 0), "between 70 % and 80 % nothing changes"
        client.receiver("q", credit=60)
        b.pass_time(1)
        assert b.depth("q") == 691
        assert (producer.credit, late.credit) == (limits.CREDIT_WINDOW, limits.CREDIT_WINDOW)


def test_a_client_that_sends_beyond_its_credit_loses_its_link_and_nothing_of_others() -> None:
    """Breaks when credit is a request and not a bound: what cannot be committed yet would fill the memory."""
    with bench() as b:
        b.queue("q")
        heedless = b.client()
        producer = heedless.sender("q", presettled=True)
        other = b.client().sender("q")
        b.lead.automatic = False
        one = bytes(proton.Message(body="x").encode())
        for number in range(limits.CREDIT_WINDOW):
            heedless.say(transfer(one, number=number, settled=True, more=False))
        b.settle()
        assert producer.state & proton.Endpoint.REMOTE_ACTIVE, "as much as it had credit for is welcome"
        heedless.say(transfer(one, number=limits.CREDIT_WINDOW, settled=True, more=False))
        b.settle()
        assert condition(producer) == "amqp:link:transfer-limit-exceeded"
        assert "1 messages were sent without credit" in producer.remote_condition.description
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert b.depth("q") == limits.CREDIT_WINDOW
        assert other.credit == limits.CREDIT_WINDOW


def test_a_message_that_is_too_large_ends_its_link_and_no_other() -> None:
    with bench(max_message_bytes=1000) as b:
        b.queue("q")
        client = b.client()
        producer, other = client.sender("q"), client.sender("q", name="other")
        assert producer.remote_max_message_size == 1000
        client.send(producer, "x" * 2000)
        assert condition(producer) == "amqp:link:message-size-exceeded"
        client.send(other, "small")
        assert statuses(client, other) == [ACCEPTED]


def test_one_client_too_many_is_told_so_and_an_administrator_comes_in_all_the_same() -> None:
    with bench(max_connections=2) as b:
        clients = [b.client() for _ in range(3)]
        assert [condition(client.connection) for client in clients] == ["", "", "amqp:resource-limit-exceeded"]
        b.client()
        assert b.client(ADMIN).request("QUERY", "broker")[0] == 200


# ---- addresses


@pytest.mark.parametrize("address", ["nothing", "amq.nothing/key", "/"])
def test_an_unknown_address_is_refused_with_a_text_that_helps(address: str) -> None:
    with bench() as b:
        client = b.client()
        for link in (client.sender(address), client.receiver(address)):
            assert condition(link) == "amqp:not-found"
            assert "qpid-config" in link.remote_condition.description


def test_a_receiver_without_an_address_is_refused() -> None:
    with bench() as b:
        assert condition(b.client().receiver(None)) == "amqp:not-found", "it asks for the subscription of its link's name"


def test_a_filter_that_nothing_applies_is_refused_by_its_name() -> None:
    """A client whose filter was dropped without a word would take messages that are another's."""
    with bench() as b:
        client = b.client()
        selector = {proton.symbol("jms-selector"): proton.Described(proton.symbol(SELECTOR), "n > 1")}
        xquery = {proton.symbol("mine"): proton.Described(proton.symbol("apache.org:xquery-filter:string"), "n > 1")}
        b.lead.take(creating("q"))
        for address, filters, name in (
            ("q", selector | xquery, "apache.org:xquery-filter:string"),
            ("amq.topic", selector | xquery, "apache.org:xquery-filter:string"),
            (None, selector, SELECTOR),
        ):
            link = client.receiver(address, filters=filters, dynamic=address is None)
            assert condition(link) == "amqp:not-implemented", address
            assert f"the filter {name!r}" in link.remote_condition.description
            assert link.remote_source.type == proton.Terminus.UNSPECIFIED


@pytest.mark.parametrize("argument", ["qpid.queue_msg_sequence", "x-delayed-type"])
def test_an_exchange_is_refused_whose_argument_would_have_no_effect(argument: str) -> None:
    with bench() as b:
        status, text = b.client().request("CREATE", "exchange", "e", {"exchangeType": "fanout", "arguments": {argument: 1}})[:2]
        assert status == 501
        assert f"exchange 'e': this broker does not have '{argument}'" in text


def test_an_exchange_routes_by_subject_or_by_the_key_in_the_address() -> None:
    with bench() as b:
        client = b.client()
        for queue in ("red", "blue"):
            b.queue(queue)
            client.request("CREATE", "binding", "", {"exchange": "amq.direct", "queue": queue, "key": queue})
        plain, keyed = client.sender("amq.direct"), client.sender("amq.direct/blue")
        client.send(plain, 1, subject="red")
        client.send(keyed, 2, subject="red")
        client.send(plain, 3, subject="nobody")
        assert statuses(client, plain) == [ACCEPTED, ACCEPTED], "what nobody wants is accepted and dropped"
        assert client.bodies(client.receiver("red")) == [1]
        assert client.bodies(client.receiver("blue")) == [2]
        (item,) = client.request("QUERY", "exchange", body={"name": "amq.direct"})[2]["items"]
        assert (item["messagesIn"], item["messagesRouted"], item["messagesDropped"]) == (3, 2, 1)


def test_an_exchange_rejects_what_it_cannot_read() -> None:
    with bench() as b:
        client = b.client()
        producer = client.sender("amq.topic")
        (delivery,) = client.send_encoded(producer, b"\x00\x53\x73 rubbish")
        assert statuses(client, producer) == [REJECTED]
        assert delivery.remote.condition.name == "amqp:decode-error"
        assert producer.credit == limits.CREDIT_WINDOW


def test_a_queue_takes_no_bytes_that_are_no_message_and_the_others_stay_in_order() -> None:
    """Breaks when they are stored, which no consumer could read, or when what came beside them is lost or refused with them."""
    with bench() as b:
        b.queue("q")
        client = b.client()
        producer = client.sender("q")
        good = [bytes(proton.Message(body=n).encode()) for n in range(3)]
        deliveries = client.send_encoded(producer, b"rubbish", good[0], b"", good[1] + b"x", good[1], good[2])
        assert [str(each.remote_state) for each in deliveries] == [REJECTED, ACCEPTED, REJECTED, REJECTED, ACCEPTED, ACCEPTED]
        assert deliveries[0].remote.condition.name == "amqp:decode-error"
        assert producer.credit == limits.CREDIT_WINDOW
        assert client.bodies(client.receiver("q")) == [0, 1, 2]


def test_a_fanout_to_both_logs_is_accepted_when_both_have_it() -> None:
    with bench(clustered=True) as b:
        client = b.client()
        for name, level in (("here", "none"), ("everywhere", "all")):
            client.request("CREATE", "queue", name, {"replicate": level})
            client.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": name, "key": ""})
        producer = client.sender("amq.fanout")
        b.lead.automatic = False
        client.send(producer, "one")
        assert b.depth("here") == 1
        assert statuses(client, producer) == []
        b.lead.commit()
        b.settle()
        assert statuses(client, producer) == [ACCEPTED]
        b.lead.automatic = True


def test_a_fanout_of_one_log_is_accepted_once() -> None:
    with bench() as b:
        client = b.client()
        for name in ("a", "b"):
            b.queue(name)
            client.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": name, "key": ""})
        producer = client.sender("amq.fanout")
        client.send(producer, "one")
        assert (b.depth("a"), b.depth("b")) == (1, 1)
        assert statuses(client, producer) == [ACCEPTED]
        assert producer.credit == limits.CREDIT_WINDOW


@pytest.mark.parametrize("sent_to", ["amq.fanout", None])
def test_what_goes_to_a_queue_that_has_no_place_yet_is_released_and_on_no_other_queue_either(sent_to: str | None) -> None:
    """Just after a change of primaries: accepted, it would be missing on that queue for good."""
    with bench(clustered=True) as b:
        b.queue("all", replicate="all")
        b.logs[LOCAL].automatic = False
        b.lead.take(creating("q", level="configuration"))
        client = b.client()
        for queue in ("all", "q"):
            bind = {"exchange": "amq.fanout", "queue": queue, "key": ""}
            assert client.request("CREATE", "binding", "", bind)[0] == 201
        sender = client.sender(sent_to)
        message = proton.Message(body="one", address=None if sent_to else "q").encode()
        client.send_encoded(sender, message)
        assert (statuses(client, sender), b.depth("all")) == ([RELEASED], 0)
        b.logs[LOCAL].commit()
        b.logs[LOCAL].automatic = True
        b.settle()
        client.send_encoded(sender, message)
        assert statuses(client, sender) == [RELEASED, ACCEPTED]
        assert (b.depth("all"), b.depth("q")) == (1 if sent_to else 0, 1)


@pytest.mark.parametrize("nbytes", [1, 2 * limits.PART_BYTES])
def test_a_message_for_a_queue_that_is_being_deleted_is_released(nbytes: int) -> None:
    """Breaks when it is accepted and goes with the queue, though the queue was to be deleted only if it was empty."""
    with bench() as b:
        b.queue("q")
        client = b.client()
        producer = client.sender("q")
        b.begin_deletion("q", ifEmpty=True)
        (sent,) = client.send(producer, bytes(nbytes))
        b.commit_all()
        assert sent.remote_state == proton.Delivery.RELEASED
        assert "q" not in b.broker.nodes.queues
        assert condition(producer) == "amqp:resource-deleted"


@pytest.mark.parametrize("empty", [True, False])
def test_a_producer_gets_no_credit_until_it_is_decided_whether_its_queue_is_deleted(empty: bool) -> None:
    """Breaks when a client that sends at once again what was released does so without end, while nothing is committed."""
    with bench() as b:
        b.queue("q")
        client = b.client()
        producer = client.sender("q")
        window = producer.credit
        b.lead.automatic = False
        if not empty:
            client.send(producer, "first")
        b.begin_deletion("q", ifEmpty=True)
        while producer.credit:
            left = producer.credit - 100 if producer.credit > 100 else 0
            sent = client.send(producer, *["again"] * (producer.credit - left))
            assert {each.remote_state for each in sent} == {proton.Delivery.RELEASED}
            assert producer.credit == left
        late = b.client().sender("q")
        assert late.credit == 0
        b.commit_all()
        b.settle()
        if empty:
            assert condition(producer) == condition(late) == "amqp:resource-deleted"
        else:
            assert (producer.credit, late.credit, b.depth("q")) == (window, window, 1)


def test_a_link_without_an_address_gets_the_credit_of_released_messages_back_after_a_pause() -> None:
    """Breaks when a client that sends at once again what was released does so without end; and when its messages to other nodes
    wait meanwhile."""
    with bench() as b:
        b.queue("q")
        b.queue("other")
        client = b.client()
        relay = client.sender(None)
        window = relay.credit
        b.lead.automatic = False
        b.begin_deletion("q")
        for count in (600, 300):
            before = relay.credit
            sent = client.send(relay, *["again"] * count, address="q")
            assert {each.remote_state for each in sent} == {proton.Delivery.RELEASED}
            assert relay.credit == before - count
        client.send(relay, "on", address="other")
        b.commit_all()
        b.settle()
        assert (statuses(client, relay)[-1], b.depth("other")) == (ACCEPTED, 1)
        b.clock.advance(limits.RELEASED_PAUSE_S)
        b.settle()
        assert relay.credit == window
        client.send(relay, "late", address="q")
        assert statuses(client, relay)[-1] == REJECTED, "it was deleted"
        assert relay.credit == window


def test_a_link_without_an_address_may_end_while_it_is_paused() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        first, second = client.sender(None, "first"), client.sender(None, "second")
        window = second.credit
        b.lead.automatic = False
        b.begin_deletion("q")
        client.send(first, *["again"] * 3, address="q")
        client.send(second, *["again"] * 3, address="q")
        first.close()
        b.settle()
        b.clock.advance(limits.RELEASED_PAUSE_S)
        b.settle()
        assert second.credit == window
        client.send(second, "again", address="q")
        b.commit_all()


def test_who_has_waited_for_the_end_of_a_queue_that_no_primary_has_decided_gets_credit_from_the_next() -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        b.queue("q", replicate="all")
        b.begin_deletion("q", ifEmpty=True)
        assert b.client().sender("q").credit == 0
        log = b.logs[CLUSTER]
        log.become("ready")
        b.lead.automatic = True
        log.become("active")
        b.settle()
        client = b.client()
        producer = client.sender("q")
        window = producer.credit
        assert window > 0
        b.lead.automatic = False
        client.send(producer, "first")
        b.begin_deletion("q", ifEmpty=True)
        client.send(producer, "again")
        b.commit_all()
        b.settle()
        assert (producer.credit, b.depth("q")) == (window, 1)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("nbytes", [1, 2 * limits.PART_BYTES])
def test_an_exchange_that_is_deleted_ends_the_links_of_its_producers(again: bool, nbytes: int) -> None:
    """Breaks when who stays attached sends to the bindings of the exchange that is gone, and hears that all is well."""
    with bench() as b:
        admin, client = b.client(ADMIN), b.client()
        b.queue("old")
        b.queue("new")
        made = {"exchangeType": "fanout"}
        assert admin.request("CREATE", "exchange", "x", made)[0] == 201
        assert admin.request("CREATE", "binding", "", {"exchange": "x", "queue": "old", "key": ""})[0] == 201
        producer, keyed, other = client.sender("x"), client.sender("x/k"), client.sender("amq.fanout")
        client.send(producer, "one")
        assert admin.request("DELETE", "exchange", "x")[0] == 204
        if again:
            assert admin.request("CREATE", "exchange", "x", made)[0] == 201
            assert admin.request("CREATE", "binding", "", {"exchange": "x", "queue": "new", "key": ""})[0] == 201
        client.send(producer, b"x" * nbytes)
        assert (condition(producer), condition(keyed)) == ("amqp:resource-deleted", "amqp:resource-deleted")
        assert condition(other) == ""
        assert statuses(client, producer) == [ACCEPTED], "only the message before"
        assert (b.depth("old"), b.depth("new")) == (1, 0)
        if again:
            client.send(client.sender("x"), b"x" * nbytes)
            assert (b.depth("old"), b.depth("new")) == (1, 1)


def test_nothing_is_kept_of_producers_that_have_left_their_exchange() -> None:
    with bench() as b:
        client = b.client()
        first, second = client.sender("amq.fanout"), client.sender("amq.fanout")
        first.close()
        b.settle()
        assert len(b.broker.exchanges.producers) == 1
        second.detach()
        b.settle()
        assert not b.broker.exchanges.producers


def test_a_subscription_to_a_topic_exchange_gets_what_its_filter_names_while_it_lasts() -> None:
    with bench() as b:
        client = b.client()
        described = proton.Described(proton.symbol("apache.org:legacy-amqp-topic-binding:string"), "news.#")
        filtered = client.receiver("amq.topic", filters={proton.symbol("mine"): described})
        everything, keyed = client.receiver("amq.topic"), client.receiver("amq.topic/*.sport")
        producer = client.sender("amq.topic")
        for subject in ("news.sport", "news.weather.today", "other"):
            client.send(producer, subject, subject=subject)
        assert client.bodies(filtered) == ["news.sport", "news.weather.today"]
        assert client.bodies(everything) == ["news.sport", "news.weather.today", "other"]
        assert client.bodies(keyed) == ["news.sport"]
        queues = len(b.broker.nodes.queues)
        filtered.close()
        b.settle()
        assert len(b.broker.nodes.queues) == queues - 1, "its queue goes with it"


def test_a_subscription_to_a_headers_exchange_takes_its_arguments_from_the_filter() -> None:
    with bench() as b:
        client = b.client()
        name = proton.symbol("apache.org:legacy-amqp-headers-binding:map")
        link = client.receiver("amq.match", filters={name: proton.Described(name, {"x-match": "all", "colour": "red"})})
        producer = client.sender("amq.match")
        for colour in ("red", "blue"):
            client.send(producer, colour, properties={"colour": colour})
        assert client.bodies(link) == ["red"]
        unfits: list[Any] = [{"x-match": "some"}, {"colour": b"red"}, {"size": float("nan")}, {"size": float("inf")}]
        for unfit in unfits:
            wrong = client.receiver("amq.match", filters={name: proton.Described(name, unfit)})
            assert condition(wrong) == "amqp:invalid-field"


def test_a_second_binding_and_what_only_has_binding_in_its_name_are_refused() -> None:
    """Breaks when a link gets more than its filters let through, and is told that they apply."""
    with bench() as b:
        client = b.client()
        topic, direct = (proton.symbol(f"apache.org:legacy-amqp-{kind}-binding:string") for kind in ("topic", "direct"))
        for other in (topic, direct):
            filters = {proton.symbol("one"): proton.Described(topic, "x.#"), proton.symbol("two"): proton.Described(other, "*.y")}
            assert condition(client.receiver("amq.topic", filters=filters)) == "amqp:invalid-field"
        unknown = proton.Described(proton.symbol("example.com:binding-of-books:string"), "leather")
        others: list[dict[Any, Any]] = [{proton.symbol("one"): unknown}, {proton.symbol("binding"): "leather"}]
        for filters in others:
            assert condition(client.receiver("amq.topic", filters=filters)) == "amqp:not-implemented"
        assert not b.broker.nodes.queues


def test_an_exchange_of_the_longest_name_can_be_subscribed_to() -> None:
    with bench() as b:
        client = b.client()
        name = "ä" * (limits.MAX_NAME_BYTES // 2)
        assert client.request("CREATE", "exchange", name, {"exchangeType": "fanout"})[0] == 201
        link = client.receiver(name)
        client.send(client.sender(name), "one")
        assert client.bodies(link) == ["one"]


def test_a_subscription_that_is_gone_before_its_queue_is_made_leaves_none() -> None:
    with bench(automatic=False) as b:
        client = b.client()
        link = client.receiver("amq.topic")
        link.close()
        client.receiver("amq.topic")
        b.settle()
        client.lose()
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        b.pass_time(1)
        assert not b.broker.nodes.queues


def test_the_anonymous_relay_reads_the_address_of_each_message() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        reply = client.receiver(None, dynamic=True)
        relay = client.sender(None)
        client.send(relay, "to a queue", address="q")
        client.send(relay, "to a mailbox", address=reply.remote_source.address)
        client.send(relay, "to management", address="$management")
        nowhere = client.send(relay, "lost", address="nothing") + client.send(relay, "lost")
        assert statuses(client, relay) == [ACCEPTED] * 3 + [REJECTED] * 2
        assert [delivery.remote.condition.name for delivery in nowhere] == ["amqp:not-found"] * 2
        assert b.depth("q") == 1
        assert client.bodies(reply) == ["to a mailbox"]


def test_a_dynamic_address_is_a_mailbox_while_its_link_lasts() -> None:
    with bench() as b:
        client, other = b.client(), b.client()
        reply = client.receiver(None, dynamic=True, credit=1)
        address = reply.remote_source.address
        sender = other.sender(address)
        other.send(sender, 1, 2)
        assert client.bodies(reply) == [1], "the second one waits for credit"
        reply.flow(1)
        b.settle()
        assert client.bodies(reply) == [1, 2]
        reply.drain(5)
        b.settle()
        assert reply.credit == 0
        reply.close()
        b.settle()
        assert condition(other.sender(address)) == "amqp:not-found"


def test_a_mailbox_and_other_links_for_answers_say_that_they_send_everything_settled() -> None:
    """Breaks when a client keeps the state of deliveries that need none."""
    with bench() as b:
        client = b.client()
        for address in (None, "$cbs", "/management"):
            link = client.receiver(address, dynamic=address is None)
            assert condition(link) == "", address
            assert (link.snd_settle_mode, link.remote_snd_settle_mode) == (proton.Link.SND_UNSETTLED, proton.Link.SND_SETTLED)
        b.queue("q")
        assert client.receiver("q").remote_snd_settle_mode == proton.Link.SND_UNSETTLED


def test_a_mailbox_that_nobody_reads_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAILBOX_MESSAGES", 3)
    with bench() as b:
        client = b.client()
        reply = client.receiver(None, dynamic=True, credit=0)
        client.send(client.sender(reply.remote_source.address), *range(5))
        reply.flow(10)
        b.settle()
        assert client.bodies(reply) == [2, 3, 4]


def test_an_address_that_is_too_long_to_be_repeated_whole_leaves_room_for_what_to_do() -> None:
    """Breaks when a refusal repeats an address of any length, in a frame that its client does not take."""
    address = "\x01" * 5000
    with bench() as b:
        client = b.client()
        (delivery,) = client.send(client.sender(None), "one", address=address)
        link = client.sender(address)
        for told in (delivery.remote.condition, link.remote_condition):
            assert told.name == "amqp:not-found"
            assert len(told.description) < 300
        assert link.remote_condition.description.endswith("create one with qpid-config add queue or add exchange")
