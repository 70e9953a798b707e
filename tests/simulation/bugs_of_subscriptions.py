"""Planted bugs that lose subscriptions, what is published meanwhile, or their ends (see mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_SUBSCRIPTIONS = {
    "keeps-subscriptions-to-itself": Bug(
        "makes the queue of a durable subscription on the primary alone",
        "broker.core.planning",
        "_subscription_log",
        "CLUSTER if nodes.clustered and exchange.replicated and terms.lasting else LOCAL",
        "LOCAL",
    ),
    "subscription-goes-with-its-connection": Bug(
        "takes a connection's end for the end of its subscriptions",
        "broker.sessions.consumer",
        "Subscription.detached",
        "self.link.closed_by_peer and ",
        "",
    ),
    "knows-filters-of-its-own-term": Bug(
        "applies the filters of a subscription while the primary is in office that made it",
        "broker.core.nodes",
        "Nodes._enter_queue",
        "node.gate = node.terms.gate()",
        "node.gate = node.terms.gate() if state is not None and state.keeps_bodies else None",
    ),
    "unsubscribes-before-it-is-committed": Bug(
        "answers who unsubscribes at once",
        "broker.sessions.subscriptions",
        "Subscriptions.closed",
        "link.ends_later = True",
        "pass",
    ),
    "unsubscribes-nobody": Bug(
        "leaves the queue of a subscription that was ended",
        "broker.sessions.subscriptions",
        "Subscriptions.closed",
        "elif self._logs.serving and not self._logs.closed:",
        "elif False:",
    ),
}
