"""A summary of what real brokers wrote. Without Spark, `tests/system/test_telemetry.py` looks at the lines themselves."""

from __future__ import annotations

import time
from pathlib import Path

from tests.spark_analytics.conftest import Summarise
from tests.system.stories import of_a_failover


def test_a_summary_of_what_brokers_wrote_shows_their_failover(summary: Summarise, tmp_path: Path) -> None:
    """Breaks when a broker writes what a summary reads otherwise."""
    story = of_a_failover(tmp_path)
    report = summary(story.folder, now_ms=int(time.time() * 1000))
    (failover,) = report["failovers"]
    assert (failover["kind"], failover["previous"], failover["primary"]) == ("failover", story.killed, story.successor)
