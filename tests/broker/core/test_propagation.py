"""The bindings of a dynamic route at its source, against a source that answers, refuses, and is changed by others; and many
clusters with routes between them, where wishes spread, and go when nobody has them any more."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.core import limits
from broker.core.exchange import PATHS
from broker.core.interest import Interest
from broker.core.propagation import Propagation, Wish
from tests.broker.core.test_interest import interest, passed

EXCHANGE = {"items": [{"uuid": "x-u", "exchangeType": "topic", "name": "x"}]}


def item(key: str, queue: str = "qpid-route.r", exchange: str = "x", **arguments: Any) -> dict[str, Any]:
    return {"exchange": exchange, "queue": queue, "key": key, "arguments": arguments or passed("d")}


def read(of: Interest, *items: dict[str, Any]) -> Propagation:
    """A route's bindings, when these have been read from its source."""
    made = Propagation("x", "qpid-route.r", of)
    made.begin("s")
    made.exchange(EXCHANGE)
    assert made.page({"items": list(items)}) is None
    assert not made.is_read
    made.compare()
    return made


def wanting(*keys: str, name: str = "q") -> Interest:
    made = interest()
    for key in keys:
        made.put(f"u-{key}", name, key, {})
    return made


def test_what_the_source_lacks_is_bound_and_what_nobody_wants_is_withdrawn_and_the_rest_stays() -> None:
    one = read(wanting("a", "b"), item("b"), item("c"))
    assert (len(one), one.is_ready) == (2, False)
    assert one.wishes() == [Wish("c", None), Wish("a", passed("d"))]
    assert one.wishes() == []
    one.answered("c", 200, "")
    assert not one.is_ready
    one.answered("a", 200, "")
    assert (len(one), one.is_ready, one.error) == (2, True, "")


def test_a_change_is_one_request_and_one_that_changes_nothing_is_none() -> None:
    wants = wanting("a")
    one = read(wants, item("a"))
    assert (one.wishes(), one.is_ready) == ([], True)
    one.touch(wants.put("u-2", "q", "a", {}))
    assert one.wishes() == []
    one.touch([*wants.put("u-a", "q", "a", None), *wants.put("u-2", "q", "a", None), *wants.put("u-b", "q", "b", {})])
    assert one.wishes() == [Wish("a", None), Wish("b", passed("d"))]


def test_a_path_that_has_changed_is_bound_over_the_one_before() -> None:
    wants = wanting("a")
    one = read(wants, item("a"))
    one.touch(wants.put("u-r", "qpid-route.2", "a", passed("f")))
    assert one.wishes() == [Wish("a", passed("d", "fd"))]


def test_a_key_that_changes_while_it_is_asked_for_is_asked_for_again_after_the_answer() -> None:
    wants = wanting("a")
    one = read(wants)
    assert one.wishes() == [Wish("a", passed("d"))]
    one.touch(wants.put("u-a", "q", "a", None))
    assert (one.wishes(), one.may_go_on) == ([], False)
    one.answered("a", 200, "")
    assert one.may_go_on
    assert one.wishes() == [Wish("a", None)]
    one.answered("a", 404, "there is no such binding")
    assert (len(one), one.error) == (0, "")


def test_so_many_requests_are_under_way_and_so_many_keys_are_compared_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BINDINGS_AT_ONCE", 2)
    one = read(wanting("a", "b", "c"))
    assert [wish.key for wish in one.wishes()] == ["a", "b"]
    one.answered("b", 200, "")
    assert [wish.key for wish in one.wishes()] == ["c"]
    monkeypatch.setattr(limits, "BINDINGS_COMPARED", 2)
    two = read(wanting("a", "b", "c"), item("a"), item("b"))
    assert (two.wishes(), two.may_go_on, two.is_ready) == ([], True, False)
    assert [wish.key for wish in two.wishes()] == ["c"]


