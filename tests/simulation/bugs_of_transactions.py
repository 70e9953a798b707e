"""Planted bugs that tear transactions or let duplicates in (see mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_TRANSACTIONS = {
    "backups-know-no-duplicates": Bug(
        "keeps the ids of what came on a queue on the primary alone",
        "broker.core.state",
        "State.apply",
        "messages.came(batch, run, snapshot=snapshot)",
        "messages.came(batch, run, snapshot=snapshot or not self.keeps_bodies)",
    ),
    "checkpoint-forgets-duplicates": Bug(
        "leaves out of a checkpoint which ids came on a queue",
        "broker.core.state",
        "State._recent_ids",
        "() if messages.window is None else messages.window.chunks()",
        "()",
    ),
    "knows-no-duplicates-under-way": Bug(
        "takes a message again that is proposed and not committed",
        "broker.core.nodes",
        "QueueNode.repeats",
        "self.under_way.has(one, messages.enqueued) or ",
        "",
    ),
    "tears-a-transaction": Bug(
        "puts what was consumed in a transaction into another batch than what was sent in it",
        "broker.sessions.transactions",
        "Transaction._propose",
        "            for queue, sequences, outcome in retired:",
        "            ledger._cut()\n            for queue, sequences, outcome in retired:",
    ),
    "carries-out-what-failed": Bug(
        "carries out a transaction that its client has discharged to fail",
        "broker.sessions.coordinator",
        "Coordinator._request",
        "if request.fail:",
        "if False:",
    ),
    "forgets-what-was-consumed": Bug(
        "keeps on the queue what was consumed in a transaction",
        "broker.sessions.transactions",
        "Transaction.retire",
        "self._retired.append(_Retired(queue, sequences, outcome))",
        "pass",
    ),
    "keeps-transactions-of-the-gone": Bug(
        "keeps acquired what was consumed in a transaction whose client is gone",
        "broker.sessions.coordinator",
        "Coordinator.left",
        "producer.session.transactions.left(producer)",
        "pass",
    ),
}
