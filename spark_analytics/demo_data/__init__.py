"""Telemetry with known answers, of any size: a story of a cluster, for demonstrations and tests.

`write` makes the files and returns the results that a correct summary must find in them. Begin with plan.py, which decides
what happens. incidents.py has the few lines that are not samples, story.py writes all lines, and answers.py works out the
expected results. It needs neither Spark nor numpy, so it starts at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from spark_analytics.demo_data.answers import answers
from spark_analytics.demo_data.plan import FEWEST_SLOTS, Plan, Shape, iso
from spark_analytics.demo_data.story import Story

__all__ = ["BROKERS", "BYTES_PER_LINE", "FEWEST_SLOTS", "Shape", "iso", "write"]

BROKERS: Final = Shape(0).brokers
"""The brokers of a story with two backups."""
BYTES_PER_LINE: Final = 640
"""Approximate size of a sample."""


def write(directory: str | Path, shape: Shape, *, progress: Callable[[str, float], None] = lambda _, __: None) -> dict[str, Any]:
    """Write the files, and return the answers and the number of `files`. OSError.

    The same shape gives the same bytes. `progress` gets a text and the share that is done.
    """
    folder, plan = Path(directory), Plan(shape)
    folder.mkdir(parents=True, exist_ok=True)
    counts = Story(plan, folder).write(progress)
    progress("working out the answers", 1.0)
    return answers(plan, counts)
