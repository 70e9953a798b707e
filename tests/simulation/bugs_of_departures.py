"""Planted bugs of brokers that leave, and of drains that are called off, which `departures.run` catches (see mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_DEPARTURES = {
    "reopens-unsettled": Bug(
        "opens a broker again, when its drain is called off, with what the target holds on it still",
        "cli.drain.call_off",
        "CallOff.run",
        "held = await self._settle(target, found.drain)",
        'held = (await target.ask("ORIGINS", "drain", "", body))["held"]',
    ),
    "reopens-unasked": Bug(
        "opens a broker again, when its drain is called off, before the target was asked to take no more",
        "cli.drain.call_off",
        "CallOff.run",
        'await target.ask("RELEASE", "drain", "", body | {"held": held})',
        "pass",
    ),
    "settles-what-is-not-committed": Bug(
        "says that what the target holds is settled at the source before that is committed",
        "broker.sessions.departure",
        "Departure.settle",
        'ledger.when_committed(lambda: answer(""))',
        'answer("")',
    ),
    "releases-uncounted": Bug(
        "releases a drain that is called off whatever the target holds of it",
        "broker.drains",
        "Drains._release",
        "if held == expected:",
        "if True:",
    ),
    "counts-before-it-is-committed": Bug(
        "counts what it holds of a drain that is called off without what is under way",
        "broker.drains",
        "Drains._release",
        "ledger.when_committed(counted)",
        "counted()",
    ),
    "settles-what-is-sent": Bug(
        "takes off at the source what was sent to the target, whatever the target says of it",
        "cli.drain.move",
        "Move.send",
        "            sent = True\n",
        "            sent = True\n            self._settle([self._ids[sequence + at] for at in range(len(run))])\n",
    ),
}
RACES = ("reopens-unasked", "settles-what-is-not-committed", "releases-uncounted", "counts-before-it-is-committed")
"""Those that need a drain that goes on while it is called off, and slow disks (`departures.race`)."""
