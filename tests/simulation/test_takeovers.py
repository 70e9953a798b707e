"""Second sites that take over by force while brokers fail, and first sites that come back."""

from __future__ import annotations

import pytest

from tests.simulation import takeovers

SEEDS = range(1, 9)


@pytest.mark.simulation
@pytest.mark.parametrize("seed", SEEDS)
def test_two_clusters_never_mix_and_what_was_given_up_is_what_the_operator_was_told(seed: int) -> None:
    assert takeovers.run(seed) >= 100
