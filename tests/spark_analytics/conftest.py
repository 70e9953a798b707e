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
def report(summary: Summarise, story: tuple[Path, dict[str, Any]]) -> Report:
    """The report of the story."""
    return summary(story[0])
