"""The process behind an open page, without the process: requests and answers, in the session of the other tests."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_analytics import requests, session, sources, worker


def test_a_session_for_short_jobs_answers_once_more_when_the_telemetry_has_outgrown_it_and_then_ends(
    spark: SparkSession, story: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a page that was opened on little telemetry takes twice the time for ever, once there is much."""
    folder = tmp_path / "telemetry"
    shutil.copytree(story[0], folder)
    monkeypatch.setattr(requests, "LONG_BYTES", sources.inspect(str(folder)).nbytes)
    monkeypatch.setattr(session, "start", lambda *_, **__: spark)
    monkeypatch.setattr(session, "stop", lambda _: None)
    line = json.dumps({"path": str(folder), "objective_ms": None, "target": 0.99, "master": None}).encode()

    def lines() -> Iterator[bytes]:
        yield line
        (folder / "late.jsonl").write_text("{}\n")
        yield line
        raise AssertionError("nothing more is read")

    answers = io.BytesIO()
    found: Any = lines()
    assert worker.serve(found, answers) == 0
    told = [json.loads(each) for each in answers.getvalue().splitlines() if b'"progress"' not in each]
    assert [list(each) for each in told] == [["report"], ["report"], ["outgrown"]]
    assert told[0]["report"]["quality"]["bad"] + 1 == told[1]["report"]["quality"]["bad"]
