"""Planted bugs that lose subscriptions, the messages published while the client is away, or the end of a subscription
(see mutations.py).
"""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_SUBSCRIPTIONS = {
    "keeps-subscriptions-to-itself": Bug(
        "creates the queue of a durable subscription on the primary only",
        "broker.core.planning",
        "_subscription_log",
        "CLUSTER if nodes.clustered and exchange.replicated and terms.lasting else LOCAL",
        "LOCAL",
    ),
    "subscription-goes-with-its-connection": Bug(
        "ends a subscription when its connection ends",
        "broker.sessions.consumer",
        "Subscription.detached",
        "self.link.closed_by_peer and ",
        "",
    ),
    "knows-filters-of-its-own-term": Bug(
        "applies a subscription's filters only in the term in which it was made",
        "broker.core.nodes",
        "Nodes._enter_queue",
        "node.gate = node.terms.gate()",
        "node.gate = node.terms.gate() if state is not None and state.keeps_bodies else None",
    ),
    "unsubscribes-before-it-is-committed": Bug(
        "answers a request to unsubscribe before it is committed",
        "broker.sessions.subscriptions",
        "Subscriptions.closed",
        "link.ends_later = True",
        "pass",
    ),
    "unsubscribes-nobody": Bug(
        "does not delete the queue of a subscription that was ended",
        "broker.sessions.subscriptions",
        "Subscriptions.closed",
        "elif self._logs.serving and not self._logs.closed:",
        "elif False:",
    ),
}
