"""Consumers, browsers and subscriptions with a selector: what they get, what others get, and when."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core import limits
from broker.core.filters import APPLICATION_PROPERTIES, NO_LOCAL, PROPERTIES, SELECTOR, SQL, TOPIC_BINDING
from broker.core.queues.residency import RUN_BYTES
from tests.broker.clients import ACCEPTED, Bench, Client, bench, condition, creating, one_turn, statuses

PART = 1000
LARGE = b"l" * 50 * PART


def described(name: str, value: Any, key: str = "") -> dict[Any, Any]:
    return {proton.symbol(key or name): proton.Described(proton.symbol(name), value)}


def selecting(text: Any) -> dict[Any, Any]:
    """As Qpid JMS and rhea ask for a selector: under a key of their own, with a number for its type."""
    return {proton.symbol("jms-selector"): proton.Described(proton.ulong(0x468C00000004), text)}


def send(client: Client, address: str, *numbers: int, **fields: Any) -> None:
    """Messages n whose properties say n, and whether it is odd."""
    sender = client.sender(address)
    for number in numbers:
        client.send(sender, number, properties={"n": number, "odd": number % 2 == 1}, **fields)
    sender.close()
    client.bench.settle()


def test_a_consumer_gets_what_its_selector_names_and_others_get_the_rest() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        send(client, "q", *range(10))
        odd, high = client.receiver("q", filters=selecting("odd")), client.receiver("q", filters=selecting("n >= 6"))
        assert client.bodies(odd) + client.bodies(high) == [1, 3, 5, 7, 9, 6, 8]
        echoed = odd.remote_source.filter
        echoed.rewind()
        assert echoed.next()
        assert echoed.get_dict() == selecting("odd"), "a client goes by the filters that are sent back"
        send(client, "q", 11, 12)
        assert (client.bodies(odd)[-1], client.bodies(high)[-1]) == (11, 12)
        rest = client.receiver("q")
        assert client.bodies(rest) == [0, 2, 4]
        b.pass_time(1)
        assert b.depth("q") == 0


@pytest.mark.parametrize("presettled", [False, True])
def test_consumers_of_one_selector_compete(presettled: bool) -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        links = [client.receiver("q", filters=described(SELECTOR, "odd"), presettled=presettled) for _ in range(2)]
        send(client, "q", *range(20))
        shares = [client.bodies(link) for link in links]
        assert [len(share) for share in shares] == [5, 5]
        assert sorted(shares[0] + shares[1]) == list(range(1, 20, 2))
        b.pass_time(1)
        assert b.depth("q") == 10


def test_an_empty_selector_selects_everything() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        send(client, "q", 1, 2)
        assert client.bodies(client.receiver("q", filters=selecting(" "))) == [1, 2]


@pytest.mark.parametrize(
    "filters, text",
    [
        (selecting("n >"), "the selector ends too early: expected (, +, -, FALSE"),
        (selecting("n ! 3"), "the selector is wrong at character 3: '!' has no meaning here"),
        (selecting(3), "one selector at most, and that is a string"),
        (selecting("n > 3") | described(SELECTOR, "n > 4"), "one selector at most"),
    ],
)
def test_a_selector_that_cannot_be_is_refused_with_what_is_wrong(filters: dict[Any, Any], text: str) -> None:
    with bench() as b:
        b.lead.take(creating("q"))
        client = b.client()
        for address in ("q", "amq.topic"):
            link = client.receiver(address, filters=filters)
            assert condition(link) == "amqp:invalid-field"
            assert text in link.remote_condition.description
            assert link.remote_source.type == proton.Terminus.UNSPECIFIED


def test_the_longest_selector_is_taken_and_one_that_is_longer_ends_its_link_and_not_the_connection() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        send(client, "q", 1, 2)
        longest = "n = 2 OR n IN ('" + "x" * (limits.MAX_SELECTOR_CHARS - 18) + "')"
        assert len(longest) == limits.MAX_SELECTOR_CHARS
        assert client.bodies(client.receiver("q", filters=selecting(longest))) == [2]
        for length in (limits.MAX_SELECTOR_CHARS + 1, limits.MAX_SELECTOR_CHARS + 3000):
            link = client.receiver("q", filters=selecting("x" * length))
            assert condition(link) == "amqp:invalid-field"
            assert f"at most {limits.MAX_SELECTOR_CHARS} are allowed" in link.remote_condition.description
        assert client.bodies(client.receiver("q")) == [1]


def test_filters_of_properties_select_beside_a_selector() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        asked = described(APPLICATION_PROPERTIES, {"odd": True}, key="a") | described(PROPERTIES, {"subject": "&p:s"}, key="b")
        for address in ("q", "amq.topic"):
            link = client.receiver(address, filters=asked | selecting("n > 2"))
            send(client, address, *range(6), subject="some")
            send(client, address, 7, subject="other")
            assert client.bodies(link) == [3, 5]
            wrong = client.receiver(address, filters=described(PROPERTIES, {"x": 1}))
            assert condition(wrong) == "amqp:invalid-field"


def test_a_sql_filter_selects_on_queues_and_exchanges() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        for address in ("q", "amq.topic"):
            link = client.receiver(address, filters=described(SQL, "p.subject >= 's' AND n % 3 = 2"))
            send(client, address, *range(6), subject="some")
            send(client, address, 8, subject="other")
            assert client.bodies(link) == [2, 5]
            wrong = client.receiver(address, filters=described(SQL, "p.creation_time > UTC()"))
            assert condition(wrong) == "amqp:invalid-field"


def test_a_released_message_goes_to_who_selects_it_now() -> None:
    with bench() as b:
        b.queue("q")
        client, other = b.client(), b.client()
        client.auto_accept = False
        send(client, "q", 1, 2)
        first = client.receiver("q", filters=selecting("n > 0"))
        second = other.receiver("q", filters=selecting("n = 2"))
        redelivered = other.receiver("q", filters=selecting("JMSRedelivered"))
        assert (client.bodies(first), other.bodies(second), other.bodies(redelivered)) == ([1, 2], [], [])
        first.close()
        b.settle()
        assert other.bodies(second) == [2]
        plain = client.receiver("q", credit=1)
        client.give(client.received[plain.name][0][0], proton.Delivery.MODIFIED, failed=True)
        assert [each.delivery_count for _, each in other.received[redelivered.name]] == [1]


def test_a_browser_looks_at_what_its_selector_names() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        send(client, "q", *range(6))
        browser = client.receiver("q", credit=2, filters=selecting("odd"), browse=True)
        assert client.bodies(browser) == [1, 3]
        browser.flow(5)
        b.settle()
        send(client, "q", 7)
        assert client.bodies(browser) == [1, 3, 5, 7]
        redelivered = client.receiver("q", filters=selecting("JMSRedelivered"), browse=True)
        client.auto_accept = False
        taker = client.receiver("q", credit=1)
        client.give(client.received[taker.name][0][0], proton.Delivery.MODIFIED, failed=True)
        late = client.receiver("q", filters=selecting("JMSRedelivered AND NOT odd"), browse=True)
        assert (client.bodies(redelivered), client.bodies(late)) == ([], [0])
        assert b.depth("q") == 7


def test_a_search_through_many_messages_lets_others_of_its_queue_find_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of the searches would take all that a queue may look at in a turn, again and again."""
    monkeypatch.setattr(limits, "SHARE_TURN_S", 0)
    monkeypatch.setattr(limits, "SELECTOR_LOOKS", 10)
    with bench() as b:
        b.queue("q")
        client, searcher = b.client(), b.client()
        sender = client.sender("q")
        client.send_encoded(sender, *(proton.Message(body=n, properties={"n": n}).encode() for n in range(900)))
        for n in (899, 40):
            link: Any = searcher.session.receiver(str(n))
            link.source.address = "q"
            link.source.filter.put_dict(selecting(f"n = {n}"))
            link.open()
            link.flow(1)
            searcher.received[str(n)] = []
        while not searcher.received["40"]:
            searcher.pump()
            one_turn(b.clock)
        assert not searcher.received["899"]
        assert max(cursors(b)) <= 100
        b.settle()
        assert searcher.received["899"]