def test_a_key_of_the_first_comparison_has_one_request_at_a_time_and_its_changes_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """`a` is at the source and wanted here, in other ways, and changes while it is asked for; `b` changes before that."""
    monkeypatch.setattr(limits, "BINDINGS_COMPARED", 1)
    wants = wanting("a", "b", "c")
    one = read(wants, item("a", **passed("f")), item("c"))
    one.touch(["b"])
    assert one.wishes() == [Wish("a", passed("d"))]
    one.touch(wants.put("u-a", "q", "a", None))
    assert one.wishes() == [], "c is as it must be"
    one.answered("a", 200, "")
    assert (one.is_ready, one.may_go_on) == (False, True), "b was not looked at"
    assert one.wishes() == [Wish("b", passed("d"))]
    assert not one.is_ready
    assert one.wishes() == [Wish("a", None)]
    assert not one.may_go_on, "b has its request, and c is passed over"
    one.answered("b", 200, "")
    assert one.is_ready


class Counted(str):
    """A key that counts how often a key was looked up or stored."""

    hashes = 0

    def __hash__(self) -> int:
        Counted.hashes += 1
        return super().__hash__()


def test_the_beginning_of_a_comparison_looks_no_key_up() -> None:
    """Breaks when a connection of a route stops the broker for a time that grows with the bindings: `wishes` looks at some."""
    wants = wanting(*map(Counted, range(1000)))
    one = Propagation("x", "qpid-route.r", wants)
    one.begin("s")
    one.exchange(EXCHANGE)
    Counted.hashes = 0
    one.compare()
    assert Counted.hashes == 0
    assert not one.is_ready
    assert len(one.wishes()) == limits.BINDINGS_AT_ONCE
    assert 0 < Counted.hashes < 20 * limits.BINDINGS_AT_ONCE


def test_a_binding_that_is_there_already_is_not_refused() -> None:
    one = read(wanting("a"))
    one.wishes()
    one.answered("a", 409, "s:5672: CREATE binding qpid-route.r: this binding exists already")
    assert (len(one), one.error) == (1, "")


def test_what_the_source_refuses_is_named_and_the_others_are_made_and_it_is_asked_for_again() -> None:
    one = read(wanting("a", "b", "c"), item("old"))
    assert [wish.key for wish in one.wishes()] == ["old", "a", "b", "c"]
    for key, status, text in (("a", 403, "ann may not"), ("b", 200, ""), ("c", 409, "it has 5 bindings, its limit")):
        one.answered(key, status, text)
    assert (one.error, len(one)) == ("binding 'a' of 'x': ann may not (and 1 others)", 2)
    one.answered("old", 403, "ann may not unbind")
    assert len(one) == 2
    one.retry()
    assert sorted(wish.key for wish in one.wishes()) == ["a", "c", "old"]
    for key in ("a", "c", "old"):
        one.answered(key, 200, "")
    assert (one.error, len(one), one.is_ready) == ("", 3, True)


def test_of_many_refused_bindings_some_are_asked_for_again_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    one = read(wanting("a", "b", "c"))
    for wish in one.wishes():
        one.answered(wish.key, 403, "no")
    monkeypatch.setattr(limits, "BINDINGS_COMPARED", 2)
    asked = []
    for _ in range(3):
        one.retry()
        for wish in one.wishes():
            asked.append(wish.key)
            one.answered(wish.key, 403, "no")
    assert asked == ["a", "b", "c", "a", "b", "c"]


def test_what_the_interest_leaves_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ROUTE_HOPS", 2)
    wants = wanting()
    wants.put("u", "qpid-route.2", "a", passed("bc"))
    one = read(wants)
    assert one.wishes() == []
    assert one.error == "binding 'a' of 'x': it has passed 2 clusters, and is propagated no further"
    one.touch(wants.put("u", "qpid-route.2", "a", passed("b")))
    assert [wish.key for wish in one.wishes()] == ["a"]
    assert one.error == ""


