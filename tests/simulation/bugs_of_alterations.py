"""Planted bugs that forget what was changed of a queue while it was there (see mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_ALTERATIONS = {
    "keeps-what-was-altered": Bug(
        "answers that a queue has other arguments, and keeps those that it had",
        "broker.core.definitions",
        "Definitions._alter",
        "made = self.queues[command.uuid] = altered(queue, command)",
        "made = altered(queue, command)",
    ),
    "checkpoint-forgets-alterations": Bug(
        "writes a queue that was altered into a checkpoint as it was before",
        "broker.core.definitions",
        "altered",
        "_to_json(json.loads(command.text) | more)",
        "command.text",
    ),
}
