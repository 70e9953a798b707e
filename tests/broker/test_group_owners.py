"""Consumers that own groups of messages, over lost connections, ended links, failovers and restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import proton
import pytest

from broker.amqp.data import Condition
from broker.core import limits
from broker.core.nodes import LOCAL
from broker.core.queues.owned import Owned
from broker.core.records import Batch, Kind
from broker.sessions import due
from tests.broker.clients import ADMIN, Bench, Client, MemoryLog, bench, condition
from tests.broker.test_dead_letters import letters_of
from tests.broker.test_deferring import DELAY, defer
from tests.broker.test_departure import ask, leave, source
from tests.broker.test_groups import send

OWNED = {"qpid.group_header_key": "g", "qpid.group_owner_timeout": 10}
CLUSTER = {"clustered": True, "default_level": "all"}


def consumer(
    b: Bench, name: str = "one", *, container: str = "shop", credit: int = 100, address: str = "q"
) -> tuple[Client, Any]:
    client = b.client(container=container)
    client.auto_accept = False
    return client, client.receiver(address, credit=credit, name=name)


def accept_all(client: Client, link: Any) -> None:
    for delivery, _ in client.received[link.name]:
        if not delivery.settled:
            client.give(delivery, proton.Delivery.ACCEPTED)
    client.bench.pass_time(1)


def records(b: Bench, log: str = "") -> list[tuple[int, bool]]:
    """The records about owners: how many groups, and whether they are given (or freed)."""
    committed = (b.logs[log] if log else b.lead).committed
    runs = [(batch, run) for data in committed for batch in [Batch.parse(data)] for run in batch.runs]
    return [(run.count, run.nbytes > 16 * run.count) for _, run in runs if run.kind is Kind.OWNERS]


def owners(b: Bench, name: str = "q") -> list[str]:
    messages = b.broker.nodes.queues[name].messages
    assert messages is not None
    assert isinstance(messages.order, Owned)
    return sorted(owner.link for owner in messages.order.owners)


def lose(client: Client, link: Any) -> None:
    client.lose()


def detach(client: Client, link: Any) -> None:
    link.detach()


def close(client: Client, link: Any) -> None:
    link.close()


def end(client: Client, link: Any) -> None:
    client.session.close()


def close_connection(client: Client, link: Any) -> None:
    client.connection.close()


Way = Callable[[Client, Any], None]


def test_the_owner_of_a_group_that_has_lost_its_connection_goes_on_with_it_and_nobody_else() -> None:
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1", "a2", "b1")
        client, link = consumer(b, credit=1)
        assert client.bodies(link) == ["a1"]
        client.lose()
        other, taking = consumer(b, "two")
        assert other.bodies(taking) == ["b1"]
        b.pass_time(9)
        assert other.bodies(taking) == ["b1"]
        client, link = consumer(b)
        assert client.bodies(link) == ["a1", "a2"]
        accept_all(client, link)
        b.pass_time(20)
        send(b.client(), "a3", "b2")
        assert (client.bodies(link), other.bodies(taking)) == (["a1", "a2", "a3"], ["b1", "b2"])


@pytest.mark.parametrize("way", [lose, detach])
def test_an_owner_that_does_not_come_back_in_time_loses_its_groups(way: Way) -> None:
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1", "a2")
        client, link = consumer(b)
        way(client, link)
        b.settle()
        other, taking = consumer(b, "two")
        b.pass_time(9)
        assert other.bodies(taking) == []
        b.pass_time(2)
        assert other.bodies(taking) == ["a1", "a2"]
        client, link = consumer(b)
        assert client.bodies(link) == []
        assert owners(b) == ["two"]


@pytest.mark.parametrize("way", [close, end, close_connection])
def test_the_groups_of_a_consumer_that_leaves_in_order_are_free_at_once(way: Way) -> None:
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1", "a2")
        client, link = consumer(b)
        other, taking = consumer(b, "two")
        assert (client.bodies(link), other.bodies(taking)) == (["a1", "a2"], [])
        way(client, link)
        b.settle()
        assert other.bodies(taking) == ["a1", "a2"]
        assert records(b) == [(1, True), (1, False), (1, True)]


def test_the_next_primary_keeps_each_group_for_its_owner_for_the_full_time() -> None:
    with bench(**CLUSTER) as b, bench(state="ready", **CLUSTER) as third:
        b.upgraded()
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1", "b1", "c1", "a2", "b2", "c2")
        links = [consumer(b, name, credit=1) for name in ("one", "two", "three")]
        assert [client.bodies(link) for client, link in links] == [["a1"], ["b1"], ["c1"]]
        b.lead.replayed_into(third.lead)
        third.lead.become("active")
        third.settle()
        first, taking = consumer(third, "four")
        assert first.bodies(taking) == []
        client, link = consumer(third, "two")
        assert client.bodies(link) == ["b1", "b2"]
        third.pass_time(9)
        other, back = consumer(third, "one")
        assert (other.bodies(back), first.bodies(taking)) == (["a1", "a2"], [])
        third.pass_time(2)
        assert first.bodies(taking) == ["c1", "c2"], "its owner has not come"


def test_a_message_goes_out_when_it_is_committed_whose_its_group_is_and_not_before() -> None:
    """Breaks when a failover can give a group to another consumer while the first one has messages of it."""
    with bench(**CLUSTER) as b:
        b.upgraded()
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1", "a2")
        b.lead.automatic = False
        client, link = consumer(b)
        assert client.bodies(link) == []
        b.commit_all()
        b.settle()
        assert client.bodies(link) == ["a1", "a2"]


def test_what_was_proposed_in_a_term_that_has_ended_gives_nobody_a_group() -> None:
    with bench(**CLUSTER) as b:
        b.upgraded()
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1", "b1")
        client, link = consumer(b, credit=1)
        assert client.bodies(link) == ["a1"]
        b.lead.automatic = False
        consumer(b, "two")
        client.connection.close()
        b.settle()
        b.lead.become("ready", "another:1")
        b.lead.automatic = True
        b.lead.become("active")
        b.settle()
        other, taking = consumer(b, "three")
        assert other.bodies(taking) == ["b1"], "the first is one's still, and the second is free"
        client, link = consumer(b)
        assert client.bodies(link) == ["a1"]


@contextmanager
def local(level: str) -> Iterator[tuple[Bench, MemoryLog]]:
    """A primary with two messages of a group on a queue whose messages are in its own log, and this log."""
    with bench(clustered=True) as b:
        b.upgraded()
        b.queue("q", replicate=level, arguments=OWNED)
        send(b.client(), "a1", "a2")
        yield b, b.logs[LOCAL]


def elected_again(b: Bench) -> None:
    """The primary loses its office, and is elected again."""
    b.lead.become("ready", "another:1")
    b.lead.become("active")
    b.settle()


def commit_all(b: Bench, log: MemoryLog) -> None:
    """As `Bench.commit_all`, for a log that does not lead."""
    while log.waiting:
        log.commit(1)
        b.settle()
    log.automatic = True


@pytest.mark.parametrize("level", ["none", "configuration"])
def test_a_group_is_not_asked_for_twice_when_an_election_ends_before_the_queue_s_own_log_commits(level: str) -> None:
    """Breaks when a second record takes the group from the consumer that has messages of it."""
    with local(level) as (b, log):
        log.automatic = False
        consumer(b, credit=1)
        elected_again(b)
        other, taking = consumer(b, "two")
        commit_all(b, log)
        assert (owners(b), other.bodies(taking)) == (["one"], [])
        client, link = consumer(b, credit=1)
        assert (client.bodies(link), other.bodies(taking)) == (["a1"], [])
        client.lose()
        b.pass_time(11)
        assert other.bodies(taking) == ["a1", "a2"]
        assert records(b, LOCAL) == [(1, True), (1, False), (1, True)]


def test_an_owner_that_has_its_group_only_after_the_election_is_waited_for_and_not_for_ever() -> None:
    with local("none") as (b, log):
        log.automatic = False
        consumer(b)
        elected_again(b)
        other, taking = consumer(b, "two")
        commit_all(b, log)
        b.pass_time(9)
        assert other.bodies(taking) == []
        b.pass_time(2)
        assert other.bodies(taking) == ["a1", "a2"]


def test_a_group_that_becomes_free_during_an_election_goes_to_nobody_before_its_own_log_commits() -> None:
    """Breaks when the former owner gets a message of a group that is nobody's a moment later."""
    with local("none") as (b, log):
        client, link = consumer(b, credit=1)
        assert client.bodies(link) == ["a1"]
        log.automatic = False
        link.close()
        b.settle()
        elected_again(b)
        client, link = consumer(b)
        assert client.bodies(link) == []
        commit_all(b, log)
        assert client.bodies(link) == ["a1", "a2"]
        assert records(b, LOCAL) == [(1, True), (1, False), (1, True)]


