"""One Spark session for all tests: starting it costs more than any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_analytics import demo_data, session, sources
from spark_analytics.jobs.summarise import Report, Request, summarise

START_MS = 1_767_600_000_000
Summarise = Callable[..., Report]
COMPARED: dict[str, Any] = {"since_ms": START_MS + 120_000, "until_ms": START_MS + 240_000, "compare_before_ms": 120_000}
"""What `compared` asks for."""
BETWEEN = "summarising the span to compare with"
"""The step of `summarise` between the two spans."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A quick, quiet, local session."""
    running = session.start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Five minutes of telemetry with known answers, and the answers."""
    folder = tmp_path_factory.mktemp("story")
    return folder, demo_data.write(folder, demo_data.Shape(START_MS, seconds=300, queues=3))


@pytest.fixture(scope="session")
def summary(spark: SparkSession) -> Summarise:
    """Summarise a folder, as the command does."""

    def run(folder: Path, **asked: Any) -> Report:
        found = sources.inspect(str(folder))
        given: dict[str, Any] = {"now_ms": START_MS + 400_000, "nbytes": found.nbytes, "files": found.files} | asked
        return summarise(spark, Request(str(folder), **given))

    return run


@pytest.fixture(scope="session")
def counted(spark: SparkSession, summary: Summarise, story: tuple[Path, dict[str, Any]]) -> tuple[Report, int]:
    """The report of the story, and how many jobs Spark was asked for."""
    before = newest_job(spark)
    made = summary(story[0])
    return made, newest_job(spark) - before


@pytest.fixture(scope="session")
def report(counted: tuple[Report, int]) -> Report:
    """The report of the story."""
    return counted[0]


@pytest.fixture(scope="session")
def compared(spark: SparkSession, story: tuple[Path, dict[str, Any]]) -> Report:
    """The report of two minutes of the story, compared with the two before them. Its folder is away while that span is
    summarised, so the lines can be read only once."""
    folder = story[0]
    found, away = sources.inspect(str(folder)), folder.with_name("away")
    asked = Request(str(folder), now_ms=START_MS + 400_000, nbytes=found.nbytes, files=found.files, **COMPARED)

    def said(step: str) -> None:
        if step == BETWEEN:
            folder.rename(away)

    try:
        return summarise(spark, asked, said)
    finally:
        away.rename(folder)


def newest_job(spark: SparkSession) -> int:
    """The number of the last job that Spark was asked for, -1 before the first; it numbers them one by one."""
    context: Any = spark.sparkContext
    scala = context._jsc.sc()
    scala.listenerBus().waitUntilEmpty()
    jobs = scala.statusStore().jobsList(None)
    return max((int(jobs.apply(at).jobId()) for at in range(jobs.size())), default=-1)
