"""A producer that numbers what it sends has each message on its queue once, over new connections, failovers and restarts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import proton
import pytest

from broker.core import limits
from broker.core.records import Batch, Kind
from tests.broker.clients import ACCEPTED, ADMIN, REJECTED, RELEASED, Bench, Client, bench, condition, statuses

NUMBERED = proton.symbol("qpid.numbered")
LARGE = limits.LARGE_PARTS * 16 * 1024 + 1
CLUSTER = {"clustered": True, "default_level": "all"}


def attach(client: Client, *, address: str = "q", name: str = "orders", timeout_s: int = 0, presettled: bool = False) -> Any:
    link: Any = client.session.sender(name)
    link.target.address = address
    link.target.capabilities.put_object(NUMBERED)
    link.target.timeout = timeout_s
    link.snd_settle_mode = proton.Link.SND_SETTLED if presettled else proton.Link.SND_UNSETTLED
    link.open()
    client.bench.settle()
    return link


def link_of(b: Bench, container: str = "shop", **options: Any) -> tuple[Client, Any]:
    client = b.client(container=container)
    return client, attach(client, **options)


def send(client: Client, link: Any, *numbers: int, size: int = 0, settle: bool = True) -> None:
    for number in numbers:
        link.delivery(str(number))
        link.stream(proton.Message(body=f"{number}" + "x" * size).encode())
        link.advance()
    if settle:
        client.bench.settle()


def bodies(b: Bench) -> list[str]:
    """What is on the queue, as a browser sees it."""
    client = b.client(ADMIN)
    link = client.receiver("q", browse=True, credit=10_000)
    found = [each.rstrip("x") for each in client.bodies(link)]
    client.connection.close()
    b.settle()
    return found


def held(b: Bench) -> list[list[tuple[int, int]]]:
    """The runs of all numbered links that the log remembers."""
    state = b.lead.ledger.state
    return [state.held[link.number].runs() for link in state.definitions.links.values() if link.number is not None]


def test_what_is_sent_again_over_a_link_of_the_same_name_is_accepted_and_not_there_twice() -> None:
    with bench() as b:
        b.queue("q")
        client, link = link_of(b)
        send(client, link, 1, 2, 3)
        client.lose()
        client, link = link_of(b)
        send(client, link, 2, 3, 4)
        assert statuses(client, link) == [ACCEPTED] * 3
        assert bodies(b) == ["1", "2", "3", "4"]
        assert held(b) == [[(1, 4)]]


@pytest.mark.parametrize("other", [{"container": "another"}, {"name": "another"}])
def test_links_of_other_names_and_containers_have_numbers_of_their_own(other: dict[str, str]) -> None:
    with bench() as b:
        b.queue("q")
        for options in ({}, other):
            send(*link_of(b, **options), 1, 2)
        assert bodies(b) == ["1", "2", "1", "2"]


def test_what_is_under_way_is_put_nowhere_either_and_accepted_when_it_is_committed() -> None:
    with bench() as b:
        b.queue("q")
        client, link = link_of(b)
        b.lead.automatic = False
        send(client, link, 1, 2)
        client, link = link_of(b)
        send(client, link, 1, 2, 3)
        assert statuses(client, link) == []
        while b.lead.waiting:
            b.lead.commit()
            b.settle()
        assert statuses(client, link) == [ACCEPTED] * 3
        b.lead.automatic = True
        assert bodies(b) == ["1", "2", "3"]


def test_what_was_put_and_never_committed_comes_again_in_the_next_term() -> None:
    with bench(**CLUSTER) as b:
        b.upgraded()
        b.queue("q")
        client, link = link_of(b)
        b.lead.automatic = False
        send(client, link, 1, 2)
        b.lead.become("ready", "another:1")
        b.lead.automatic = True
        b.lead.become("active")
        b.settle()
        client, link = link_of(b)
        send(client, link, 1, 2)
        assert statuses(client, link) == [ACCEPTED] * 2
        assert bodies(b) == ["1", "2"]


def test_the_next_primary_knows_what_has_come_and_says_so_in_its_answer_to_the_attach() -> None:
    with bench(**CLUSTER) as b, bench(state="ready", **CLUSTER) as other:
        b.upgraded()
        b.queue("q")
        client, link = link_of(b, timeout_s=60)
        assert link.remote_properties == {proton.symbol("qpid.held"): []}
        send(client, link, 1, 2, 3, 7)
        b.lead.replayed_into(other.lead)
        other.lead.become("active")
        other.settle()
        client, link = link_of(other, timeout_s=60)
        assert link.remote_properties == {proton.symbol("qpid.held"): [1, 3, 7, 1]}
        answered = link.remote_target
        assert (answered.durability, answered.timeout) == (proton.Terminus.DELIVERIES, 60)
        send(client, link, 3, 7, 8)
        assert bodies(other) == ["1", "2", "3", "7", "8"]


def test_each_batch_says_which_of_its_messages_are_a_links() -> None:
    with bench() as b:
        b.queue("q")
        client, link = link_of(b)
        send(client, link, *range(1, 50))
        counts = [Counter[Kind]() for _ in b.lead.committed]
        for data, count in zip(b.lead.committed, counts, strict=True):
            for run in Batch.parse(data).runs:
                count[run.kind] += run.count
        assert sum(count[Kind.HELD] for count in counts) == 49
        assert all(count[Kind.ENQUEUE] == count[Kind.HELD] for count in counts)


def test_what_was_refused_is_not_remembered_and_may_come_later() -> None:
    with bench() as b:
        b.queue("q", arguments={"qpid.max_count": 2})
        client, link = link_of(b)
        send(client, link, 1, 2, 3)
        assert sorted(statuses(client, link)) == [ACCEPTED, ACCEPTED, REJECTED]
        assert held(b) == [[(1, 2)]]
        taker = b.client()
        taker.receiver("q", credit=1)
        b.pass_time(1)
        send(client, link, 2, 3)
        assert statuses(client, link)[-2:] == [ACCEPTED] * 2
        assert held(b) == [[(1, 3)]]


def test_a_queue_that_detects_duplicates_by_their_ids_takes_numbered_messages_too() -> None:
    with bench() as b:
        b.queue("q", arguments={"x-duplicate-window": 10})
        client, link = link_of(b)
        send(client, link, 1, 2)
        send(client, link, 2, 3)
        assert bodies(b) == ["1", "2", "3"]
        assert held(b) == [[(1, 3)]]


def test_while_the_disk_is_nearly_full_what_is_not_taken_is_released_and_not_remembered() -> None:
    with bench() as b:
        b.queue("q")
        client, link = link_of(b)
        b.lead.ledger.on_storage_low("little room is left", 0)
        send(client, link, 1)
        assert statuses(client, link) == [RELEASED]
        assert held(b) == [[]]
        b.lead.ledger.on_storage_low("")
        send(client, link, 1)
        assert bodies(b) == ["1"]


@pytest.mark.parametrize("size", [0, LARGE])
def test_what_is_sent_while_the_queue_is_being_deleted_is_released_and_not_remembered(size: int) -> None:
    with bench(part_bytes=16 * 1024) as b:
        b.queue("q")
        client, link = link_of(b)
        b.begin_deletion("q", ifEmpty=True)
        send(client, link, 1, size=size)
        assert statuses(client, link) == [RELEASED]
        assert held(b) == [[]]
        b.commit_all()
        assert "q" not in b.broker.nodes.queues


def test_a_large_message_is_there_once_and_its_parts_go_when_it_comes_again() -> None:
    with bench(part_bytes=16 * 1024) as b:
        b.queue("q")
        client, link = link_of(b)
        send(client, link, 1, size=LARGE)
        parts = b.lead.ledger.state.parts.order.depth
        client.lose()
        client, link = link_of(b)
        send(client, link, 1, size=LARGE)
        send(client, link, 2)
        assert statuses(client, link) == [ACCEPTED] * 2
        assert b.depth("q") == 2
        assert b.lead.ledger.state.parts.order.depth == parts > 1


def test_a_later_link_takes_the_place_of_an_earlier_one() -> None:
    with bench() as b:
        b.queue("q")
        (first_client, first), (client, link) = link_of(b), link_of(b)
        assert condition(first) == "amqp:link:stolen"
        send(first_client, first, 1)
        send(client, link, 2)
        assert bodies(b) == ["2"]


@pytest.mark.parametrize("tag, presettled", [("x", False), ("t1", False), ("-1", False), ("9" * 19, False), ("1", True)])
def test_a_tag_that_is_no_number_ends_the_link_and_so_does_a_delivery_that_comes_settled(tag: str, presettled: bool) -> None:
    with bench() as b:
        b.queue("q")
        _, link = link_of(b, presettled=presettled)
        delivery = link.delivery(tag)
        link.stream(proton.Message(body="a").encode())
        link.advance()
        if presettled:
            delivery.settle()
        b.settle()
        assert condition(link) == "amqp:invalid-field"
        assert b.depth("q") == 0


@pytest.mark.parametrize(
    "options, name",
    [
        ({"name": "n" * 257}, "amqp:invalid-field"),
        ({"address": "x"}, "amqp:not-found"),
    ],
)
def test_an_attach_that_cannot_be_numbered_is_refused(options: dict[str, Any], name: str) -> None:
    with bench() as b:
        b.queue("q")
        assert condition(link_of(b, **options)[1]) == name


@pytest.mark.parametrize("address", ["q", "amq.topic"])
def test_who_asks_for_state_that_is_not_kept_is_told_so(address: str) -> None:
    """An older member in the cluster could not keep it; and no exchange does."""
    with bench(**CLUSTER) as b:
        if address != "q":
            b.upgraded()
        b.queue("q")
        client = b.client()
        link: Any = client.session.sender("orders")
        link.target.address = address
        link.target.durability = proton.Terminus.DELIVERIES
        link.target.expiry_policy = proton.Terminus.EXPIRE_NEVER
        link.target.capabilities.put_array(False, proton.Data.SYMBOL)
        link.target.capabilities.enter()
        for capability in ("qpid.numbered", "queue"):
            link.target.capabilities.put_symbol(proton.symbol(capability))
        link.target.capabilities.exit()
        link.open()
        b.settle()
        answered = link.remote_target
        assert (answered.durability, answered.expiry_policy) == (proton.Terminus.NONDURABLE, proton.Terminus.EXPIRE_WITH_LINK)
        answered.capabilities.rewind()
        answered.capabilities.next()
        assert [str(each) for each in answered.capabilities.get_object().elements] == ["queue"]


@pytest.mark.parametrize(
    "durability, timeout_s, kept_s",
    [
        (proton.Terminus.NONDURABLE, 0, limits.LINK_KEPT_S),
        (proton.Terminus.DELIVERIES, 0, limits.MAX_LINK_KEPT_S),
        (proton.Terminus.DELIVERIES, 7, 7),
        (proton.Terminus.NONDURABLE, 1 << 31, limits.MAX_LINK_KEPT_S),
    ],
)
def test_the_target_says_for_how_long_and_the_answer_for_how_long_it_is(durability: int, timeout_s: int, kept_s: int) -> None:
    with bench() as b:
        b.queue("q")
        link: Any = b.client().session.sender("orders")
        link.target.address = "q"
        link.target.capabilities.put_object(NUMBERED)
        link.target.durability, link.target.timeout = durability, timeout_s
        link.open()
        b.settle()
        assert link.remote_target.timeout == kept_s


def test_a_link_is_forgotten_a_time_after_it_was_there_last_and_not_before() -> None:
    with bench() as b:
        b.queue("q")
        client, link = link_of(b, timeout_s=10)
        send(client, link, 1)
        b.pass_time(20, 5)
        client.lose()
        b.pass_time(8, 4)
        client, link = link_of(b, timeout_s=10)
        send(client, link, 1)
        client.lose()
        b.pass_time(15, 5)
        assert held(b) == []
        assert b.lead.ledger.state.held == {}
        send(*link_of(b, timeout_s=10), 1)
        assert bodies(b) == ["1", "1"]


def test_a_link_that_ends_before_the_log_knows_of_it_is_forgotten_after_its_time_too() -> None:
    with bench() as b:
        b.queue("q")
        b.lead.automatic = False
        client, _ = link_of(b, timeout_s=10)
        client.lose()
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert held(b) == [[]]
        b.pass_time(8, 4)
        assert held(b) == [[]]
        b.pass_time(8, 4)
        assert held(b) == []


def test_who_comes_back_while_its_link_is_being_forgotten_begins_anew() -> None:
    with bench() as b:
        b.queue("q")
        client, link = link_of(b, timeout_s=10)
        send(client, link, 1)
        client.lose()
        b.lead.automatic = False
        b.pass_time(11, 11)
        client, link = link_of(b, timeout_s=10)
        assert link.credit == 0
        while b.lead.waiting:
            b.lead.commit()
            b.settle()
        b.lead.automatic = True
        send(client, link, 2)
        send(client, link, 2)
        assert held(b) == [[(2, 1)]]
        assert bodies(b) == ["1", "2"]


def test_a_new_primary_gives_each_link_its_whole_time_to_come_back() -> None:
    with bench(**CLUSTER) as b:
        b.upgraded()
        b.queue("q")
        client, link = link_of(b, timeout_s=10)
        send(client, link, 1)
        for _ in range(3):
            b.lead.become("ready", "another:1")
            b.lead.become("active")
            b.settle()
            b.pass_time(6, 3)
        assert held(b) == [[(1, 1)]]
        b.pass_time(6, 3)
        assert held(b) == []


def test_what_is_remembered_goes_with_the_queue() -> None:
    with bench() as b:
        b.queue("q")
        client, link = link_of(b)
        send(client, link, 1)
        assert client.request("DELETE", "queue", "q", {"force": True})[0] == 204
        assert condition(link) == "amqp:resource-deleted"
        assert (b.lead.ledger.state.held, b.broker.numbered.attached) == ({}, {})
        b.queue("q")
        send(*link_of(b), 1)
        assert bodies(b) == ["1"]


def test_gaps_between_numbers_have_a_bound_and_filling_them_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as b:
        b.queue("q")
        monkeypatch.setattr(limits, "MAX_LINK_RUNS", 3)
        client, link = link_of(b)
        for number in (1, 3, 5):
            send(client, link, number)
        client.lose()
        client, link = link_of(b)
        send(client, link, 7)
        assert condition(link) == "amqp:resource-limit-exceeded"
        assert bodies(b) == ["1", "3", "5"]
        monkeypatch.setattr(limits, "MAX_LINK_RUNS", 4)
        client, link = link_of(b)
        send(client, link, 2)
        monkeypatch.setattr(limits, "MAX_LINK_RUNS", 3)
        send(client, link, 7)
        assert (condition(link), bodies(b)) == ("", ["1", "3", "5", "2", "7"])


def test_so_many_links_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as b:
        b.queue("q")
        monkeypatch.setattr(limits, "MAX_NUMBERED_LINKS", 2)
        links = [link_of(b, container=each)[1] for each in "abc"]
        assert [condition(link) for link in links] == ["", "", "amqp:resource-limit-exceeded"]
        assert [link.credit > 0 for link in links] == [True, True, False]
