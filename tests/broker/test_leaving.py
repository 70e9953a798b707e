"""Before a handover: consumers settle what they have, everybody gets an answer, and nothing of it comes again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import proton
import pytest

from broker.core import limits
from tests.broker.clients import ACCEPTED, ADMIN, Bench, bench, statuses

WITHIN_S = 2.5
SETTLE_S, QUIET_S = WITHIN_S / 2, WITHIN_S / limits.QUIET_SHARE


class Asked:
    """A broker of a cluster with the queue `q`, whose log asks it for quiet. `quiet` counts how often it said so."""

    def __init__(self, b: Bench, **attributes: Any) -> None:
        self.b = b
        self.quiet = 0
        b.queue("q", **attributes)

    def ask(self, within_s: float = WITHIN_S) -> None:
        before = self.quiet
        self.b.lead.ledger.on_quiesce(within_s, self._done)
        assert self.quiet == before, "not from within the call"

    def _done(self) -> None:
        self.quiet += 1

    def pass_time(self, seconds: float = 0.02) -> None:
        self.b.pass_time(seconds, limits.QUIET_LOOK_S)

    def consumer(self, *, accepts: bool = True, **options: Any) -> tuple[Any, Any]:
        client = self.b.client()
        client.auto_accept = accepts
        return client, client.receiver("q", **options)


@pytest.fixture
def asked() -> Iterator[Asked]:
    with bench(clustered=True, default_level="all") as b:
        yield Asked(b)


def test_a_broker_without_consumers_is_quiet_at_once(asked: Asked) -> None:
    asked.ask()
    asked.pass_time()
    assert asked.quiet == 1


def test_consumers_settle_what_they_have_and_get_nothing_more(asked: Asked) -> None:
    """What they have accepted is gone for good before another broker takes over, so that it cannot come twice."""
    producer = asked.b.client()
    out = producer.sender("q")
    producer.send(out, *range(5))
    client, link = asked.consumer(accepts=False, credit=3)
    asked.ask()
    link.flow(10)
    asked.pass_time(QUIET_S / 2)
    assert client.bodies(link) == [0, 1, 2]
    assert asked.quiet == 0
    for delivery, _ in client.received[link.name]:
        client.give(delivery, proton.Delivery.ACCEPTED)
    asked.pass_time()
    assert asked.quiet == 1
    assert asked.b.depth("q") == 2


@pytest.mark.parametrize("busy", [False, True])
def test_consumers_that_do_not_settle_are_not_waited_for_long(asked: Asked, busy: bool) -> None:
    """Neither those that settle nothing, nor those that settle now and then: an application may work for hours on a message."""
    producer = asked.b.client()
    producer.send(producer.sender("q"), *range(200))
    client, link = asked.consumer(accepts=False, credit=200)
    asked.ask()
    waited_s = 0.0
    while not asked.quiet:
        if busy:
            client.give(client.received[link.name].pop(0)[0], proton.Delivery.ACCEPTED)
        asked.pass_time()
        waited_s += 0.02
    assert waited_s == pytest.approx(SETTLE_S if busy else QUIET_S, abs=0.06)


def test_browsers_hold_nothing_up(asked: Asked) -> None:
    producer = asked.b.client()
    producer.send(producer.sender("q"), *range(5))
    client, link = asked.consumer(accepts=False, browse=True)
    assert len(client.bodies(link)) == 5
    asked.ask()
    asked.pass_time()
    assert asked.quiet == 1


def test_what_was_sent_before_is_committed_and_answered_and_what_comes_later_is_not_taken(asked: Asked) -> None:
    """A producer either knows that its message is stored, or sends it again to a broker that does not have it."""
    b = asked.b
    client = b.client()
    link = client.sender("q")
    b.lead.automatic = False
    client.send(link, "before")
    asked.ask()
    asked.pass_time()
    assert asked.quiet == 0, "it is not committed"
    client.send(link, "after")
    b.lead.commit()
    asked.pass_time()
    assert asked.quiet == 1
    assert b.depth("q") == 1
    b.lead.become("ready", "other:1")
    b.settle()
    assert client.lost
    assert statuses(client, link) == [ACCEPTED]


@pytest.mark.parametrize("size", [10, limits.LARGE_PARTS * 16 * 1024 + 1])
def test_what_was_rejected_has_left_its_queue_even_if_it_is_not_in_memory(size: int) -> None:
    """The rejections are settled. Without the dead letters, the next primary would give the messages out again."""
    with bench(clustered=True, default_level="all", message_memory=0, part_bytes=16 * 1024) as b:
        asked = Asked(b)
        b.queue("dead")
        b.queue("source", alternateExchange="amq.fanout")
        assert b.client(ADMIN).request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "dead", "key": ""})[0] == 201
        client = b.client()
        client.send(client.sender("source"), *(f"{n}".ljust(size) for n in range(3)))
        client.auto_accept = False
        link = client.receiver("source")
        assert len(client.bodies(link)) == 3
        asked.ask()
        b.lead.holds_reads = True
        for delivery, _ in client.received[link.name]:
            client.give(delivery, proton.Delivery.REJECTED)
        asked.pass_time(QUIET_S)
        assert asked.quiet == 0, "their bodies are being read"
        b.lead.end_reads()
        asked.pass_time()
        assert asked.quiet == 1
        assert [b.depth("source"), b.depth("dead")] == [0, 3]


def test_what_was_rejected_and_has_no_room_on_the_disk_holds_nothing_up() -> None:
    """Breaks when all clients wait half of the time for letters that cannot be written."""
    with bench(clustered=True, default_level="all") as b:
        b.queue("dead")
        client = b.client()
        assert client.request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "dead", "key": ""})[0] == 201
        asked = Asked(b, alternateExchange="amq.fanout")
        client.auto_accept = False
        client.send(client.sender("q"), "a", "b")
        b.lead.ledger.on_storage_low("the disk is nearly full", 0)
        for delivery, _ in client.received[client.receiver("q", credit=2).name]:
            client.give(delivery, proton.Delivery.REJECTED)
        b.pass_time(2)
        asked.ask()
        asked.pass_time(0.2)
        assert (asked.quiet, b.depth("q"), b.depth("dead")) == (1, 2, 0)


def test_a_disk_that_does_not_answer_holds_a_handover_up_only_for_the_time_that_was_given() -> None:
    with bench(clustered=True, default_level="all", message_memory=0) as b:
        asked = Asked(b)
        b.queue("source", alternateExchange="amq.fanout")
        client = b.client()
        client.send(client.sender("source"), "a")
        client.auto_accept = False
        link = client.receiver("source")
        asked.ask()
        b.lead.holds_reads = True
        client.give(client.received[link.name][0][0], proton.Delivery.REJECTED)
        asked.pass_time(WITHIN_S - 0.05)
        assert asked.quiet == 0
        asked.pass_time(0.1)
        assert asked.quiet == 1
        b.lead.end_reads()


def test_a_log_that_takes_too_long_gets_its_quiet_all_the_same(asked: Asked) -> None:
    """It gives a time, and calls the handover off if that was not enough."""
    client = asked.b.client()
    asked.b.lead.automatic = False
    client.send(client.sender("q"), "never committed")
    asked.ask(within_s=0.5)
    asked.pass_time(0.45)
    assert asked.quiet == 0
    asked.pass_time(0.1)
    assert asked.quiet == 1


def test_who_connects_meanwhile_waits_and_goes_on_to_the_next_primary(asked: Asked) -> None:
    asked.ask()
    late, admin = asked.b.client(), asked.b.client(ADMIN)
    asked.pass_time()
    assert not late.server.opened
    assert not late.lost
    assert admin.request("QUERY", "queue")[0] == 200
    asked.b.lead.become("ready", "other:1")
    asked.b.settle()
    assert [late.lost, admin.lost] == [True, False]


def test_when_it_is_called_off_everybody_is_served_again(asked: Asked) -> None:
    """Before clients stopped being listened to: nobody notices."""
    producer = asked.b.client()
    producer.send(producer.sender("q"), *range(5))
    client, link = asked.consumer(accepts=False, credit=3)
    asked.ask()
    late = asked.b.client()
    link.flow(2)
    asked.b.settle()
    asked.b.lead.ledger.on_resume()
    asked.pass_time(2 * QUIET_S)
    assert asked.quiet == 0, "nobody waits for it"
    assert late.server.opened
    assert client.bodies(link) == [0, 1, 2, 3, 4]


def test_clients_that_were_not_listened_to_are_cut_off_when_it_is_called_off(asked: Asked) -> None:
    """What they said is lost: they must not wait for an answer. They come again, and go on where they were."""
    client = asked.b.client()
    link = client.sender("q")
    asked.ask()
    asked.pass_time()
    assert asked.quiet == 1
    client.send(link, "unheard")
    asked.b.lead.ledger.on_resume()
    asked.b.settle()
    assert client.lost
    again = asked.b.client()
    link = again.sender("q")
    again.send(link, "heard")
    assert statuses(again, link) == [ACCEPTED]
    asked.ask()
    asked.pass_time()
    assert asked.quiet == 2, "and another handover begins anew"


def test_a_broker_that_is_primary_again_gives_out_what_there_is(asked: Asked) -> None:
    producer = asked.b.client()
    producer.send(producer.sender("q"), *range(3))
    asked.ask()
    asked.pass_time()
    for state in ("ready", "recovering", "active"):
        asked.b.lead.become(state)
    client, link = asked.consumer()
    assert client.bodies(link) == [0, 1, 2]
