"""What clients send ahead of the log is bounded in bytes, over all of them."""

from __future__ import annotations

import pytest

from broker.core import limits
from broker.sessions.inflow import Inflow
from tests.broker.clients import Bench, Client, bench

BODY = b"x" * 100_000


class Heard:
    """A connection, as `Inflow` knows it: what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def stop_reading(self) -> None:
        self.told.append("stop")

    def read_again(self) -> None:
        self.told.append("again")


def test_whoever_brings_more_than_the_bound_waits_until_half_of_it_is_left() -> None:
    inflow, small, large = Inflow(100), Heard(), Heard()
    inflow.came(100)
    inflow.brought(small)
    assert small.told == [], "the bound itself is not too much"
    inflow.came(1)
    inflow.brought(large)
    inflow.brought(large)
    assert large.told == ["stop"], "it is told once"
    inflow.gone(50)
    assert large.told == ["stop"]
    inflow.gone(1)
    assert large.told == ["stop", "again"]
    inflow.came(60)
    inflow.brought(large)
    assert large.told == ["stop", "again", "stop"], "it waits as often as it brings too much"


def test_whoever_brings_parts_waits_at_a_lower_bound() -> None:
    inflow, parts, small = Inflow(100, 20), Heard(), Heard()
    inflow.came(21)
    inflow.brought(small)
    inflow.brought(parts, parts=True)
    inflow.brought(parts, parts=True)
    assert (small.told, parts.told) == ([], ["stop"])
    inflow.came(80)
    inflow.brought(small)
    inflow.brought(parts)
    assert (small.told, parts.told) == (["stop"], ["stop"]), "it is told once, by whichever bound"
    inflow.gone(51)
    assert (small.told, parts.told) == (["stop", "again"], ["stop"])
    inflow.gone(40)
    assert parts.told == ["stop", "again"]
    inflow.came(20)
    inflow.brought(parts, parts=True)
    inflow.forget(parts)
    inflow.gone(30)
    assert parts.told == ["stop", "again", "stop"]


def test_a_connection_that_is_gone_is_not_told() -> None:
    inflow, one = Inflow(10), Heard()
    inflow.came(11)
    inflow.brought(one)
    inflow.forget(one)
    inflow.gone(11)
    assert one.told == ["stop"]


def reads(client: Client) -> bool:
    return bool(client.socket.producerState == "producing")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INFLOW_BYTES", 5 * len(BODY))


def stalled(b: Bench) -> Client:
    """A client has sent more than the bound, and the log commits nothing."""
    b.logs["local"].automatic = False
    client = b.client()
    client.send(client.sender("q"), *([BODY] * 8))
    return client


def release(b: Bench) -> None:
    """The log commits all that it is given."""
    b.logs["local"].automatic = True
    b.logs["local"].commit()
    b.settle()


@pytest.mark.usefixtures("small")
def test_producers_are_not_read_while_too_much_waits_for_the_log_and_others_are() -> None:
    with bench() as b:
        b.queue("q")
        client, other = stalled(b), b.client()
        assert not reads(client)
        assert reads(other), "it has brought nothing"
        release(b)
        assert reads(client)
        assert b.broker.logs.inflow.nbytes == 0


@pytest.mark.usefixtures("small")
def test_a_producer_that_is_not_read_is_not_taken_to_be_silent() -> None:
    with bench() as b:
        b.queue("q")
        client = stalled(b)
        for _ in range(round(3 * limits.IDLE_TIMEOUT_S)):
            b.clock.advance(1)
        assert not client.lost
        assert not reads(client)
        release(b)
        assert reads(client)


@pytest.mark.usefixtures("small")
def test_what_a_term_leaves_behind_holds_nobody_back() -> None:
    with bench(clustered=True) as b:
        b.queue("q", replicate="all")
        b.logs["cluster"].automatic = False
        client = b.client()
        client.send(client.sender("q"), *([BODY] * 8))
        assert b.broker.logs.inflow.nbytes > 5 * len(BODY)
        b.logs["cluster"].become("ready")
        assert b.broker.logs.inflow.nbytes == 0


@pytest.mark.usefixtures("small")
def test_a_client_that_is_gone_when_it_is_read_again_is_given_up_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when only its next byte ends the time in which its silence is forgiven: then its consumers keep their messages."""
    with bench() as b:
        b.queue("q")
        client = stalled(b)
        monkeypatch.setattr(client, "pump", lambda: False)
        release(b)
        assert reads(client)
        for _ in range(round(limits.IDLE_TIMEOUT_S)):
            assert not client.server.is_lost
            b.clock.advance(1)
        for _ in range(2):
            b.clock.advance(1)
        assert client.server.is_lost
