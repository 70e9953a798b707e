"""What each replication level keeps through a failover, as real clients see it: queues, exchanges, bindings, and messages bit
by bit.

Every test creates objects on a first primary, promotes another broker, and checks there; most tests switch back and check
again.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from proton import (
    UNDESCRIBED,
    Array,
    Data,
    Described,
    Message,
    byte,
    char,
    decimal128,
    float32,
    int32,
    short,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)
from proton.reactor import Copy, Filter
from proton.utils import BlockingConnection

from broker.core.message import Header, header
from tests.system.harness import BrokerProcess, Cluster, Refused, ask, cluster, eventually
from tests.system.traffic import send, take, take_by


@contextmanager
def pair(folder: Path, default: str = "none") -> Iterator[tuple[Cluster, BrokerProcess, BrokerProcess]]:
    """A cluster of three, its primary, and the backup that is to be the next one."""
    with cluster(folder, 3, "--ha-replicate", default) as brokers:
        yield brokers, brokers.brokers[0], brokers.brokers[1]


def switch(brokers: Cluster, to: BrokerProcess) -> None:
    """Make this broker the primary, and wait for the others."""
    brokers.promote(to)
    for broker in brokers.brokers:
        broker.wait_for("ready", "active")


def text(body: str, **fields: Any) -> bytes:
    """An encoded message."""
    return bytes(Message(body=body, **fields).encode())


def texts(*bodies: str) -> list[bytes]:
    """Encoded messages."""
    return [text(body) for body in bodies]


def names(broker: BrokerProcess, kind: str) -> set[str]:
    """The names of all queues or exchanges, the built-in exchanges left out."""
    built_in = {"", "amq.direct", "amq.topic", "amq.fanout", "amq.match"}
    return {str(item["name"]) for item in ask(broker.address, "QUERY", kind)["items"]} - built_in


def bindings(broker: BrokerProcess) -> set[tuple[str, str, str]]:
    """(exchange, queue, key) of all bindings but those to the default exchange."""
    items = ask(broker.address, "QUERY", "binding")["items"]
    return {(item["exchange"], item["queue"], item["key"]) for item in items if item["exchange"]}


def test_all_keeps_messages_configuration_keeps_queues_and_none_keeps_to_its_broker(tmp_path: Path) -> None:
    """Breaks when a level replicates more or less than it says."""
    with pair(tmp_path) as (brokers, first, second):
        for level in ("all", "configuration", "none"):
            first.create("queue", level, replicate=level)
            first.create("exchange", f"x-{level}", exchangeType="fanout", replicate=level)
            assert send(first.address, level, texts("one", "two")) == 2
        switch(brokers, second)
        assert names(second, "queue") == {"all", "configuration"}
        assert names(second, "exchange") == {"x-all", "x-configuration"}
        assert second.queue("all")["messages"] == 2
        assert second.queue("configuration")["messages"] == 0
        assert send(second.address, "configuration", texts("three")) == 1
        with pytest.raises(Refused, match="no queue named 'none'"):
            second.queue("none")

        switch(brokers, first)
        assert names(first, "queue") == {"all", "configuration", "none"}
        assert take(first.address, "all", 2) == texts("one", "two")
        assert take(first.address, "configuration", 2) == texts("one", "two"), "its own messages, not the other broker's"
        assert take(first.address, "none", 2) == texts("one", "two")


def test_what_says_nothing_has_the_default_level(tmp_path: Path) -> None:
    """Breaks when --ha-replicate is not what an unmarked queue or exchange gets, or when it wins over what the queue
    itself says."""
    with pair(tmp_path, "configuration") as (brokers, first, second):
        first.create("queue", "unmarked")
        first.create("exchange", "x-unmarked")
        first.create("queue", "marked", replicate="all")
        first.create("queue", "as-argument", arguments={"qpid.replicate": "none"})
        assert send(first.address, "unmarked", texts("local")) == 1
        assert send(first.address, "marked", texts("everywhere")) == 1
        assert first.queue("unmarked")["replicate"] == "configuration"
        switch(brokers, second)
        assert names(second, "queue") == {"unmarked", "marked"}
        assert names(second, "exchange") == {"x-unmarked"}
        assert (second.queue("unmarked")["messages"], second.queue("marked")["messages"]) == (0, 1)


def test_a_binding_is_replicated_when_its_queue_and_its_exchange_both_are(tmp_path: Path) -> None:
    """Breaks when a failover leaves a replicated queue unfed, or brings a binding without its ends."""
    with pair(tmp_path) as (brokers, first, second):
        for level in ("all", "none"):
            first.create("queue", f"q-{level}", replicate=level)
            first.create("exchange", f"x-{level}", exchangeType="direct", replicate=level)
        for exchange in ("x-all", "x-none", "amq.topic"):
            for queue in ("q-all", "q-none"):
                first.create("binding", "", exchange=exchange, queue=queue, key="k")
        everything = bindings(first)
        assert len(everything) == 6
        switch(brokers, second)
        assert bindings(second) == {("x-all", "q-all", "k"), ("amq.topic", "q-all", "k")}
        assert send(second.address, "x-all/k", texts("routed")) == 1
        assert take(second.address, "q-all", 1) == texts("routed")
        switch(brokers, first)
        assert bindings(first) == everything


def test_what_was_deleted_does_not_come_back_with_a_broker_that_missed_it(tmp_path: Path) -> None:
    """Breaks when a broker that was down brings deleted queues, bindings or consumed messages back, under a new primary too."""
    with pair(tmp_path, "all") as (brokers, first, second):
        for name in ("gone", "again", "kept"):
            first.create("queue", name)
            assert send(first.address, name, texts("old")) == 1
        first.create("exchange", "news", exchangeType="fanout")
        first.create("binding", "", exchange="news", queue="kept", key="")
        switch(brokers, first)
        second.kill()
        ask(first.address, "DELETE", "queue", "gone")
        ask(first.address, "DELETE", "queue", "again")
        first.create("queue", "again")
        ask(first.address, "DELETE", "binding", "", {"exchange": "news", "queue": "kept", "key": ""})
        assert take(first.address, "kept", 1) == texts("old")
        second.start()
        second.wait_for("ready")
        switch(brokers, second)
        assert names(second, "queue") == {"again", "kept"}
        assert bindings(second) == set()
        assert second.queue("again")["messages"] == 0, "a queue of the same name is another queue"
        assert second.queue("kept")["messages"] == 0


def test_every_type_of_exchange_routes_alike_after_a_failover(tmp_path: Path) -> None:
    """Breaks when a backup builds its routing otherwise than the primary did."""
    routes: list[tuple[str, str, str, dict[str, Any]]] = [
        ("direct", "amq.direct", "red", {}),
        ("topic", "amq.topic", "stock.*.#", {}),
        ("fanout", "amq.fanout", "", {}),
        ("headers", "amq.match", "h", {"x-match": "all", "colour": "red", "size": 3}),
    ]
    sent = {
        "": [("direct", text("by name"))],
        "amq.direct": [("direct", text("to red", subject="red")), ("", text("to blue", subject="blue"))],
        "amq.topic/stock.usd": [("topic", text("by the address"))],
        "amq.topic": [("topic", text("by the subject", subject="stock.eur.high")), ("", text("another", subject="weather.usd"))],
        "amq.fanout": [("fanout", text("to all"))],
        "amq.match": [
            ("headers", text("matching", properties={"colour": "red", "size": 3})),
            ("", text("not matching", properties={"colour": "red", "size": 4})),
        ],
    }
    with pair(tmp_path, "all") as (brokers, first, second):
        for queue, exchange, key, arguments in routes:
            first.create("queue", queue)
            first.create("binding", "", exchange=exchange, queue=queue, key=key, arguments=arguments)
        for turn, primary in enumerate((first, second)):
            if turn:
                switch(brokers, primary)
            wanted: dict[str, list[bytes]] = {queue: [] for queue, _, _, _ in routes}
            for address, messages in sent.items():
                for queue, data in messages:
                    assert send(primary.address, address or queue, [data]) == 1
                    if queue:
                        wanted[queue].append(data)
            for queue, expected in wanted.items():
                assert primary.queue(queue)["messages"] == len(expected), queue
                assert take(primary.address, queue, len(expected)) == expected


def test_a_subscription_on_an_exchange_is_its_broker_s_alone_and_ends_with_its_client(tmp_path: Path) -> None:
    """Breaks when the queue behind a client's subscription is replicated, gets what its filter leaves out, or outlives
    its client."""
    options = Filter({symbol("binding"): Described(symbol("apache.org:legacy-amqp-topic-binding:string"), "a.*")})
    messages = [text("wanted", subject="a.b"), text("not wanted", subject="b.a"), text("wanted too", subject="a.c")]
    with pair(tmp_path, "all") as (brokers, first, second):
        for primary, backup in ((first, second), (second, first)):
            switch(brokers, primary)
            queues = functools.partial(names, primary, "queue")
            client = BlockingConnection(primary.address, timeout=60)
            receiver = client.create_receiver("amq.topic", credit=10, options=options)
            eventually(queues, lambda found: len(found) == 1, "the queue of the subscription")
            assert send(primary.address, "amq.topic", messages) == 3
            assert [receiver.receive().body for _ in range(2)] == ["wanted", "wanted too"]
            assert names(backup, "queue") == set()
            client.close()
            eventually(queues, lambda found: not found, "the end of that queue")


def test_competing_consumers_share_a_queue_and_a_browser_takes_nothing(tmp_path: Path) -> None:
    """Breaks when a message is given to two consumers, when one gets everything, or when looking at a queue empties it."""
    messages = texts(*(f"number {number}" for number in range(100)))
    with pair(tmp_path, "all") as (brokers, first, second):
        first.create("queue", "shared")
        assert send(first.address, "shared", messages) == 100
        assert take(first.address, "shared", 100, Copy()) == messages
        switch(brokers, second)
        assert take(second.address, "shared", 100, Copy()) == messages
        assert second.queue("shared")["messages"] == 100
        shares = take_by(2, second.address, "shared", 60)
        assert sorted(map(len, shares)) == [30, 30]
        assert sorted(shares[0] + shares[1]) == sorted(messages[:60])
        assert all(share == sorted(share, key=messages.index) for share in shares)
        switch(brokers, first)
        assert take(first.address, "shared", 40) == messages[60:]


def every_kind_of_message() -> list[bytes]:
    """Messages that use all sections and types; some have been seen to come back altered from other brokers' replication."""
    undescribed: Any = UNDESCRIBED
    nested: dict[Any, Any] = {
        "list": [1, None, True, "text", b"bytes", {"deep": [[[]], {}]}],
        symbol("symbol-key"): symbol("symbol"),
        7: Array(undescribed, Data.INT, 1, 2, 3),
        "described": Described(symbol("example:type"), {"inner": 1.5}),
        "uuid": uuid.UUID(int=5),
        "when": timestamp(1_700_000_000_123),
        "numbers": [
            ubyte(255),
            byte(-1),
            ushort(65_535),
            short(-2),
            uint(1 << 31),
            int32(-3),
            ulong(1 << 63),
            -(1 << 62),
            float32(0.5),
        ],
        "odd": [char("\u1f0a"), decimal128(b"\x01" * 16)],
    }
    every_section: dict[str, Any] = {
        "user_id": b"somebody",
        "address": "to-whom",
        "subject": "what",
        "reply_to": "where",
        "correlation_id": "which",
        "content_type": symbol("application/x-made-up"),
        "content_encoding": symbol("gzip"),
        "expiry_time": 4_000_000_000.25,
        "creation_time": 1_700_000_000.75,
        "group_id": "group",
        "group_sequence": 4_294_967_295,
        "reply_to_group_id": "answers",
        "properties": {
            "string": "s",
            "int": int32(1),
            "long": 1 << 40,
            "double": 0.25,
            "bool": False,
            "null": None,
            "binary": b"\x00\xff",
            "": "empty",
        },
        "annotations": {symbol("x-opt-made-up"): nested, symbol("x-opt-when"): timestamp(1)},
        "instructions": {symbol("x-opt-delivery"): [1, "two"]},
        "durable": True,
        "priority": 9,
        "ttl": 86_400.0,
        "first_acquirer": True,
    }
    ids: list[Any] = [ulong(0), ulong((1 << 64) - 1), uuid.UUID(int=1 << 127), b"\x00binary\xff", "string", "\N{SNOWMAN}" * 40]
    made = [
        Message(id=each, correlation_id=each, body=nested, **{k: v for k, v in every_section.items() if k != "correlation_id"})
        for each in ids
    ]
    made += [
        Message(body=nested, **every_section),
        Message(body=None),
        Message(body=b"\x00" * 100_000, inferred=True),
        Message(body="\N{SNOWMAN}" * 70_000),
    ]
    made += [
        Message(body=[nested, nested], inferred=True),
        Message(body=b"", inferred=True),
        Message(body=Described(ulong(77), [1])),
    ]
    data_twice = b"\x00\x53\x75\xa0\x03one" + b"\x00\x53\x75\xa0\x03two"
    sequence_twice = b"\x00\x53\x76\x45" + b"\x00\x53\x76\xc0\x03\x01\x54\x05"
    footer = b"\x00\x53\x77\x40" + b"\x00\x53\x78\xc1\x0a\x02\xa3\x05x-sum\x54\x01"
    long_forms = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xb0\x00\x00\x00\x02hi"
    return [bytes(message.encode()) for message in made] + [data_twice, sequence_twice, footer, long_forms]


