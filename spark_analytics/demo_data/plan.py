"""What happens in the story, slot by slot: who reigns, how much load there is, and how far each backup is behind.

A slot is one sampling interval; a sample is taken in its middle. Load rises and falls with the day (in a story shorter than a day
its whole length is the day), is lower at weekends, and lag follows it. At fixed shares of the story, and no longer than such
things take, come a slow disk, a backup that stands still, lines that are lost, a primary that is killed and comes back, a backup
of which nothing is heard, an outage of everything, and a planned switchover.

Nothing here is remembered from slot to slot: all of it is arithmetic on the shape, the slot and the broker, so that any part
of the story can be written by any process, and its answers are worked out without a look at what was written. What looks random
is `draw`, a hash of the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from math import cos, exp, pi
from statistics import NormalDist
from typing import Final, NamedTuple

CLUSTER: Final = "demo"
OBJECTIVE_MS: Final = 1000
DAY_MS: Final = 86_400_000
GAP_MS: Final = 1240
"""From the kill until the new primary serves."""
DETECTION_MS: Final = 900
SWITCH_MS: Final = 180
FEWEST_SLOTS: Final = 120
RECORDS_A_BATCH: Final = 3
RECORD_BYTES: Final = 1100
SLICE: Final = 250
"""As many samples of queues are handed over at a time, and so lost together."""
LEVELS: Final = 32
RANKS: Final = 512
_STEPS: Final = 288
_MOST_BATCHES_PER_S: Final = 400
_SLOW_US: Final = (400_000, 1_300_000)
_HEARD_AFTER_MS: Final = 40
_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Shape:
    """How much to write: `seconds` of telemetry from `start_ms` on, a sample each `interval_ms`, of `queues` queues and the whole
    log, for each of `backups` backups. `start_ms` and `seconds` are whole intervals.
    """

    start_ms: int
    seconds: int = 600
    queues: int = 8
    seed: int = 1
    backups: int = 2
    interval_ms: int = 1000

    def __post_init__(self) -> None:
        assert self.slots >= FEWEST_SLOTS, "too short for all that happens"
        assert self.backups >= 2, "one backup is no majority without its primary"
        assert not self.start_ms % self.interval_ms, "begins within an interval"
        assert not self.seconds * 1000 % self.interval_ms, "ends within an interval"

    @property
    def slots(self) -> int:
        """How many sampling intervals there are."""
        return self.seconds * 1000 // self.interval_ms

    @property
    def end_ms(self) -> int:
        """When the last one is over."""
        return self.start_ms + self.seconds * 1000

    @property
    def about_lines(self) -> int:
        """How many lines there are, about: a little less for what is silent or lost."""
        return self.slots * (self.backups * (self.queues + 3) + 1)

    @property
    def brokers(self) -> tuple[str, ...]:
        """Their addresses; the first is the first primary."""
        return tuple(f"127.0.0.1:{5672 + number}" for number in range(self.backups + 1))


class Span(NamedTuple):
    """Slots from `begin` up to `end`."""

    begin: int
    end: int

    def holds(self, slot: int) -> bool:
        """Whether the slot is one of them."""
        return self.begin <= slot < self.end


class Reign(NamedTuple):
    """One primary's epoch: its samples are those of the slots from `begin` up to `end`."""

    epoch: int
    primary: int
    begin: int
    end: int


class Look(NamedTuple):
    """What the primary sees of one backup's whole log in one slot."""

    lag_us: int
    stall_us: int
    state: str
    connected: bool


class Drop(NamedTuple):
    """A slice of a backup's queue samples that the primary of that slot could not write."""

    slot: int
    backup: int
    lines: int
    reason: str


