"""Lines of the story, exactly as a broker writes them: the same fields in the same order, numbers in the same form.

`spark_analytics` imports nothing of the brokers, so this is a second hand for what telemetry/lines.py defines; a test
holds both against each other, for each kind of line. Samples of queues come by the thousand, and are put together from parts
that are the same in many lines, which takes about a microsecond each: with arrays of numpy or Arrow it takes no less.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Final

from spark_analytics.demo_data.plan import CLUSTER, RECORD_BYTES, RECORDS_A_BATCH, Look, Plan, draw, iso

_JSON: Final = json.JSONEncoder(separators=(",", ":"))
_IDLE: Final = '"lag_records":0,"lag_bytes":0,"lag_ms":0.000,"stall_ms":0.000,'
_NO_RATES: Final = '"records_per_s":null,"bytes_per_s":null}\n'
_VARIANTS: Final = 4
_FEW_BATCHES: Final = 256
"""Up to so many unacknowledged batches a primary looks into each of them, and knows which queues wait."""
_WAITING_SHARE: Final = 32
_STEMS: Final = ("orders", "billing", "mail", "audit", "search", "stock", "fraud", "reports")


def queue_names(number: int) -> list[str]:
    """Names that look like somebody's queues."""
    stems = len(_STEMS)
    return [_STEMS[i] if i < stems else f"{_STEMS[i % stems]}.{i // stems}" for i in range(number)]


def line(record: dict[str, Any]) -> str:
    """A record as a line."""
    return _JSON.encode(record) + "\n"


def head(kind: str, epoch: int, sender: str, seq: int, ts_ms: int) -> dict[str, Any]:
    """The fields of every line."""
    return {"v": 1, "kind": kind, "cluster": CLUSTER, "epoch": epoch, "sender": sender, "seq": seq, "ts": iso(ts_ms)}


def event(epoch: int, sender: str, seq: int, ts_ms: int, fields: dict[str, Any]) -> str:
    """An event; what `fields` does not say is null."""
    empty = dict.fromkeys(("broker", "type", "from", "to", "index", "lost_records", "duration_ms", "detail", "peer", "bytes"))
    return line(head("event", epoch, sender, seq, ts_ms) | empty | fields)


def roster(epoch: int, sender: str, seq: int, ts_ms: int, *, interval_ms: int, backups: list[str], queues: list[str]) -> str:
    """The roster of a primary."""
    said = {"interval_ms": interval_ms, "primary": sender, "backups": backups, "queues": queues}
    return line(head("roster", epoch, sender, seq, ts_ms) | said)


def _ages(lag_us: int, stall_us: int) -> str:
    return f'"lag_ms":{lag_us / 1000:.3f},"stall_ms":{stall_us / 1000:.3f},'


def _ms(us: int | None) -> str:
    return "null" if us is None else f"{us / 1000:.3f}"


class SampleText:
    """The samples of one sender in one slot."""

    def __init__(self, epoch: int, sender: str, ts_ms: int, *, interval_ms: int, primary: str) -> None:
        self._before_seq = f'{{"v":1,"kind":"sample","cluster":"{CLUSTER}","epoch":{epoch},"sender":"{sender}","seq":'
        self._after_seq = f',"ts":"{iso(ts_ms)}","interval_ms":{interval_ms},"primary":"{primary}",'

    def whole(self, seq: int, backup: str, indexes: str, lag: str, condition: str, rates: str) -> str:
        """A backup's whole log."""
        return (
            f'{self._before_seq}{seq}{self._after_seq}"backup":"{backup}","queue":null,"replicate":"all",'
            f"{indexes}{lag}{condition}{rates}"
        )

    def queues(
        self,
        first_seq: int,
        backup: str,
        indexes: str,
        condition: str,
        *,
        queues: Sequence[str],
        lags: Sequence[str],
        rates: Sequence[str],
    ) -> list[str]:
        """Its queues, by their own texts."""
        start, middle = self._before_seq, f'{self._after_seq}"backup":"{backup}",'
        return [
            f"{start}{seq}{middle}{queue}{indexes}{lag}{condition}{rate}"
            for seq, queue, lag, rate in zip(count(first_seq), queues, lags, rates, strict=False)
        ]


def indexes(commit: int, *, sent: int | None, received: int | None, acked: int | None, applied: int | None) -> str:
    """The part of a sample that says how far the backup is."""
    s, r, a, d = ("null" if index is None else index for index in (sent, received, acked, applied))
    return f'"commit_index":{commit},"sent_index":{s},"received_index":{r},"acked_index":{a},"applied_index":{d},'


