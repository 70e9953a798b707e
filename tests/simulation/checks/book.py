"""The state of each attempt to put a message on a queue, as committed in the logs, of the cluster and of each broker.

Life of an attempt here: a committed batch puts it on its queue (`enqueued`), and another one removes it (`dequeued`),
or it is lost with its queue or with its broker's disk (`gone`). A dead letter may arrive several times: `letters`
counts.

Invariant: everything here was committed; the history has what the clients were told.
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
