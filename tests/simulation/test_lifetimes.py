"""Queues that are deleted after a time without a user: what the observers see of a broker that is right, and of one
that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.core.commands import QueueDel
from broker.sessions.unused import Unused
from tests.broker.clients import Bench, bench
from tests.simulation.checks import Checks
from tests.simulation.history import History


class Brief:
    """A primary with a queue that goes after ten seconds, under observation."""

    def __init__(self, b: Bench, checks: Checks) -> None:
        self.bench = b
        self.faults = checks.faults
        self.history = checks.history
        self.history.queue_created("q", drained=False)
        b.upgraded()
        b.queue("q", replicate="all", arguments={"qpid.auto_delete_timeout": 10})

    @property
    def there(self) -> bool:
        return "q" in self.bench.broker.nodes.queues

    def delete(self) -> None:
        """What the broker does when the queue's time is over."""
        self.bench.broker.logs.delete_queue(self.bench.broker.nodes.queues["q"])
        self.bench.settle()


@pytest.fixture
def brief() -> Iterator[Brief]:
    with bench(clustered=True) as b, Checks(History()) as checks:
        yield Brief(b, checks)


def test_a_queue_that_goes_in_time_was_asked_to_go(brief: Brief) -> None:
    client = brief.bench.client()
    client.receiver("q").close()
    brief.bench.pass_time(11)
    assert not brief.there
    assert brief.faults == []
    assert brief.history.deleted == {"q"}


@pytest.mark.parametrize("what", ["made", "a link attaches and leaves", "a term begins"])
def test_one_that_goes_too_early_after_something_happened_to_it(brief: Brief, what: str) -> None:
    if what != "made":
        brief.bench.pass_time(9)
    if what == "a link attaches and leaves":
        brief.bench.client().sender("q").close()
        brief.bench.settle()
    if what == "a term begins":
        brief.bench.lead.become("ready")
        brief.bench.lead.become("active")
    brief.bench.pass_time(2)
    brief.delete()
    assert brief.faults[0] == "lifetime: q is deleted after 2.000 s, and it is to be kept for 10 s"
    assert "lost: batch 3 deletes q, which nobody asked for" in brief.faults


def test_one_that_goes_while_it_is_used(brief: Brief, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unused, "used", lambda unused, node: None)
    monkeypatch.setattr(brief.bench.broker.queues.unused, "_users", lambda node: 0)
    brief.bench.client().sender("q")
    brief.bench.pass_time(10)
    assert brief.faults[0] == "lifetime: q is deleted while it is used by links: 1"


def test_one_that_a_broker_lets_go_which_does_not_serve(brief: Brief) -> None:
    node = brief.bench.broker.nodes.queues["q"]
    brief.bench.pass_time(5)
    brief.bench.lead.become("ready")
    brief.bench.broker.lead.change(QueueDel(uuid=node.uuid), lambda reason: None)
    assert brief.faults == ["lifetime: a broker that is ready has q deleted"]


def test_what_has_no_such_time_goes_when_it_will(brief: Brief) -> None:
    brief.bench.queue("other", replicate="all")
    brief.history.queue_created("other")
    brief.history.queue_deleted("other")
    assert brief.bench.client().request("DELETE", "queue", "other")[0] == 204
    assert brief.faults == []
