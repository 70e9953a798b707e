"""What a broker's process sets for itself as a whole."""

from __future__ import annotations

import gc
from typing import Any

from ha.service import spare_collections


def test_the_garbage_collector_looks_at_few_of_many_new_objects_at_once() -> None:
    """Breaks when it looks at half a million: a broker that gets many queues and bindings stands still for 0.2 s then."""
    looked: list[int] = []

    def begins(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            looked.append(sum(len(gc.get_objects(generation=each)) for each in range(min(info["generation"], 1) + 1)))

    before = gc.get_threshold()
    spare_collections()
    gc.callbacks.append(begins)
    try:
        kept = [[number] for number in range(700_000)]
    finally:
        gc.callbacks.remove(begins)
        gc.set_threshold(*before)
    assert len(kept) > sum(looked) / 3, "an object is looked at twice or three times"
    assert 10 < len(looked) < 50
    assert max(looked) < 200_000
