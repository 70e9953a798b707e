"""What is to be done about the stores of brokers, by what is seen of them."""

from __future__ import annotations

import pytest

from cli.scaledown.controller import address_of
from cli.scaledown.steps import Do, Store, decide, is_done

ORPHANS = [Store(2), Store(3), Store(7)]
"""With gaps between the ordinals."""


@pytest.mark.parametrize(
    "wanted,stores,steps",
    [
        pytest.param(2, ORPHANS, [(Do.DRAIN, 7)], id="the highest ordinal goes first, one at a time"),
        pytest.param(2, [Store(0), Store(1), Store(9, released=True)], [], id="what is released is left"),
        pytest.param(2, [Store(3), Store(7, released=True)], [(Do.DRAIN, 3)], id="the next one follows"),
        pytest.param(2, [Store(3), Store(7, work=Do.DRAIN)], [], id="and waits for the one before"),
        pytest.param(2, [Store(3), Store(7, waits=True)], [(Do.DRAIN, 3)], id="one that fails holds up nobody"),
        pytest.param(8, ORPHANS, [], id="a rolling restart and an upgrade are no scale-downs: brokers are silent for a while"),
        pytest.param(0, [*ORPHANS, Store(0, leaves=True)], [], id="scaled to zero, migration does not occur"),
        pytest.param(0, [Store(7, work=Do.DRAIN)], [(Do.STOP, 7)], id="nor does it go on"),
        pytest.param(
            1, [Store(0), Store(1), Store(2)], [(Do.DRAIN, 2)], id="scaled up again to some of them, the rest is drained"
        ),
        pytest.param(None, ORPHANS, [], id="nothing begins while the wanted number is not known"),
        pytest.param(8, [Store(7, work=Do.DRAIN)], [(Do.STOP, 7)], id="a scale-up in the middle stops the drain"),
        pytest.param(8, [Store(7, leaves=True)], [(Do.CALL_OFF, 7)], id="and the broker, when it runs, is opened again"),
        pytest.param(8, [Store(7, leaves=True, work=Do.CALL_OFF)], [], id="once"),
        pytest.param(8, [Store(7, leaves=True, waits=True)], [], id="and again after a while"),
        pytest.param(2, [Store(3, work=Do.CALL_OFF)], [], id="what is being called off is not drained meanwhile"),
        pytest.param(2, [Store(3, leaves=True)], [(Do.DRAIN, 3)], id="what leaves and is not wanted goes on"),
    ],
)
def test_what_is_seen_decides_what_is_done(wanted: int | None, stores: list[Store], steps: list[tuple[Do, int]]) -> None:
    assert decide(wanted, stores, parallel=1) == steps


def test_several_drains_go_on_at_a_time_if_that_is_asked_for() -> None:
    assert decide(1, ORPHANS, parallel=2) == [(Do.DRAIN, 7), (Do.DRAIN, 3)]
    assert decide(1, [Store(2), Store(3), Store(7, work=Do.DRAIN)], parallel=2) == [(Do.DRAIN, 3)]


@pytest.mark.parametrize(
    "wanted,stores,done",
    [
        (2, [Store(0), Store(3, released=True)], True),
        (2, [Store(3)], False),
        (0, [Store(3)], True),
        (2, [Store(1, leaves=True)], False),
        (2, [Store(1, work=Do.CALL_OFF)], False),
        (None, [], False),
    ],
)
def test_all_is_done_when_every_orphan_is_released_and_nobody_wanted_leaves(
    wanted: int | None, stores: list[Store], done: bool
) -> None:
    assert is_done(wanted, stores) is done


@pytest.mark.parametrize(
    "brokers,address",
    [
        ("queues-{ordinal}.queues:5672", "queues-3.queues:5672"),
        ("h:{5672+ordinal}", "h:5675"),
        ("10.0.0.{ordinal}:1", "10.0.0.3:1"),
    ],
)
def test_a_brokers_number_stands_in_its_address(brokers: str, address: str) -> None:
    assert address_of(brokers, 3) == address
