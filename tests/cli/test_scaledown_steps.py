"""What is to be done about the stores of brokers, by what is seen of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import ensureDeferred
from twisted.internet.task import Clock

from broker.core import urls
from broker.options import SettingsError
from cli.options import Target
from cli.scaledown.controller import Controller
from cli.scaledown.folder import Folder, Settings
from cli.scaledown.place import Unseen, address_of
from cli.scaledown.steps import Do, Store, decide, is_done
from tests.system.harness import free_ports

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
        pytest.param(8, ORPHANS, [], id="a rolling restart and an upgrade are not scale-downs: brokers are silent for a while"),
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
    assert decide(None if wanted is None else range(wanted), stores, parallel=1) == steps


def test_ordinals_may_begin_with_another_number_and_those_on_both_sides_are_orphans() -> None:
    stores = [Store(2), Store(5, leaves=True), Store(7), Store(8)]
    assert decide(range(5, 8), stores, parallel=9) == [(Do.DRAIN, 8), (Do.CALL_OFF, 5), (Do.DRAIN, 2)]
    assert decide(range(5, 5), stores, parallel=9) == []


def test_a_drain_that_is_being_ended_counts_among_those_that_are_under_way() -> None:
    assert decide(range(2), [Store(3), Store(7, work=Do.STOP)], parallel=1) == []


def test_several_drains_go_on_at_a_time_if_that_is_asked_for() -> None:
    assert decide(range(1), ORPHANS, parallel=2) == [(Do.DRAIN, 7), (Do.DRAIN, 3)]
    assert decide(range(1), [Store(2), Store(3), Store(7, work=Do.DRAIN)], parallel=2) == [(Do.DRAIN, 3)]


@pytest.mark.parametrize(
    "wanted,stores,done",
    [
        (2, [Store(0), Store(3, released=True)], True),
        (2, [Store(3)], False),
        (0, [Store(3)], False),
        (0, [Store(3, released=True)], True),
        (0, [], True),
        (2, [Store(1, leaves=True)], False),
        (2, [Store(1, denies=True)], False),
        (2, [Store(1, work=Do.CALL_OFF)], False),
        (None, [], False),
    ],
)
def test_all_is_done_when_every_orphan_is_released_and_nobody_wanted_leaves(
    wanted: int | None, stores: list[Store], done: bool
) -> None:
    assert is_done(None if wanted is None else range(wanted), stores) is done


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


def controller(folder: Path) -> tuple[Controller, Clock, list[tuple[str, dict[str, Any]]]]:
    """One over a folder that has no stores. Its look is the clock's matter."""
    clock, told = Clock(), list[tuple[str, dict[str, Any]]]()
    settings = Settings(folder, "", folder / "replicas", "h:{ordinal}", ("t:1",), False, pytest.fail)

    def tell(event: str, facts: dict[str, Any]) -> None:
        told.append((event, facts))

    return Controller(clock, Folder(clock, settings, tell, once=False), tell), clock, told


def test_a_controller_is_not_alive_when_no_look_has_succeeded_for_two_minutes(tmp_path: Path) -> None:
    """It tells why, and is alive again with the next one that does."""
    acting, clock, told = controller(tmp_path)
    (tmp_path / "replicas").write_text("three")
    running = ensureDeferred(acting.run())
    clock.pump([5.0] * 23)
    alive = [acting.alive]
    clock.pump([5.0] * 3)
    alive.append(acting.alive)
    assert told[0][0] == "unseen"
    (tmp_path / "replicas").write_text("3\n")
    clock.advance(5.0)
    assert [*alive, acting.alive] == [True, False, True]
    assert told[-1] == ("wanted", {"replicas": 3, "stores": []})
    running.addErrback(lambda failure: None)
    running.cancel()


def test_a_hundred_events_in_a_second_are_a_few_readings(tmp_path: Path) -> None:
    """Breaks when a namespace whose pods come and go keeps the controller reading without a pause."""
    acting, clock, _ = controller(tmp_path)
    (tmp_path / "replicas").write_text("1")
    look, looks = acting.place.look, list[float]()

    async def counted() -> Any:
        looks.append(clock.seconds())
        return await look()

    acting.place.look = counted  # type: ignore[method-assign]
    running = ensureDeferred(acting.run()).addErrback(lambda failure: None)
    clock.advance(1.0)
    for _ in range(100):
        acting.place.on_news()
        clock.advance(0.01)
    assert 5 <= len(looks) <= 7
    assert looks[1] == pytest.approx(1.2), "the first news is not left for the next regular reading"
    running.cancel()


def test_of_two_controllers_one_acts_and_the_other_takes_over_when_it_ends(tmp_path: Path) -> None:
    (tmp_path / "replicas").write_text("1")
    first, _, told_first = controller(tmp_path)
    second, clock, told = controller(tmp_path)
    running = [ensureDeferred(each.run()).addErrback(lambda failure: None) for each in (first, second)]
    clock.pump([5.0] * 40)
    assert (told_first[-1][0], [event for event, _ in told]) == ("wanted", ["waiting"])
    assert second.alive, "it waits, and is well"
    first.close()
    clock.advance(5.0)
    assert told[-1][0] == "wanted"
    for each in running:
        each.cancel()


def test_stores_of_several_names_are_told_apart_only_by_name(tmp_path: Path) -> None:
    for name in ("a-0", "b-1", "notes", "a-01"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "store.json").touch()
    (tmp_path / "replicas").write_text("5")
    acting, _, told = controller(tmp_path)
    running = ensureDeferred(acting.run()).addErrback(lambda failure: None)
    assert told == [("unseen", {"why": f"{tmp_path} has stores of a, b: choose one with --name"})]
    running.cancel()


def _stores(folder: Path, count: int, wanted: str) -> None:
    for ordinal in range(count):
        (folder / f"q-{ordinal}").mkdir()
        (folder / f"q-{ordinal}" / "store.json").touch()
    (folder / "replicas").write_text(wanted)


def seeing(folder: Path, target_of: Callable[[str], Target]) -> Folder:
    """A folder of one machine, by the real reactor."""
    settings = Settings(folder, "", folder / "replicas", "127.0.0.1:{ordinal}", ("t:1",), False, target_of)
    return Folder(reactor, settings, lambda event, facts: None, once=False)


@pytest_twisted.ensureDeferred
async def test_a_broker_that_cannot_be_asked_because_of_our_own_files_ends_nothing(tmp_path: Path) -> None:
    """Breaks when a file with a password that is rewritten just now ends the controller, and all drains with it."""
    _stores(tmp_path, 2, "2")

    def target_of(address: str) -> Target:
        raise SettingsError("--password-file is empty")

    with pytest.raises(Unseen, match=r"^127\.0\.0\.1:0 cannot be asked: --password-file is empty$"):
        await seeing(tmp_path, target_of).look()


@pytest_twisted.ensureDeferred
async def test_a_broker_that_is_wanted_since_the_others_were_asked_counts_as_wanted(tmp_path: Path) -> None:
    """Breaks when the number from before the questions counts: a broker that does not answer takes ten seconds."""
    _stores(tmp_path, 2, "1")
    [port] = free_ports(1)

    def target_of(address: str) -> Target:
        (tmp_path / "replicas").write_text("2")
        return Target(urls.parse(f"127.0.0.1:{port}"), 1.0, "", admin=True)

    [site] = await seeing(tmp_path, target_of).look()
    assert (site.wanted, [store.ordinal for store in site.stores]) == (range(2), [0, 1])
