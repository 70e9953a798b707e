"""Planted bugs of links: they put messages of numbered links on a queue again, or lose the annotations of consumers
(see mutations.py).
"""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_LINKS = {
    "knows-links-by-their-connections": Bug(
        "does not recognise a numbered link when its client has connected again",
        "broker.sessions.numbered",
        "NumberedTerminus.__init__",
        "session.container, attach.link.name",
        "str(session.number), attach.link.name",
    ),
    "checkpoint-forgets-links": Bug(
        "does not write the numbered links and their held numbers into a checkpoint",
        "broker.core.definitions",
        "Definitions.commands",
        "*self.links.values()",
        "",
    ),
    "takes-back-for-nobody": Bug(
        "takes messages back from a slow consumer, and delivers them to no other one",
        "broker.sessions.consumer",
        "Subscription.take_back",
        "self.queue.returns.undo(sequences, count=True)",
        "pass",
    ),
    "checkpoint-forgets-notes": Bug(
        "does not write the annotations of returned messages into a checkpoint",
        "broker.core.state",
        "State.snapshot",
        "for each in messages.notes.items()",
        "for each in ()",
    ),
}
