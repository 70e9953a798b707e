"""Planted bugs that repeat or lose messages of another store (see mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_MOVES = {
    "puts-without-saying": Bug(
        "puts messages of another store on a queue without a HELD record",
        "broker.sessions.ledger",
        "Ledger.enqueue",
        "if held is not None:",
        "if False:",
    ),
    "says-before-it-puts": Bug(
        "writes the HELD record in an earlier batch than the messages of another store",
        "broker.sessions.ledger",
        "Ledger.enqueue",
        "pending.hold(*held)",
        "pending.hold(*held); pending.cut()",
    ),
    "takes-the-lost-for-held": Bug(
        "counts messages as held that it proposed in an earlier term and that were never committed",
        "broker.sessions.pending",
        "Pending.void",
        "self._arriving.void()",
        "pass",
    ),
    "checkpoint-forgets-what-came": Bug(
        "does not write the held sequences of other stores into a checkpoint",
        "broker.core.state",
        "State.snapshot",
        "held = [(number, each.runs()) for number, each in self.held.items()]",
        "held = []",
    ),
}
