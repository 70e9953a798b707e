"""Planted bugs that let duplicates in, or lose what they are known by (see mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_DUPLICATES = {
    "backups-know-no-duplicates": Bug(
        "keeps the ids of what came on a queue on the primary alone",
        "broker.core.state",
        "State.apply",
        "messages.came(batch, run, snapshot=snapshot)",
        "messages.came(batch, run, snapshot=snapshot or not self.keeps_bodies)",
    ),
    "checkpoint-forgets-duplicates": Bug(
        "leaves out of a checkpoint which ids came on a queue",
        "broker.core.state",
        "State._recent_ids",
        "() if messages.window is None else messages.window.chunks()",
        "()",
    ),
    "knows-no-duplicates-under-way": Bug(
        "takes a message again that is proposed and not committed",
        "broker.core.nodes",
        "QueueNode.repeats",
        "self.under_way.has(one, messages.enqueued) or ",
        "",
    ),
}
