"""`qpid-scaledown --namespace` against the stand-in of an API server, whose node runs real brokers and real drainers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Forked, run
from tests.resource_manager.api_server import CONTROLLER, ApiServer, rights, running_api_server
from tests.system.harness import ask, eventually, spawn
from tests.system.node import Node, node
from tests.system.test_drain import came
from tests.system.test_scaledown import MESSAGES, numbered
from tests.system.traffic import send, take

pytestmark = pytest.mark.system


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """It lets the controller do what the manifests say, and nothing else."""
    with running_api_server() as running:
        for thing in rights("scale-down/controller.yaml"):
            running.make(thing)
        yield running


class Controllers:
    """Processes of qpid-scaledown, and what they say."""

    def __init__(self, server: ApiServer, there: Node, folder: Path) -> None:
        (folder / "token").write_text(CONTROLLER)
        (folder / "token").chmod(0o600)
        where = ("--namespace", "default", "--api-server", server.url, "--api-token-file", str(folder / "token"))
        self.words = (*where, "--brokers", there.template, "--format", "json", "--poll", "0.2", "--timeout", "2")
        self._folder = folder

    def start(self, name: str) -> Forked:
        return spawn(self._folder / f"{name}.log", "qpid-scaledown", *self.words)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (self._folder / f"{name}.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def until(self, name: str, event: str) -> None:
        eventually(lambda: [each["event"] for each in self.events(name)], lambda found: event in found, f"{event} of {name}")

    def once(self, *words: str) -> int:
        return run("qpid-scaledown", *self.words, "--once", *words).status


def test_orphaned_claims_are_drained_by_pods_whichever_controller_is_killed_and_deleted_when_that_is_asked_for(
    server: ApiServer, tmp_path: Path
) -> None:
    """Zero replicas, and up again to fewer than before; a restart of a broker; two controllers; kill -9 of the one that acts."""
    with node(server, tmp_path, 3) as there:
        target, *others = there.brokers[:3]
        target.create("queue", "orders")
        for number, broker in enumerate(others, 1):
            broker.create("queue", "orders")
            assert send(broker.address, "orders", numbered(number)) == MESSAGES
        controllers = Controllers(server, there, tmp_path)
        first = controllers.start("first")
        controllers.until("first", "wanted")
        server.remove(("pods", "default", "queues-2"), {})  # a rolling restart
        there.scale(0)
        eventually(lambda: there.all("pods"), lambda pods: not pods, "all pods being gone")
        second = controllers.start("second")
        controllers.until("second", "waiting")
        assert controllers.once() == 1, "another one acts"
        assert [each["event"] for each in controllers.events("first")] == ["wanted"] * 2, "nothing is drained at zero"
        there.scale(1)
        controllers.until("first", "drain")
        first.kill()
        server.delete("leases", "qpid-scaledown")  # which else runs out in its time
        eventually(there.marks, lambda marks: sorted(marks) == [1, 2], "both claims being marked")
        eventually(lambda: sorted(there.all("pods")), lambda pods: pods == ["queues-0"], "the drainers being gone")
        assert {ordinal: (mark["messages"], mark["queues"]) for ordinal, mark in there.marks().items()} == {
            1: (MESSAGES, 1),
            2: (MESSAGES, 1),
        }
        drains = [each["store"] for name in ("first", "second") for each in controllers.events(name) if each["event"] == "drain"]
        assert drains == ["store-queues-2", "store-queues-1"], "the highest ordinal first, once each"
        assert take(target.address, "orders", 2 * MESSAGES) == numbered(2) + numbered(1)
        assert there.deleted == []
        second.terminate()
        second.wait()
        assert controllers.once("--delete-released") == 0
        eventually(lambda: there.deleted, lambda gone: len(gone) == 2, "the claims' volumes being gone")
        assert sorted(there.all("persistentvolumeclaims")) == ["store-queues-0"]


def test_a_scale_up_in_the_middle_ends_the_drainer_and_gives_back_what_has_not_moved(server: ApiServer, tmp_path: Path) -> None:
    with node(server, tmp_path, 2) as there:
        target, last = there.brokers[:2]
        for broker in (target, last):
            broker.create("queue", "orders")
        assert send(last.address, "orders", numbered(1)) == MESSAGES
        controllers = Controllers(server, there, tmp_path)
        acting = controllers.start("acting")
        controllers.until("acting", "wanted")
        there.scale(1)
        eventually(lambda: came(target.address, "orders"), bool, "a message having been moved")
        target.freeze()
        there.scale(2)
        controllers.until("acting", "stop")
        eventually(lambda: sorted(there.all("pods")), lambda pods: pods == ["queues-0", "queues-1"], "the drainer being gone")
        target.signal(18)
        last.wait_for("standalone")
        eventually(lambda: ask(last.address, "QUERY", "drain")["items"][0]["leaving"], lambda leaves: not leaves, "it serves")
        moved, back = (ask(each.address, "QUERY", "queue", "orders")["items"][0]["messages"] for each in (target, last))
        assert moved + back == MESSAGES
        found = [
            each for broker, count in ((target, moved), (last, back)) if count for each in take(broker.address, "orders", count)
        ]
        assert found == numbered(1), "each once, in its order"
        assert there.deleted == []
        acting.kill()
