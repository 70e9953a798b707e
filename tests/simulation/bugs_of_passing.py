"""Planted bugs of exchanges that number what goes through them, or keep the last of it (see mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_PASSING = {
    "numbers-begin-anew": Bug(
        "lets an exchange count from one on with each new primary",
        "broker.core.passage",
        "Passage.go_on",
        "self.sequence = 0 if passed is None else passed.sequence",
        "self.sequence = 0",
    ),
    "checkpoint-forgets-numbers": Bug(
        "leaves out of a checkpoint how many messages have gone through an exchange, and which was the last",
        "broker.core.definitions",
        "Definitions.commands",
        "*self.passed.values(), ",
        "",
    ),
    "numbers-without-saying": Bug(
        "says in the log how many messages an exchange has numbered when more of them come, and not with them",
        "broker.sessions.ledger",
        "Ledger.passes",
        "self._passages[exchange] = passage",
        "self._passages.update({exchange: passage} if passage.sequence % 2 else {})",
    ),
    "owes-for-ever": Bug(
        "leaves it to the primary that made a binding to give its queue the last message",
        "broker.sessions.initial_values",
        "InitialValues.begin",
        "self._give_all(self._logs.nodes.owed())",
        "pass",
    ),
}