def lag(records: int, nbytes: int, lag_us: int, stall_us: int) -> str:
    """The part that says how much waits, and for how long."""
    return f'"lag_records":{records},"lag_bytes":{nbytes},{_ages(lag_us, stall_us)}'


def condition(
    state: str, *, in_sync: bool, connected: bool, role: str, sync_us: tuple[int, int] | None, round_trip_us: int | None
) -> str:
    """The part that says in what state the backup is, and how the sender's disk and its connection do."""
    mean, longest = (None, None) if sync_us is None else sync_us
    return (
        f'"state":"{state}","in_sync":{str(in_sync).lower()},"connected":{str(connected).lower()},"headroom_bytes":null,'
        f'"role":"{role}","sync_ms":{_ms(mean)},"sync_max_ms":{_ms(longest)},"round_trip_ms":{_ms(round_trip_us)},'
    )


def rates(records: int | None, nbytes: int, interval_ms: int) -> str:
    """The end of a sample: what was committed in the interval, a second; None when that is not known."""
    if records is None:
        return _NO_RATES
    return f'"records_per_s":{records * 1000 / interval_ms:.3f},"bytes_per_s":{nbytes * 1000 / interval_ms:.3f}}}\n'


class Queues:
    """What is known of the queues: their names, their shares of the load (a few have most of it), the sizes of their messages."""

    def __init__(self, plan: Plan) -> None:
        number, seed = plan.shape.queues, plan.shape.seed & 0xFFFF_FFFF
        self._plan = plan
        weights = [1 / (i + 3) ** 0.9 for i in range(number)]
        whole = sum(weights)
        order = sorted(range(number), key=lambda i: draw(seed, i))
        named = sorted(zip(queue_names(number), (weights[i] / whole for i in order), strict=True))
        self.names = [name for name, _ in named]
        self.texts = [f'"queue":"{name}","replicate":"all",' for name in self.names]
        self._shares = [round(share * 2**32) for _, share in named]
        self._busiest = sorted(range(number), key=lambda i: -self._shares[i])
        self._sizes = [200 + draw(seed, i + number) % 3800 for i in range(number)]
        self._key = draw(seed, 2 * number)
        self._no_rates = [_NO_RATES] * number
        self._rates = lru_cache(maxsize=8)(self._rates_of)

    def rates(self, slot: int, *, is_first: bool) -> list[str]:
        """The ends of all queues' samples in that slot."""
        if is_first:
            return self._no_rates
        return self._rates(self._plan.level(slot), draw(self._key, slot) % _VARIANTS)

    def _rates_of(self, level: int, variant: int) -> list[str]:
        records, interval_ms = self._plan.batches_a_slot(level) * RECORDS_A_BATCH, self._plan.interval_ms
        idle = rates(0, 0, interval_ms)
        texts = []
        for number, (share, size) in enumerate(zip(self._shares, self._sizes, strict=True)):
            chance = draw(self._key, 1_000_000 + number * _VARIANTS + variant)
            n = (records * share * (75 + chance % 50) // 100 + (chance >> 32)) >> 32
            texts.append(rates(n, n * size, interval_ms) if n else idle)
        return texts

    def lags(self, slot: int, backup: int, look: Look, batches: int) -> list[str]:
        """What waits of each queue when so many batches of the whole log do: further back by its share, else of a few."""
        if batches > _FEW_BATCHES:
            records, age = batches * RECORDS_A_BATCH, _ages(look.lag_us, look.stall_us)
            return [
                f'"lag_records":{n},"lag_bytes":{n * size},{age}' if (n := (records * share) >> 32) else _IDLE
                for share, size in zip(self._shares, self._sizes, strict=True)
            ]
        lags = [_IDLE] * len(self.names)
        for turn in range(min(batches, 1 + len(lags) // _WAITING_SHARE)):
            chance = draw(self._key, (slot * 64 + backup) * 256 + turn)
            place = (chance & 0xFFFF) * (chance >> 16 & 0xFFFF) * len(lags) >> 32
            position = self._busiest[place]
            n, age_us = (
                1 + (chance >> 32) % RECORDS_A_BATCH,
                look.lag_us if turn == 0 else look.lag_us * (chance >> 40 & 0xFF) >> 8,
            )
            lags[position] = lag(n, n * self._sizes[position], age_us, 0)
        return lags


def bytes_of(records: int) -> int:
    """What so many records are in the log."""
    return records * RECORD_BYTES
