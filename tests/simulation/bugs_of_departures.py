"""Planted bugs of brokers that leave, and of drains that are cancelled. `departures.run` catches them (see
mutations.py).
"""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_DEPARTURES = {
    "reopens-unsettled": Bug(
        "reopens a broker whose drain is cancelled, although it still has messages that the target holds",
        "cli.drain.call_off",
        "CallOff.run",
        "settled = await self._settle(target, found.drain)",
        'settled = (await target.ask("ORIGINS", "drain", "", body))["held"]',
    ),
    "reopens-unasked": Bug(
        "reopens a broker whose drain is cancelled, before the target was asked to accept no more",
        "cli.drain.call_off",
        "CallOff.run",
        'await target.ask("RELEASE", "drain", "", body | {"held": settled or 0})',
        "pass",
    ),
    "settles-what-is-not-committed": Bug(
        "answers that messages are settled at the source before the settlement is committed",
        "broker.sessions.departure",
        "Departure.settle",
        'ledger.pending.when_committed(lambda: answer(""))',
        'answer("")',
    ),
    "releases-uncounted": Bug(
        "releases a cancelled drain without comparing the number of held messages",
        "broker.drains",
        "Drains._release",
        "if held == expected:",
        "if True:",
    ),
    "counts-before-it-is-committed": Bug(
        "compares the number of held messages before the messages in progress are committed",
        "broker.drains",
        "Drains._release",
        "ledger.pending.when_committed(counted)",
        "counted()",
    ),
    "settles-what-is-sent": Bug(
        "removes messages at the source because they were sent, without asking the target whether it holds them",
        "cli.drain.move",
        "Move.send",
        "            sent = True\n",
        "            sent = True\n"
        "            self._settle([(self._here._with(part.sequence).first_id + part.start, part.stop - part.start)])\n",
    ),
}
RACES = ("reopens-unasked", "settles-what-is-not-committed", "releases-uncounted", "counts-before-it-is-committed")
"""Those that need a drain that goes on while it is called off, and slow disks (`departures.race`)."""
