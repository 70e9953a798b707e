"""A cluster fetches messages from a broker, with real processes; some of them are killed during the transfer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import proton
import pytest

from tests.cli.running import run
from tests.system.harness import BrokerProcess, Cluster, ask, cluster, eventually, standalone
from tests.system.traffic import send, take

pytestmark = pytest.mark.system
HALF = 1000


def message(number: int) -> bytes:
    made: Any = proton.Message(body=f"{number}/" + "x" * 1000, id=number, subject="s", durable=True)
    return bytes(made.encode())


def came(target: Cluster) -> int:
    return int(ask(target.primary().address, "QUERY", "queue", "in")["items"][0]["messagesIn"])


def left(source: BrokerProcess) -> int:
    return int(ask(source.address, "QUERY", "queue", "out")["items"][0]["messages"])


def each_came_once_and_in_order(target: Cluster) -> None:
    """And nothing else is on the queue."""
    numbers = []
    for data in take(target.primary().address, "in", 2 * HALF):
        found: Any = proton.Message()
        found.decode(data)
        numbers.append(found.id)
    assert numbers == list(range(2 * HALF))
    assert ask(target.primary().address, "QUERY", "queue", "in")["items"][0]["messages"] == 0


def test_messages_that_were_moved_away_are_not_destroyed_by_a_route_that_would_move_them_back(tmp_path: Path) -> None:
    with standalone(tmp_path / "west") as west, standalone(tmp_path / "east") as east:
        west.create("queue", "out")
        east.create("queue", "in")
        assert send(west.address, "out", [message(number) for number in range(6)]) == 6
        there = (east.address, west.address, "in", "out")
        assert run("qpid-route", "queue", "add", *there).status == 0
        eventually(lambda: left(west), lambda count: count == 0, "all messages were moved")
        assert run("qpid-route", "queue", "del", *there).status == 0
        assert run("qpid-route", "queue", "add", west.address, east.address, "out", "in").status == 0
        eventually(
            lambda: run("qpid-route", "link", "list", west.address).out,
            lambda out: "been here before" in out and "Waiting" in out,  # not while it just tries again
            "the reason",
        )
        assert len(take(east.address, "in", 6)) == 6


def test_each_message_comes_once_and_in_order_when_either_side_is_killed_on_the_way(tmp_path: Path) -> None:
    with standalone(tmp_path / "source") as source, cluster(tmp_path / "target", 3, "--ha-replicate", "all") as target:
        source.create("queue", "out")
        target.primary().create("queue", "in")
        assert send(source.address, "out", [message(number) for number in range(HALF)]) == HALF
        made = run("qpid-route", "queue", "add", target.url, source.address, "in", "out")
        assert (made.status, made.err) == (0, "")
        eventually(lambda: came(target), lambda count: count > 0, "the first messages")
        target.primary().kill()
        target.succeed()
        assert send(source.address, "out", [message(number) for number in range(HALF, 2 * HALF)]) == HALF
        source.kill()
        source.start()
        source.wait_for("standalone")
        eventually(lambda: left(source), lambda count: count == 0, "the source is empty")
        listed = run("qpid-route", "link", "list", target.url).out.splitlines()[3]
        assert listed.split() == ["127.0.0.1", str(source.port), "tcp", "Y", "Operational"]
        each_came_once_and_in_order(target)


def bound(at: BrokerProcess) -> list[str]:
    """The keys of the bindings that routes have there."""
    found = ask(at.address, "QUERY", "binding", body={"exchange": "amq.topic"})["items"]
    return sorted(item["key"] for item in found if item["queue"].startswith("qpid-route."))


def bind(at: BrokerProcess, operation: str, key: str, queue: str = "in") -> None:
    ask(at.address, operation, "binding", body={"exchange": "amq.topic", "queue": queue, "key": key})


def test_a_dynamic_route_keeps_its_bindings_right_and_its_messages_whole_when_either_primary_is_killed(tmp_path: Path) -> None:
    replicated = ("--ha-replicate", "all")
    with cluster(tmp_path / "source", 3, *replicated) as source, cluster(tmp_path / "target", 3, *replicated) as target:
        target.primary().create("queue", "in")
        bind(target.primary(), "CREATE", "s")
        between = (target.url, source.url, "amq.topic")
        made = run("qpid-route", "dynamic", "add", *between)
        assert (made.status, made.err) == (0, "")
        eventually(lambda: bound(source.primary()), lambda keys: keys == ["s"], "the binding")
        assert send(source.primary().address, "amq.topic", [message(number) for number in range(HALF)]) == HALF
        eventually(lambda: came(target), lambda count: count > 0, "the first messages")
        bind(target.primary(), "CREATE", "t")
        target.primary().kill()
        bind(target.succeed(), "CREATE", "u")
        eventually(lambda: bound(source.primary()), lambda keys: keys == ["s", "t", "u"], "the bindings by the next primary")
        assert send(source.primary().address, "amq.topic", [message(number) for number in range(HALF, 2 * HALF)]) == HALF
        source.primary().kill()
        bind(target.primary(), "DELETE", "t")
        follower = source.succeed()
        eventually(lambda: bound(follower), lambda keys: keys == ["s", "u"], "the bindings at the next primary")
        eventually(lambda: came(target), lambda count: count >= 2 * HALF, "all messages")
        each_came_once_and_in_order(target)
        assert run("qpid-route", "dynamic", "del", *between).status == 0
        eventually(lambda: run("qpid-route", "route", "list", target.url).out, lambda out: out == "", "the end of the route")
        names = [item["name"] for item in ask(follower.address, "QUERY", "queue")["items"]]
        assert (bound(follower), [name for name in names if name.startswith("qpid-route.")]) == ([], [])


def test_dynamic_routes_in_both_directions_are_shown_as_one_and_hold_no_binding_alive(tmp_path: Path) -> None:
    with standalone(tmp_path / "west") as west, standalone(tmp_path / "east") as east:
        for here, there in ((east, west), (west, east)):
            assert run("qpid-route", "dynamic", "add", here.address, there.address, "amq.topic").status == 0
        assert run("qpid-route", "route", "list", east.address).out == f"{east.address} {west.address} amq.topic <dynamic>\n"
        shown = run("qpid-route", "route", "map", east.address).out
        assert f"  Exchange amq.topic:\n    {west.address} <=> {east.address}\n\nStatic" in shown
        east.create("queue", "in")
        bind(east, "CREATE", "s")
        eventually(lambda: bound(west), lambda keys: keys == ["s"], "the binding")
        (item,) = json.loads(run("qpid-route", "route", "list", east.address, "--format", "json").out)
        assert (item["kind"], item["bindings"], item["state"], item["lastError"]) == ("dynamic", 1, "Operational", "")
        assert send(west.address, "amq.topic", [message(number) for number in range(9)]) == 9
        assert len(take(east.address, "in", 9)) == 9
        bind(east, "DELETE", "s")
        eventually(lambda: bound(west) + bound(east), lambda keys: keys == [], "no binding")
