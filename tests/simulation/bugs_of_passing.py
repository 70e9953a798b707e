"""Planted bugs of exchanges that number their messages, or keep the last one (see mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_PASSING = {
    "numbers-begin-anew": Bug(
        "lets each new primary number an exchange's messages from 1 again",
        "broker.core.passage",
        "Passage.go_on",
        "self.sequence = 0 if passed is None else passed.sequence",
        "self.sequence = 0",
    ),
    "checkpoint-forgets-numbers": Bug(
        "does not write the last number and the last message of an exchange into a checkpoint",
        "broker.core.definitions",
        "Definitions.commands",
        "*self.passed.values(), ",
        "",
    ),
    "numbers-without-saying": Bug(
        "records only every other number of an exchange, so that some messages are in a batch without their number",
        "broker.sessions.pending",
        "Pending.passes",
        "self._passages[exchange] = passage",
        "self._passages.update({exchange: passage} if passage.sequence % 2 else {})",
    ),
    "owes-for-ever": Bug(
        "gives a new binding its last message only on the primary that made the binding",
        "broker.sessions.initial_values",
        "InitialValues.begin",
        "self._give_all(self._logs.nodes.owed())",
        "pass",
    ),
}
