"""Planted bugs that repeat or lose messages of a route, or never forget its held sequences (see mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_ROUTES = {
    "forgets-without-asking": Bug(
        "forgets a route's held sequences without asking the source whether the messages have left",
        "broker.core.routes",
        "RouteLife.woken",
        "if not held and (self.route.kind == QUEUE or self._idle < IDLE_LOOKS):",
        "if held:\n            return [Forget(list(held)), Wake(LOOK_S)]\n        else:",
    ),
    "holds-for-ever": Bug(
        "keeps held sequences that a record has removed",
        "broker.core.state",
        "State._forget_held",
        "held.remove(run.first_seq, run.count)",
        "pass",
    ),
    "fetches-again": Bug(
        "puts a message of a route on a queue although it is held",
        "broker.routes.intake",
        "Intake.receive",
        "sequences[start:end], known=known",
        "sequences[start:end], known=False",
    ),
    "checkpoint-forgets-routes": Bug(
        "does not write the routes into a checkpoint",
        "broker.core.definitions",
        "Definitions.commands",
        "*self.routes.values(), ",
        "",
    ),
}
