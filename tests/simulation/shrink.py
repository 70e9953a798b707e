"""Makes a failing run short by finding the clients and actions that the failure needs.

Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", TSE 2002): parts of the
plan's items are left out, large parts first. They stay out if the run still fails in the same way. The remaining items
can be run again by their numbers, because leaving an item out changes no other item.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Fails = Callable[[Sequence[int]], bool]


MOST_RUNS = 200


def ddmin(items: Sequence[int], fails: Fails, most_runs: int = MOST_RUNS) -> list[int]:
    """A short list of these items with which it still fails. It does with all of them. Nothing is run twice, and no more than
    `most_runs` in all: what is left then may not be the shortest."""
    found: dict[tuple[int, ...], bool] = {}

    def still(rest: list[int]) -> bool:
        key = tuple(rest)
        if key not in found and len(found) < most_runs:
            found[key] = fails(rest)
        return found.get(key, False)

    kept = list(items)
    parts = 2
    while len(kept) >= 2:
        size = max(1, len(kept) // parts)
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            if rest and still(rest):
                kept = rest
                parts = max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(kept))
    if kept and still([]):
        return []
    return kept


def kind_of(violation: str) -> str:
    """What makes two failures the same: the promise that was broken."""
    return violation.partition(":")[0]
