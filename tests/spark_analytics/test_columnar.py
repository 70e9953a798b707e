"""The pass by the column must come to the rows that Spark's own expressions come to, whatever the lines are like."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_analytics import local_files, sources
from spark_analytics.errors import Refused
from spark_analytics.schemas import LINE, LINES
from spark_analytics.transforms import columnar, combine, fingerprint, parse, runs, told
from spark_analytics.transforms.partials import Grains
from tests.spark_analytics.conftest import START_MS

NOW_MS = START_MS + 400_000
GRAINS = Grains(10_000, 60_000)
LONG_GRAINS = Grains(300_000, 3_600_000)
OBJECTIVE_MS = 1000.0


def rules(grains: Grains = GRAINS, **fields: Any) -> columnar.Rules:
    return columnar.Rules(grains, OBJECTIVE_MS, parse.future_ms(NOW_MS), **fields)


def plain(value: Any) -> Any:
    if hasattr(value, "asDict"):
        return {name: plain(inner) for name, inner in value.asDict().items()}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


Rows = dict[str, dict[str, Any]]


def rows_of(rows: DataFrame) -> Rows:
    """Rows by their keys, each once."""
    found = [plain(row) for row in combine.combined(rows).collect()]
    keyed = {json.dumps([row[name] for name in told.KEY]): row for row in found}
    assert len(keyed) == len(found)
    return keyed


def by_spark(lines: DataFrame, grains: Grains = GRAINS, **span: Any) -> Rows:
    """What Spark's expressions alone make of lines."""
    tagged = told.tagged(parse.parse(lines, now_ms=NOW_MS, schema=LINE), **span)
    return rows_of(told.told(tagged, grains, objective_ms=OBJECTIVE_MS))


def by_columns(lines: DataFrame, grains: Grains = GRAINS, **span: Any) -> Rows:
    """What the pass by the column makes of them, with Spark's judgement of what it handed back."""
    return rows_found(columnar.looked_over(lines, rules(grains, **span)).cache(), grains, **span)


def rows_found(found: DataFrame, grains: Grains = GRAINS, **span: Any) -> Rows:
    odd = columnar.handed_back(found).where("NOT counted")
    tagged = told.tagged(parse.parse(odd, now_ms=NOW_MS, schema=LINE), **span)
    return rows_of(columnar.sums(found).unionByName(told.told(tagged, grains, objective_ms=OBJECTIVE_MS)))


def text_of(spark: SparkSession, lines: list[str]) -> DataFrame:
    return spark.createDataFrame([(line, f"file:///of/{number % 3}") for number, line in enumerate(lines)], LINES)


def record(number: int, **fields: Any) -> dict[str, Any]:
    """A good sample."""
    found: dict[str, Any] = {"v": 1, "kind": "sample", "cluster": "c", "epoch": 3, "sender": "a:1", "seq": number}
    found["ts"] = f"2026-01-05T08:00:{number // 25:02d}.{number % 25 * 40:03d}Z"
    found |= {"interval_ms": 1000, "primary": "a:1", "backup": f"b:{number % 2}", "queue": [None, "q", "é"][number % 3]}
    found |= {"commit_index": 100 + number, "acked_index": 90 + number, "lag_records": number % 7, "lag_bytes": number * 100}
    found |= {"lag_ms": number * 1.5, "stall_ms": 0.0, "state": "ready", "connected": number % 5 != 0, "in_sync": True}
    return found | fields


