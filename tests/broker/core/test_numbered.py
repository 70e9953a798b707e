"""What comes over numbered links: the commands that name them, and what is held until they are forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core import limits
from broker.core.commands import LinkAdd
from broker.core.definitions import LinkForgotten, LinkMade, Nothing
from broker.core.records import Batch, BatchBuilder
from broker.core.state import CannotApply, State
from tests.broker.core.definitions import Change, delete, queue, state_of
from tests.broker.core.test_origins import change, origin, put
from tests.broker.core.test_state import rebuilt


def link(name: str = "l", into: str = "u-q", kept_s: int = 60, **more: Any) -> Change:
    named = {"user": "ann", "container": "shop", "link": name, "into": into}
    return {"op": "link-add", "keptS": kept_s, "needs": 6} | named | more


def forget(name: str = "l", into: str = "u-q") -> Change:
    return {"op": "link-forget", "user": "ann", "container": "shop", "link": name, "into": into, "needs": 6}


def test_links_queues_and_origins_share_one_count_and_a_checkpoint_has_what_they_hold() -> None:
    state = state_of(queue("q"), origin(), link(), link("other"))
    numbers = [each.number for each in state.definitions.links.values()]
    assert numbers == [3, 4]
    put(state, 3, (1, 5), (9, 1))
    put(state, 4, (1, 1))
    again = rebuilt(state)
    assert {number: held.runs() for number, held in again.held.items()} == {2: [], 3: [(1, 5), (9, 1)], 4: [(1, 1)]}
    assert again.definitions.links == state.definitions.links
    assert (again.held_runs, again.definitions.next_number) == (3, 5)


def test_a_link_is_known_once_and_another_time_keeps_what_is_held() -> None:
    state = state_of(queue("q"), link())
    put(state, 2, (1, 5))
    ((again, reason), (longer, _)) = change(state, link(), link(kept_s=600))
    assert (isinstance(again, Nothing), reason) == (True, "this link is known already")
    assert isinstance(longer, LinkMade)
    assert (longer.link.number, longer.link.kept_s) == (2, 600)
    assert state.held[2].runs() == [(1, 5)]


def test_a_link_that_is_forgotten_holds_nothing_and_begins_anew() -> None:
    state = state_of(queue("q"), link(), link("other"))
    put(state, 2, (1, 5))
    ((gone, _), (none, reason)) = change(state, forget(), forget())
    assert isinstance(gone, LinkForgotten)
    assert (isinstance(none, Nothing), reason) == (True, "there is no such link")
    assert (list(state.held), state.held_runs) == ([3], 0)
    change(state, link())
    assert state.held[4].runs() == []


@pytest.mark.parametrize("kind", ["queue", "store"])
def test_what_links_hold_goes_with_their_queue_and_none_comes_to_a_queue_that_is_gone(kind: str) -> None:
    made = queue("q") if kind == "queue" else {"op": "store-add", "uuid": "u-q", "arguments": {}}
    state = state_of(made, queue("other"), link(), link("second"), link("third", "u-other"))
    change(state, delete(kind, "u-q"))
    assert [each.link for each in state.definitions.links.values()] == ["third"]
    assert list(state.held) == [5]
    ((none, reason),) = change(state, link())
    assert (isinstance(none, Nothing), reason) == (True, "there is no such queue")
    change(state, delete("queue", "u-other"))
    assert (state.definitions.links, state.held) == ({}, {})


def test_so_many_links_are_remembered_and_those_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_NUMBERED_LINKS", 1)
    state = state_of(queue("q"), link())
    ((none, reason), (made, _)) = change(state, link("other"), link(kept_s=5))
    assert isinstance(none, Nothing)
    assert "1 links" in reason
    assert isinstance(made, LinkMade)


def test_a_member_of_an_older_version_stops_at_a_link() -> None:
    state = State(5)
    builder = BatchBuilder()
    for each in (queue("q"), link()):
        builder.define(each)
    with pytest.raises(CannotApply, match="'link-add' needs machine version 6"):
        state.apply(Batch.parse(builder.seal(1, 1, 0)))
    made = LinkAdd(user="ann", container="shop", link="l", into="u-q", kept_s=60)
    assert made.to_dict() == link()
