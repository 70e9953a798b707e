"""The replication-lag telemetry of brokers through a failover agrees with the page that describes it.

One story runs once for the module (`stories.of_a_failover`). The tests read its files.
`tests/spark_analytics/test_real_telemetry.py` checks with Spark that they are enough for a summary.
"""

from __future__ import annotations

import re
import signal
from itertools import pairwise, takewhile
from pathlib import Path

import pytest

from tests.cli.running import ROOT
from tests.system.filesystems import MIB, memory
from tests.system.harness import cluster, eventually
from tests.system.means import where_possible
from tests.system.stories import INTERVAL_MS, Story, of_a_failover, written
from tests.system.terms import healthy, new_primary, resource_manager
from tests.system.traffic import send

PAGE = (ROOT / "docs/reference/telemetry.md").read_text()
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "number": (int, float),
    "text": (str,),
    "texts": (list,),
    "bool": (bool,),
    "null": (type(None),),
}


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return of_a_failover(tmp_path_factory.mktemp("telemetry"))


# ---- the page


def fields(title: str) -> dict[str, tuple[type, ...]]:
    """Field → the types that it may have, from the table below a title of the page."""
    section = PAGE.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]
    found: dict[str, tuple[type, ...]] = {}
    for names, types in re.findall(r"^\| (`[^|]+`) \| ([a-z ]+) \|", section, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            found[name] = tuple(one for word in types.split(" or ") for one in _TYPES[word])
    return found


EVERY = fields("Every line")
OF_KIND = {kind: fields(f"`{kind}`") for kind in ("sample", "event", "roster")}
EVENTS = set(
    re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*`) \| \D", PAGE.split("## `event`")[1].split("## `roster`")[0], re.M)))
)


def test_every_line_has_the_fields_that_the_page_gives_its_kind_and_no_others(story: Story) -> None:
    assert set(EVERY) == {"v", "kind", "cluster", "epoch", "sender", "seq", "ts"}, "the page's table was read"
    assert {line["kind"] for line in story.lines} == set(OF_KIND)
    for line in story.lines:
        expected = EVERY | OF_KIND[line["kind"]]
        assert set(line) == set(expected)
        for name, types in expected.items():
            right = isinstance(line[name], types) and (bool in types or not isinstance(line[name], bool))
            assert right, f"{name} is {line[name]!r} in {line}"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])
        assert line["v"] == 1


def test_every_event_is_one_of_the_page(story: Story) -> None:
    assert {"role", "failover_done"} <= EVENTS, "the page's table was read"
    assert {line["type"] for line in story.lines if line["kind"] == "event"} <= EVENTS


def test_numbers_of_lines_never_repeat_though_a_sender_was_killed_and_restarted(story: Story) -> None:
    """And its clean end shows as no hole: every line from its last start on is there."""
    for sender in {line["sender"] for line in story.lines}:
        numbers = sorted(line["seq"] for line in story.lines if line["sender"] == sender)
        assert len(set(numbers)) == len(numbers)
        holes = [pair for pair in pairwise(numbers) if pair[1] != pair[0] + 1]
        assert len(holes) == (1 if sender == story.killed else 0)


def test_no_unfinished_file_is_left_and_every_file_of_a_primary_begins_with_the_roster(story: Story) -> None:
    assert list(story.folder.glob(".*")) == []
    rosters = [line for line in story.lines if line["kind"] == "roster" and line["sender"] == story.successor]
    assert rosters[-1]["queues"] == ["orders"]
    assert story.killed in rosters[-1]["backups"]


# ---- the story


def test_the_killed_primary_has_left_what_it_measured(story: Story) -> None:
    backups = {line["backup"] for line in story.samples(story.killed, 1, "orders")}
    assert len(backups) == 2
    assert story.killed not in backups
    assert [event["to"] for event in story.events(story.killed, "role")][:2] == ["recovering", "active"]


def test_samples_come_once_an_interval_for_the_whole_log_and_each_queue(story: Story) -> None:
    for queue in (None, "orders"):
        samples = story.samples(story.successor, 2, queue)
        for backup in {line["backup"] for line in samples}:
            stamps = [int(line["ts"][-7:-5]) * 1000 + int(line["ts"][-4:-1]) for line in samples if line["backup"] == backup]
            steps = [(after - before) % 60_000 for before, after in pairwise(stamps)]
            assert sorted(steps)[len(steps) // 2] == pytest.approx(INTERVAL_MS, abs=INTERVAL_MS / 2)


def test_a_dead_backup_lags_more_with_every_sample_and_is_level_again_when_it_is_back(story: Story) -> None:
    """Breaks when a backup that is not connected is taken for one without lag."""
    samples = [line for line in story.samples(story.successor, 2, None) if line["backup"] == story.killed]
    away = list(takewhile(lambda line: not line["connected"], samples))
    assert len(away) > 10
    assert away[-1]["lag_records"] > away[0]["lag_records"]
    assert away[-1]["lag_ms"] > away[0]["lag_ms"]
    assert not any(line["in_sync"] for line in away)
    assert any(line["connected"] and line["in_sync"] and line["lag_records"] < away[-1]["lag_records"] for line in samples)


def test_the_failover_is_told_by_the_broker_that_took_over(story: Story) -> None:
    (noticed,) = story.events(story.successor, "failure_detected")
    assert (noticed["broker"], noticed["epoch"]) == (story.killed, 1)
    assert story.events(story.successor, "promote_asked")[-1]["detail"] == "test"
    assert story.events(story.successor, "promote_won")
    (done,) = story.events(story.successor, "failover_done")
    assert (done["epoch"], done["to"]) == (2, story.successor)
    assert 0 < done["duration_ms"] < 60_000
    roles = [(event["from"], event["to"]) for event in story.events(story.successor, "role")]
    assert roles[-1] == ("recovering", "active")
    assert ("joining", "ready") in roles or ("catchup", "ready") in roles
    (back,) = story.events(story.killed, "role")[-1:]
    assert back["to"] == "ready"


@pytest.mark.parametrize("role", ["primary", "backup"])
def test_disks_round_trips_and_throughput_are_measured(story: Story, role: str) -> None:
    """The round trip by the primary alone, to who is connected."""
    samples = [line for line in story.lines if line["kind"] == "sample" and (line["role"], line["queue"]) == (role, None)]
    synced = [line for line in samples if line["sync_ms"] is not None]
    assert synced
    assert all(0 < line["sync_ms"] <= line["sync_max_ms"] for line in synced)
    assert any(line["records_per_s"] and line["bytes_per_s"] > line["records_per_s"] for line in samples)
    assert any(line["round_trip_ms"] for line in samples) == (role == "primary")
    assert not any(line["round_trip_ms"] for line in samples if not line["connected"])


def test_a_backup_that_is_back_tells_what_it_fetches_and_the_primary_whom_it_lost(story: Story) -> None:
    begun = story.events(story.killed, "catch_up_begin")[-1]
    ended = story.events(story.killed, "catch_up_end")[-1]
    assert (begun["peer"], ended["peer"], ended["to"]) == (story.successor, story.successor, "ready")
    assert ended["index"] > begun["index"]
    assert ended["duration_ms"] > 0
    found = [event for event in story.events(story.killed, "discovery") if event["to"] == story.successor]
    assert found[-1]["duration_ms"] > 0
    lost = {(event["broker"], event["peer"]) for event in story.lines if event.get("type") == "backup_lost"}
    assert all(broker != peer for broker, peer in lost)


# ---- a primary that slept


def told_of_silence(folder: Path, broker: str) -> bool:
    """Whether the resource manager has written that a broker does not answer, be it to a file that still grows."""
    lines = written([*folder.glob(".rm*.part"), *folder.glob("rm*.jsonl")])
    return any(line["broker"] == broker and line["reach"] != "reachable" for line in lines if line["kind"] == "probe")


@pytest.fixture(scope="module")
def nap(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The primary stands still until a resource manager has replaced it, and wakes up."""
    base = tmp_path_factory.mktemp("nap")
    folder = base / "lag"
    options = ["--telemetry-dir", str(folder), "--telemetry-interval-ms", str(INTERVAL_MS)]
    with cluster(base, 3, *options, promote=False) as brokers:
        with resource_manager(base, brokers, options=options):
            first = healthy(brokers)
            first.signal(signal.SIGSTOP)
            try:
                second = new_primary(brokers, first)
                eventually(lambda: told_of_silence(folder, first.address), bool, "a line that says that it does not answer")
            finally:
                first.signal(signal.SIGCONT)
            first.wait_for("ready")
        figures = second.status()["telemetry"]
        assert (figures["dropped"], figures["reason"]) == (0, "")
        assert figures["written"] > 0
        for broker in brokers.brokers:
            if broker is not second:
                assert broker.stop() == 0
        assert second.stop() == 0
    return Story(folder, first.address, second.address, written(folder.glob("*.jsonl")))


def test_a_primary_that_slept_through_its_replacement_says_that_it_was_fenced(nap: Story) -> None:
    (fenced,) = nap.events(nap.killed, "fenced")
    assert re.search(r"epoch \d+ has begun|heard from 1 of 3 members", fenced["detail"])
    assert not nap.events(nap.successor, "fenced")
    roles = [event["to"] for event in nap.events(nap.killed, "role")]
    assert roles[-1] == "ready"


def test_the_gap_of_a_failover_begins_with_the_old_primarys_last_word(nap: Story) -> None:
    """Breaks when detection is left out: nobody votes for another primary before a second of silence. Who takes over may be
    asked before it has noticed anything itself."""
    silences = [event["duration_ms"] for event in nap.events(nap.successor, "failure_detected")]
    done = nap.events(nap.successor, "failover_done")[-1]
    assert all(silence_ms >= 1000 for silence_ms in silences)
    assert done["duration_ms"] >= max([1000, *silences])


def test_the_resource_manager_tells_its_probes_and_promotions_under_the_clusters_own_name(nap: Story) -> None:
    clusters = {line["cluster"] for line in nap.lines if line["sender"] == nap.successor and line["epoch"] > 1}
    told = [line for line in nap.lines if line["sender"] == "rm"]
    assert {line["cluster"] for line in told[-10:]} == clusters
    probes = [line for line in told if line["kind"] == "probe" and line["broker"] == nap.killed]
    reaches = {line["reach"] for line in probes}
    assert "reachable" in reaches
    assert reaches & {"silent", "absent"}, "it did not answer in its sleep"
    for line in probes:
        assert set(line) == set(EVERY | fields("`probe`"))
    (failed,) = [line for line in told if line.get("type") == "failure_detected"]
    won = [line for line in told if line.get("type") == "promote_won"]
    assert failed["broker"] == nap.killed
    assert won[-1]["broker"] == nap.successor
    assert won[-1]["duration_ms"] > 0
    assert len(won) <= sum(line.get("type") == "promote_asked" for line in told)


# ---- a disk with no room


@where_possible
def test_on_a_full_disk_lines_are_lost_and_counted_and_none_is_cut_and_the_broker_serves(tmp_path: Path) -> None:
    """Breaks when a broker waits for its telemetry's disk, when half a line stays in a file, or when a loss is not told."""
    with memory(tmp_path / "lag", 256 * 1024) as small:
        small.fill()
        options = ["--ha-replicate", "all", "--telemetry-dir", str(small.folder), "--telemetry-interval-ms", "100"]
        with cluster(tmp_path, 2, *options) as brokers:
            broker, backup = brokers.brokers
            broker.create("queue", "orders")
            assert send(broker.address, "orders", [b"\x00\x53\x75\xa0\x01x"] * 10) == 10
            told = eventually(lambda: broker.status()["telemetry"], lambda told: told["dropped"] >= 10, "lines being dropped")
            assert told["reason"] == "not written: No space left on device"
            eventually(
                broker.log, lambda log: "lines of telemetry were dropped so far (not written: No space" in log, "a warning"
            )
            small.grow(8 * MIB)
            written_before = broker.status()["telemetry"]["written"]
            eventually(lambda: broker.status()["telemetry"]["written"], lambda now: now > written_before + 3, "lines again")
            assert backup.stop() == 0
            assert broker.stop() == 0
        lines = written(small.folder.glob("*.jsonl"))
        lost = [line for line in lines if line.get("type") == "drop"]
        assert sum(line["lost_records"] for line in lost) >= told["dropped"]
        assert all(path.read_bytes().endswith(b"\n") for path in small.folder.glob("*.jsonl"))
