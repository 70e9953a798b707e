"""Planted bugs that repeat or lose what comes from another store (see mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_MOVES = {
    "puts-without-saying": Bug(
        "puts messages of another store without a record that they have come",
        "broker.sessions.ledger",
        "Ledger.enqueue",
        "if held is not None:",
        "if False:",
    ),
    "says-before-it-puts": Bug(
        "says in an earlier batch that messages of another store have come, and puts them in the next",
        "broker.sessions.ledger",
        "Ledger.enqueue",
        "self._hold(*held)",
        "self._hold(*held); self._cut()",
    ),
    "takes-the-lost-for-held": Bug(
        "takes for held, in a later term, what it had put in an earlier one and never committed",
        "broker.sessions.ledger",
        "Ledger._void",
        "self._coming.clear()",
        "pass",
    ),
    "checkpoint-forgets-what-came": Bug(
        "leaves out of a checkpoint what of other stores has come",
        "broker.core.state",
        "State.snapshot",
        "held = [(number, each.runs()) for number, each in self.held.items()]",
        "held = []",
    ),
}
