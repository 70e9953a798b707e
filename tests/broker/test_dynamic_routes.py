"""Dynamic routes: a source gives what the bindings of the destination want, and whatever the bindings there want in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import proton
import pytest
from twisted.internet.task import Clock

from broker.core import limits
from broker.core.commands import ExchangeAdd, MachineVersion
from broker.core.exchange import PATHS
from broker.core.routes import IDLE_LOOKS
from broker.routes.following import Following
from tests.broker.clients import ADMIN, condition
from tests.broker.route_bench import Network, network
from tests.broker.test_routes import log_lines


@pytest.fixture
def net() -> Iterator[Network]:
    """`a` and `b`, which has the queue `in`."""
    with network() as made:
        made.add("a")
        made.add("b").queue("in")
        yield made


def bind(net: Network, at: str, key: str, queue: str = "in", exchange: str = "amq.topic", **more: Any) -> None:
    status, text, _ = net.ask(at, "CREATE", "binding", exchange=exchange, queue=queue, key=key, **more)
    assert status == 201, text


def unbind(net: Network, at: str, key: str, queue: str = "in", exchange: str = "amq.topic") -> None:
    assert net.ask(at, "DELETE", "binding", exchange=exchange, queue=queue, key=key)[0] == 204


def route(net: Network, at: str, source: str, exchange: str = "amq.topic", **more: Any) -> None:
    net.route(at, source, exchange, "", "dynamic", **more)


def bindings(net: Network, at: str, exchange: str = "amq.topic") -> dict[str, list[list[str]]]:
    """Key -> paths, of the bindings of routes there."""
    found = net.ask(at, "QUERY", "binding", exchange=exchange)[2]["items"]
    return {item["key"]: item["arguments"][PATHS] for item in found if item["queue"].startswith("qpid-route.")}


def queues(net: Network, at: str) -> list[str]:
    return [item["name"] for item in net.ask(at, "QUERY", "queue")[2]["items"] if item["name"].startswith("qpid-route.")]


def test_what_is_bound_after_the_route_was_made_comes_until_it_is_unbound(net: Network) -> None:
    route(net, "b", "a")
    assert bindings(net, "a") == {}
    net.send("a", "amq.topic", "early", subject="news.1")
    bind(net, "b", "news.*")
    assert bindings(net, "a") == {"news.*": [["b"]]}
    net.send("a", "amq.topic", "one", subject="news.1")
    net.send("a", "amq.topic", "other", subject="sport.1")
    assert net.bodies("b", "in") == ["one"]
    assert (net.item("b")["bindings"], net.item("b")["lastError"], net.item("b")["state"]) == (1, "", "Operational")
    net.brokers["b"].queue("second")
    bind(net, "b", "news.*", "second")
    unbind(net, "b", "news.*")
    assert bindings(net, "a") == {"news.*": [["b"]]}, "another queue wants it still"
    net.ask("b", "DELETE", "queue", "second")
    assert bindings(net, "a") == {}
    net.send("a", "amq.topic", "late", subject="news.1")
    assert (net.bodies("b", "in"), net.item("b")["bindings"], net.item("b")["taken"]) == (["one"], 0, 1)


def test_the_bindings_that_are_there_before_the_route_are_made_and_a_change_costs_one_request(net: Network) -> None:
    for number in range(40):
        bind(net, "b", f"k{number}")
    with log_lines("audit") as lines:
        route(net, "b", "a")
        net.pass_time(1)
        assert len(bindings(net, "a")) == 40
        before = len(lines)
        bind(net, "b", "more")
    assert len(bindings(net, "a")) == 41
    assert [line.partition("audit: ")[2].split()[3] for line in lines[before:]] == ["bind", "bind"], "one here and one there"


class Turns(Clock):
    """Does what is put off in a turn in the next one: `Clock` itself does it in the same."""

    def callLater(self, delay: float, *args: Any, **named: Any) -> Any:  # noqa: N802
        return super().callLater(delay + 1, *args, **named)

    def turn(self) -> None:
        self.advance(1)


def test_the_bindings_that_are_there_are_read_in_pieces_and_what_changes_meanwhile_is_in_the_interest(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when the start of a route reads an exchange of 100,000 bindings in one turn, which takes a second."""
    monkeypatch.setattr(limits, "BINDINGS_READ", 10)
    for number in range(35):
        bind(net, "b", f"k{number}")
    clock, told, begun = Turns(), list[str](), list[str]()
    following = Following(clock, net.brokers["b"].broker.logs, lambda name, keys: told.extend(keys), begun.append)
    monkeypatch.setattr(net.brokers["b"].broker.routes, "_following", following)
    interest = following.join("amq.topic")
    for _ in range(3):
        clock.turn()
        assert (list(interest), begun, following.is_complete("amq.topic")) == ([], [], False)
    for key in ("k1", "k34"):
        unbind(net, "b", key)
    bind(net, "b", "new")
    assert following.join("amq.topic") is interest, "another route waits too"
    clock.turn()
    assert (begun, told, following.is_complete("amq.topic")) == (["amq.topic"], [], True)
    assert sorted(interest) == sorted([f"k{number}" for number in range(35) if number not in (1, 34)] + ["new"])
    unbind(net, "b", "k2")
    clock.turn()
    assert (told, "k2" in interest) == (["k2"], False)
    for _ in range(2):
        following.leave("amq.topic")
    following.join("amq.topic")
    following.leave("amq.topic")
    for _ in range(9):
        clock.turn()
    assert begun == ["amq.topic"], "the last route has left while they were read"