def test_the_groups_of_owners_that_leave_become_free_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when an owner of 100,000 groups holds up the broker twice: when it leaves, and when that is applied."""
    monkeypatch.setattr(limits, "GROUPS_FREED_AT_ONCE", 2)
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1", "b1", "c1", "d1", "e1")
        client, _ = consumer(b, credit=3)
        client.receiver("q", name="three")
        other, taking = consumer(b, "two")
        assert owners(b) == ["one", "three"]
        b.lead.automatic = False
        client.connection.close()
        b.settle()
        assert len(b.lead.waiting) == 1, "the rest waits for its commit"
        b.commit_all()
        b.settle()
        assert other.bodies(taking) == ["a1", "b1", "c1", "d1", "e1"]
        assert [count for count, given in records(b) if not given] == [2, 2, 1]


def test_an_owner_that_comes_back_while_the_first_of_its_groups_become_free_keeps_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "GROUPS_FREED_AT_ONCE", 1)
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1", "b1")
        client, link = consumer(b)
        b.lead.automatic = False
        link.close()
        b.settle()
        again = client.receiver("q", name="one")
        assert client.bodies(again) == ["b1"]
        b.commit_all()
        b.settle()
        assert client.bodies(again) == ["b1", "a1"]
        client.lose()
        b.pass_time(9)
        assert owners(b) == ["one"]
        b.pass_time(2)
        assert owners(b) == []


def test_an_election_while_groups_become_free_in_pieces_gives_the_owner_its_time_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "GROUPS_FREED_AT_ONCE", 1)
    with bench(**CLUSTER) as b:
        b.upgraded()
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1", "b1", "c1")
        _, link = consumer(b)
        b.lead.automatic = False
        link.close()
        b.settle()
        b.lead.commit(1)
        b.lead.automatic = True
        elected_again(b)
        other, taking = consumer(b, "two")
        b.pass_time(9)
        assert other.bodies(taking) == ["a1"]
        b.pass_time(2)
        assert other.bodies(taking) == ["a1", "b1", "c1"]


def test_a_connection_that_is_lost_while_it_waits_for_a_group_has_it_afterwards() -> None:
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1")
        b.lead.automatic = False
        client, _ = consumer(b)
        client.lose()
        other, taking = consumer(b, "two")
        b.commit_all()
        b.settle()
        assert other.bodies(taking) == []
        client, link = consumer(b)
        assert client.bodies(link) == ["a1"]
        client.lose()
        b.pass_time(11)
        assert other.bodies(taking) == ["a1"]


def test_an_owner_that_comes_back_while_its_groups_become_free_begins_again() -> None:
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1")
        client, link = consumer(b)
        b.lead.automatic = False
        link.close()
        b.settle()
        again = client.receiver("q", name="one")
        assert client.bodies(again) == []
        b.commit_all()
        b.settle()
        assert client.bodies(again) == ["a1"]
        assert records(b) == [(1, True), (1, False), (1, True)]


def test_a_second_link_of_an_owner_ends_the_first_and_goes_on_with_its_groups() -> None:
    with bench() as b:
        b.queue("q", arguments=OWNED, exclusive=True)
        send(b.client(), "a1", "a2")
        client, link = consumer(b, credit=1)
        assert client.bodies(link) == ["a1"]
        later, taking = consumer(b)
        assert condition(link) == "amqp:link:stolen"
        assert later.bodies(taking) == ["a1", "a2"]
        b.pass_time(20)
        assert owners(b) == ["one"]
        assert records(b) == [(1, True)]
        _, refused = consumer(b, "two")
        assert condition(refused) == "amqp:resource-locked"


def test_an_owner_comes_back_to_a_full_queue_while_its_old_connection_is_not_known_to_be_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_CONSUMERS_PER_QUEUE", 1)
    with bench() as b:
        b.queue("q", arguments=OWNED)
        _, link = consumer(b)
        _, again = consumer(b)
        assert (condition(link), condition(again)) == ("amqp:link:stolen", "")
        _, other = consumer(b, "two")
        assert condition(other) == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize("other", [{"container": "another"}, {"name": "another"}])
def test_links_of_other_names_and_containers_are_other_owners(other: dict[str, Any]) -> None:
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1")
        consumer(b)
        client, link = consumer(b, **other)
        assert client.bodies(link) == []


def test_a_sending_link_of_the_same_name_is_no_owner() -> None:
    with bench() as b:
        b.queue("q", arguments=OWNED)
        _, link = consumer(b)
        producer = b.client(container="shop").sender("q", name="one")
        assert condition(producer) == condition(link) == ""


@pytest.mark.parametrize(
    "names, text",
    [
        ({"container": ""}, "need a container id"),
        ({"container": "c" * 257}, "256 characters each"),
        ({"name": "n" * 257}, "256 characters each"),
    ],
)
def test_a_consumer_that_could_not_be_recognised_is_refused_with_a_reason(names: dict[str, Any], text: str) -> None:
    with bench() as b:
        b.queue("q", arguments=OWNED)
        b.queue("plain", arguments={"qpid.group_header_key": "g"})
        _, link = consumer(b, **names)
        assert condition(link) == "amqp:invalid-field"
        assert text in link.remote_condition.description
        _, link = consumer(b, address="plain", **names)
        assert condition(link) == ""


def test_a_browser_needs_no_name_and_sees_all_groups() -> None:
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1", "b1")
        consumer(b)
        client = b.client(container="")
        assert client.bodies(client.receiver("q", browse=True)) == ["a1", "b1"]


def test_a_queue_has_so_many_owners_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_OWNERS", 1)
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1")
        client, _ = consumer(b)
        _, refused = consumer(b, "two")
        assert condition(refused) == "amqp:resource-limit-exceeded"
        client.lose()
        client, link = consumer(b)
        assert client.bodies(link) == ["a1"]


def test_an_order_number_can_be_the_group_because_groups_without_messages_become_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_GROUP_OWNERS", 3)
    with bench() as b:
        b.queue("q", arguments=OWNED)
        client, link = consumer(b)
        producer = b.client()
        for number in range(10):
            send(producer, f"{number}x", f"{number}y")
            accept_all(client, link)
        assert len(client.bodies(link)) == 20
        messages = b.broker.nodes.queues["q"].messages
        assert messages is not None
        assert isinstance(messages.order, Owned)
        assert len(messages.order.owner_of) <= 3


def test_a_consumer_gets_the_place_of_a_group_whose_last_message_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_GROUP_OWNERS", 1)
    with bench() as b:
        b.queue("q", arguments=OWNED)
        client, link = consumer(b, credit=1)
        producer = b.client()
        send(producer, "a1")
        producer.send(producer.sender("q"), "a2", properties={"g": "a"}, ttl=3.0)
        accept_all(client, link)
        send(producer, "b1")
        other, taking = consumer(b, "two")
        b.pass_time(1)
        assert other.bodies(taking) == []
        b.pass_time(5)
        assert other.bodies(taking) == ["b1"]


def test_a_consumer_that_drains_its_credit_gets_the_message_whose_group_is_given_to_it_meanwhile() -> None:
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1")
        client, link = consumer(b, credit=0)
        b.lead.automatic = False
        link.drain(5)
        b.settle()
        assert (client.bodies(link), link.credit) == ([], 5)
        b.commit_all()
        b.settle()
        assert (client.bodies(link), link.credit, link.drained()) == (["a1"], 0, 4)


def test_a_consumer_that_drains_its_credit_gets_the_message_whose_group_becomes_free_meanwhile() -> None:
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1")
        _, link = consumer(b)
        other, taking = consumer(b, "two", credit=0)
        b.lead.automatic = False
        link.close()
        taking.drain(5)
        b.settle()
        assert (other.bodies(taking), taking.credit) == ([], 5)
        b.lead.automatic = True
        b.commit_all()
        b.settle()
        assert (other.bodies(taking), taking.credit, taking.drained()) == (["a1"], 0, 4)


def test_a_consumer_that_drains_its_credit_waits_for_all_groups_that_become_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUPS_FREED_AT_ONCE", 1)
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1", "b1", "c1")
        _, link = consumer(b)
        other, taking = consumer(b, "two", credit=0)
        b.lead.automatic = False
        link.close()
        taking.drain(5)
        b.settle()
        b.commit_all()
        b.settle()
        assert (other.bodies(taking), taking.credit, taking.drained()) == (["a1", "b1", "c1"], 0, 2)


def test_a_consumer_that_drains_its_credit_gets_the_message_for_whose_group_others_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_GROUP_OWNERS", 1)
    with bench() as b:
        b.queue("q", arguments=OWNED)
        client, link = consumer(b, credit=0)
        send(b.client(), "a1", "b1")
        for _ in range(2):
            link.drain(1)
            b.settle()
            accept_all(client, link)
        assert client.bodies(link) == ["a1", "b1"]


def test_a_queue_without_the_argument_has_no_records_and_a_deleted_one_no_owners() -> None:
    with bench() as b:
        b.queue("plain", arguments={"qpid.group_header_key": "g"})
        send(b.client(), "a1", queue="plain")
        consumer(b, address="plain")
        assert records(b) == []
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1")
        client, _ = consumer(b)
        client.lose()
        admin = b.client(ADMIN)
        assert admin.request("DELETE", "queue", "q")[0] == 204
        b.queue("q", arguments=OWNED)
        send(b.client(), "a2")
        other, taking = consumer(b, "two")
        assert other.bodies(taking) == ["a2"]
        b.pass_time(11)
        assert owners(b) == ["two"]
        assert records(b) == [(1, True)] * 2, "nobody waits for the owner of a deleted queue"


def test_a_released_message_and_one_that_failed_go_to_the_owner_again_before_later_ones() -> None:
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1", "a2")
        client, link = consumer(b, credit=1)
        consumer(b, "two")
        client.give(client.received["one"][0][0], proton.Delivery.RELEASED)
        link.flow(1)
        b.settle()
        client.give(client.received["one"][1][0], proton.Delivery.MODIFIED, failed=True)
        link.flow(2)
        b.settle()
        assert client.bodies(link) == ["a1", "a1", "a1", "a2"]


def test_the_groups_of_a_link_that_the_broker_ends_wait_for_their_owner() -> None:
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1")
        client, _ = consumer(b)
        (subscription,) = b.broker.queues.at(b.broker.nodes.queues["q"]).subscriptions
        subscription.end_link(Condition("amqp:resource-limit-exceeded", "it is slow"))
        b.settle()
        other, taking = consumer(b, "two")
        assert other.bodies(taking) == []
        assert client.bodies(client.receiver("q", name="one")) == ["a1"]


def test_a_drain_takes_the_messages_of_all_groups_and_after_it_is_called_off_they_have_their_owners() -> None:
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send(b.client(), "a1", "b1", "a2")
        client, link = consumer(b)
        assert client.bodies(link) == ["a1", "b1", "a2"]
        drain = leave(b)["drain"]
        drainer = b.client(ADMIN)
        drainer.auto_accept = False
        taking = drainer.receiver(source(b), name="the drain's")
        assert drainer.bodies(taking) == ["a1", "b1", "a2"]
        b.pass_time(11)
        for operation in ("HALT", "REOPEN"):
            status, text, _ = ask(b, operation, drain=drain)
            assert status == 200, text
        other, others = consumer(b, "two")
        assert other.bodies(others) == []
        client, link = consumer(b)
        assert client.bodies(link) == ["a1", "b1", "a2"]
        client.lose()
        b.pass_time(11)
        assert other.bodies(others) == ["a1", "b1", "a2"]


def send_late(client: Client, *bodies: str, delay_s: float = 5.0) -> None:
    """As `send`, to be delivered only then."""
    producer = client.sender("q")
    for body in bodies:
        client.send(producer, body, properties={"g": body[0]}, annotations={DELAY: int(delay_s * 1000)})


@pytest.mark.parametrize("drains", [False, True])
def test_a_group_is_given_to_a_consumer_that_asks_when_its_message_is_due_and_to_nobody_before(drains: bool) -> None:
    """Breaks when a delayed message waits, when it is due, for a consumer that happened to ask before and asks no more."""
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send_late(b.client(), "a1", "b1")
        send(b.client(), "b2")
        client, link = consumer(b, credit=0 if drains else 1)
        if drains:
            link.drain(1)
            b.settle()
        assert (client.bodies(link), link.credit) == (["b2"], 0)
        if not drains:
            link.flow(1)
        b.settle()
        assert records(b) == [(1, True)]
        link.drain(0)
        other, taking = consumer(b, "two")
        b.pass_time(6)
        assert other.bodies(taking) == ["a1"]
        link.flow(1)
        b.settle()
        assert client.bodies(link) == ["b2", "b1"]


def test_the_next_primary_gives_no_group_of_which_all_messages_are_delayed() -> None:
    with bench(**CLUSTER) as b, bench(state="ready", **CLUSTER) as third:
        b.upgraded()
        b.queue("q", arguments=OWNED)
        send_late(b.client(), "a1")
        consumer(b)
        b.lead.replayed_into(third.lead)
        third.lead.become("active")
        third.settle()
        consumer(third)
        assert (records(b), owners(third)) == ([], [])
        client, link = consumer(third, "two")
        third.broker.queues.at(third.broker.nodes.queues["q"]).subscriptions[0].end_link(Condition("amqp:internal-error", ""))
        third.pass_time(6)
        assert client.bodies(link) == ["a1"]


@pytest.mark.parametrize("asks_to_wait", [False, True])
def test_a_group_whose_messages_wait_to_be_delivered_again_stays_with_its_owner_until_that_leaves(asks_to_wait: bool) -> None:
    with bench() as b:
        b.queue("q", arguments=OWNED | ({} if asks_to_wait else {"x-delayed-retry-min": 5000}))
        send(b.client(), "a1")
        client, link = consumer(b)
        other, taking = consumer(b, "two")
        defer(client, link, {DELAY: 5000} if asks_to_wait else {}, failed=True)
        b.pass_time(6)
        assert (client.bodies(link), other.bodies(taking)) == (["a1", "a1"], [])
        defer(client, link, {DELAY: 5000} if asks_to_wait else {}, failed=True)
        link.close()
        b.settle()
        assert owners(b) == [], "nothing is due of which it could be the owner"
        send_late(b.client(), "a2", delay_s=20.0)
        b.pass_time(11)
        assert (owners(b), other.bodies(taking)) == (["two"], ["a1"])


def test_a_group_whose_message_has_expired_and_cannot_leave_is_given_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is nearly full, and so many expired messages wait that a dispatch is the first to meet the next one."""
    monkeypatch.setattr(due, "MOST", 1)
    with bench() as b:
        letters_of(b, arguments=OWNED)
        producer = b.client()
        link = producer.sender("q")
        for at, body in enumerate(("z1", "a1"), 1):
            producer.send(link, body, properties={"g": body[0]}, ttl=at)
        b.lead.ledger.on_storage_low("the disk is nearly full", 0)
        b.pass_time(3)
        client, taking = consumer(b, credit=0)
        taking.drain(9)
        b.settle()
        assert (client.bodies(taking), taking.credit, records(b)) == ([], 0, [])
        b.lead.ledger.on_storage_low("")
        send(b.client(), "a2")
        other, taking = consumer(b, "two")
        b.pass_time(2)
        assert (other.bodies(taking), records(b)) == (["a2"], [(1, True)])


def test_many_delayed_messages_of_groups_are_passed_over_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_HELD_BACK", 4)
    with bench() as b:
        b.queue("q", arguments=OWNED)
        send_late(b.client(), *(f"{letter}1" for letter in "abcdefghijklmnopq"))
        send(b.client(), "z1")
        client, link = consumer(b, credit=0)
        link.drain(2)
        b.settle()
        assert (client.bodies(link), link.credit, records(b)) == (["z1"], 0, [(1, True)])