def draw(key: int, n: int) -> int:
    """64 bits that look random (the finaliser of splitmix64)."""
    x = (key + n * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def iso(ts_ms: int) -> str:
    """Milliseconds since 1970 as the telemetry writes them."""
    return f"{_second(ts_ms // 1000)}.{ts_ms % 1000:03d}Z"


@lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class Plan:
    """The story of a shape. Brokers are numbers, places in `Shape.brokers`; times are ms from its start."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.interval_ms = shape.interval_ms
        self.last = shape.backups
        """The weakest of them, to which most of it happens."""
        self._keys = [draw(draw(shape.seed & _MASK, 1), broker) for broker in range(shape.backups + 1)]
        self.level: Callable[[int], int] = lru_cache(maxsize=4)(self._level)
        """The load in a slot in steps, from 0 (none) to LEVELS - 1."""
        self._incidents()
        self._day()
        self._spread = _spread()
        bases = [6000 if broker == self.last else 2000 + 1000 * (broker % 3) for broker in range(shape.backups + 1)]
        weight: list[float] = [0.1 + 0.9 * (level / (LEVELS - 1)) ** 1.5 for level in range(LEVELS)]
        self._scales = [[round(base * each) for each in weight] for base in bases]

    # ---- what happens when

    def _incidents(self) -> None:
        n, interval = self.shape.slots, self.interval_ms
        self.slow = self._span(0.10, 0.08, most_s=7200, least=4)
        """The weakest backup's disk is slow."""
        self.stall = self._span(0.22, 0.08, most_s=1200, least=4)
        """It acknowledges nothing at all,"""
        self.stall_over = self._after(self.stall)
        """and catches up."""
        self.lost = self._span(0.37, 0.01, most_s=120, least=2)
        """What the primary wrote was lost on its way: like what is dropped, minutes from any restart, in whose minute a summary
        does not see what is missing."""
        kill = int(n * 0.517)
        self.kill_ms = kill * interval + 100
        self.serving_ms = self.kill_ms + GAP_MS
        second = -(-(self.serving_ms - interval // 2) // interval)
        self.down = Span(second, max(second + 5, kill + min(int(n * 0.08), 1_800_000 // interval)))
        """The first primary is dead,"""
        self.down_over = self._after(self.down)
        """and catches up."""
        self.silence = self._span(0.66, 0.06, most_s=600, least=4)
        """Nobody says anything of the weakest backup."""
        self.outage = self._span(0.78, 0.04, most_s=300, least=4)
        """Nobody says anything at all."""
        self.switch = int(n * 0.92)
        self.reigns = (
            Reign(1, 0, 0, kill),
            Reign(2, 1, second, self.outage.begin),
            Reign(3, 1, self.outage.end, self.switch),
            Reign(4, 2, self.switch, n),
        )
        lines = min(self.shape.queues, SLICE)
        self.drops = {
            slot: Drop(slot, self.last, lines, reason)
            for slot, reason in (
                (int(n * 0.34), "buffer full"),
                (int(n * 0.35), "buffer full"),
                (int(n * 0.64), "not written: No space left on device"),
            )
        }

    def _span(self, at: float, share: float, *, most_s: int, least: int) -> Span:
        slots = self.shape.slots
        begin = int(slots * at)
        return Span(begin, begin + max(least, min(int(slots * share), most_s * 1000 // self.interval_ms)))

    def _after(self, span: Span) -> Span:
        return Span(span.end, span.end + max(2, (span.end - span.begin) // 3))

    def reign_at(self, slot: int) -> Reign | None:
        """Whose samples that slot has; None when there is no primary then."""
        for reign in self.reigns:
            if slot < reign.end:
                return reign if slot >= reign.begin else None
        return None

    def reign_before(self, slot: int) -> Reign:
        """Who reigned last."""
        return max((reign for reign in self.reigns if reign.begin <= slot), key=lambda reign: reign.epoch)

    def is_up(self, slot: int, broker: int) -> bool:
        """Whether that broker runs then."""
        killed = broker == 0 and self.kill_ms <= self.sample_ms(slot) and slot < self.down.end
        return not killed and not self.outage.holds(slot)

    def backups(self, reign: Reign) -> list[int]:
        """Everybody but the primary."""
        return [broker for broker in range(self.shape.backups + 1) if broker != reign.primary]

    # ---- load

    def _day(self) -> None:
        shape = self.shape
        self._is_real_day = shape.seconds * 1000 >= DAY_MS
        self._day_ms = DAY_MS if self._is_real_day else shape.seconds * 1000
        self._offset_ms = shape.start_ms % DAY_MS if self._is_real_day else 0
        self._step_ms = max(1, self._day_ms // _STEPS)
        key = draw(shape.seed & _MASK, 2)
        steps = -(-self._day_ms // self._step_ms)
        noise = [0.9 + 0.2 * (draw(key, step) / _MASK) for step in range(steps)]
        self._load = [_curve(step / steps) * noise[step] for step in range(steps)]
        self._rates = [max(20, round(_MOST_BATCHES_PER_S * load)) for load in self._load]
        self._sums = [0]
        for rate in self._rates:
            self._sums.append(self._sums[-1] + rate * self._step_ms)
        first_day = shape.start_ms // DAY_MS
        days = (self._offset_ms + shape.seconds * 1000) // self._day_ms + 3
        self._percents = [self._percent(first_day + day) for day in range(-1, days)]
        whole_day = self._milli_batches(self._day_ms)
        self._before = [0]
        for percent in self._percents:
            self._before.append(self._before[-1] + whole_day * percent)

    def _percent(self, day: int) -> int:
        weekday = (day + 3) % 7
        return 100 if not self._is_real_day or weekday < 5 else (60, 50)[weekday - 5]

    def _milli_batches(self, rest_ms: int) -> int:
        step = min(rest_ms // self._step_ms, len(self._rates) - 1)
        return self._sums[step] + self._rates[step] * (rest_ms - step * self._step_ms)

    def committed(self, at_ms: int) -> int:
        """The commit index at that time; it only rises."""
        day, rest_ms = divmod(at_ms + self._offset_ms, self._day_ms)
        return 1000 + (self._before[day + 1] + self._milli_batches(rest_ms) * self._percents[day + 1]) // 100_000

    def _level(self, slot: int) -> int:
        day, rest_ms = divmod(self.sample_ms(slot) + self._offset_ms, self._day_ms)
        step = min(rest_ms // self._step_ms, len(self._load) - 1)
        return min(LEVELS - 1, round(self._load[step] * self._percents[day + 1] / 100 * (LEVELS - 1)))

    def batches_a_slot(self, level: int) -> int:
        """About how many batches are committed in a slot at that load."""
        return _MOST_BATCHES_PER_S * level * self.interval_ms // ((LEVELS - 1) * 1000)

    # ---- lag

    def sample_ms(self, slot: int) -> int:
        """When that slot is sampled, to a timer's jitter."""
        return slot * self.interval_ms + self.interval_ms // 2

    def ts_ms(self, slot: int, broker: int) -> int:
        """What that broker's clock says then, since 1970."""
        return self.shape.start_ms + self.sample_ms(slot) + (self.chance(slot, broker) >> 40) % 9 - 4

    def chance(self, slot: int, broker: int) -> int:
        """64 bits for that slot and broker."""
        return draw(self._keys[broker], slot)

    def look(self, slot: int, broker: int) -> Look | None:
        """What the primary says of that backup in that slot; None when it says nothing. Whether there is a primary, and whether
        its lines were lost, is not looked at.
        """
        if broker == self.last:
            if self.silence.holds(slot):
                return None
            if self.stall.holds(slot):
                age_us = (self.sample_ms(slot) - self.stall.begin * self.interval_ms) * 1000
                return Look(age_us, age_us, "ready", True)
            if self.stall_over.holds(slot):
                return self._catching_up(slot, self.stall, self.stall_over)
        elif broker == 0 and slot >= self.down.begin:
            if slot < self.down.end:
                age_us = (self.sample_ms(slot) - self.kill_ms) * 1000
                return Look(age_us, age_us, "", False)
            if slot < self.down_over.end:
                return self._catching_up(slot, self.down, self.down_over)
        return Look(self._lag_us(slot, broker), 0, "ready", True)

    def _catching_up(self, slot: int, behind: Span, over: Span) -> Look:
        whole_us = (behind.end - behind.begin) * self.interval_ms * 1000
        return Look(whole_us * (over.end - slot) // (over.end - over.begin + 1), 0, "catchup", True)

    def _lag_us(self, slot: int, broker: int) -> int:
        """Never more above the last slot's than the time between them: what waits now for longer has waited then."""
        lag_us, interval_us = self._wish_us(slot, broker), self.interval_ms * 1000
        if lag_us > interval_us and slot:
            lag_us = min(lag_us, min(self._wish_us(slot - 1, broker), interval_us) + interval_us)
        return lag_us

    def _wish_us(self, slot: int, broker: int) -> int:
        chance = self.chance(slot, broker)
        if broker == self.last and self.slow.holds(slot):
            return _SLOW_US[0] + (chance >> 9) % (_SLOW_US[1] - _SLOW_US[0])
        return self._spread[chance % RANKS] * self._scales[broker][self.level(slot)] // 1000

    def acked(self, slot: int, look: Look) -> int:
        """The last batch that such a backup has acknowledged."""
        at_ms = self.sample_ms(slot)
        commit = self.committed(at_ms)
        return min(self.committed(at_ms - -(-look.lag_us // 1000)), commit - 1) if look.lag_us else commit

    def heard(self, slot: int) -> int:
        """The commit index that a backup knows then: that of a moment before."""
        return self.committed(self.sample_ms(slot) - _HEARD_AFTER_MS)


def _curve(share: float) -> float:
    """Load at that share of the day: least before dawn, most in the afternoon, a dip at noon."""
    return 0.55 - 0.4 * cos(2 * pi * (share - 0.12)) - 0.12 * exp(-(((share - 0.52) / 0.025) ** 2))


def _spread() -> list[int]:
    """How lag spreads at the same load, in thousandths, by rank: none at all, log-normal, and a few long ones."""
    idle, long = 25, 24
    usual = RANKS - idle - long
    normal = [round(1000 * exp(0.5 * NormalDist().inv_cdf((i + 0.5) / usual))) for i in range(usual)]
    return [0] * idle + normal + [1000 * (20 + 10 * i) for i in range(long)]
