"""Planted bugs in operators' changes of existing queues and their messages (see mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_ALTERATIONS = {
    "keeps-what-was-altered": Bug(
        "answers that a queue's arguments were changed, but keeps the old ones",
        "broker.core.definitions",
        "Definitions._alter",
        "made = self.queues[command.uuid] = altered(queue, command)",
        "made = altered(queue, command)",
    ),
    "checkpoint-forgets-alterations": Bug(
        "writes the old arguments of a changed queue into a checkpoint",
        "broker.core.definitions",
        "altered",
        "_to_json(json.loads(command.text) | more)",
        "command.text",
    ),
    "makes-without-policies": Bug(
        "creates queues without the arguments of the policy for their names",
        "broker.core.planning",
        "with_policy",
        "if policy is None",
        "if True",
    ),
    "checkpoint-forgets-policies": Bug(
        "does not write the policies into a checkpoint",
        "broker.core.definitions",
        "Definitions.commands",
        "*self.policies.values(), ",
        "",
    ),
    "forgets-that-a-policy-has-changed": Bug(
        "answers that a policy was changed, but keeps the old one",
        "broker.core.definitions",
        "Definitions._add_policy",
        "self.policies[command.identity] = command",
        "self.policies.setdefault(command.identity, command)",
    ),
    "moves-in-two-batches": Bug(
        "removes moved messages from their queue only when they are committed on the other queue",
        "broker.sessions.bulk",
        "Operation._put",
        "ledger.dequeue(messages.number, found)",
        "ledger.pending.when_committed(lambda: ledger.dequeue(messages.number, found))",
    ),
    "moves-before-it-puts": Bug(
        "removes moved messages from their queue in one batch, and puts them on the other queue in the next batch",
        "broker.sessions.bulk",
        "Operation._put",
        "with ledger.pending.one_batch(sum(each.nbytes for each in puts.values())):",
        "ledger.dequeue(messages.number, found); ledger.pending.cut()\n            if True:",
    ),
    "moves-what-leaves": Bug(
        "moves messages off a ring although it is proposed that they leave it for newer ones",
        "broker.sessions.bulk",
        "Operation._is_free",
        "if self._place.node.displaces(sequence):",
        "if False:",
    ),
    "deletes-without-rerouting": Bug(
        "deletes a queue with its messages, without its alternate exchange",
        "broker.sessions.removal",
        "is_bare",
        "if messages is None or not node.definition.alternate:",
        "if True:",
    ),
    "deletes-before-it-reroutes": Bug(
        "deletes a queue without its messages that are being written, or that come while the others go",
        "broker.sessions.removal",
        "Removals._line_up",
        "self._line.append(removal)",
        "return self._propose(removal)",
    ),
}
