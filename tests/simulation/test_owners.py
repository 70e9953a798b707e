"""What the checks say of owners of message groups: of logs that contradict themselves, and of brokers that do not follow them."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core.queues.groups import Groups
from broker.core.queues.owned import Owned, Owner
from tests.broker.clients import Bench, bench
from tests.broker.test_dead_letters import limited
from tests.simulation.checks import Checks
from tests.simulation.checks.owners import digest_of_group
from tests.simulation.history import History, Key
from tests.simulation.test_reference import Log

ARGUMENTS = {"qpid.group_header_key": "k", "qpid.group_owner_timeout": 5}
GROUP = digest_of_group(1).encode("latin-1")
ONE, TWO = Owner("u", "c", "one"), Owner("u", "c", "two")


@pytest.fixture
def log() -> Log:
    """A log with a queue whose groups have owners."""
    made = Log()
    made.history.queue_created("q", groups=2)
    change = {"op": "queue-add", "uuid": "u-q", "name": "q", "level": "all", "arguments": ARGUMENTS, "needs": 9}
    made.apply(lambda builder: builder.define(change))
    return made


def own(log: Log, *owners: Owner | None) -> None:
    """One record after the other about one group."""

    def write(builder: Any) -> None:
        for owner in owners:
            builder.own(1, (GROUP,), b"" if owner is None else owner.to_bytes())

    log.apply(write)


def test_a_state_and_the_log_agree_on_owners_until_their_queue_is_deleted(log: Log) -> None:
    own(log, ONE)
    assert log.agrees
    own(log, None, TWO)
    assert log.agrees
    assert log.reference.owners.owner_at(1, digest_of_group(1), 2) == ONE
    assert log.reference.owners.ever(1, digest_of_group(1)) == [ONE, TWO]
    order = log.state.messages[1].order
    assert isinstance(order, Owned)
    order.owner_of[digest_of_group(1)] = ONE
    differs = not log.agrees
    assert differs
    order.owner_of[digest_of_group(1)] = TWO
    log.history.deleted.add("q")
    log.apply(lambda builder: builder.define({"op": "queue-del", "uuid": "u-q"}))
    assert log.agrees
    assert log.faults == []


def test_a_group_that_is_given_while_it_has_an_owner_and_one_that_is_freed_while_it_has_none(log: Log) -> None:
    own(log, ONE, TWO)
    own(log, None, None)
    assert log.faults == [
        f"owner: batch 2 gives {tuple(TWO)} a group of queue 1 that {tuple(ONE)} has",
        "owner: batch 3 frees a group of queue 1 that nobody has",
    ]


def served(b: Bench, checks: Checks) -> Key:
    """A queue whose groups have owners, with one message."""
    checks.history.queue_created("q", groups=2)
    b.upgraded()
    b.queue("q", replicate="all", arguments=ARGUMENTS)
    client = b.client()
    body = checks.history.sent("alice", "q", 1, 0.0).decode()
    client.send(client.sender("q"), body, properties={"k": 1})
    return Key("alice", 0, 1, "q")


def test_a_message_that_is_given_out_before_its_group_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(clustered=True) as b, Checks(History()) as checks:
        key = served(b, checks)
        monkeypatch.setattr(Owned, "_place", lambda order, group: (1, None) if order._first(group) == 1 else None)
        monkeypatch.setattr(Owned, "_next", lambda order, consumer: order._top(order._heads, None))
        client = b.client(container="bob")
        client.receiver("q", name="one")
        user = next(each.principal.user for each in b.broker.connections.values() if each.container == "bob")
        wrong = f"owner: {key} is given out to {(user, 'bob', 'one')}, and its group is that of nobody"
        assert checks.faults == [wrong]


def test_a_message_that_comes_to_a_client_to_which_no_record_gives_its_group() -> None:
    with bench(clustered=True) as b, Checks(History()) as checks:
        key = served(b, checks)
        client = b.client(container="bob")
        client.auto_accept = False
        client.receiver("q", name="one")
        for name in ("bob", "carol"):
            checks.history.received(name, "q", b"<alice/0/1>", 0.2)
        assert checks.faults == [f"owner: carol got {key}, and no committed batch gives it that group"]


@pytest.mark.parametrize("accepts, wrong", [(True, False), (False, True)], ids=["accepted", "left behind"])
def test_an_owner_that_attaches_again_goes_on_unless_a_message_of_its_group_is_on_its_way_back(
    accepts: bool, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is committed meanwhile: neither that the owner has accepted a message, nor that its delivery has failed."""
    monkeypatch.setattr(Groups, "will_return", lambda order, sequences: None)
    with bench(clustered=True) as b, Checks(History()) as checks:
        key = served(b, checks)
        limited(b, 3)
        client = b.client(container="bob")
        client.auto_accept = False
        link = client.receiver("q", name="one", credit=1)
        ((delivery, _),) = client.received[link.name]
        later = checks.history.sent("alice", "q", 3, 0.0).decode()
        producer = b.client()
        producer.send(producer.sender("q"), later, properties={"k": 1})
        b.lead.automatic = False
        if accepts:
            client.give(delivery, proton.Delivery.ACCEPTED)
        client.lose()
        again = b.client(container="bob")
        again.auto_accept = False
        assert len(again.received[again.receiver("q", name="one").name]) == 1
        assert checks.faults == (
            [f"group: {Key('alice', 0, 3, 'q')} is given out, and another consumer has {key}"] if wrong else []
        )
        b.lead.automatic = True
        b.commit_all()
