"""Planted bugs that accept duplicates, or lose the ids of messages (see mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_DUPLICATES = {
    "backups-know-no-duplicates": Bug(
        "keeps the ids of a queue's duplicate window on the primary only",
        "broker.core.state",
        "State.apply",
        "messages.came(batch, run, snapshot=snapshot)",
        "messages.came(batch, run, snapshot=snapshot or not self.keeps_bodies)",
    ),
    "checkpoint-forgets-duplicates": Bug(
        "does not write the ids of a duplicate window into a checkpoint",
        "broker.core.state",
        "State._recent_ids",
        "() if messages.window is None else messages.window.chunks()",
        "()",
    ),
    "knows-no-duplicates-under-way": Bug(
        "accepts a duplicate as a new message while the first one is proposed but not committed",
        "broker.core.nodes",
        "QueueNode.repeats",
        "self.under_way.has(one, messages.enqueued) or ",
        "",
    ),
}
