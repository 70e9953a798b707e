"""The queues of the story: their names, their shares of the load (a few have most of it), the sizes of their messages, and what
of each waits. What is the same in many lines is put together once, by the brokers' own encoder (`telemetry.lines`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from spark_analytics.demo_data.plan import RECORD_BYTES, RECORDS_A_BATCH, Look, Plan, draw
from telemetry.lines import QueueLag, queue_text, rate_text

_VARIANTS: Final = 4
_FEW_BATCHES: Final = 256
"""Up to so many unacknowledged batches a primary looks into each of them, and knows which queues wait."""
_WAITING_SHARE: Final = 32
_STEMS: Final = ("orders", "billing", "mail", "audit", "search", "stock", "fraud", "reports")


def queue_names(number: int) -> list[str]:
    """Names that look like somebody's queues."""
    stems = len(_STEMS)
    return [_STEMS[i] if i < stems else f"{_STEMS[i % stems]}.{i // stems}" for i in range(number)]


class Queues:
    """Those of a plan."""

    def __init__(self, plan: Plan) -> None:
        number, seed = plan.shape.queues, plan.shape.seed & 0xFFFF_FFFF
        self._plan = plan
        weights = [1 / (i + 3) ** 0.9 for i in range(number)]
        whole = sum(weights)
        order = sorted(range(number), key=lambda i: draw(seed, i))
        named = sorted(zip(queue_names(number), (weights[i] / whole for i in order), strict=True))
        self.names = [name for name, _ in named]
        self.texts = [queue_text(name, "all") for name in self.names]
        self._shares = [round(share * 2**32) for _, share in named]
        self._busiest = sorted(range(number), key=lambda i: -self._shares[i])
        self._sizes = [200 + draw(seed, i + number) % 3800 for i in range(number)]
        self._key = draw(seed, 2 * number)
        self._no_rates = [rate_text(None, None)] * number
        self._rates = lru_cache(maxsize=8)(self._rates_of)

    def rates(self, slot: int, *, is_first: bool) -> list[str]:
        """The ends of all queues' samples in that slot."""
        if is_first:
            return self._no_rates
        return self._rates(self._plan.level(slot), draw(self._key, slot) % _VARIANTS)

    def _rates_of(self, level: int, variant: int) -> list[str]:
        records, interval_ms = self._plan.batches_a_slot(level) * RECORDS_A_BATCH, self._plan.interval_ms
        idle = rate_text(0.0, 0.0)
        texts = []
        for number, (share, size) in enumerate(zip(self._shares, self._sizes, strict=True)):
            chance = draw(self._key, 1_000_000 + number * _VARIANTS + variant)
            n = (records * share * (75 + chance % 50) // 100 + (chance >> 32)) >> 32
            texts.append(rate_text(n * 1000 / interval_ms, n * size * 1000 / interval_ms) if n else idle)
        return texts

    def lags(self, slot: int, backup: int, look: Look, batches: int) -> dict[int, QueueLag]:
        """What waits of the queues, by position, when so many batches of the whole log do: further back by their shares, else of
        a few.
        """
        stall_ms, found = look.stall_us / 1000, {}
        if batches > _FEW_BATCHES:
            records = batches * RECORDS_A_BATCH
            for position, (share, size) in enumerate(zip(self._shares, self._sizes, strict=True)):
                if n := (records * share) >> 32:
                    found[position] = (n, n * size, look.lag_us / 1000, stall_ms)
            return found
        number = len(self.names)
        for turn in range(min(batches, 1 + number // _WAITING_SHARE)):
            chance = draw(self._key, (slot * 64 + backup) * 256 + turn)
            place = (chance & 0xFFFF) * (chance >> 16 & 0xFFFF) * number >> 32
            position, n = self._busiest[place], 1 + (chance >> 32) % RECORDS_A_BATCH
            age_us = look.lag_us if turn == 0 else look.lag_us * (chance >> 40 & 0xFF) >> 8
            found[position] = (n, n * self._sizes[position], age_us / 1000, 0.0)
        return found


def bytes_of(records: int) -> int:
    """What so many records are in the log."""
    return records * RECORD_BYTES
