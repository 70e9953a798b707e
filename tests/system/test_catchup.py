"""Brokers that were away, started empty, joined or left: what they fetch, and that they have the same data as the others
afterwards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.broker.disk.logs import flip
from tests.system.harness import BrokerProcess, Refused, ask, cluster, eventually, free_ports
from tests.system.stories import written
from tests.system.traffic import send, take

LARGE_BYTES = 60_000
CHECKPOINT_BYTES = 64 << 20
"""A broker writes a checkpoint when its log has grown by so much, and by more than is alive."""


def same_state(brokers: list[BrokerProcess], queue: str) -> dict[str, int]:
    """Wait until all of them have the same log, and have applied it; commit index and messages on the queue."""

    def look() -> list[dict[str, int]]:
        found = []
        for broker in brokers:
            status = broker.status()
            indexes = {name: int(status[name]) for name in ("commitIndex", "lastIndex", "appliedIndex")}
            found.append(indexes | {"messages": int(broker.queue(queue)["messages"])})
        return found

    alike = eventually(look, lambda found: all(each == found[0] for each in found), "the same state everywhere")
    assert alike[0]["commitIndex"] == alike[0]["lastIndex"] == alike[0]["appliedIndex"]
    return alike[0]


def stored(broker: BrokerProcess) -> dict[str, Any]:
    """What the broker says of its store."""
    return dict(broker.status()["store"])


def written_bytes(broker: BrokerProcess) -> int:
    """What the process has written to files and sockets since it was started."""
    assert broker.process is not None
    lines = Path(f"/proc/{broker.process.pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def numbered(first: int, count: int, nbytes: int) -> list[bytes]:
    """Encoded messages, each unlike the others."""
    return [
        b"\x00\x53\x75\xb0" + nbytes.to_bytes(4, "big") + (b"%08d" % (first + each)).ljust(nbytes, b".") for each in range(count)
    ]


def test_a_broker_that_was_down_fetches_only_what_it_missed(tmp_path: Path) -> None:
    """Breaks when a restarted broker throws away what it has, or when the primary sends it everything, or a snapshot,
    where a little would do."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers:
        first, _, absent = brokers.brokers
        first.create("queue", "jobs")
        known = numbered(0, 500, LARGE_BYTES)
        assert send(first.address, "jobs", known) == len(known)
        same_state(brokers.brokers, "jobs")
        had = absent.status()["lastIndex"]
        absent.kill()

        missed = numbered(len(known), 20_000, 20)
        assert send(first.address, "jobs", missed) == len(missed)
        absent.start()
        absent.wait_for("ready")
        state = same_state(brokers.brokers, "jobs")
        assert state["messages"] == len(known) + len(missed)
        assert state["commitIndex"] > had
        assert stored(absent)["checkpointIndex"] == 0, "it needed no snapshot"
        # Of what it wrote 16 MiB at the most are zeros: the file that it prepares for the log to go on in.
        assert written_bytes(absent) < len(known) * LARGE_BYTES * 2 / 3, "it did not write again what it had"

        brokers.promote(absent)
        assert take(absent.address, "jobs", len(known)) == known


