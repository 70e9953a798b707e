"""Runs that once broke a promise, each with its explanation in a sentence. The tests run all of them.

A seed gives a different plan when the code of the plans changes. So plans are kept here: a quiet cluster, and the items
that the failure needed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker.core import limits
from tests.simulation import plan as plans
from tests.simulation.clients import ClientPlan
from tests.simulation.layouts import KEPT, with_hub, with_kept
from tests.simulation.plan import Action, Plan


def quiet(*actions: Action, **fields: Any) -> Plan:
    """A cluster of three with one producer and one consumer, to which only these actions happen."""
    clients = [
        ClientPlan("producer", "p", "q0", count=40, burst=4, gap_s=0.1, window=10),
        ClientPlan("consumer", "c", "q0", window=10),
    ]
    base = replace(
        plans.make(1),
        brokers=3,
        spares=0,
        managers=1,
        queues=("q0",),
        duration_s=max([1.0, *(action.at_s + 0.5 for action in actions)]),
        message_links=False,
        drop=0.0,
        double=0.0,
        reorder_s=0.0,
        latency_s=(0.0005, 0.003),
        chunking=0.0,
        heartbeat_s=0.15,
        election_s=0.6,
        silence_s=1,
        probe_s=0.5,
        detection_s=1.0,
        segment_bytes=16384,
        checkpoint_bytes=16384,
        chunk_bytes=8192,
        rates=(1.0,) * 8,
        disk_s=0.0005,
        disk_call_s=None,
        short_writes=0.0,
        max_counts=(0,),
        levels=(0,),
        brief="",
        brief_at_s=(),
        kinds=tuple(dict.fromkeys(action.kind for action in actions)),
        steps=(),
        stray=0.0,
        repeats=False,
        releases=(),
        part_bytes=limits.PART_BYTES,
        items=dict(enumerate([*clients, *actions])),
    )
    return replace(base, **fields)


REGRESSIONS: dict[str, Plan] = {
    "a member that was away when a broker was added could not answer that one as its primary, and stayed behind": quiet(
        Action(1.0, "kill", "backup", seconds=30.0),
        Action(1.3, "add"),
        Action(2.3, "promote", 3),
        spares=1,
    ),
    "a broker whose disk had been full did not tell those who send to queues that it keeps for itself to go on": with_kept(
        quiet(Action(1.3, "full", 0, seconds=1.5), Action(2.0, "client-drop", choice=0.6)),
        KEPT,
        "configuration",
        {"window": 1, "size": (3000, 4000)},
    ),
    "a new primary accepted what an exchange sends to a queue that had no place for messages yet, and left it out": with_hub(
        with_kept(
            quiet(Action(1.5, "promote", 1), Action(2.5, "promote", 2), disk_s=0.02, latency_s=(0.0001, 0.0005)),
            KEPT,
            "configuration",
            {"window": 10},
        ),
        "direct",
        "all",
        "/x",
        kept=True,
    ),
}
