"""A single broker is killed, stopped and started again: its accepted messages and its created objects are there each time."""

from __future__ import annotations

import random
from pathlib import Path

from cli.verify.run import Run, Workload
from tests.system.harness import BrokerProcess, Request, ask_all, eventually, standalone
from tests.system.traffic import accounted, send, take

LIVES = 20
LARGE_BYTES = 60_000
CHECKPOINT_BYTES = 64 << 20
"""A broker writes a checkpoint when its log has grown by so much, and by more than is alive."""


def definitions(broker: BrokerProcess) -> tuple[set[tuple[str, bool]], set[tuple[str, str]], set[tuple[str, str, str]]]:
    """Queues, exchanges and bindings as the broker lists them."""
    asked = ask_all(broker.address, *(("QUERY", kind, "", {}) for kind in ("queue", "exchange", "binding")))
    items = [answer["items"] for answer in asked]
    queues = {(item["name"], item["durable"]) for item in items[0]}
    exchanges = {(item["name"], item["exchangeType"]) for item in items[1]}
    bindings = {(item["exchange"], item["queue"], item["key"]) for item in items[2]}
    return queues, exchanges, bindings


def test_a_broker_killed_at_twenty_moments_keeps_what_it_accepted_and_what_it_was_told_to_make(tmp_path: Path) -> None:
    """Breaks when anything is accepted, settled or answered before it is on disk, or when a torn end of the journal
    costs more than itself."""
    chance = random.Random(7)
    with standalone(tmp_path) as broker:
        broker.create("queue", "jobs")
        broker.create("exchange", "news", exchangeType="topic")
        with Run(Workload([broker.address], ["jobs"], rate=800)) as run:
            for life in range(LIVES):
                run.wait_for(accepted=run.accepted + chance.randrange(1, 200))
                changes: list[Request] = [
                    ("CREATE", "queue", f"q{life}", {"durable": bool(life % 2)}),
                    ("CREATE", "binding", "", {"exchange": "news", "queue": f"q{life}", "key": f"a.{life}.#"}),
                ]
                deletions: list[Request] = [("DELETE", "queue", f"q{life - 1}", {})] if life % 3 == 2 else []
                ask_all(broker.address, *changes, *deletions)
                kept = definitions(broker)
                broker.kill()
                broker.start()
                broker.wait_for("standalone")
                assert definitions(broker) == kept
            run.wait_for(accepted=run.accepted + 500)
            accounted(run, lambda: broker)
            assert run.opened("producer") == LIVES + 1


def test_a_broker_stopped_in_order_starts_with_the_same_messages_in_the_same_order(tmp_path: Path) -> None:
    """Breaks when stopping cuts off what is under way without a trace, or when a clean store is read otherwise than a
    torn one."""
    messages = [b"\x00\x53\x75\xa0\x04%04d" % number for number in range(2000)]
    with standalone(tmp_path) as broker:
        broker.create("queue", "kept")
        assert send(broker.address, "kept", messages) == len(messages)
        assert take(broker.address, "kept", 300) == messages[:300]
        for _ in range(3):
            assert broker.stop() == 0
            broker.start()
            broker.wait_for("standalone")
        assert broker.queue("kept")["messages"] == 1700
        assert take(broker.address, "kept", 1700) == messages[300:]


def files(broker: BrokerProcess, suffix: str) -> list[int]:
    """The indexes that the names of these files of the broker's own log give: where a segment begins, or a checkpoint ends."""
    return sorted(int(path.stem) for path in (broker.store / "local").glob(f"*.{suffix}"))


def taken_bytes(broker: BrokerProcess) -> int:
    """What segments and files with bodies of the broker's own log take on its disk."""
    return sum(path.stat().st_size for path in (broker.store / "local").iterdir() if path.suffix in (".seg", ".bodies"))


def test_a_checkpoint_and_the_tail_of_the_log_make_the_state_again(tmp_path: Path) -> None:
    """Breaks when a checkpoint misses what was alive, when the tail is applied twice or not at all, or when what it
    covers is never given back."""
    with standalone(tmp_path) as broker:
        broker.create("queue", "old")
        broker.create("queue", "jobs")
        old = [b"\x00\x53\x75\xa0\x03%03d" % number for number in range(500)]
        assert send(broker.address, "old", old) == len(old)
        assert take(broker.address, "old", 100) == old[:100]
        count = 2 * CHECKPOINT_BYTES // LARGE_BYTES
        with Run(Workload([broker.address], ["jobs"], size=LARGE_BYTES, at_least=count)) as run:
            accounted(run, lambda: broker)
        eventually(lambda: files(broker, "checkpoint"), bool, "a checkpoint")
        eventually(lambda: taken_bytes(broker), lambda nbytes: nbytes < count * LARGE_BYTES, "giving back what it covers")
        broker.create("queue", "young")
        assert take(broker.address, "old", 100) == old[100:200]
        assert send(broker.address, "young", old) == len(old)
        broker.kill()
        broker.start()
        broker.wait_for("standalone")
        assert broker.queue("jobs")["messages"] == 0
        assert take(broker.address, "old", 300) == old[200:]
        assert take(broker.address, "young", len(old)) == old
