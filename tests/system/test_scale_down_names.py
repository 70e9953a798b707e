"""The requirements of message migration on scale down, and of broker scale-down, by their words, on one set of real brokers
(docs/reference/scale-down-names.md).

Life of the brokers: there are three, with a store each. One is killed, one is stopped in order. At first no broker is wanted,
then one, while it is down. It starts again, and a controller, which watches all the time, drains the two that are left over.
Each test checks one fact from this course.
"""

from __future__ import annotations

import ast
import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run
from tests.system.harness import eventually, spawn, standalone
from tests.system.test_drain import came, message
from tests.system.test_scaledown import MESSAGES, Site, numbered, site
from tests.system.traffic import send, take

pytestmark = pytest.mark.system
ROOT = Path(__file__).parent.parent.parent
ROWS = re.findall(r"^\| ([a-z ,/-]+) \| .*? \| (`[^|]*`) \|$", (ROOT / "docs/reference/scale-down-names.md").read_text(), re.M)
WORDS = """redistributed to another broker; failure or intentional scaledown; orphaned messages; drainer for each broker;
    drainer ends; released; single project; scaled to zero; scaled to zero and up; controller; ordinal; drainer runs the broker;
    at least one broker running; claim is removed; scaling up; messages and subscriptions; blocking sigterm; pre stop hook;
    grace period; forwards all messages; queue is empty; shuts down; topics; agent that watches; stored messages"""


@dataclass
class Story:
    """What was so on the way."""

    site: Site
    moved_at_zero: int = -1
    failed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    children: set[str] = field(default_factory=set)
    """Processes of the controller, as `ps` would name them, while it drained."""
    ended: bool = False
    marks: dict[str, Any] = field(default_factory=dict)
    taken: list[bytes] = field(default_factory=list)
    subscribed: list[bytes] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)
    """Brokers of stores under way that a client reached."""
    elsewhere: int = 0
    """Messages that a broker of another place got, to which the first one was drained."""


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("names")
    with site(folder) as s:
        told = Story(s)
        target, middle, last = s.brokers
        terms = {"container": "c", "name": "n", "address": "amq.topic", "shared": False, "lasting": True, "filters": ""}
        last.create("queue", "c.n", durable=True, exclusive=True, subscription=terms)
        last.create("binding", "", exchange="amq.topic", queue="c.n", key="#")
        assert send(last.address, "amq.topic", [message("topic", 0)]) == 1
        last.kill()
        middle.stop()
        s.want(None)
        assert s.once()[0].status == 1, "the stores are not wanted, and not released"
        told.moved_at_zero = came(target.address, "orders")
        target.kill()
        s.want(middle)
        _, events = s.once()
        told.failed = [each["store"] for each in events if each["event"] == "failed"]
        told.kept = sorted(path.name for path in s.stores.iterdir() if path.is_dir())
        s.want(None)
        log = folder / "controller.log"
        controller = spawn(log, "qpid-scaledown", *s.words)
        try:
            eventually(log.read_text, lambda text: '"wanted"' in text, "the controller looking on")
            target.start()
            target.wait_for("standalone")
            s.want(middle)
            marks = [broker.store / "released.json" for broker in (middle, last)]

            def drained() -> bool:
                for broker in (middle, last):
                    with suppress(OSError), socket.create_connection((broker.place.host, broker.port)):
                        told.reached.append(broker.address)
                told.children.update(children(controller.pid))
                return all(mark.exists() for mark in marks)

            eventually(drained, bool, "both stores being released")
            eventually(lambda: children(controller.pid), lambda found: not found, "the drainers' end")
            told.ended = controller.poll() is None
        finally:
            controller.send_signal(9)
        told.events = [json.loads(line) for line in log.read_text().splitlines()]
        told.marks = {mark.parent.name: json.loads(mark.read_text().splitlines()[0]) for mark in marks}
        told.taken = take(target.address, "orders", 2 * MESSAGES)
        told.subscribed = take(target.address, "c.n", 1)
        assert s.once("--delete-released")[0].status == 0
        told.left = [path.name for path in s.stores.iterdir() if path.is_dir()]
        assert send(target.address, "orders", numbered(1)) == MESSAGES
        with standalone(folder / "elsewhere") as other:
            assert run("qpid-drain", "--from", target.address, "--to", other.address, "--spread", "0").status == 0
            told.elsewhere = came(other.address, "orders")
        yield told


