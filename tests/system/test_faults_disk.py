"""Disks that refuse writes, that are full, or that return other bytes than were written, while messages pass.

After a failed sync it is not known what the disk holds: that broker stops, and the others continue without it. A full disk
has refused a write and lost nothing: its broker waits for space. Damaged bytes are found by their checksum when they are
read. They are then fetched from another broker, or written again from memory.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from proton import Message

from broker.core.records import HEADER_BYTES, parse_header
from tests.broker.disk.logs import flip
from tests.system.filesystems import MIB, disk, memory
from tests.system.harness import BrokerProcess, cluster, eventually, standalone
from tests.system.means import where_possible
from tests.system.terms import check_one_primary_an_epoch, go_on, new_primary, resource_manager, traffic
from tests.system.test_bad_stores import batches_in, received, segment_of, send
from tests.system.traffic import send as send_encoded
from tests.system.traffic import take

SIZE = 1000
"""Bytes of a message: a store of a few megabytes is full after a few seconds."""
FULL = re.compile(r" error cannot write \S+ \S+ \S+ \S+: No space left on device; make room on that disk; producers wait")

LOW = re.compile(r" error only \d+ KiB are free where the \S+ log lies, .*; make room on that disk, or consume; producers wait")


def acknowledged(asked: BrokerProcess, holder: BrokerProcess) -> int:
    """The last batch on the disk of `holder`, as the broker that is asked knows it."""
    return {member["address"]: int(member["ackedIndex"]) for member in asked.status()["members"]}[holder.address]


@where_possible
def test_a_primary_whose_disk_fails_to_sync_stops_with_one_line_and_another_takes_over(tmp_path: Path) -> None:
    """Breaks when a sync is tried again and believed the second time, or when a broker that cannot keep anything stays."""
    store = tmp_path / "broker0" / "store"
    with (
        memory(tmp_path / "pool", 12 * MIB) as pool,
        disk(store, pool.folder / "image"),
        cluster(tmp_path, 3, "--ha-replicate", "all") as brokers,
        resource_manager(tmp_path, brokers),
    ):
        first = brokers.brokers[0]
        with traffic(brokers, rate=2000, size=SIZE) as run:
            pool.fill()
            eventually(lambda: first.running, lambda running: not running, "the broker stopping")
            new_primary(brokers, first)
            go_on(run)
            assert first.stop() == 1
            (line,) = [line for line in first.log().splitlines() if " critical " in line]
            why = rf"cannot (sync|write[a-z ]*) {store}\S*: .*; what the disk holds is unknown, so the broker must stop; "
            assert re.search(f"{why}this broker stops", line), line

            first.store, first.log_file = tmp_path / "new-disk", tmp_path / "later.log"
            first.start()
            first.wait_for("ready")
        check_one_primary_an_epoch(brokers)


@where_possible
def test_a_primary_whose_disk_is_full_lets_producers_wait_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """Breaks when a full disk ends a broker or a term, when what was refused counts as written, or when nobody tries again."""
    with (
        memory(tmp_path / "broker0" / "store", 5 * MIB) as small,
        cluster(tmp_path, 3, "--ha-replicate", "all") as brokers,
        resource_manager(tmp_path, brokers),
    ):
        first = brokers.brokers[0]
        epoch = first.status()["epoch"]
        with traffic(brokers, rate=2000, size=SIZE) as run:
            refuses = re.compile(f"{FULL.pattern}|{LOW.pattern}")
            eventually(first.log, lambda log: refuses.search(log) is not None, "the broker saying that its disk is full")
            eventually(lambda: run.reaches(accepted=run.accepted + 1, timeout_s=1), lambda more: not more, "producers waiting")
            assert first.state() == "active", "it answers, and nobody could do better"
            assert "make room on that disk" in first.status()["disk"]
            small.grow(256 * MIB)
            go_on(run)
            assert "the disk takes writes again" in first.log()
            assert first.status()["disk"] == ""
        assert first.status()["epoch"] == epoch


@where_possible
def test_producers_wait_before_the_disk_is_full_and_go_on_when_messages_were_consumed(tmp_path: Path) -> None:
    """Breaks when the last bytes go to producers, or when what is consumed does not leave the disk. What producers have credit
    for would fill the disk: a thousand messages of 100 KB."""
    with memory(tmp_path / "store", 160 * MIB) as small, standalone(tmp_path) as broker:
        broker.create("queue", "jobs")
        accepted = sent_until_refused(broker)
        assert LOW.search(broker.log())
        assert "No space left" not in broker.log()
        assert small.free_bytes() > 8 * MIB
        assert len(take(broker.address, "jobs", accepted)) == accepted
        eventually(broker.log, lambda log: "the disk takes writes again" in log, "producers going on")
        again = sent_until_refused(broker, most=accepted // 10)
        assert again == accepted // 10
        assert len(take(broker.address, "jobs", again)) == again
        eventually(lambda: broker.queue("jobs")["messages"], lambda depth: depth == 0, "the last acceptances being on disk")


def sent_until_refused(broker: BrokerProcess, most: int = 100_000) -> int:
    """Send messages of 100 KB until none is accepted for some seconds; how many were."""
    message: Any = Message(body=b"x" * 100_000, durable=True)
    return send_encoded(broker.address, "jobs", [bytes(message.encode())] * most, quiet_s=3)


@where_possible
def test_a_backup_whose_disk_is_full_holds_nobody_up_and_catches_up_when_there_is_room(tmp_path: Path) -> None:
    """Breaks when a majority waits for the one that cannot write, or when that one says that it has what it could not write."""
    with (
        memory(tmp_path / "broker1" / "store", 5 * MIB) as small,
        cluster(tmp_path, 3, "--ha-replicate", "all") as brokers,
        resource_manager(tmp_path, brokers),
    ):
        first, second, _ = brokers.brokers
        with traffic(brokers, rate=2000, size=SIZE) as run:
            eventually(second.log, lambda log: FULL.search(log) is not None, "the backup saying that its disk is full")
            go_on(run, 1000)
            told, held = acknowledged(first, second), acknowledged(second, second)
            assert told <= held < first.status()["commitIndex"]
            small.grow(256 * MIB)
            brokers.level(second)
        second.wait_for("ready")
        told = acknowledged(first, second)
        for broker in brokers.brokers:
            broker.kill()
        second.start()
        second.wait_for("joining")
        assert second.status()["lastIndex"] >= told, "what it says that it has is on its disk"
        first.start()
        brokers.promote(second)
        assert second.queue("jobs")["messages"] == 0


def leading(brokers: list[BrokerProcess], after: int) -> list[BrokerProcess]:
    """The broker that was elected in an epoch after that one, if all of these are in it."""
    said = [broker.status() for broker in brokers]
    if len({each["epoch"] for each in said}) > 1 or said[0]["epoch"] <= after:
        return []
    return [broker for broker, each in zip(brokers, said, strict=True) if each["status"] in ("recovering", "active")]


@where_possible
def test_backups_with_full_disks_give_their_votes_when_the_primary_dies_and_go_on_when_there_is_room(tmp_path: Path) -> None:
    """Breaks when a vote, an election or a start needs room, or when a full disk ends a broker."""
    with (
        memory(tmp_path / "broker1" / "store", 5 * MIB) as one,
        memory(tmp_path / "broker2" / "store", 5 * MIB) as two,
        cluster(tmp_path, 3, "--ha-replicate", "all") as brokers,
        resource_manager(tmp_path, brokers),
    ):
        first, *backups = brokers.brokers
        # To join a cluster for the first time needs room (docs/howto/disks.md).
        eventually(
            lambda: [each.status()["blank"] for each in backups], lambda blank: not any(blank), "the backups having joined"
        )
        epoch = first.status()["epoch"]
        with traffic(brokers, rate=2000, size=SIZE) as run:
            for backup in backups:
                eventually(backup.log, lambda log: FULL.search(log) is not None, "the backup saying that its disk is full")
            for small in (one, two):
                small.fill()
                assert small.free_bytes() == 0
            first.kill()

            def elected(after: int) -> BrokerProcess:
                """The one that both have voted for in an epoch after that one: active, if its segment has room for a batch."""
                (found,) = eventually(lambda: leading(backups, after), bool, "an election")
                return found

            chosen = elected(epoch)
            later, its_disk = chosen.status()["epoch"], (one, two)[backups.index(chosen)]
            chosen.kill()
            for unfinished in chosen.store.rglob("*.tmp"):
                unfinished.unlink()  # as the start does: it finds no room all the same
            its_disk.fill()
            chosen.start()
            elected(later)
            assert its_disk.free_bytes() == 0
            for small in (one, two):
                small.grow(256 * MIB)
            go_on(run)
        check_one_primary_an_epoch(brokers)


# ---- what has rotted


def rot(path: Path, index: int) -> None:
    """Flip a bit in the payload of this batch, behind the back of the process that has the file open."""
    data = path.read_bytes()
    (at,) = [at for at in batches_in(data) if parse_header(data[at : at + HEADER_BYTES]).index == index]
    flip(path, at + parse_header(data[at : at + HEADER_BYTES]).length - 1)


@pytest.mark.parametrize("server", ["the primary", "a backup that takes over"])
def test_rot_in_bodies_that_a_backup_needs_ends_the_broker_that_has_it_and_loses_nothing(tmp_path: Path, server: str) -> None:
    """A broker has bodies on its disk alone (docs/adr/0013): where they have rotted, another one serves, and it fetches them.

    Breaks when a damaged batch is sent on, when the backup stays behind for good, or when the rotten store goes on as it is.
    """
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers:
        first, second, absent = brokers.brokers
        first.create("queue", "q")
        send(first, "q", 0, 50)
        brokers.level(absent)
        had = absent.status()["lastIndex"]
        absent.kill()
        send(first, "q", 50, 150)
        brokers.level(second)

        # Started again, it has what was sent before on disk only.
        serving, other = (first, second) if server == "the primary" else (second, first)
        serving.kill()
        serving.start()
        brokers.promote(serving)
        eventually(lambda: serving.queue("q")["messages"], lambda depth: depth == 200, "all being applied")
        brokers.level(other)
        rot(segment_of(serving), had + 20)
        absent.start()
        eventually(lambda: serving.running, lambda running: not running, "the broker stopping")
        said = rf"batches for {absent.address} cannot be read: segment \S+ is damaged at byte \d+, in batch {had + 20}: "
        assert re.search(said, serving.log()), serving.log()
        assert "the broker stops, and fetches everything from another one when it is started again" in serving.log()

        brokers.promote(other)
        absent.wait_for("ready")
        serving.log_file = tmp_path / "later.log"
        serving.start()
        serving.wait_for("ready")
        brokers.level(serving)
        brokers.promote(serving)
        assert received(serving, "q", 200) == list(range(200))
