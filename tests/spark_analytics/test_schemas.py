"""The contract between the broker, which writes telemetry, and Spark, which reads it: both by one schema."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, BooleanType, DataType, DoubleType, LongType, StringType

from broker import telemetry
from spark_analytics import schemas, sources
from spark_analytics.sources import read_lines
from spark_analytics.transforms import lines as of_lines
from spark_analytics.transforms import parse
from telemetry import lines, schema

ROW = lines.LagSample(
    "b", "q", "all", 9, 8, 7, 6, 5, 4, 3072, 12.5, 2.0, "ready", True, False, 1 << 40, "primary", 0.5, 0.75, 1.5, 250.0, 4096.0
)
PROBE_ROW = lines.Probe("b", "reachable", 4, 3, 1.5, 2.5, "ready", "p", 3, 9, "x")
HEAD = lines.Head("c", 3, "p", "2026-01-05T08:00:00.000Z")
SAMPLE = lines.sample_record(HEAD, 1, interval_ms=1000, primary="p", sample=ROW)
EVENT = lines.event_record(
    HEAD,
    1,
    broker="b",
    type="role",
    from_="ready",
    to="active",
    index=3,
    lost_records=0,
    duration_ms=1.5,
    detail="x",
    peer="p",
    nbytes=1 << 40,
)
ROSTER = lines.roster_record(HEAD, 1, interval_ms=1000, primary="p", backups=["b"], queues=["q"])
PROBE = lines.probe_record(HEAD, 1, interval_ms=1000, probe=PROBE_ROW)

PYTHON_OF: list[tuple[DataType, type | tuple[type, ...]]] = [
    (LongType(), int),
    (StringType(), str),
    (DoubleType(), (int, float)),
    (BooleanType(), bool),
    (ArrayType(StringType()), list),
]


@pytest.mark.parametrize(
    "written, read",
    [(SAMPLE, schemas.SAMPLE), (EVENT, schemas.EVENT), (ROSTER, schemas.ROSTER), (PROBE, schemas.PROBE)],
    ids=["sample", "event", "roster", "probe"],
)
def test_what_the_broker_writes_is_what_spark_reads_field_by_field(written: dict[str, object], read: dict[str, DataType]) -> None:
    assert list(written) == list(read)
    for name, value in written.items():
        wanted = next(kinds for kind, kinds in PYTHON_OF if kind == read[name])
        assert isinstance(value, wanted), name


SECTIONS = {
    "Every line": set(schema.COMMON),
    "`sample`": set(schemas.SAMPLE),
    "`event`": set(schemas.EVENT),
    "`roster`": set(schemas.ROSTER),
    "`probe`": set(schemas.PROBE),
}


@pytest.mark.parametrize("title", SECTIONS)
def test_the_page_has_a_row_for_each_field(title: str) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/telemetry.md").read_text()
    section = page.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]
    found: set[str] = set()
    for names in re.findall(r"^\| (`[^|]+`) \| (?:int|number|text|texts|bool)[ |]", section, re.MULTILINE):
        found |= set(re.findall(r"`(\w+)`", names))
    assert found == SECTIONS[title] - (set() if title == "Every line" else set(schema.COMMON))


def test_a_line_of_the_writer_comes_back_whole(spark: SparkSession, tmp_path: Path) -> None:
    writer = telemetry.TelemetryWriter(
        tmp_path, cluster="c", sender="p", clock=lambda: 1_767_600_000.5, submit=lambda work: work()
    )
    writer.roster(epoch=3, primary="p", backups=["b"], queues=["q"])
    writer.samples(epoch=3, primary="p", rows=[ROW, ROW._replace(queue=None, headroom_bytes=None)])
    writer.event("role", from_="ready", to="active", detail='quotes " and ünïcode')
    writer.probes(epoch=3, rows=[PROBE_ROW])
    writer.close()
    read = parse.parse(read_lines(spark, str(tmp_path)), now_ms=1_767_600_000_000)
    good = of_lines.tagged(of_lines.kept(read)).cache()
    samples = good.where("kind = 'sample'").orderBy("seq", ascending=False)
    (whole_log, queue) = (row.asDict() for row in samples.collect())
    assert whole_log["queue"] is None
    assert {name: queue[name] for name in ROW._fields} == ROW._asdict()
    assert queue["ts_ms"] == 1_767_600_000_500
    (event,) = of_lines.events(good).collect()
    assert (event["from"], event["to"], event["detail"]) == ("ready", "active", 'quotes " and ünïcode')
    (probe,) = (row.asDict() for row in good.where("kind = 'probe'").collect())
    assert {name: probe[name] for name in PROBE_ROW._fields} == PROBE_ROW._asdict()
    (roster,) = of_lines.rosters(good).collect()
    assert (roster["backups"], roster["added"], roster["removed"]) == (["b"], ["q"], [])


def test_of_a_roster_only_the_queues_that_came_and_went_are_handed_on(spark: SparkSession, tmp_path: Path) -> None:
    said = [["q", "r"], ["r", "q"], ["r", "s", "t"], []]
    rosters = [
        ROSTER | {"seq": number, "ts": f"2026-01-05T08:00:0{number}.000Z", "queues": queues} for number, queues in enumerate(said)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rosters))
    read = parse.parse(read_lines(spark, str(tmp_path)), now_ms=1_767_600_000_000)
    found = sorted(of_lines.rosters(of_lines.tagged(of_lines.kept(read))).collect(), key=lambda row: row["seq"])
    assert [(row["seq"], {*row["added"]}, {*row["removed"]}) for row in found] == [
        (0, {"q", "r"}, set()),
        (2, {"s", "t"}, {"q"}),
        (3, set(), {"r", "s", "t"}),
    ]
    assert "queues" not in found[0].asDict()


BAD = {
    "torn": json.dumps(SAMPLE)[:80],
    "two records on one line": json.dumps(SAMPLE) * 2,
    "not telemetry in JSON": json.dumps(SAMPLE).replace('"lag_records": 4', '"lag_records": "four"'),
    "written by a newer version": json.dumps(SAMPLE | {"v": 2}),
    "no version or kind": json.dumps({"hello": "world"}),
    "unknown kind": json.dumps(SAMPLE | {"kind": "song"}),
    "no valid time": json.dumps(SAMPLE | {"ts": "1767600000000"}),
    "time in the future": json.dumps(SAMPLE | {"ts": "9999-01-05T08:00:00Z"}),
    "a field is missing": json.dumps({name: value for name, value in SAMPLE.items() if name != "backup"}),
    "impossible value": json.dumps(SAMPLE | {"lag_ms": -1}),
}


def test_each_bad_line_is_kept_aside_under_its_own_name_and_the_good_one_beside_it_is_used(
    spark: SparkSession, tmp_path: Path
) -> None:
    nan = json.dumps(SAMPLE).replace('"lag_ms": 12.5', '"lag_ms": NaN')
    apart = {space: f"{json.dumps(SAMPLE)}{space}{json.dumps(SAMPLE)}" for space in (" ", "  ", "\t ")}
    (tmp_path / "a.jsonl").write_text(
        "\n".join([*BAD.values(), *apart.values(), nan, "", json.dumps(SAMPLE | {"field_of_tomorrow": 1})]) + "\n"
    )
    rows = parse.parse(read_lines(spark, str(tmp_path)), now_ms=1_767_600_000_000).collect()
    found = {row["value"]: row["problem"] for row in rows}
    assert {problem: found[line] for problem, line in BAD.items()} == {problem: problem for problem in BAD}
    assert {found[line] for line in apart.values()} == {"two records on one line"}
    assert found[nan] == "not telemetry in JSON", "NaN is not a number of JSON's"
    assert [row["lag_ms"] for row in rows if row["problem"] is None] == [12.5], "an unknown field is tomorrow's, not an error"


def test_a_file_that_gets_its_final_name_while_it_is_read_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    """A reader that looks twice finds both names of it."""
    (tmp_path / ".a_1 x.001.part").write_text("one\n")
    (tmp_path / "a_1 x.001.jsonl").write_text("one\ntwo\n")
    (tmp_path / ".a_1 x.002.part").write_text("three\nfo")
    (tmp_path / "a_1 x.003.jsonl.gz").write_bytes(gzip.compress(b""))
    (tmp_path / ".a_1 x.003.part").write_text("five\n")
    assert sources.inspect(str(tmp_path)).unfinished == 1, "rsync leaves the hidden copy of a file that has been renamed since"
    assert list(sources.unfinished_lines(tmp_path).values()) == [["three"]], "old copies are not even read"
    assert sorted(row["value"] for row in read_lines(spark, str(tmp_path)).collect()) == ["one", "three", "two"]
