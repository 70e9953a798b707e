"""Owners of message groups as records, in the state of each broker, in checkpoints, and for brokers that do not know them."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core import limits
from broker.core.commands import QueueAdd, QueueDel
from broker.core.management import queue_items
from broker.core.nodes import CLUSTER, LOCAL, Nodes
from broker.core.queues.owned import Owned, Owner
from broker.core.records import GROUPS_AT_ONCE, BadBatch, Batch, BatchBuilder, Kind
from broker.core.state import CannotApply, State

OWNED = {"qpid.group_header_key": "g", "qpid.group_owner_timeout": 5}
A, B = Owner("user", "container", "a"), Owner("us\u00e9r", 'c"', "b")
X, Y, Z = (bytes(15) + each for each in (b"x", b"\xff", b"z"))


def queue(uuid: str, arguments: dict[str, Any], needs: int = 9) -> QueueAdd:
    return QueueAdd(uuid=uuid, name=uuid, level="all", arguments=arguments, needs=needs)


def own(builder: BatchBuilder, number: int, owner: Owner | None, *groups: bytes) -> None:
    builder.own(number, groups, b"" if owner is None else owner.to_bytes())


def batch(index: int, builder: BatchBuilder) -> Batch:
    return Batch.parse(builder.seal(1, index, 0))


def state_with(*arguments: dict[str, Any]) -> State:
    """A state with these queues, which have the numbers from 1 on."""
    state, builder = State(), BatchBuilder()
    for number, each in enumerate(arguments, 1):
        builder.define_text(queue(f"q{number}", each).text)
    state.apply(batch(1, builder))
    return state


def owners(state: State, number: int = 1) -> dict[str, Owner]:
    order = state.messages[number].order
    assert isinstance(order, Owned)
    return order.owner_of


def named(*groups: bytes) -> list[str]:
    return [each.decode("latin-1") for each in groups]


def test_records_of_owners_come_back_from_their_bytes_in_the_order_in_which_they_were_added() -> None:
    builder = BatchBuilder()
    assert builder.only_dequeues
    own(builder, 1, A, X, Y)
    own(builder, 2, B, Z)
    own(builder, 1, None, X)
    assert (bool(builder), builder.only_dequeues) == (True, False)
    found = batch(1, builder)
    assert [(run.kind, run.queue, run.count) for run in found.runs] == [(Kind.OWNERS, *each) for each in ((1, 2), (2, 1), (1, 1))]
    assert [found.payload(run) for run in found.runs] == [X + Y + A.to_bytes(), Z + B.to_bytes(), X]
    assert found.header.n_records == 4


def test_every_broker_knows_whose_a_group_is_and_feeds_its_queue() -> None:
    state, builder = state_with(OWNED, OWNED), BatchBuilder()
    own(builder, 1, A, X, Y)
    own(builder, 2, B, X)
    own(builder, 1, None, Y)
    assert state.apply(batch(2, builder)).fed == {1, 2}
    assert (owners(state, 1), owners(state, 2)) == (dict(zip(named(X), [A], strict=True)), dict(zip(named(X), [B], strict=True)))


def test_owners_of_a_queue_that_is_gone_or_whose_groups_have_none_do_nothing() -> None:
    plain = {"qpid.group_header_key": "g"}
    state, builder = state_with(OWNED, plain), BatchBuilder()
    own(builder, 2, A, X)
    own(builder, 77, A, X)
    assert state.apply(batch(2, builder)).fed == set()
    deletion = BatchBuilder()
    deletion.define_text(QueueDel(uuid="q1").text)
    own(deletion, 1, A, X)
    state.apply(batch(3, deletion))
    assert list(state.messages) == [2]


def test_a_queue_of_an_older_version_has_no_owners_whatever_its_arguments_say() -> None:
    state, builder = State(), BatchBuilder()
    builder.define_text(queue("q1", OWNED, needs=5).text)
    state.apply(batch(1, builder))
    assert not isinstance(state.messages[1].order, Owned)


def test_a_checkpoint_has_the_owners_in_records_of_a_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_TARGET_BYTES", GROUPS_AT_ONCE * 16)
    state, builder = state_with(OWNED, OWNED), BatchBuilder()
    many = [number.to_bytes(16, "big") for number in range(GROUPS_AT_ONCE + 1)]
    own(builder, 1, A, *many)
    own(builder, 2, A, X)
    own(builder, 2, B, Y)
    state.apply(batch(2, builder))
    snapshot = [batch(2, each) for each in state.snapshot()]
    assert max(run.count for each in snapshot for run in each.runs) == GROUPS_AT_ONCE
    again = State()
    for each in snapshot:
        again.apply(each, snapshot=True)
    assert [owners(again, number) for number in (1, 2)] == [owners(state, number) for number in (1, 2)]
    assert len({id(each) for each in owners(again, 1).values()}) == 1, "the owner of many groups is in memory once"


def test_a_member_of_an_older_version_stops_at_an_owner_and_the_first_format_has_none() -> None:
    builder = BatchBuilder()
    own(builder, 1, A, X)
    with pytest.raises(CannotApply, match="OWNERS record needs machine version 9"):
        State(version=8).apply(batch(1, builder))
    assert builder.seal(1, 1, 0, first_format=True)[:4] == b"USB2"


def test_owners_that_cannot_be_read_are_a_bad_batch() -> None:
    state, builder = state_with(OWNED), BatchBuilder()
    builder.own(1, (X,), b"nobody")
    with pytest.raises(BadBatch, match="batch 2"):
        state.apply(batch(2, builder))
    builder = BatchBuilder()
    builder.own(1, (X[1:],), b"")
    with pytest.raises(BadBatch, match="1 groups in 15 bytes"):
        batch(2, builder)


def test_a_query_for_queues_says_how_many_owners_and_owned_groups_there_are() -> None:
    state, builder = state_with(OWNED, {}), BatchBuilder()
    own(builder, 1, A, X, Y)
    own(builder, 1, B, Z)
    state.apply(batch(2, builder))
    nodes = Nodes(clustered=True)
    nodes.rebuild({CLUSTER: state, LOCAL: State()})
    items = [found[1] for found in queue_items(nodes, "", lambda node: 0) if found is not None]
    assert [(item.get("owners"), item.get("ownedGroups")) for item in items] == [(2, 3), (None, None)]