def test_a_broker_whose_store_is_gone_is_given_a_snapshot_when_the_log_no_longer_begins_at_its_beginning(tmp_path: Path) -> None:
    """Breaks when a snapshot lacks anything alive, brings back anything dead, or when a compacted log leaves a new
    broker behind for good."""
    live, folder = numbered(0, 500, 1000), tmp_path / "lag"
    with cluster(tmp_path, 3, "--ha-replicate", "all", "--telemetry-dir", str(folder)) as brokers:
        first, _, blank = brokers.brokers
        for name in ("live", "passing"):
            first.create("queue", name)
        first.create("exchange", "news", exchangeType="topic")
        first.create("binding", "", exchange="news", queue="live", key="a.#")
        assert send(first.address, "live", live) == len(live)
        assert take(first.address, "live", 100) == live[:100]
        blank.kill()
        blank.wipe()
        for round_number in range(2):
            large = numbered(1000 * round_number, CHECKPOINT_BYTES // LARGE_BYTES, LARGE_BYTES)
            assert send(first.address, "passing", large) == len(large)
            assert take(first.address, "passing", len(large)) == large
        covered = eventually(lambda: stored(first)["checkpointIndex"], bool, "a checkpoint on the primary")

        blank.start()
        blank.wait_for("ready")
        assert stored(blank)["checkpointIndex"] >= covered
        assert send(first.address, "live", texts_after := numbered(500, 100, 1000)) == 100
        same_state(brokers.brokers, "live")
        brokers.promote(blank)
        assert blank.queue("passing")["messages"] == 0
        assert {
            (item["exchange"], item["queue"]) for item in ask(blank.address, "QUERY", "binding")["items"] if item["exchange"]
        } == {("news", "live")}
        assert take(blank.address, "live", 500) == live[100:] + texts_after
        for broker in (first, blank):
            assert broker.stop() == 0
        for sender, peer in ((first, blank), (blank, first)):
            begun, ended = (
                [line for line in written(folder.glob("*.jsonl")) if (line.get("type"), line["sender"]) == (each, sender.address)]
                for each in ("snapshot_begin", "snapshot_end")
            )
            assert [(line["peer"], line["detail"]) for line in ended] == [(peer.address, None)]
            assert [(line["peer"], line["index"], line["bytes"]) for line in begun] == [
                (peer.address, ended[0]["index"], ended[0]["bytes"])
            ]
            assert ended[0]["bytes"] > 0
            assert ended[0]["duration_ms"] > 0


def members(broker: BrokerProcess) -> dict[str, str]:
    """Address → role of each member, as the primary sees them."""
    return {item["address"]: item["role"] for item in broker.status()["members"]}


def test_a_broker_that_is_added_learns_first_and_votes_then_and_one_that_is_removed_does_neither(tmp_path: Path) -> None:
    """Breaks when a new member counts for majorities before it holds the log, or when a removed one still does."""
    messages = numbered(0, 2000, 500)
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers:
        first, second, third = brokers.brokers
        first.create("queue", "jobs")
        assert send(first.address, "jobs", messages) == len(messages)
        port = free_ports(1)[0]
        url = f"{brokers.url},127.0.0.1:{port}"
        newcomer = BrokerProcess(
            tmp_path / "newcomer", port, ["--ha-cluster", "yes", "--ha-brokers-url", url, "--ha-replicate", "all"]
        )
        brokers.brokers.append(newcomer)
        newcomer.start()
        newcomer.wait_for("joining")
        with pytest.raises(Refused) as refused:
            ask(second.address, "ADD-BROKER", "ha", body={"address": newcomer.address})
        assert refused.value.status == 409, "a backup adds nobody"
        ask(first.address, "ADD-BROKER", "ha", body={"address": newcomer.address}, timeout_s=60)
        eventually(
            lambda: members(first), lambda found: found.get(newcomer.address) == "voter" and len(found) == 4, "a fourth voter"
        )
        newcomer.wait_for("ready")
        same_state(brokers.brokers, "jobs")

        # Three of four are a majority, two are not.
        third.kill()
        assert send(first.address, "jobs", messages[:10]) == 10
        ask(first.address, "REMOVE-BROKER", "ha", body={"address": third.address}, timeout_s=60)
        assert set(members(first)) == {first.address, second.address, newcomer.address}
        second.kill()
        assert send(first.address, "jobs", messages[10:20]) == 10, "two of the three members hold it"
        first.kill()
        second.start()
        second.wait_for("joining", "catchup", "ready")
        brokers.promote(newcomer)
        assert take(newcomer.address, "jobs", 2020) == messages + messages[:20]
        assert _refusal(third, newcomer) == 409


def _refusal(removed: BrokerProcess, primary: BrokerProcess) -> int:
    """What a removed broker that comes back is told when it is to be the primary; the primary must not notice."""
    epoch = primary.status()["epoch"]
    removed.start()
    removed.wait_for("removed")
    try:
        ask(removed.address, "PROMOTE", "ha", timeout_s=60)
    except Refused as refusal:
        assert (primary.state(), primary.status()["epoch"]) == ("active", epoch)
        return refusal.status
    return 200


def test_the_last_of_its_members_and_strangers_cannot_be_removed(tmp_path: Path) -> None:
    """Breaks when a slip of the keyboard leaves a cluster without members, or says yes to nonsense."""
    with cluster(tmp_path, 1, "--ha-replicate", "all") as brokers:
        only = brokers.brokers[0]
        for address, status in ((only.address, 409), ("127.0.0.1:1", 409), ("not an address", 400), ("", 400)):
            with pytest.raises(Refused) as refused:
                ask(only.address, "REMOVE-BROKER", "ha", body={"address": address})
            assert refused.value.status == status, refused.value
        assert only.state() == "active"


def test_a_checkpoint_that_has_rotted_is_replaced_before_a_backup_gets_it(tmp_path: Path) -> None:
    """Breaks when it is sent as it is, or when the backup that asks for it stays behind."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers:
        first, _, absent = brokers.brokers
        first.create("queue", "jobs")
        messages = numbered(0, 700, LARGE_BYTES)
        assert send(first.address, "jobs", messages) == len(messages)
        eventually(lambda: stored(first)["checkpointIndex"], bool, "a checkpoint")
        absent.kill()
        absent.wipe()
        (path,) = (first.store / "cluster").glob("*.checkpoint")
        flip(path, path.stat().st_size // 2)
        absent.start()
        absent.wait_for("ready")
        same_state(brokers.brokers, "jobs")
        said = rf"checkpoint {path} is damaged: .*; {absent.address}, which needs a checkpoint, gets a new one"
        assert re.search(said, first.log()), first.log()

        brokers.promote(absent)
        assert take(absent.address, "jobs", len(messages)) == messages
