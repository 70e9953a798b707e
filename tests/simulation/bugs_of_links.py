"""Planted bugs of links: they put messages again which came over numbered ones, or lose what consumers have noted (see
mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_LINKS = {
    "knows-links-by-their-connections": Bug(
        "takes what comes over a numbered link for another's when its client has connected anew",
        "broker.sessions.numbered",
        "NumberedTerminus.__init__",
        "session.container, attach.link.name",
        "str(session.number), attach.link.name",
    ),
    "checkpoint-forgets-links": Bug(
        "leaves out of a checkpoint which links are numbered, and so what came over them",
        "broker.core.definitions",
        "Definitions.commands",
        "*self.links.values()",
        "",
    ),
    "takes-back-for-nobody": Bug(
        "takes back what a consumer keeps for too long, and gives it to nobody",
        "broker.sessions.consumer",
        "Subscription.take_back",
        "self.queue.undo(sequences, count=True)",
        "pass",
    ),
    "checkpoint-forgets-notes": Bug(
        "leaves out of a checkpoint what consumers have noted on messages that they gave back",
        "broker.core.state",
        "State.snapshot",
        "for each in messages.notes.items()",
        "for each in ()",
    ),
}
