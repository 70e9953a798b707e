"""Queues as links see them, through what happens to the nodes below them."""

from __future__ import annotations

from broker.core.nodes import LOCAL
from tests.broker.clients import bench


def test_links_stay_with_their_queue_when_its_node_is_made_anew() -> None:
    """A snapshot replaces every node; what hangs on a queue must not hang on the former one."""
    with bench() as b:
        b.queue("q")
        client = b.client()
        consumer, producer = client.receiver("q"), client.sender("q")
        before = b.broker.nodes.queues["q"]
        b.broker.ledger_reset(b.broker.ledgers[LOCAL])
        node, terminus = b.broker.nodes.queues["q"], b.broker.queues.named("q")
        assert node is not before
        assert terminus is not None
        assert terminus.node is node
        assert (len(terminus.subscriptions), len(terminus.producers)) == (1, 1)
        client.send(producer, "one")
        assert client.bodies(consumer) == ["one"]
        assert b.broker.queues.consumers(node) == 1


def test_a_queue_that_a_snapshot_does_not_have_ends_its_links() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        consumer = client.receiver("q")
        node = b.broker.nodes.queues["q"]
        b.broker.ledgers[LOCAL].on_reset([], 9)
        b.settle()
        assert consumer.remote_condition.name == "amqp:resource-deleted"
        assert b.broker.queues.consumers(node) == 0
        b.lead.index = 9


def test_a_term_that_begins_costs_nothing_for_queues_on_which_nothing_has_failed() -> None:
    """Breaks when a new primary looks for failures on each queue with a limit of them: with 20,000, a failover takes 0.2 s
    longer."""
    with bench(clustered=True, default_level="all") as b:
        b.upgraded()
        for name in ("q", "failed"):
            b.queue(name, arguments={"x-delivery-limit": 2})
            client = b.client()
            client.auto_accept = False
            client.send(client.sender(name), "one")
        client.receiver("failed")
        client.lose()
        b.settle()
        b.lead.become("ready", "other")
        b.settle()
        b.broker.queues._termini.clear()
        b.lead.become("active")
        b.settle()
        assert [terminus.node.name for terminus in b.broker.queues.termini] == ["failed"]
