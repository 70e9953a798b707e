"""Telemetry with known answers, of any size: a story in the life of a cluster, for demonstrations and tests.

`write` makes the files, `answers` says what a truthful summary must find in them. Begin with plan.py, which says what
happens; incidents.py has the few lines that are no samples, story.py who says what, words.py and queues.py how it reads,
write.py makes files of them, and answers.py says what is known of all of it beforehand. It needs neither Spark nor numpy, so it
starts at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from spark_analytics.demo_data.answers import answers as _answers
from spark_analytics.demo_data.plan import FEWEST_SLOTS, Shape, iso
from spark_analytics.demo_data.story import Story
from spark_analytics.demo_data.write import BYTES_PER_LINE, write_all

__all__ = ["BROKERS", "BYTES_PER_LINE", "FEWEST_SLOTS", "Shape", "answers", "iso", "write"]

BROKERS: Final = Shape(0).brokers
"""Those of a story with two backups."""


def answers(shape: Shape) -> dict[str, Any]:
    """What a truthful summary finds in the story of that shape."""
    return _answers(Story(shape))


def write(
    directory: str | Path, shape: Shape, *, processes: int = 1, progress: Callable[[str, float], None] = lambda _, __: None
) -> dict[str, Any]:
    """Write the files, by so many processes, and return the answers and how many `files` there are. OSError.

    The same shape gives the same bytes, whatever the number of processes. `progress` is told what is done, and its share.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    story = Story(shape)
    files = write_all(story, directory, processes=processes, progress=progress)
    return _answers(story, progress) | {"files": files}