STRANGE: list[dict[str, Any]] = [
    {"acked_index": None, "lag_bytes": None, "stall_ms": None, "in_sync": None, "state": None, "headroom_bytes": 77},
    {"state": "something new", "headroom_bytes": 0},
    {"sender": "b:0"},
    {"sender": "b:0", "queue": "q"},
    {"primary": ""},
    {"lag_ms": 5},
    {"lag_ms": -1.0},
    {"lag_ms": None},
    {"lag_ms": "12"},
    {"lag_records": -1},
    {"lag_records": None},
    {"lag_records": 2.0},
    {"lag_records": 1 << 62},
    {"lag_bytes": 1 << 63},
    {"acked_index": -(1 << 63)},
    {"commit_index": -(1 << 63) + 1},
    {"commit_index": None},
    {"seq": None},
    {"seq": -1},
    {"seq": 1 << 70},
    {"interval_ms": 9},
    {"interval_ms": 10},
    {"interval_ms": 60_000},
    {"interval_ms": 1 << 64},
    {"epoch": None},
    {"epoch": "3"},
    {"epoch": -(1 << 64)},
    {"v": 2},
    {"v": 0},
    {"v": None},
    {"kind": None},
    {"kind": "sermon"},
    {"connected": None},
    {"connected": 1},
    {"backup": None},
    {"backup": 5},
    {"backups": 5},
    {"backups": ["x", 5]},
    {"queue": ""},
    {"queue": 'with "quotes" and } {"v'},
    {"cluster": "another"},
    {"stall_ms": -0.5},
    {"in_sync": "yes"},
    {"unknown": {"deep": [1, {"er": None}]}},
    {"ts": None},
    {"ts": "2026-01-05T08:00:01Z"},
    {"ts": "2026-01-05T08:00:01.5+01:00"},
    {"ts": "2026-01-05 08:00:01.000Z"},
    {"ts": "2026-02-30T08:00:01.000Z"},
    {"ts": "2026-01-05T08:00:60.000Z"},
    {"ts": "2026-01-05T24:00:00.000Z"},
    {"ts": "2026-01-0xT08:00:01.000Z"},
    {"ts": "٢026-01-05T08:00:01.000Z"},
    {"ts": "2026-01-05T08:00:01.000z"},
    {"ts": "2036-01-05T08:00:01.000Z"},
    {"ts": "1960-01-05T08:00:01.001Z"},
    {"ts": 1_767_600_001_000},
    {"kind": "probe", "broker": "b:0", "reach": "yes"},
    {"kind": "probe", "broker": "b:0"},
    {"kind": "probe", "broker": "b:0", "reach": "yes", "lag_ms": -4.0},
    {"kind": "event", "broker": "b:0", "type": "role"},
    {"kind": "event", "broker": "b:0"},
    {"kind": "event", "broker": "b:0", "type": "role", "lag_ms": -4.0},
    {"kind": "roster", "backups": ["b:0"], "queues": []},
    {"kind": "roster", "backups": ["b:0"], "queues": [], "lag_ms": None, "lag_records": None, "stall_ms": None},
    {"kind": "roster", "backups": ["b:0"], "queues": [], "interval_ms": 3},
    {"kind": "roster", "backups": ["b:0"]},
    {"kind": "roster", "backups": ["b:0"], "queues": ["q"], "lag_ms": -4.0},
]
GOOD = json.dumps(record(30))
TORN = [
    GOOD[:-20],
    GOOD[30:],
    GOOD + GOOD,
    GOOD + " " + GOOD,
    GOOD + " trailing",
    f"  {GOOD}  ",
    f"{GOOD}\t",
    "\t",
    "{}",
    "[]",
    "null",
    "{",
    "}",
    "not JSON at all",
    GOOD.replace('"epoch"', '"seq": 4, "epoch"'),
    GOOD.replace(" 30", " 030"),
    GOOD.replace("45.0", "NaN"),
    GOOD.replace("45.0", "1e400"),
    GOOD.replace("45.0", "4.5e1"),
    GOOD.replace('"c"', '"c\t"'),
    GOOD.replace('"c"', '"c\\u0041"'),
    GOOD.replace('"c"', '"\\ud800"'),
    GOOD.replace("{", '{"x": tru, ', 1),
    GOOD.replace("{", '{"x": {}, ', 1),
    "\ufeff" + GOOD,
]


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """A few hundred good lines with every strange one among them, in an order that a seed chose."""
    good = [json.dumps(record(number)) for number in range(300)]
    strange = [
        json.dumps(record(1000 + at, **{"queue": f"q{at}"} | fields), ensure_ascii=False) for at, fields in enumerate(STRANGE)
    ]
    every = good + strange + TORN
    random.Random(1).shuffle(every)
    return every


def test_any_lines_come_to_the_same_rows(spark: SparkSession, lines: list[str]) -> None:
    text = text_of(spark, lines)
    assert by_columns(text) == by_spark(text)