def names(story: Story) -> tuple[str, ...]:
    return tuple(broker.store.name for broker in story.site.brokers)


def test_messages_are_redistributed_to_another_broker_which_stores_them_itself(story: Story) -> None:
    assert story.taken == numbered(2) + numbered(1)


def test_after_a_failure_or_an_intentional_scaledown_the_stored_messages_are_migrated(story: Story) -> None:
    moved = {store: sum(queue["moved"] for queue in mark["queues"]) for store, mark in story.marks.items()}
    _, stopped, killed = names(story)
    assert moved == {stopped: MESSAGES, killed: MESSAGES + 1}


def test_the_orphaned_messages_of_a_store_lose_nothing_and_come_once(story: Story) -> None:
    assert len(story.taken) == len(set(story.taken)) == 2 * MESSAGES


def test_a_drainer_is_started_for_each_broker_that_is_shut_down(story: Story) -> None:
    _, middle, last = names(story)
    assert [each["store"] for each in story.events if each["event"] == "drain"] == [last, middle]
    assert len(story.children) >= 2, "a process each"


def test_each_drainer_ends_after_the_migration(story: Story) -> None:
    assert story.ended


def test_the_controller_is_the_agent_that_watches_which_brokers_are_to_go(story: Story) -> None:
    assert story.ended, "it goes on when its drainers have ended"
    assert [each["event"] for each in story.events].count("wanted") >= 2, "it has seen the number change"


def test_a_drainer_runs_the_broker_of_its_store_where_no_client_reaches_it(story: Story) -> None:
    assert story.reached == []


def test_no_single_project_bounds_a_drain_its_target_is_an_address(story: Story) -> None:
    assert story.elsewhere == MESSAGES


def test_a_drainer_forwards_all_messages_of_each_queue(story: Story) -> None:
    last = story.marks[names(story)[2]]
    assert {queue["name"]: queue["moved"] for queue in last["queues"]} == {"orders": MESSAGES, "c.n": 1}


def test_that_each_queue_is_empty_is_asked_by_management_before_a_store_is_released(story: Story) -> None:
    empty = {each["store"]: each["index"] for each in story.events if each["event"] == "empty"}
    assert sorted(empty) == sorted(names(story)[1:])
    assert min(empty.values()) > 0, "at that index of its log, behind the record that it leaves"


def test_the_store_is_marked_as_released_with_what_was_moved(story: Story) -> None:
    assert sorted(story.marks) == sorted(names(story)[1:])
    assert all(mark["drain"] for mark in story.marks.values())


def test_scaled_to_zero_nothing_is_migrated(story: Story) -> None:
    assert story.moved_at_zero == 0


def test_scaled_to_zero_and_up_to_some_of_the_brokers_the_rest_is_drained(story: Story) -> None:
    wanted = [each["replicas"] for each in story.events if each["event"] == "wanted"]
    assert wanted[0] == 0
    assert wanted[-1] == story.site.brokers[1].port - story.site.base
    assert len(story.taken) == 2 * MESSAGES


def test_a_store_whose_ordinal_is_not_below_the_replicas_is_drained_and_no_other(story: Story) -> None:
    assert names(story)[0] not in {each.get("store") for each in story.events}


def test_at_least_one_broker_must_be_running_else_nothing_moves_and_all_is_kept(story: Story) -> None:
    assert sorted(story.failed) == sorted(names(story)[1:])
    assert story.kept == sorted(names(story))


def test_the_store_s_claim_is_removed_when_it_was_released_and_that_is_asked_for(story: Story) -> None:
    assert story.left == [names(story)[0]]


def test_messages_and_the_subscriptions_of_topics_are_migrated(story: Story) -> None:
    assert story.subscribed == [message("topic", 0)]


def test_each_row_of_the_table_has_a_test_whose_name_carries_its_words() -> None:
    assert [row for row, _ in ROWS] == [" ".join(name.split()) for name in WORDS.split(";")]
    for row, cell in ROWS:
        for where in re.findall(r"`([^`]*)`", cell):
            path, _, test = where.partition("::")
            tree = ast.parse((ROOT / path).read_text())
            assert test in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, f"{where} is not a test"
        told = [set(where.partition("::")[2].split("_")) for where in re.findall(r"`([^`]*)`", cell)]
        assert any(set(row.split()) <= words for words in told), f"no test of {row!r} has its words"
