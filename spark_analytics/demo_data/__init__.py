"""Telemetry with known answers, of any size: a story of a cluster, for demonstrations and tests.

`write` makes the files and returns the results that a correct summary must find in them. Begin with plan.py, which decides
what happens. incidents.py has the few lines that are not samples, story.py writes all lines, and answers.py works out the
expected results. It needs neither Spark nor numpy, so it starts at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from spark_analytics.demo_data.answers import answers as _answers
from spark_analytics.demo_data.plan import FEWEST_SLOTS, Shape, iso
from spark_analytics.demo_data.story import Story

__all__ = ["BROKERS", "BYTES_PER_LINE", "FEWEST_SLOTS", "Shape", "answers", "iso", "write"]

BROKERS: Final = Shape(0).brokers
"""The brokers of a story with two backups."""
BYTES_PER_LINE: Final = 640
"""Approximate size of a sample."""


def answers(shape: Shape) -> dict[str, Any]:
    """The results that a correct summary finds in the story of that shape."""
    story = Story(shape)
    story.write(None, lambda _, __: None)
    return _answers(story)


def write(directory: str | Path, shape: Shape, *, progress: Callable[[str, float], None] = lambda _, __: None) -> dict[str, Any]:
    """Write the files, and return the answers and the number of `files`. OSError.

    The same shape gives the same bytes. `progress` gets a text and the share that is done.
    """
    directory, story = Path(directory), Story(shape)
    directory.mkdir(parents=True, exist_ok=True)
    files = story.write(directory, progress)
    progress("working out the answers", 1.0)
    return _answers(story) | {"files": files}
