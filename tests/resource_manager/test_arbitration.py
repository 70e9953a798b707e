"""What a plug-in does wrong never reaches the daemon, and delays a promotion by the patience at most."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from resource_manager import arbiters
from resource_manager.arbitration import Arbitration
from resource_manager.core.arbiter import NEVER, ArbiterSettings, Guarantee, Health, Published


class Stars:
    """A plug-in with an outside system, which a test has go away, come back or misbehave."""

    guarantee = Guarantee.LEASED

    def __init__(self) -> None:
        self.said = Health(True, 0.0)
        self.turn_s: Any = NEVER
        self.fault: Exception | None = None
        self.watcher: Any = None
        self.told: list[Any] = []

    def _do(self, *what: Any) -> None:
        self.told.append(what)
        if self.fault is not None:
            raise self.fault

    def health(self) -> Health:
        return self.said

    def acts_at(self, needed_since_s: float, now_s: float) -> float:
        self._do("acts_at")
        result: float = self.turn_s
        return result

    def rest(self) -> None:
        self._do("rest")

    def hears_of(self, daemons: Any) -> None:
        self._do("hears_of", set(daemons))

    def publish(self, view: Published) -> None:
        self._do("publish", view)

    def watch(self, on_change: Any) -> None:
        self.watcher = on_change

    def close(self) -> None:
        self._do("close")


@pytest.fixture
def stars(monkeypatch: pytest.MonkeyPatch) -> Stars:
    plugin = Stars()
    monkeypatch.setattr(arbiters, "make", lambda *_: plugin)
    return plugin


def started(patience_s: float = 10.0) -> tuple[Clock, Arbitration, list[float]]:
    clock, changes = Clock(), list[float]()
    arbitration = Arbitration(clock, "stars", ArbiterSettings(), "rm-1", patience_s)
    arbitration.start(lambda: changes.append(clock.seconds()))
    return clock, arbitration, changes


def test_the_plug_in_is_told_everything_and_its_word_counts(stars: Stars) -> None:
    clock, arbitration, changes = started()
    assert arbitration.acts_at(0.0, 0.0) == NEVER
    stars.turn_s = 1.0
    stars.watcher()
    stars.watcher()
    assert changes == [], "the daemon is not entered again"
    clock.advance(1.0)
    assert changes == [1.0]
    assert arbitration.acts_at(0.0, 1.0) == 1.0
    arbitration.hears_of({"rm-2"})
    arbitration.publish(Published("a:1", 3))
    arbitration.rest()
    arbitration.close()
    assert [what[0] for what in stars.told] == ["acts_at", "acts_at", "hears_of", "publish", "rest", "close"]
    stars.watcher()
    assert clock.getDelayedCalls() == []


def test_when_the_outside_system_goes_away_the_log_says_so_once_and_the_patience_is_waited_for(
    stars: Stars, lines: list[str]
) -> None:
    clock, arbitration, _ = started()
    stars.said = Health(False, 3.0, "connection refused")
    clock.advance(4.0)
    for _ in range(3):
        arbitration.look()
    assert lines == [
        "the arbiter stars cannot be reached: connection refused; 10 s later promotions go without it; a primary that serves is "
        "not touched"
    ]
    assert arbitration.acts_at(4.0, 4.0) == 13.0
    clock.advance(9.0)
    assert arbitration.acts_at(4.0, 13.0) == 13.0
    assert arbitration.acts_at(4.0, 13.0) == 13.0
    stars.said = Health(True, 13.0)
    arbitration.look()
    assert lines[1:] == ["acts without the arbiter stars, which has been away for 10 s", "the arbiter stars is reachable again"]


def test_without_the_arbiter_daemons_take_turns_by_their_names(stars: Stars) -> None:
    _, arbitration, _ = started(patience_s=0.0)
    stars.said = Health(False, None, "connection refused")
    arbitration.hears_of({"rm-0", "rm-1"})
    assert arbitration.acts_at(5.0, 5.0) == pytest.approx(5.2)


@pytest.mark.parametrize("fault", [RuntimeError("boom"), KeyError("x"), ValueError("")])
def test_a_plug_in_that_raises_is_logged_once_and_taken_for_unreachable(stars: Stars, lines: list[str], fault: Exception) -> None:
    """From its last good answer on. Breaks when a stranger's mistake ends the daemon, or blocks promotions for ever."""
    clock, arbitration, _ = started()
    arbitration.look()
    stars.fault = fault
    clock.advance(2.0)
    assert [arbitration.acts_at(2.0, 2.0) for _ in range(3)] == [10.0] * 3
    assert len([line for line in lines if "is at fault: acts_at raised" in line]) == 1
    arbitration.publish(Published("a:1", 3))
    arbitration.rest()
    stars.fault, stars.turn_s = None, 1.0
    assert arbitration.acts_at(2.0, 2.0) == 1.0


@pytest.mark.parametrize("answer", [float("nan"), None, "now"])
def test_an_answer_that_is_no_time_means_never(stars: Stars, answer: Any) -> None:
    _, arbitration, _ = started(patience_s=float("inf"))
    stars.turn_s = answer
    assert arbitration.acts_at(0.0, 0.0) == NEVER


def test_a_health_that_is_none_counts_as_none(stars: Stars) -> None:
    clock, arbitration, _ = started()
    stars.said = None  # type: ignore[assignment]
    clock.advance(1.0)
    assert not arbitration.health().reachable
    assert "its health is None" in arbitration.health().reason
    assert arbitration.acts_at(1.0, 1.0) == 10.0
