"""The process behind an open page, without the process: requests and answers, in the session of the other tests."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_analytics import requests, session, sources, worker
from tests.spark_analytics.stories import Teller, middles


def test_a_session_for_short_jobs_answers_once_more_when_the_telemetry_has_outgrown_it_and_then_ends(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a page that was opened on little telemetry takes twice the time for ever, once there is much."""
    folder, p = tmp_path / "telemetry", Teller("p")
    for second in middles(0, 20):
        p.sample(second, "b")
    p.write(folder)
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
    assert [each["report"]["quality"]["bad"] for each in told[:2]] == [0, 1]
