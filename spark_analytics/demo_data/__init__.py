"""Telemetry with known answers, of any size: a story in the life of a cluster, for demonstrations and tests.

`write` makes the files and says what a truthful summary must find in them. Begin with plan.py, which says what happens;
incidents.py has the few lines that are no samples, story.py says and writes all of them, and answers.py what is known beforehand.
It needs neither Spark nor numpy, so it starts at once.
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
"""Those of a story with two backups."""
BYTES_PER_LINE: Final = 640
"""About, of a sample."""


def answers(shape: Shape) -> dict[str, Any]:
    """What a truthful summary finds in the story of that shape."""
    story = Story(shape)
    story.write(None, lambda _, __: None)
    return _answers(story)


def write(directory: str | Path, shape: Shape, *, progress: Callable[[str, float], None] = lambda _, __: None) -> dict[str, Any]:
    """Write the files, and return the answers and how many `files` there are. OSError.

    The same shape gives the same bytes. `progress` is told what is done, and its share.
    """
    directory, story = Path(directory), Story(shape)
    directory.mkdir(parents=True, exist_ok=True)
    files = story.write(directory, progress)
    progress("working out the answers", 1.0)
    return _answers(story) | {"files": files}
