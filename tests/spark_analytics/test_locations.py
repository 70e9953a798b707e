"""URLs, which only Spark can look into: file:// goes the way of s3a:// and hdfs://, and has the answers of the path."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_analytics import locations
from spark_analytics.errors import Refused
from spark_analytics.jobs import stream
from spark_analytics.jobs.summarise import Report, Request, summarise
from spark_analytics.store import Store
from tests.spark_analytics.conftest import START_MS

NOW_MS = START_MS + 400_000


def test_a_url_is_summarised_as_its_path_is(spark: SparkSession, report: Report, story: tuple[Path, dict[str, Any]]) -> None:
    url = locations.located(story[0])
    assert summarise(spark, Request(url, NOW_MS)) == report | {"input": url}


def test_a_url_is_streamed_as_its_path_is_into_a_folder_that_has_a_url_too(
    spark: SparkSession, report: Report, story: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    asked = stream.Streaming(locations.located(story[0]), str(tmp_path / "kept"), available_now=True)
    stream.start(spark, asked).await_end()
    counters = Store(tmp_path / "kept").load().counters
    kept = summarise(spark, Request(locations.located(tmp_path / "kept"), NOW_MS))
    for part in report.keys() - {"source", "input", "quality"}:
        assert kept[part] == report[part], part
    assert (counters["lines"], counters["bad"]) == (report["quality"]["lines"], report["quality"]["bad"])


def test_a_path_is_read_as_it_is_and_not_as_a_pattern(
    spark: SparkSession, report: Report, story: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """A pattern of that name is of the other folder."""
    folder, other = tmp_path / "lag [1]{a,b}*?\\d", tmp_path / "lag 1a, another d"
    for name in (folder, other):
        shutil.copytree(story[0], name)
    stream.start(spark, stream.Streaming(str(folder), str(tmp_path / "kept[1]"), available_now=True)).await_end()
    for path in (folder, tmp_path / "kept[1]"):
        found = summarise(spark, Request(str(path), NOW_MS))
        assert (found["backups"], found["quality"]["lines"]) == (report["backups"], report["quality"]["lines"])


def test_a_file_at_a_url_appears_whole_over_an_older_one_and_alone(spark: SparkSession, tmp_path: Path) -> None:
    url = locations.located(tmp_path / "new folder" / "page.html")
    for content in (b"first", b"second" * 100_000):
        locations.writable(spark, url)
        locations.put(spark, url, content)
        assert (tmp_path / "new folder" / "page.html").read_bytes() == content
    assert [path.name for path in (tmp_path / "new folder").iterdir()] == ["page.html"]


def test_where_nothing_can_be_written_is_refused_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    for url, sentence in {
        "nope://x/page.html": 'No FileSystem for scheme "nope"',
        locations.located(tmp_path): "it is a folder; name a file in it",
    }.items():
        with pytest.raises(Refused, match=sentence) as refused:
            locations.writable(spark, url)
        assert "\n" not in str(refused.value)
    with pytest.raises(Refused, match=r"cannot write file://.*/letter/page.html: ") as refused:
        locations.put(spark, locations.located(tmp_path / "letter" / "page.html"), b"x")
    assert "\n" not in str(refused.value)