def test_an_exchange_that_goes_while_its_bindings_are_read_wants_nothing(net: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BINDINGS_READ", 1)
    for at in "ab":
        net.ask(at, "CREATE", "exchange", "news", exchangeType="topic")
    for number in range(3):
        bind(net, "b", f"k{number}", exchange="news")
    clock, told, begun = Turns(), list[str](), list[str]()
    following = Following(clock, net.brokers["b"].broker.logs, lambda name, keys: told.extend(keys), begun.append)
    monkeypatch.setattr(net.brokers["b"].broker.routes, "_following", following)
    interest = following.join("news")
    clock.turn()
    net.ask("b", "DELETE", "exchange", "news")
    clock.turn()
    assert (begun, list(interest), interest.kind) == (["news"], [], "")
    net.ask("b", "CREATE", "exchange", "news", exchangeType="direct")
    bind(net, "b", "k", exchange="news")
    assert (list(interest), told) == ([], []), "the one before is in force until the next one is complete"
    for _ in range(3):
        clock.turn()
    assert (list(interest), interest.kind, told, begun) == (["k"], "direct", ["k"], ["news"])


def test_routes_are_told_in_pieces_of_the_keys_of_another_exchange_and_of_changes_after_these(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when one turn tells of 200,000 keys, because an exchange with 100,000 bindings has replaced another such one."""
    for number in range(8):
        bind(net, "b", f"k{number}")
    clock, told = Turns(), list[list[str]]()
    following = Following(clock, net.brokers["b"].broker.logs, lambda name, keys: told.append([name, *keys]), lambda name: None)
    monkeypatch.setattr(net.brokers["b"].broker.routes, "_following", following)
    interest = following.join("amq.topic")
    clock.turn()
    monkeypatch.setattr(limits, "BINDINGS_READ", 5)
    following._read("amq.topic")
    for _ in range(2):
        clock.turn()
    bind(net, "b", "new")
    unbind(net, "b", "k0")
    for _ in range(5):
        clock.turn()
    assert [len(each) for each in told] == [6, 6, 6, 4]
    assert {each[0] for each in told} == {"amq.topic"}
    assert {key for _, *keys in told for key in keys} == {"k0", *interest}
    assert told[-1][-2:] == ["new", "k0"]
    assert not following._touched


def test_a_route_waits_until_all_bindings_are_read_and_takes_none_away_from_its_source(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a route compares its source with a part of the bindings: it would take the others away for a while."""
    monkeypatch.setattr(limits, "BINDINGS_READ", 3)
    for number in range(20):
        bind(net, "b", f"k{number}")
    route(net, "b", "a")
    assert len(bindings(net, "a")) == 20
    routes, clock = net.brokers["b"].broker.routes, Turns()
    monkeypatch.setattr(routes, "_following", Following(clock, routes.logs, routes._touched, routes._complete))
    with log_lines("audit") as lines:
        routes.pause()
        routes.begin()
        clock.turn()
        net.pass_time(1)
        assert net.item("b")["state"] == "Waiting"
        for _ in range(6):
            clock.turn()
        net.pass_time(1)
    assert (net.item("b")["state"], len(bindings(net, "a"))) == ("Operational", 20)
    assert [line for line in lines if " bind " in line or " unbind " in line] == []


def test_a_client_that_subscribes_is_given_what_comes_from_afar_until_it_goes(net: Network) -> None:
    route(net, "b", "a")
    client = net.brokers["b"].client()
    link = client.receiver("amq.topic/news")
    net.settle()
    net.send("a", "amq.topic", "one", subject="news")
    assert (client.bodies(link), list(bindings(net, "a"))) == (["one"], ["news"])
    client.connection.close()
    net.settle()
    assert bindings(net, "a") == {}


def test_bindings_of_every_level_of_a_cluster_are_followed(net: Network) -> None:
    cluster = net.add("p", clustered=True, default_level="all")
    route(net, "p", "a", "amq.direct")
    for level in ("all", "configuration", "none"):
        cluster.queue(level, replicate=level)
        bind(net, "p", level, level, "amq.direct")
    assert sorted(bindings(net, "a", "amq.direct")) == ["all", "configuration", "none"]
    for level in ("all", "configuration", "none"):
        net.send("a", "amq.direct", level, subject=level)
        assert net.bodies("p", level) == [level]
        net.ask("p", "DELETE", "queue", level)
    net.pass_time(1)
    assert bindings(net, "a", "amq.direct") == {}


def test_a_fanout_exchange_has_one_binding_and_a_headers_exchange_one_for_each_set_of_arguments(net: Network) -> None:
    for exchange in ("amq.fanout", "amq.match"):
        route(net, "b", "a", exchange)
    net.brokers["b"].queue("red")
    bind(net, "b", "one", "in", "amq.fanout")
    bind(net, "b", "two", "red", "amq.fanout")
    assert bindings(net, "a", "amq.fanout") == {"": [["b"]]}
    net.send("a", "amq.fanout", "all")
    assert (net.bodies("b", "in"), net.bodies("b", "red")) == (["all"], ["all"])
    unbind(net, "b", "one", "in", "amq.fanout")
    assert bindings(net, "a", "amq.fanout") == {"": [["b"]]}
    bind(net, "b", "k", "in", "amq.match", arguments={"x-match": "any", "n": 1})
    bind(net, "b", "k", "red", "amq.match", arguments={"x-match": "all", "colour": "red"})
    assert len(bindings(net, "a", "amq.match")) == 2
    for body, properties in (("n", {"n": 1}), ("colour", {"colour": "red"}), ("none", {"n": 2})):
        net.send("a", "amq.match", body, properties=properties)
    assert (net.bodies("b", "in"), net.bodies("b", "red")) == (["all", "n"], ["all", "colour"])
    bind(net, "b", "k", "red", "amq.match", arguments={"x-match": "all", "n": 2})
    assert len(bindings(net, "a", "amq.match")) == 2, "it was bound again"
    net.send("a", "amq.match", "changed", properties={"n": 2})
    assert net.bodies("b", "red") == ["all", "colour", "changed"]


def test_routes_in_both_directions_make_no_loop_of_bindings_or_messages(net: Network) -> None:
    net.brokers["a"].queue("in")
    route(net, "b", "a")
    route(net, "a", "b")
    bind(net, "b", "k")
    assert (bindings(net, "a"), bindings(net, "b")) == ({"k": [["b"]]}, {})
    net.send("a", "amq.topic", "from a", subject="k")
    assert net.bodies("b", "in") == ["from a"]
    bind(net, "a", "k")
    assert (bindings(net, "a"), bindings(net, "b")) == ({"k": [["b"]]}, {"k": [["a"]]})
    net.send("b", "amq.topic", "from b", subject="k")
    assert (net.bodies("a", "in"), net.bodies("b", "in")) == (["from b"], ["from a", "from b"])
    unbind(net, "b", "k")
    assert (bindings(net, "a"), bindings(net, "b")) == ({}, {"k": [["a"]]})
    unbind(net, "a", "k")
    assert (bindings(net, "a"), bindings(net, "b")) == ({}, {}), "they do not hold each other alive"


def test_a_wish_goes_along_a_chain_of_three_and_the_messages_come_back_along_it(net: Network) -> None:
    net.add("c").queue("in")
    route(net, "b", "a")
    route(net, "c", "b")
    bind(net, "c", "k")
    assert (bindings(net, "b"), bindings(net, "a")) == ({"k": [["c"]]}, {"k": [["c", "b"]]})
    net.send("a", "amq.topic", "from a", subject="k")
    net.send("b", "amq.topic", "from b", subject="k")
    assert net.bodies("c", "in") == ["from a", "from b"]
    bind(net, "b", "k")
    assert bindings(net, "a") == {"k": [["b"], ["c", "b"]]}, "it is bound again with both paths"
    net.send("a", "amq.topic", "both", subject="k")
    assert (net.bodies("b", "in"), net.bodies("c", "in")) == (["both"], ["from a", "from b", "both"])
    unbind(net, "c", "k")
    assert (bindings(net, "b"), bindings(net, "a")) == ({}, {"k": [["b"]]})
    unbind(net, "b", "k")
    assert bindings(net, "a") == {}


def test_a_ring_of_three_is_empty_when_nobody_wants_anything(net: Network) -> None:
    net.add("c")
    for at, source in (("b", "a"), ("c", "b"), ("a", "c")):
        route(net, at, source)
    bind(net, "b", "k")
    assert [bindings(net, at) for at in "abc"] == [{"k": [["b"]]}, {}, {"k": [["b", "a"]]}]
    net.send("c", "amq.topic", "from c", subject="k")
    assert net.bodies("b", "in") == ["from c"]
    unbind(net, "b", "k")
    assert [bindings(net, at) for at in "abc"] == [{}, {}, {}]


def test_a_change_of_the_path_loses_and_repeats_no_message(net: Network) -> None:
    net.add("c")
    net.brokers["c"].queue("in")
    route(net, "b", "a")
    route(net, "c", "b")
    bind(net, "b", "k")
    for number in range(6):
        (unbind if number % 2 else bind)(net, "c", "k")
        net.send("a", "amq.topic", number, subject="k")
    assert net.bodies("b", "in") == list(range(6))
    assert net.bodies("c", "in") == [0, 2, 4]


def test_the_next_primary_of_the_destination_makes_the_bindings_right_and_nothing_is_lost(net: Network) -> None:
    first, second = (
        net.add(name, clustered=True, state=state, default_level="all") for name, state in (("p1", ""), ("p2", "ready"))
    )
    first.queue("q")
    first.queue("own", replicate="none")
    bind(net, "p1", "k", "q")
    bind(net, "p1", "temporary", "own")
    source = net.brokers["a"].lead
    route(net, "p1", "a")
    assert sorted(bindings(net, "a")) == ["k", "temporary"]
    source.automatic = False
    net.send("a", "amq.topic", *range(3), subject="k")
    source.automatic = True
    source.commit()
    net.pass_time(0.5)
    bind(net, "p1", "late", "q")
    first.lead.replayed_into(second.lead)
    first.lead.become("ready", "p2")
    net.send("a", "amq.topic", *range(3, 5), subject="k")
    second.lead.become("active")
    net.pass_time(1)
    net.send("a", "amq.topic", 5, subject="late")
    assert sorted(bindings(net, "a")) == ["k", "late"], "what only the other broker had is withdrawn"
    assert net.bodies("p2", "q") == list(range(6))
    assert net.item("p2")["state"] == "Operational"


def test_bindings_that_change_while_the_source_is_away_are_made_right_when_it_is_back(net: Network) -> None:
    bind(net, "b", "stays")
    bind(net, "b", "goes")
    route(net, "b", "a")
    net.away.add("a")
    net.cut()
    net.pass_time(0.5)
    unbind(net, "b", "goes")
    bind(net, "b", "new")
    net.send("a", "amq.topic", "waits", subject="stays")
    assert sorted(bindings(net, "a")) == ["goes", "stays"]
    assert "no primary among a" in net.item("b")["lastError"]
    net.away.clear()
    net.pass_time(2)
    assert sorted(bindings(net, "a")) == ["new", "stays"]
    assert net.bodies("b", "in") == ["waits"]


def test_a_source_that_restarts_in_the_middle_of_changes_has_them_all_in_the_end(net: Network) -> None:
    route(net, "b", "a")
    source = net.brokers["a"].lead
    source.automatic = False
    for number in range(20):
        bind(net, "b", f"k{number}")
    source.commit(1)
    source.become("recovering")
    source.automatic = True
    net.cut()
    source.become("standalone")
    net.pass_time(12)
    assert (len(bindings(net, "a")), net.item("b")["bindings"], net.item("b")["lastError"]) == (20, 20, "")
    net.send("a", "amq.topic", "m", subject="k19")
    assert net.bodies("b", "in") == ["m"]


def test_a_route_that_is_deleted_leaves_no_queue_and_no_bindings(net: Network) -> None:
    bind(net, "b", "k")
    route(net, "b", "a")
    assert len(queues(net, "a")) == 1
    asked = {"kind": "dynamic", "source": "a", "exchange": "amq.topic"}
    assert net.ask("b", "DELETE", "route", **asked)[0] == 202
    net.pass_time(1)
    assert net.ask("b", "QUERY", "route")[2]["items"] == []
    assert (queues(net, "a"), bindings(net, "a")) == ([], {})
    assert net.ask("b", "DELETE", "route", **asked)[0] == 404
    assert net.brokers["b"].broker.routes._following.interests == {}, "nobody follows the exchange any more"
    bind(net, "b", "later")


def test_the_exchange_of_a_source_that_was_deleted_and_made_again_is_bound_again(net: Network) -> None:
    for at in "ab":
        net.ask(at, "CREATE", "exchange", "news", exchangeType="topic")
    bind(net, "b", "k", exchange="news")
    bind(net, "b", "l", exchange="news")
    route(net, "b", "a", "news")
    dialed = net.dialed
    net.ask("a", "DELETE", "exchange", "news")
    net.ask("a", "CREATE", "exchange", "news", exchangeType="topic")
    net.pass_time(12)
    assert (sorted(bindings(net, "a", "news")), net.dialed) == (["k", "l"], dialed)
    net.send("a", "news", "m", subject="k")
    assert net.bodies("b", "in") == ["m"]
    net.ask("a", "DELETE", "exchange", "news")
    net.pass_time(12)
    assert "there is no exchange named 'news'" in net.item("b")["lastError"]
    net.ask("a", "CREATE", "exchange", "news", exchangeType="fanout")
    net.pass_time(12)
    assert "of type fanout at the source, and of type topic here" in net.item("b")["lastError"]


def test_what_is_bound_at_an_exchange_that_another_one_of_this_name_hides_is_bound_at_that_one(net: Network) -> None:
    source = net.add("p", clustered=True, default_level="all")
    net.ask("p", "CREATE", "exchange", "news", exchangeType="topic", replicate="none")
    net.ask("b", "CREATE", "exchange", "news", exchangeType="topic")
    bind(net, "b", "k", exchange="news")
    route(net, "b", "p", "news")
    source.broker.lead.change(ExchangeAdd(uuid="hides", name="news", kind="topic", level="all"), lambda reason: None)
    net.pass_time(IDLE_LOOKS + 2)
    assert source.broker.logs.nodes.exchanges["news"].uuid == "hides"
    net.send("p", "news", "m", subject="k")
    assert net.bodies("b", "in") == ["m"]


def test_a_binding_that_somebody_has_deleted_at_the_source_is_made_again(net: Network) -> None:
    bind(net, "b", "k")
    route(net, "b", "a")
    (queue,) = queues(net, "a")
    unbind(net, "a", "k", queue)
    assert bindings(net, "a") == {}
    net.pass_time(12)
    assert list(bindings(net, "a")) == ["k"]


def test_a_binding_that_somebody_has_deleted_is_made_again_while_the_source_refuses_another_one(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "k" * 200
    for key in ("k", long):
        bind(net, "b", key)
    monkeypatch.setattr(limits, "MAX_NAME_BYTES", 100)
    route(net, "b", "a")
    (queue,) = queues(net, "a")
    net.pass_time(12)
    unbind(net, "a", "k", queue)
    net.pass_time(12)
    assert list(bindings(net, "a")) == ["k"]
    assert "has more than 100 bytes" in net.item("b")["lastError"]


def test_the_exchange_of_the_destination_that_was_deleted_wants_nothing_and_one_made_again_what_is_bound_to_it(
    net: Network,
) -> None:
    for at in "ab":
        net.ask(at, "CREATE", "exchange", "news", exchangeType="topic")
    bind(net, "b", "k", exchange="news")
    route(net, "b", "a", "news")
    net.ask("b", "DELETE", "exchange", "news")
    assert bindings(net, "a", "news") == {}
    net.ask("b", "CREATE", "exchange", "news", exchangeType="topic")
    bind(net, "b", "l", exchange="news")
    net.send("a", "news", "m", subject="l")
    assert (list(bindings(net, "a", "news")), net.bodies("b", "in")) == (["l"], ["m"])
    net.ask("b", "DELETE", "exchange", "news")
    net.ask("b", "CREATE", "exchange", "news", exchangeType="direct")
    net.pass_time(1)
    assert "of type topic at the source, and of type direct here" in net.item("b")["lastError"]


def test_a_route_whose_exchange_is_of_another_type_now_leaves_no_bindings_that_fill_its_queue(net: Network) -> None:
    for at in "ab":
        net.ask(at, "CREATE", "exchange", "news", exchangeType="topic")
    for number in range(40):
        bind(net, "b", f"k{number}", exchange="news")
    route(net, "b", "a", "news")
    net.away.add("a")
    net.cut()
    net.ask("b", "DELETE", "exchange", "news")
    net.ask("b", "CREATE", "exchange", "news", exchangeType="fanout")
    net.away.clear()
    net.pass_time(2)
    assert "of type topic at the source, and of type fanout here" in net.item("b")["lastError"]
    assert bindings(net, "a", "news") == {}
    net.ask("b", "DELETE", "exchange", "news")
    net.ask("b", "CREATE", "exchange", "news", exchangeType="topic")
    bind(net, "b", "k", exchange="news")
    net.pass_time(12)
    assert (list(bindings(net, "a", "news")), net.item("b")["lastError"]) == (["k"], "")


def test_a_binding_that_the_source_refuses_is_named_and_the_others_are_made(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    route(net, "b", "a")
    net.brokers["a"].queue("mine")
    for key in ("m", "n"):
        bind(net, "a", key, "mine")
    monkeypatch.setattr(limits, "MAX_BINDINGS_PER_EXCHANGE", 3)
    with log_lines("broker.routes.runner") as told:
        for key in ("one", "two", "three"):
            bind(net, "b", key)
    item = net.item("b")
    assert (item["state"], item["bindings"]) == ("Operational", 1)
    assert item["lastError"].startswith("binding 'two' of 'amq.topic': a:5672: CREATE binding qpid-route.")
    assert item["lastError"].endswith("has 3 bindings, its limit; unbind some first (and 1 others)")
    assert [item["lastError"].removesuffix(" (and 1 others)") in line for line in told] == [True], "it is logged once"
    net.send("a", "amq.topic", "m", subject="one")
    assert net.bodies("b", "in") == ["m"]
    monkeypatch.setattr(limits, "MAX_BINDINGS_PER_EXCHANGE", 9)
    net.pass_time(IDLE_LOOKS + 2)
    assert (net.item("b")["bindings"], net.item("b")["lastError"]) == (3, "")


def test_a_binding_whose_arguments_fit_into_no_request_or_answer_is_named_and_the_route_runs(net: Network) -> None:
    nested: Any = 1
    for _ in range(30):
        nested = [nested]
    for key, value in (("deep", nested), ("long", "x" * 1_048_000), ("usual", 1)):
        bind(net, "b", key, "in", "amq.match", arguments={"a": value})
    route(net, "b", "a", "amq.match")
    net.pass_time(12)
    item = net.item("b")
    assert (item["state"], item["bindings"]) == ("Operational", 1)
    assert item["lastError"].endswith("and it is not propagated (and 1 others)")
    net.send("a", "amq.match", "m", properties={"a": 1})
    assert net.bodies("b", "in") == ["m"]


def test_a_path_changes_although_the_source_has_as_many_bindings_as_it_may_have(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    net.add("c").queue("in")
    route(net, "b", "a")
    route(net, "c", "b")
    bind(net, "b", "k")
    net.brokers["a"].queue("mine")
    bind(net, "a", "mine", "mine")
    monkeypatch.setattr(limits, "MAX_BINDINGS_PER_EXCHANGE", 2)
    bind(net, "c", "k")
    assert (bindings(net, "a"), net.item("b")["lastError"]) == ({"k": [["b"], ["c", "b"]]}, "")


def test_messages_of_a_dynamic_route_say_where_they_have_been_and_are_dropped_by_what_it_excludes(net: Network) -> None:
    bind(net, "b", "k")
    route(net, "b", "a", tag="north", exclude=["south"])
    for been in (["south"], ["east"]):
        net.send("a", "amq.topic", f"{been}", subject="k", annotations={"x-opt-qpid-hops": been})
    (found,) = net.messages("b", "in")
    assert {str(key): value for key, value in found.annotations.items()} == {"x-opt-qpid-hops": ["east", "a", "north"]}


def test_a_dynamic_route_from_a_broker_to_itself_does_not_run(net: Network) -> None:
    bind(net, "b", "k")
    route(net, "b", "b")
    assert net.item("b")["lastError"] == "the source is this cluster: a dynamic route fetches from another one"
    assert bindings(net, "b") == {}


def test_clients_cannot_say_that_a_wish_comes_from_another_cluster(net: Network) -> None:
    arguments = {PATHS: [["c"]]}
    status, text, _ = net.ask("b", "CREATE", "binding", exchange="amq.topic", queue="in", key="k", arguments=arguments)
    assert (status, f"{PATHS} is for the queues of dynamic routes" in text) == (400, True)
    net.brokers["b"].queue("qpid-route.mine")
    for paths, status in ((["c"], 400), ([["c"]], 201)):
        asked = {"exchange": "amq.topic", "queue": "qpid-route.mine", "key": "k", "arguments": {PATHS: paths}}
        assert net.ask("b", "CREATE", "binding", **asked)[0] == status
    client = net.brokers["b"].client(ADMIN)
    filters = {"h": proton.Described(proton.symbol("apache.org:legacy-amqp-headers-binding:map"), {PATHS: "c"})}
    link = client.receiver("amq.match", filters=filters)
    assert condition(link) == "amqp:invalid-field"
    client.connection.close()


@pytest.mark.parametrize(
    "body, status, says",
    [
        ({"key": "k"}, 400, "it has no `key`"),
        ({"exchange": "in"}, 404, "there is no exchange named 'in'"),
        ({"exchange": ""}, 400, "`exchange` must be a text"),
        ({"source": "ann/secret@a"}, 400, "the file of --route-passwords"),
    ],
)
def test_a_dynamic_route_that_cannot_be_is_refused(net: Network, body: dict[str, Any], status: int, says: str) -> None:
    asked = {"kind": "dynamic", "source": "a", "exchange": "amq.topic"}
    found, text, _ = net.ask("b", "CREATE", "route", **asked | body)
    assert (found, says in text) == (status, True), text
    route(net, "b", "a")
    assert net.ask("b", "CREATE", "route", **asked)[:2] == (409, "this route exists already")


def test_a_cluster_that_is_not_upgraded_takes_no_dynamic_routes_but_others() -> None:
    with network() as net:
        net.add("a").queue("out")
        old = net.add("p", clustered=True, default_level="all", machine_version=9)
        old.broker.lead.change(MachineVersion(needs=9), lambda reason: None)
        net.settle()
        status, text, _ = net.ask("p", "CREATE", "route", kind="dynamic", source="a", exchange="amq.topic")
        has = "the cluster has version 9 until all its brokers are connected and support a newer one"
        assert (status, text) == (409, f"a dynamic route needs machine version 10, and {has}")
        assert net.ask("p", "CREATE", "route", kind="queue", source="a", exchange="amq.topic", key="out")[0] == 201


def test_what_was_asked_for_over_an_earlier_connection_and_comes_late_does_not_stay(net: Network) -> None:
    """The number of bindings is right, and only the path is another one."""
    bind(net, "b", "k")
    route(net, "b", "a")
    (queue,) = queues(net, "a")
    bind(net, "a", "k", queue, arguments={PATHS: [["c", "b"]]})
    assert bindings(net, "a") == {"k": [["c", "b"]]}
    net.pass_time(IDLE_LOOKS + 2)
    assert bindings(net, "a") == {"k": [["b"]]}
