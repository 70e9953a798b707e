"""A cluster fetches messages from a broker, with real processes; some of them are killed during the transfer."""

from __future__ import annotations

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
        numbers = []
        for data in take(target.primary().address, "in", 2 * HALF):
            found: Any = proton.Message()
            found.decode(data)
            numbers.append(found.id)
        assert numbers == list(range(2 * HALF))
        assert ask(target.primary().address, "QUERY", "queue", "in")["items"][0]["messages"] == 0
