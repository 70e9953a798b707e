"""Links of a drain on which several messages come in one delivery: what a target and a source make of packs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pytest
from cproton_ffi import ffi, lib

from broker.amqp.data import encoded_of, put_value
from broker.amqp.receiver import Receiver
from broker.client import ManagementClient
from broker.core import packs, values
from broker.core.links import ACCEPTED, REJECTED, RELEASED
from broker.core.packs import CAPACITY, Credit, Outcome
from broker.core.transactions import TRANSACTIONAL, id_fields
from broker.sessions.origins import origin_address
from tests.broker.clients import Bench, bench, condition
from tests.broker.drain_bench import DRAIN, QUEUE, Taking, body, send, tagged
from tests.broker.route_bench import Network, Road, network

WINDOW = 16
"""Credit for 1000 messages, in packs."""


def pack_of(*sequences: int, wrong: int = 0, size: int = 0) -> bytes:
    """A pack with these messages; that of sequence `wrong` is none."""
    messages = [b"no message" if each == wrong else body(f"{each}" + "x" * size) for each in sequences]
    offsets = list(accumulate(map(len, messages), initial=0))
    return packs.encoded(b"".join(messages), offsets, 0, len(messages), 0, [tagged(each) for each in sequences])


def begin(link: Any, number: int) -> Any:
    """A delivery with the tag of a pack."""
    tag = ffi.new("char[]", number.to_bytes(packs.TAG_BYTES, "big"))
    return lib.pn_delivery(link._impl, {"size": packs.TAG_BYTES, "start": tag})


def give(taking: Taking, link: Any, data: bytes, number: int = 1, *, settled: bool = False) -> Any:
    """Send this as a pack."""
    delivery = begin(link, number)
    link.stream(data)
    link.advance()
    if settled:
        lib.pn_delivery_settle(delivery)
    taking.bench.settle()
    return delivery


def packed_link(taking: Taking) -> Any:
    return taking.client.sender(f"{origin_address(DRAIN, QUEUE)}/packs")


def outcomes_of(delivery: Any, count: int) -> list[Outcome]:
    """What the target has said of the messages of this pack."""
    assert lib.pn_delivery_remote_state(delivery) == packs.OUTCOMES
    return packs.read_outcomes(encoded_of(lib.pn_disposition_data(lib.pn_delivery_remote(delivery))), count)


def test_a_pack_is_accepted_at_once_and_each_of_its_messages_is_held() -> None:
    with bench() as b:
        taking = Taking(b)
        link = packed_link(taking)
        first = give(taking, link, pack_of(5, 6, 7, 9), 1)
        again = give(taking, link, pack_of(7, 8, 9, 10), 2)
        assert [lib.pn_delivery_remote_state(each) for each in (first, again)] == [ACCEPTED] * 2
        assert taking.bodies() == ["5", "6", "7", "9", "8", "10"]
        assert taking.held.runs() == [(5, 6)]


def test_a_message_that_cannot_be_taken_is_named_in_the_outcome_of_its_pack_and_the_others_are_on_the_queue() -> None:
    with bench() as b:
        taking = Taking(b)
        delivery = give(taking, packed_link(taking), pack_of(1, 2, 3, 4, wrong=3))
        taken, refused, last = outcomes_of(delivery, 4)
        assert (taken, last) == ((0, 2, ACCEPTED, ""), (3, 1, ACCEPTED, ""))
        assert refused[:3] == (2, 1, REJECTED)
        assert refused.text.startswith("amqp:decode-error: ")
        assert taking.bodies() == ["1", "2", "4"]


def test_a_pack_waits_until_each_of_its_messages_is_committed() -> None:
    with bench() as b:
        taking = Taking(b)
        link = packed_link(taking)
        b.lead.automatic = False
        delivery = give(taking, link, pack_of(1, 2, 3))
        assert not lib.pn_delivery_remote_state(delivery)
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert lib.pn_delivery_remote_state(delivery) == ACCEPTED


@pytest.mark.parametrize(
    "data, what",
    [
        (b"\x02\x08", "amqp:decode-error"),
        (pack_of(1, 1), "amqp:invalid-field"),
        (pack_of(*range(60), size=2000), "amqp:decode-error"),
    ],
)
def test_what_is_no_pack_ends_the_link_and_keeps_no_memory(data: bytes, what: str) -> None:
    with bench() as b:
        taking = Taking(b)
        link = packed_link(taking)
        give(taking, link, data)
        assert condition(link) == what
        assert taking.client.server.engine.gathering.nbytes == 0
        assert taking.bodies() == []


def test_a_pack_that_its_sender_has_settled_ends_the_link() -> None:
    """Breaks when a message is taken whose sender does not wait for its outcome."""
    with bench() as b:
        taking = Taking(b)
        link = packed_link(taking)
        give(taking, link, pack_of(1, 2), settled=True)
        assert condition(link) == "amqp:invalid-field"
        assert taking.bodies() == []


def test_a_sequence_that_no_message_can_have_ends_the_link() -> None:
    """Breaks when a client can write what makes the log end on every broker that applies it."""
    for address in (origin_address(DRAIN, QUEUE), f"{origin_address(DRAIN, QUEUE)}/packs"):
        with bench() as b:
            taking = Taking(b)
            link = taking.client.sender(address)
            send(taking.client, link, (1 << 64) - 1, body("poison"))
            b.settle()
            assert condition(link) == "amqp:invalid-field"
            assert taking.bodies() == []


@pytest.mark.parametrize("state", [TRANSACTIONAL, 0x33])
def test_a_message_with_a_state_ends_a_packed_link(state: int) -> None:
    """Breaks when a message of a transaction is on the queue although the transaction is not carried out."""
    with bench() as b:
        taking = Taking(b)
        link = packed_link(taking)
        delivery = begin(link, 1)
        put_value(lib.pn_disposition_data(lib.pn_delivery_local(delivery)), id_fields(b"a"))
        lib.pn_delivery_update(delivery, state)
        link.stream(pack_of(1, 2))
        link.advance()
        b.settle()
        assert condition(link) == "amqp:not-implemented"
        assert taking.bodies() == []


def test_single_messages_and_short_packs_use_up_no_credit_for_long() -> None:
    """Breaks when each delivery with less than a pack takes credit away for good: the drain would stop."""
    with bench() as b:
        taking = Taking(b)
        link = packed_link(taking)
        assert link.credit == WINDOW
        for number in range(3 * WINDOW):
            send(taking.client, link, 3 * number + 1, body("one"))
            give(taking, link, pack_of(3 * number + 2, 3 * number + 3), number)
            assert link.credit >= WINDOW - 1
        assert taking.held.runs() == [(1, 9 * WINDOW)]


def test_a_pack_is_not_taken_for_a_large_message_when_memory_is_short() -> None:
    with bench(part_bytes=16 * 1024) as b:
        taking = Taking(b)
        link, data = packed_link(taking), pack_of(*range(1, 40), size=1000)
        begin(link, 1)
        link.stream(data[:30_000])
        b.settle()
        engine = taking.client.server.engine
        assert engine.gathering.nbytes == 30_000
        engine.gathering._relieve(engine)
        link.stream(data[30_000:])
        link.advance()
        b.settle()
        assert taking.bodies() == [str(each) for each in range(1, 40)]


# ---- the source


class _Taker:
    """Notes the messages that arrive. Fulfils `DataLink`."""

    def __init__(self, client: ManagementClient, address: str) -> None:
        self.came: list[list[bytes]] = []
        self.pump = client.wire.pump
        self.link: Receiver = client.wire.receive_from(address, self, 1 << 20)
        self.link.packed = Credit()

    def opened(self) -> None:
        self.link.flow(5 * CAPACITY)

    def messages(self) -> None:
        _, messages = self.link.take()
        self.came.append(messages)

    def outcomes(self) -> None:
        raise AssertionError("nothing is sent here")

    credit = outcomes

    def closed(self, reason: str) -> None:
        raise AssertionError(reason)


@pytest.fixture
def net() -> Iterator[Network]:
    """`a` leaves and has the queue `q` with 70 messages."""
    with network() as made:
        made.add("a").queue("q")
        made.send("a", "q", *range(70))
        assert made.ask("a", "LEAVE", "drain", to=["b:1"])[0] == 200
        yield made


def takes(net: Network) -> _Taker:
    """A link that gets all of them."""
    near: Bench = net.brokers["a"]
    road = Road(near, near, "a")
    net.roads.append(road)
    net.settle()
    queue = near.broker.nodes.queues["q"].uuid
    taker = _Taker(ManagementClient(near.clock, "a", road.wire), f"$drain/{queue}/packs")
    net.settle()
    return taker


def left(net: Network) -> tuple[int, int]:
    """Messages at the source, and those of them that are on their way, when all of this is committed."""
    net.pass_time(0.04, 0.02)
    status = net.brokers["a"].broker.departure.status()
    return status["messages"], status["unsettled"]


def test_a_pack_has_an_outcome_when_all_of_its_messages_have_one(net: Network) -> None:
    taker = takes(net)
    assert sum(map(len, taker.came)) == 70
    taker.link.settle(0, 30, ACCEPTED)
    taker.link.settle(40, 30, ACCEPTED)
    taker.pump()
    assert left(net) == (64, 64), "the second pack has left, and the first one waits"
    taker.link.settle(30, 9, RELEASED)
    taker.link.withhold(39, 1)
    taker.pump()
    assert left(net) == (10, 10), "what was given back comes again, and one message stays with the link"
    assert len(taker.came[-1]) == 9
    taker.link.close()
    taker.pump()
    assert left(net) == (10, 0)
    assert [len(each) for each in takes(net).came] == [10]


@pytest.mark.parametrize("state", [RELEASED, REJECTED, 0x1_0024])
def test_an_outcome_for_a_whole_pack_is_that_of_each_of_its_messages(net: Network, state: int) -> None:
    """A state that the standard does not know gives the messages back."""
    taker = takes(net)
    first = taker.link.deliveries[0].delivery
    lib.pn_delivery_update(first, state)
    lib.pn_delivery_settle(first)
    taker.pump()
    assert left(net) == ((6, 6) if state == REJECTED else (70, 70))


@pytest.mark.parametrize("fields", [values.encode([]), values.encode([bytes((60, 9, ACCEPTED, 255))])])
def test_outcomes_that_make_no_sense_leave_a_pack_with_its_link(net: Network, fields: bytes) -> None:
    """Breaks when a message leaves the source although nobody says that the target has it."""
    taker = takes(net)
    first = taker.link.deliveries[0].delivery
    put_value(lib.pn_disposition_data(lib.pn_delivery_local(first)), fields)
    lib.pn_delivery_update(first, packs.OUTCOMES)
    lib.pn_delivery_settle(first)
    taker.pump()
    assert left(net) == (70, 70)
    taker.link.close()
    taker.pump()
    assert left(net) == (70, 0)
    assert sum(map(len, takes(net).came)) == 70