def test_a_route_has_so_many_bindings_and_makes_others_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ROUTE_BINDINGS", 2)
    wants = wanting("a", "b", "c", "d")
    one = read(wants, item("a"))
    assert [wish.key for wish in one.wishes()] == ["b"]
    one.answered("b", 200, "")
    assert (one.is_ready, len(one)) == (True, 2)
    assert one.error == "2 bindings are not propagated: a route propagates 2, those that were made first"
    one.touch(wants.put("u-a", "q", "a", None))
    assert one.wishes() == [Wish("a", None)]
    one.answered("a", 200, "")
    assert [wish.key for wish in one.wishes()] == ["c"]
    one.answered("c", 403, "no")
    assert [wish.key for wish in one.wishes()] == ["d"], "what is refused takes no room"
    one.answered("d", 200, "")
    assert one.error == "binding 'c' of 'x': no"
    one.touch([*wants.put("u-r", "qpid-route.2", "b", passed("f"))])
    assert [wish.key for wish in one.wishes()] == ["b"], "a change needs no room"


def test_pages_are_read_up_to_the_last_binding_of_the_queue() -> None:
    one = Propagation("x", "qpid-route.r", interest())
    one.begin("s")
    one.exchange(EXCHANGE)
    assert one.page({"items": [item("a"), item("b")], "next": ["x", "qpid-route.r", "b"]}) == ["x", "qpid-route.r", "b"]
    more = [item("c"), item("d", exchange="x", queue="qpid-route.s")]
    assert one.page({"items": more, "next": ["x", "qpid-route.s", "d"]}) is None, "a source of an earlier release gives them all"
    assert len(one) == 3
    assert one.page({"items": [item("e", exchange="w", queue="z")]}) is None
    assert len(one) == 3


@pytest.mark.parametrize("body", [{}, {"items": [{"exchange": "x"}]}, {"items": [], "next": "x"}, {"items": ["x"]}])
def test_a_page_that_says_nothing_is_refused(body: dict[str, Any]) -> None:
    one = Propagation("x", "qpid-route.r", interest())
    one.begin("s")
    with pytest.raises(ValueError, match="which bindings it has"):
        one.page(body)
    with pytest.raises(ValueError, match="cannot be compared"):
        one.page({"items": [item("k", bytes=b"x")]})


def test_the_two_exchanges_must_be_of_one_type() -> None:
    wants = interest("fanout")
    one = Propagation("x", "qpid-route.r", wants)
    one.begin("s")
    one.exchange(EXCHANGE)
    assert "'x' is of type topic at the source, and of type fanout here" in one.mismatch
    with pytest.raises(ValueError, match="does not say what its exchange 'x' is"):
        one.exchange({"items": []})
    wants.become(interest(""))
    one.exchange(EXCHANGE)
    assert one.mismatch == "", "there is none here: nothing is wanted"
    wants.become(interest("direct"))
    assert "of type direct here" in one.mismatch


def test_a_look_shows_whether_somebody_else_has_changed_the_bindings_or_made_the_exchange_again() -> None:
    wants = wanting("a")
    one = read(wants, item("a"))
    one.wishes()

    def differs(**answer: Any) -> bool:
        one.look()
        return one.differs({"exchange": "x-u", "bindings": 1} | answer)

    assert not differs()
    assert differs(bindings=0)
    assert differs(exchange="another")
    assert not one.differs({"runs": []}), "a source of an earlier release does not say"
    one.touch(wants.put("u-b", "q", "b", {}))
    one.look()
    one.wishes()
    assert not one.differs({"exchange": "x-u", "bindings": 2}), "one was asked for after the look"
    one.look()
    assert not one.differs({"exchange": "x-u", "bindings": 2}), "one was being asked for at the look"
    assert [one.is_of_another({"exchange": name, "bindings": 2}) for name in ("x-u", "another", "")] == [False, True, True]
    assert not one.is_of_another({"runs": []}), "a source of an earlier release does not say"
    one.answered("b", 200, "")
    assert not differs(bindings=2)
    assert not differs(bindings=2)
    one.doubt()
    one.touch(wants.put("u-b", "q", "b", None))
    one.look()
    one.wishes()
    assert not one.differs({"runs": []}), "it cannot be told now"
    one.answered("b", 200, "")
    one.touch(wants.put("u-b", "q", "b", {}))
    one.wishes()
    one.answered("b", 200, "")
    one.look()
    assert one.differs({"runs": []}), "it was in doubt"
    one.read_again()
    assert (one.is_read, len(one)) == (False, 0)
    one.exchange(EXCHANGE)
    one.page({"items": []})
    one.compare()
    assert [wish.key for wish in one.wishes()] == ["a", "b"]