def test_a_span_cuts_them_alike(spark: SparkSession, lines: list[str]) -> None:
    span: dict[str, Any] = {"since_ms": START_MS + 10_000, "until_ms": START_MS + 40_500}
    text = text_of(spark, lines)
    assert by_columns(text, **span) == by_spark(text, **span)


def test_grains_that_are_longer_than_sixty_intervals_have_longer_slots(spark: SparkSession) -> None:
    """An hour of a sample a minute has sixty slots, and so has an hour of a sample a second."""
    chance = random.Random(2)
    records: list[dict[str, Any]] = []
    for number in range(3600):
        for interval_ms, queue in ((1000, "quick"), (60_000, "slow"), (7000, "odd")):
            if number % (interval_ms // 1000) == 0 and chance.random() < 0.9:
                ts = f"2026-01-05T08:{number // 60:02d}:{number % 60:02d}.500Z"
                records.append(record(len(records), ts=ts, interval_ms=interval_ms, queue=queue, backup="b:0"))
    text = text_of(spark, [json.dumps(one) for one in records])
    found = by_columns(text, LONG_GRAINS)
    assert found == by_spark(text, LONG_GRAINS)
    slots = {row["queue"]: (row["n"], row["told"].bit_count()) for row in found.values()}
    assert slots["slow"][0] == slots["slow"][1] < 60, "a slot for each sample"
    assert slots["quick"][1] == 60 < slots["quick"][0], "a minute's samples share a slot, which is no shorter than that"
    assert slots["odd"][1] == 60 < slots["odd"][0]


def test_a_story_with_all_that_happens_comes_to_the_same_rows(spark: SparkSession, story: tuple[Path, dict[str, Any]]) -> None:
    text = sources.read_lines(spark, str(story[0]))
    assert by_columns(text) == by_spark(text)


BYTES = [
    b"\xef\xbb\xbf" + GOOD.encode(),
    GOOD.encode().replace(b'"c"', b'"c\xff"'),
    GOOD.encode().replace(b'"in_sync"', b'"x\xc3": "\xa9", "in_sync"'),
    GOOD.encode().replace(b", ", b",\r"),
    GOOD.encode().replace(b", ", b",\r\n", 1),
    GOOD.encode() + b"\r",
    GOOD.encode() + b"\x00",
    b"\xff",
    b"  ",
    b"",
]
"""Lines that only a file can have."""


@pytest.fixture(scope="module")
def folder(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those lines and every strange line in files of all sorts."""
    where = tmp_path_factory.mktemp("lines")
    every = [json.dumps(record(2000 + number)).encode() for number in range(200)] + BYTES
    random.Random(3).shuffle(every)
    text = [line.encode("utf-8", "surrogatepass") for line in lines]
    good = GOOD.encode()
    files = {
        "a.jsonl": b"\n".join(text) + b"\n",
        "without an end.jsonl": b"\n".join(every),
        "marked 100%25.jsonl": b"\xef\xbb\xbf" + good + b"\n" + good,
        "ärger?.jsonl": b"\r\n".join(every) + b"\r\n\r\n",
        "returns.jsonl": b"\r".join(text),
        "deep/er/one.jsonl": good,
        "only a mark.jsonl": b"\xef\xbb\xbf",
        "empty.jsonl": b"",
        "packed.jsonl.gz": gzip.compress(b"\n".join(every)),
        "torn.jsonl.gz": gzip.compress(b"\n".join(every))[:-500],
        ".hidden.jsonl": good,
        "_hidden.jsonl": good,
        "_hidden/er.jsonl": good,
        "another.json": good,
    }
    for name, content in files.items():
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_bytes(content)
    return where


def back(found: DataFrame) -> list[tuple[Any, ...]]:
    """Lines that were handed back, to the byte, and their files."""
    return sorted(columnar.handed_back(found).select(F.hex("value"), "file", "counted").collect())


@pytest.mark.parametrize("whole_below", [0, 3000, local_files.WHOLE_BELOW])
def test_a_file_that_a_worker_reads_itself_has_the_lines_that_spark_reads_in_it(
    spark: SparkSession, folder: Path, whole_below: int
) -> None:
    lines = sources.lines_below(spark, str(folder), whole_below=whole_below)
    found, by_text = lines.looked_over(rules()).cache(), columnar.looked_over(lines.text, rules()).cache()
    assert lines.files is not None
    assert lines.files.count() == {0: 0, 3000: 3}.get(whole_below, 7)
    assert len(back(by_text)) > 200
    assert back(found) == back(by_text)
    assert rows_found(found) == rows_found(by_text) == by_spark(lines.text)


@pytest.mark.parametrize("nbytes", [1, 2, 3, 7, 100])
def test_a_file_that_is_read_in_small_pieces_has_the_same_lines(
    tmp_path: Path, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process: whatever of a line, its end or a mark lies in two pieces."""
    monkeypatch.setattr(local_files, "CHUNK", nbytes)
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf{1}\r\n\r{22}\r{3}\n\n{\xff}")
    pieces = list(local_files.pieces_of((tmp_path / "a.jsonl").as_uri()))
    texts = [text.as_buffer().to_pybytes() for piece in pieces for text in piece.texts(np.arange(len(piece)))]
    assert texts == [b"{1}", b"", b"{22}", b"{3}", b"", b"{\xff}"]
    assert (len(pieces) > 2) == (nbytes < 100)


def test_a_file_that_has_gone_is_an_error_and_one_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"gone\.jsonl has gone since its folder was listed: ask again"):
        list(local_files.pieces_of((tmp_path / "gone.jsonl").as_uri()))
    assert list(local_files.pieces_of(tmp_path.as_uri())) == []


def test_only_what_is_not_plain_is_handed_back(spark: SparkSession, lines: list[str]) -> None:
    found = columnar.looked_over(text_of(spark, [json.dumps(record(number)) for number in range(1400)]), rules())
    assert columnar.handed_back(found).count() == 0
    odd = columnar.handed_back(columnar.looked_over(text_of(spark, lines), rules()))
    assert odd.where("NOT counted").count() < 100
    assert odd.where("counted").count() == 3, "one event, and two rosters, are good"


def test_in_small_pieces_they_come_to_the_same_rows(spark: SparkSession, lines: list[str]) -> None:
    """In the workers' own process: what lies in several blocks, partitions and rounds of adding up is added up once."""
    text = text_of(spark, lines)
    whole = by_columns(text)
    small = columnar.looked_over(text, rules(lines_at_once=7, lines_added_up=40)).cache()
    assert small.where("file IS NULL").count() > len(whole)
    assert rows_found(small) == whole


def test_numbers_are_marked_by_their_fingerprint_and_files_are_named(spark: SparkSession) -> None:
    lines = [json.dumps(record(number, queue="q")) for number in range(500)]
    found = columnar.looked_over(text_of(spark, lines), rules(numbers="prints")).cache()
    assert found.agg(F.sum("print")).collect()[0][0] == fingerprint.of_range(0, 499)
    files = {row["file"] for row in found.where("file IS NOT NULL").collect()}
    assert files == {f"file:///of/{number}" for number in range(3)}


def test_each_senders_numbers_are_told_as_runs(spark: SparkSession) -> None:
    """By file, of all that is plain: what is odd has no number to rely on. One that is there twice is in two runs."""
    chance = random.Random(4)
    numbers = {sender: [chance.randrange(300) for _ in range(200)] for sender in ("a:1", "b:0")}
    records = [record(number, sender=sender) for sender, its in numbers.items() for number in its]
    lines = [json.dumps(one) for one in [*records, record(5, sender="b:0", lag_ms=-1.0), record(6, cluster="other")]]
    chance.shuffle(lines)
    found = columnar.looked_over(text_of(spark, lines), rules(numbers="runs", lines_added_up=150)).where("runs IS NOT NULL")
    told_of: dict[tuple[str, str, str], list[int]] = {}
    for row in found.collect():
        ends = list(zip(row["runs"][::2], row["runs"][1::2], strict=True))
        its = [number for first, last in ends for number in range(first, last + 1)]
        told_of.setdefault((row["cluster"], row["sender"], row["file"]), []).extend(its)
    expected: dict[tuple[str, str, str], list[int]] = {}
    for at, one in enumerate(map(json.loads, lines)):
        if one["lag_ms"] >= 0:
            expected.setdefault((one["cluster"], one["sender"], f"file:///of/{at % 3}"), []).append(one["seq"])
    assert {key: sorted(its) for key, its in told_of.items()} == {key: sorted(its) for key, its in expected.items()}


@pytest.mark.parametrize("lines_at_once, lines_added_up", [(2000, 10_000), (7, 40)])
def test_lines_that_are_counted_elsewhere_are_passed_over_and_those_that_are_there_twice_handed_back(
    spark: SparkSession, lines_at_once: int, lines_added_up: int
) -> None:
    """Only in that file, and only those of that sender."""
    its = {number: [json.dumps(record(number, sender=sender)) for sender in ("a:1", "b:0")] for number in range(120)}
    text = text_of(spark, [line for lines in its.values() for line in lines])
    where = {(row["value"], row["file"]) for row in text.collect()}
    skips = {"file:///of/1": [runs.Skip("c", "a:1", [[10, 49], [100, 119]], [[60, 62], [99, 99]])]}
    found = columnar.looked_over(
        text, rules(numbers="runs", skips=skips, lines_at_once=lines_at_once, lines_added_up=lines_added_up)
    ).cache()
    chosen = {
        (line, file): json.loads(line)["seq"] for line, file in where if file == "file:///of/1" and '"sender": "a:1"' in line
    }
    counted = {one for one, number in chosen.items() if 10 <= number <= 49 or number >= 100}
    twice = {one for one, number in chosen.items() if number in (60, 61, 62, 99)}
    assert counted
    assert twice
    back = columnar.handed_back(found).collect()
    assert {(row["value"], row["file"]) for row in back if not row["counted"]} == twice
    assert columnar.sums(found).agg(F.sum("lines")).collect()[0][0] == len(where) - len(counted) - len(twice)
    assert found.where("file IS NOT NULL AND value IS NULL").agg(F.sum("lines")).collect()[0][0] == len(twice)


def test_a_row_has_the_columns_that_spark_gives_it(spark: SparkSession) -> None:
    tagged = told.tagged(parse.parse(text_of(spark, []), now_ms=NOW_MS))
    by_expressions = told.told(tagged, GRAINS, objective_ms=OBJECTIVE_MS)
    assert {field.name: field.dataType.simpleString() for field in columnar.SUMS} == {
        field.name: field.dataType.simpleString() for field in by_expressions.schema
    }


def test_without_its_decoder_a_worker_hands_everything_back(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    import pyarrow as pa

    batch = pa.RecordBatch.from_pydict({"value": lines, "file": ["f"] * len(lines)})
    back = list(columnar.in_worker(rules(), [batch]))
    assert [text for found in back for text in found.column("value").to_pylist()] == [line for line in lines if line.strip()]


def test_a_worker_that_meets_endless_series_forgets_them_and_counts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    its = [record(number, sender=f"a:{number // 40 % 7}", queue=f"q{number // 9}") for number in range(900)]
    batch = pa.RecordBatch.from_pydict({"value": [json.dumps(one) for one in its], "file": ["f"] * len(its)})

    def found(**fields: Any) -> list[Any]:
        rows = [row for part in columnar.in_worker(rules(numbers="runs", **fields), [batch]) for row in part.to_pylist()]
        numbers = [(row["sender"], number) for row in rows if row["runs"] for number in told_by(row["runs"])]
        return [sorted(numbers), sorted((row["sender"], row["queue"], row["lines"]) for row in rows if row["file"] is None)]

    def told_by(ends: list[int]) -> list[int]:
        return [number for first, last in zip(ends[::2], ends[1::2], strict=True) for number in range(first, last + 1)]

    whole = found(lines_at_once=9, lines_added_up=90)
    monkeypatch.setattr(columnar, "_MOST_SERIES", 20)
    assert found(lines_at_once=9, lines_added_up=90) == whole
    assert whole[0] == sorted((one["sender"], one["seq"]) for one in its)


def test_buckets_are_those_of_spark(spark: SparkSession) -> None:
    edges = [2 ** (step / 2) for step in range(-8, 60)]
    values = [0.0, *edges, *(edge * 1.0000001 for edge in edges), *(edge * 0.9999999 for edge in edges), *map(float, range(3000))]
    from spark_analytics.transforms import buckets

    frame = spark.createDataFrame([(value,) for value in values], "value double")
    wanted = [row[0] for row in frame.select(buckets.bucket_of(F.col("value"))).collect()]
    assert columnar.bucket_of(np.array(values)).tolist() == wanted
