"""Planted bugs in what operators do with queues and their messages while they are there (see mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_ALTERATIONS = {
    "keeps-what-was-altered": Bug(
        "answers that a queue has other arguments, and keeps those that it had",
        "broker.core.definitions",
        "Definitions._alter",
        "made = self.queues[command.uuid] = altered(queue, command)",
        "made = altered(queue, command)",
    ),
    "checkpoint-forgets-alterations": Bug(
        "writes a queue that was altered into a checkpoint as it was before",
        "broker.core.definitions",
        "altered",
        "_to_json(json.loads(command.text) | more)",
        "command.text",
    ),
    "makes-without-policies": Bug(
        "makes queues without what the policy for their names says",
        "broker.core.planning",
        "with_policy",
        "if policy is None",
        "if True",
    ),
    "checkpoint-forgets-policies": Bug(
        "leaves the policies for names out of a checkpoint",
        "broker.core.definitions",
        "Definitions.commands",
        "*self.policies.values(), ",
        "",
    ),
    "forgets-that-a-policy-has-changed": Bug(
        "answers that a policy has changed, and keeps it as it was",
        "broker.core.definitions",
        "Definitions._add_policy",
        "self.policies[command.identity] = command",
        "self.policies.setdefault(command.identity, command)",
    ),
    "moves-in-two-batches": Bug(
        "takes messages that are moved off their queue when they are committed on the other one",
        "broker.sessions.bulk",
        "Operation._put",
        "ledger.dequeue(messages.number, found)",
        "ledger.when_committed(lambda: ledger.dequeue(messages.number, found))",
    ),
    "moves-before-it-puts": Bug(
        "takes messages that are moved off their queue in one batch, and puts them on the other in the next",
        "broker.sessions.bulk",
        "Operation._put",
        "with ledger.one_batch(sum(each.nbytes for each in puts.values())):",
        "ledger.dequeue(messages.number, found); ledger._cut()\n            if True:",
    ),
}