def test_the_end_of_a_connection_ends_what_was_asked_over_it() -> None:
    one = read(wanting("a"))
    one.wishes()
    one.end()
    assert (one.is_read, one.is_ready, one.may_go_on) == (False, False, False)
    one.begin("s")
    one.exchange(EXCHANGE)
    one.page({"items": [item("a")]})
    one.compare()
    assert (one.wishes(), one.is_ready) == ([], True)


# ---- many clusters


class Road:
    """A dynamic route, what it has asked its source, what the source has done of it, and the bindings that are there."""

    def __init__(self, dest: str, source: str, wants: Interest) -> None:
        self.dest, self.source = dest, source
        self.queue = f"qpid-route.{dest}-{source}"
        self.bindings = Propagation("x", self.queue, wants)
        self.there: dict[str, Mapping[str, Any]] = {}
        self.asked: deque[Wish] = deque()
        self.done: deque[Wish] = deque()

    def connect(self) -> None:
        """Begin, or begin again: what was asked and not done yet is lost."""
        self.asked.clear()
        self.done.clear()
        self.bindings.begin(self.source)
        self.bindings.exchange(EXCHANGE)
        self.bindings.page({"items": [item(key, self.queue, **arguments) for key, arguments in self.there.items()]})
        self.bindings.compare()


class World:
    """Clusters, each with one exchange, and dynamic routes between them."""

    def __init__(self, routes: Iterable[tuple[str, str]], seed: int) -> None:
        self.random = Random(seed)
        self.roads: list[Road] = []
        self.clusters = sorted({cluster for route in routes for cluster in route})
        self.interests = {cluster: interest(here=cluster) for cluster in self.clusters}
        self.clients: set[tuple[str, str]] = set()
        for dest, source in sorted(set(routes)):
            road = Road(dest, source, self.interests[dest])
            road.connect()
            self.roads.append(road)

    def change(self, cluster: str, key: str) -> None:
        """A client binds its queue there with this key, or takes its binding away."""
        self.clients ^= {(cluster, key)}
        bound = (cluster, key) in self.clients
        self._touch(cluster, self.interests[cluster].put(f"client-{key}", "client", key, {} if bound else None))

    def _touch(self, cluster: str, keys: list[str]) -> None:
        for road in self.roads:
            if road.dest == cluster:
                road.bindings.touch(keys)

    def _choices(self) -> list[tuple[Road, str]]:
        found = [(road, "ask") for road in self.roads if road.bindings.may_go_on]
        found += [(road, "do") for road in self.roads if road.asked]
        return found + [(road, "answer") for road in self.roads if road.done]

    def step(self) -> bool:
        """One thing happens somewhere; whether there was one."""
        choices = self._choices()
        if not choices:
            return False
        road, what = self.random.choice(choices)
        if what == "ask":
            road.asked.extend(road.bindings.wishes())
        elif what == "do":
            wish = road.asked.popleft()
            if wish.arguments is None:
                road.there.pop(wish.key, None)
            else:
                road.there[wish.key] = wish.arguments
            road.done.append(wish)
            self._touch(road.source, self.interests[road.source].put(road.queue, road.queue, wish.key, wish.arguments))
        else:
            road.bindings.answered(road.done.popleft().key, 200, "")
        return True

    def rest(self) -> None:
        for _ in range(20_000):
            if not self.step():
                return
        raise AssertionError("the clusters never come to rest")

    # ---- what must be so at rest

    def distances(self, origin: str, without: str = "") -> dict[str, int]:
        """The clusters that a wish of `origin` reaches, and over how many routes."""
        found, left = {origin: 0}, deque([origin])
        while left:
            at = left.popleft()
            for road in self.roads:
                if road.dest == at and road.source not in found and road.source != without:
                    found[road.source] = found[at] + 1
                    left.append(road.source)
        return found

    def check(self) -> None:
        for key in "kl":
            wanting = {cluster for cluster, wanted in self.clients if wanted == key}
            for cluster in self.clusters:
                expected = {origin for origin in wanting if cluster in self.distances(origin)} - {cluster}
                assert self.known_at(cluster, key) == expected
                assert self.reached_from(cluster, key) & wanting - {cluster} == expected, "messages come where they are wanted"
            for road in self.roads:
                bound = key in road.there
                others = wanting - {road.source}
                assert not bound or any(road.dest in self.distances(origin, road.source) for origin in others)
                nearest = (self.distances(origin) for origin in others)
                on_the_way = any(road.dest in far and far[road.source] == far[road.dest] + 1 for far in nearest)
                assert bound or not on_the_way
                for path in road.there.get(key, {PATHS: []})[PATHS]:
                    assert len(set(path)) == len(path)
                    assert (path[0] in wanting, path[-1], road.source in path) == (True, road.dest, False)

    def known_at(self, cluster: str, key: str) -> set[str]:
        paths = (road.there[key][PATHS] for road in self.roads if road.source == cluster and key in road.there)
        return {path[0] for several in paths for path in several}

    def reached_from(self, cluster: str, key: str) -> set[str]:
        """Where a message comes that is published there, when no cluster takes it that it has passed."""
        reached, left = set(), [(cluster, frozenset({cluster}))]
        while left:
            at, been = left.pop()
            reached.add(at)
            left += [
                (road.dest, been | {road.dest})
                for road in self.roads
                if road.source == at and key in road.there and road.dest not in been
            ]
        return reached