def cursors(b: Bench) -> list[int]:
    """How far each selector has looked."""
    terminus = b.broker.queues.named("q")
    assert terminus is not None
    assert terminus.selections is not None
    return [place.cursor for scan in terminus.selections._scans.values() for place in scan._places.values()]


def search(searcher: Client, condition: str, *, browse: bool) -> Any:
    """A link of this client that gets what it selects from q; it has no credit yet."""
    link: Any = searcher.session.receiver("searching")
    link.source.address = "q"
    link.source.filter.put_dict(selecting(condition))
    if browse:
        link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    link.open()
    searcher.received["searching"] = []
    return link


@pytest.mark.parametrize("browse", [False, True])
def test_a_search_through_many_messages_takes_its_share_of_each_turn(browse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that did not end before it had found something would hold up everybody."""
    monkeypatch.setattr(limits, "SHARE_TURN_S", 0)
    with bench() as b:
        b.queue("q")
        b.queue("other")
        client, searcher = b.client(), b.client()
        last = 5 * limits.SELECTOR_LOOKS
        sender = client.sender("q")
        for start in range(0, last, 500):
            messages = (proton.Message(body=n, properties={"n": n}) for n in range(start, min(start + 500, last)))
            client.send_encoded(sender, *(each.encode() for each in messages))
        client.send(sender, "found", properties={"n": last})
        waiting, other = client.receiver("other"), client.sender("other")
        link = search(searcher, f"n = {last}", browse=browse)
        link.drain(10)
        turns = 0
        while not searcher.received["searching"]:
            if turns == 2:
                client.send(other, "not held up", settle=False)
            searcher.pump()
            client.pump()
            assert browse or not turns or cursors(b)[0] <= 1 + (turns + 1) * limits.SELECTOR_LOOKS
            one_turn(b.clock)
            turns += 1
        assert turns >= 4
        assert client.bodies(waiting) == ["not held up"]
        b.settle()
        assert searcher.bodies(link) == ["found"]
        assert link.credit == 0, "a client that drains hears that there is no more when all has been looked at"


@pytest.mark.parametrize("browse", [False, True])
def test_a_search_with_expensive_patterns_examines_few_messages_in_a_turn(browse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when messages are counted alone: a hundred long texts for a pattern with wildcards held up everybody for seconds."""
    monkeypatch.setattr(limits, "SHARE_TURN_S", 0)
    with bench() as b:
        b.queue("q")
        client, searcher = b.client(), b.client()
        sender = client.sender("q")
        for _ in range(60):
            client.send(sender, "no", properties={"text": "b" * 1000})
        client.send(sender, "found", properties={"text": "abac"})
        link = search(searcher, "text LIKE '%b_c%'", browse=browse)
        link.flow(10)
        turns = 0
        while not searcher.received["searching"]:
            searcher.pump()
            one_turn(b.clock)
            turns += 1
        assert turns >= 6
        assert searcher.bodies(link) == ["found"]


def test_a_consumer_that_drains_hears_it_when_nothing_matches() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        send(client, "q", 2, 4)
        consumer = client.receiver("q", credit=0, filters=selecting("odd"))
        consumer.drain(10)
        b.settle()
        assert (client.bodies(consumer), consumer.credit) == ([], 0)


@pytest.mark.parametrize("memory", [0, 10 * (200 + RUN_BYTES)])
@pytest.mark.parametrize("browse", [False, True])
def test_a_search_reads_what_is_not_in_memory(memory: int, browse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_AHEAD_BYTES", 3000)
    monkeypatch.setattr(limits, "MIN_READ_AHEAD_BYTES", 3000)
    monkeypatch.setattr(limits, "SELECTOR_LOOKS", 7)
    with bench(message_memory=memory) as b:
        b.queue("q")
        client = b.client()
        send(client, "q", *range(100))
        consumer = client.receiver("q", filters=selecting("n IN (0, 50, 99)"), browse=browse)
        assert client.bodies(consumer) == [0, 50, 99]
        assert 7 <= b.lead.reads <= 30
        send(client, "q", 50)
        assert client.bodies(consumer) == [0, 50, 99, 50]
        b.pass_time(1)
        assert b.depth("q") == (101 if browse else 97)
        assert len(client.bodies(client.receiver("q", credit=200))) == (101 if browse else 97)


@pytest.mark.parametrize("browse", [False, True])
def test_a_large_message_is_selected_by_its_properties(browse: bool) -> None:
    """What the queue holds of it is a manifest, which has none."""
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        sender = client.sender("q")
        for n in range(8):
            client.send(sender, LARGE if n % 3 else "small", properties={"n": n})
        consumer = client.receiver("q", credit=1, filters=selecting("n IN (2, 3, 7)"), browse=browse)
        consumer.flow(20)
        b.settle()
        assert [each.properties["n"] for _, each in client.received[consumer.name]] == [2, 3, 7]
        assert client.received[consumer.name][0][1].body == LARGE


def test_a_large_message_whose_first_part_cannot_be_read_matches_nothing() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        sender = client.sender("q")
        client.send(sender, LARGE, properties={"n": 1})
        client.send(sender, "small", properties={"n": 2})
        b.lead.spoiled.update(
            place for block in b.broker.ledgers["local"].state.parts.order.lanes[0].blocks for place in block.places
        )
        assert client.bodies(client.receiver("q", filters=selecting("n > 0"))) == ["small"]


@pytest.mark.parametrize("browse", [False, True])
def test_a_large_message_that_goes_while_its_first_part_is_read_holds_up_nobody(browse: bool) -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        client.send(client.sender("q"), LARGE, "next", properties={"n": 1})
        b.lead.holds_reads = True
        consumer = client.receiver("q", filters=selecting("n = 1"), browse=browse)
        messages = b.broker.nodes.queues["q"].messages
        assert messages is not None
        b.broker.lead.dequeue(messages.number, [1])
        b.pass_time(0.1, 0.02)
        b.lead.end_reads()
        b.settle()
        assert client.bodies(consumer) == ["next"]


def test_many_selectors_wait_for_the_first_parts_of_different_messages() -> None:
    with bench(part_bytes=PART) as b:
        b.queue("q")
        client = b.client()
        sender = client.sender("q")
        for n in range(8):
            client.send(sender, LARGE, properties={"n": n})
        browsers = [client.receiver("q", filters=selecting(f"n = {n}"), browse=True) for n in range(8)]
        consumers = [client.receiver("q", filters=selecting(f"n = {n}")) for n in range(8)]
        for links in (browsers, consumers):
            assert [[each.properties["n"] for _, each in client.received[link.name]] for link in links] == [[n] for n in range(8)]


def test_a_selector_on_a_queue_that_is_deleted_or_emptied_ends_with_it() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        consumer = client.receiver("q", filters=selecting("odd"))
        send(client, "q", 1, 2)
        assert b.client({"qpid.ha-admin": True}).request("DELETE", "queue", "q")[0] == 204
        assert condition(consumer) == "amqp:resource-deleted"


# ---- exchanges


def test_a_subscription_to_an_exchange_gets_what_its_selector_names_and_its_queue_has_no_more() -> None:
    with bench() as b:
        client = b.client()
        binding = described(TOPIC_BINDING, "news.#", key="by-topic")
        link = client.receiver("amq.topic", credit=0, filters=selecting("n > 1") | binding)
        sender = client.sender("amq.topic")
        for n, subject in ((1, "news.a"), (2, "news.b"), (3, "other")):
            client.send(sender, n, subject=subject, properties={"n": n})
        assert statuses(client, sender) == [ACCEPTED] * 3
        (queue,) = [each for each in b.broker.nodes.queues.values() if each.name.startswith("amq.topic")]
        assert queue.depth == 1
        link.flow(10)
        b.settle()
        assert client.bodies(link) == [2]


def test_a_large_message_to_an_exchange_is_selected_by_its_first_part() -> None:
    with bench(part_bytes=PART) as b:
        client = b.client()
        link = client.receiver("amq.fanout", filters=selecting("n = 2"))
        sender = client.sender("amq.fanout")
        for n in (1, 2):
            client.send(sender, LARGE, properties={"n": n})
        assert [each.properties["n"] for _, each in client.received[link.name]] == [2]


def test_a_subscription_without_local_messages_gets_those_of_other_connections() -> None:
    with bench() as b:
        client, other = b.client(), b.client()
        no_local = described(NO_LOCAL, [], key="no-local")
        link = client.receiver("amq.topic", filters=no_local)
        both = client.receiver("amq.topic", filters=no_local | selecting("n > 1"))
        everything = client.receiver("amq.topic")
        send(client, "amq.topic", 1, 2)
        send(other, "amq.topic", 1, 2)
        assert (client.bodies(link), client.bodies(both), client.bodies(everything)) == ([1, 2], [2], [1, 2, 1, 2])


def test_what_a_selector_leaves_out_for_all_goes_by_the_alternate_exchange() -> None:
    with bench() as b:
        b.queue("unwanted")
        client = b.client({"qpid.ha-admin": True})
        for name, alternate in (("none", ""), ("e", "none")):
            attributes = {"exchangeType": "fanout", "alternateExchange": alternate}
            assert client.request("CREATE", "exchange", name, attributes)[0] == 201
        bound = client.request("CREATE", "binding", "", {"exchange": "none", "queue": "unwanted", "key": ""})
        assert bound[0] == 201, bound
        link = client.receiver("e", filters=selecting("odd"))
        send(client, "e", 1, 2)
        assert (client.bodies(link), client.bodies(client.receiver("unwanted"))) == ([1], [2])


def test_queues_do_not_know_local_messages() -> None:
    with bench() as b:
        b.queue("q")
        link = b.client().receiver("q", filters=described(NO_LOCAL, []))
        assert condition(link) == "amqp:not-implemented"
        assert NO_LOCAL in link.remote_condition.description
