"""Brokers that leave, and drains that are cancelled, while brokers and drainers fail."""

from __future__ import annotations

import pytest

from tests.simulation import departures

SEEDS = range(1, 9)


@pytest.mark.simulation
@pytest.mark.parametrize("seed", SEEDS)
def test_every_message_is_on_one_of_the_two_and_the_drain_comes_to_its_end(seed: int) -> None:
    assert departures.run(seed) >= 500
