"""Planted bugs that repeat or lose what a route fetches, or keep for ever what is held of it (see mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_ROUTES = {
    "forgets-without-asking": Bug(
        "forgets a route's messages without asking its source whether they have left it",
        "broker.core.routes",
        "RouteLife.woken",
        "if not held:",
        "if held:\n            return [Forget(list(held)), Wake(LOOK_S)]\n        else:",
    ),
    "holds-for-ever": Bug(
        "does not take out what a record says is held no more",
        "broker.core.state",
        "State._forget_held",
        "held.remove(run.first_seq, run.count)",
        "pass",
    ),
    "fetches-again": Bug(
        "puts what a route brings again, though it is held",
        "broker.routes.intake",
        "Intake.receive",
        "sequences[start:done], known=known",
        "sequences[start:done], known=False",
    ),
    "checkpoint-forgets-routes": Bug(
        "leaves the routes out of a checkpoint",
        "broker.core.definitions",
        "Definitions.commands",
        "*self.routes.values(), ",
        "",
    ),
}
