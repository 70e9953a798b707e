"""How far each attempt to put a message on a queue has come in the committed logs, of the cluster and of every broker's own.

Life of an attempt here: a committed batch puts it on its queue (`enqueued`), another takes it off (`dequeued`), or it goes with
its queue or with its broker's disk (`gone`). A dead letter may come several times: `letters` counts.

Invariant: what is here was committed; what clients were told is the history's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.history import Key


@dataclass
class Book:
    """By attempt, the index in its log of the last batch that did it."""

    enqueued: dict[Key, int] = field(default_factory=dict)
    dequeued: dict[Key, int] = field(default_factory=dict)
    gone: dict[Key, int] = field(default_factory=dict)
    letters: Counter[Key] = field(default_factory=Counter)