CLUSTERS = "abcde"
ROUTES = st.lists(
    st.tuples(st.sampled_from(CLUSTERS), st.sampled_from(CLUSTERS)).filter(lambda pair: pair[0] != pair[1]), min_size=1
)
RING = [("a", "b"), ("b", "c"), ("c", "a")]
MESH = [(dest, source) for dest in "abcd" for source in "abcd" if dest != source]
FAR = [("c", "t"), ("t", "d"), ("d", "s"), ("s", "t"), ("e", "x"), ("x", "y"), ("y", "d")]
"""`d` tells `s` of `c` and of `e`; `t` knows `c` itself, and must be told of `e`."""


@settings(max_examples=150)
@example(RING, [("a", "k")], 1, [])
@example([("a", "b"), ("b", "a")], [("a", "k"), ("b", "k")], 2, [])
@example(MESH, [("a", "k"), ("b", "l")], 3, [4])
@example(FAR, [("c", "k"), ("e", "k")], 4, [])
@given(
    ROUTES.map(lambda routes: routes[:12]),
    st.lists(st.tuples(st.sampled_from(CLUSTERS), st.sampled_from("kl")), max_size=10),
    st.integers(0, 1000),
    st.lists(st.integers(0, 30), max_size=3),
)
def test_every_cluster_that_a_wish_can_reach_knows_it_and_it_goes_with_the_last_client(
    routes: list[tuple[str, str]], changes: list[tuple[str, str]], seed: int, cuts: list[int]
) -> None:
    world = World(routes, seed)
    for number, (cluster, key) in enumerate(changes):
        if cluster in world.clusters:
            world.change(cluster, key)
        for _ in range(world.random.randrange(8)):
            world.step()
        if number in cuts:
            world.random.choice(world.roads).connect()
    world.rest()
    world.check()
    for cluster, key in sorted(world.clients):
        world.change(cluster, key)
        for _ in range(world.random.randrange(8)):
            world.step()
    world.rest()
    assert [road.there for road in world.roads if road.there] == [], "a wish holds itself alive in a circle of routes"