def but_for_time(messages: list[bytes]) -> list[tuple[Header, bytes]]:
    """What of these messages no broker may change: all bytes, but of a message that has a time to live the header, in which a
    broker says what is left of it (AMQP 1.0 part 3.2.1); of that, all but the time."""
    found = []
    for data in messages:
        head = header(data)
        begin = 5 + data[4] if head.ttl_ms is not None else 0
        found.append((replace(head, ttl_ms=None), data[begin:]))
    return found


def times_left(messages: list[bytes]) -> list[int]:
    """The times to live of those messages that have one, in ms."""
    return [ttl_ms for data in messages if (ttl_ms := header(data).ttl_ms) is not None]


def test_messages_are_the_same_to_the_last_bit_after_a_failover(tmp_path: Path) -> None:
    """Breaks when anybody on the way decodes a message and writes it anew."""
    messages = every_kind_of_message()
    with pair(tmp_path, "all") as (brokers, first, second):
        first.create("queue", "exact")
        assert send(first.address, "exact", messages) == len(messages)
        brokers.level(second)
        first.kill()
        brokers.promote(second)
        looked = take(second.address, "exact", len(messages), Copy())
        assert but_for_time(looked) == but_for_time(messages)
        first.start()
        first.wait_for("ready")
        switch(brokers, first)
        taken = take(first.address, "exact", len(messages))
        assert but_for_time(taken) == but_for_time(messages)
        sent, left = times_left(messages), times_left(taken)
        assert len(sent) == len(left) > 0
        assert all(0 < later < earlier <= first for first, earlier, later in zip(sent, times_left(looked), left, strict=True))
