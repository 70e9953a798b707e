"""The events of the story, slot by slot: who is the primary, how much load there is, and how far each backup is behind.

A slot is one sampling interval; a sample is taken in its middle. Load rises and falls with the day (a story shorter than a
day counts as one day), and lag follows the load. INCIDENTS has the other events. All of it is arithmetic on the shape, the
slot and the broker: no state passes from slot to slot, and random values come from `draw`, a hash of the seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from math import cos, exp, pi, sin
from statistics import NormalDist
from typing import Final, NamedTuple

CLUSTER: Final = "demo"
OBJECTIVE_MS: Final = 1000
DAY_MS: Final = 86_400_000
GAP_MS: Final = 1240
"""From the kill until the new primary serves, in ms."""
DETECTION_MS: Final = 900
SWITCH_MS: Final = 180
FEWEST_SLOTS: Final = 120
RECORDS_A_BATCH: Final = 3
RECORD_BYTES: Final = 1100
INCIDENTS: Final = {
    "slow": (0.10, 0.08, 7200, 4),
    "stall": (0.22, 0.08, 1200, 4),
    "lost": (0.37, 0.01, 120, 2),
    "silence": (0.66, 0.06, 600, 4),
    "outage": (0.78, 0.04, 300, 4),
}
"""When each incident begins, as a share of the story; how long it lasts: as a share, in seconds at most, and in slots at
least. `slow`: the weakest backup's disk is slow. `stall`: it acknowledges nothing. `silence`: there are no lines about it.
`lost`: all lines of the primary are lost (far from any restart, because a summary does not see missing lines in the minute of
a restart). `outage`: there are no lines at all."""
KILL: Final = (0.517, 0.08, 1800)
"""When the first primary is killed, as a share of the story; and how long it is down: as a share, and in seconds at most."""
SWITCH: Final = 0.92
DROPS: Final = {0.34: "buffer full", 0.35: "buffer full", 0.64: "not written: No space left on device"}
"""When the primary cannot write DROPPED lines of queues of the weakest backup, as a share of the story, and the reason."""
DROPPED: Final = 250
_LEVELS, _RANKS, _BATCHES_PER_S = 32, 512, 400
_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Shape:
    """The amount of telemetry: `seconds` of it from `start_ms` on, a sample at each `interval_ms`, of `queues` queues and the
    whole log, for each of `backups` backups. `start_ms` and `seconds` are whole intervals.
    """

    start_ms: int
    seconds: int = 600
    queues: int = 8
    seed: int = 1
    backups: int = 2
    interval_ms: int = 1000

    def __post_init__(self) -> None:
        assert self.slots >= FEWEST_SLOTS, "too short for all that happens"
        assert self.backups >= 2, "one backup is not a majority without its primary"
        assert not self.start_ms % self.interval_ms, "begins within an interval"
        assert not self.seconds * 1000 % self.interval_ms, "ends within an interval"

    @property
    def slots(self) -> int:
        """The number of sampling intervals."""
        return self.seconds * 1000 // self.interval_ms

    @property
    def about_lines(self) -> int:
        """The approximate number of lines; there are fewer because of silence and losses."""
        return self.slots * (self.backups * (self.queues + 3) + 1)

    @property
    def brokers(self) -> tuple[str, ...]:
        """The brokers' addresses; the first is the first primary."""
        return tuple(f"127.0.0.1:{5672 + number}" for number in range(self.backups + 1))


class Span(NamedTuple):
    """Slots from `begin` up to `end`."""

    begin: int
    end: int

    def holds(self, slot: int) -> bool:
        """Whether the slot belongs to this span."""
        return self.begin <= slot < self.end

    def after(self) -> Span:
        """The time after it that the backup needs to catch up."""
        return Span(self.end, self.end + max(2, (self.end - self.begin) // 3))


class Term(NamedTuple):
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


def draw(key: int, n: int) -> int:
    """64 bits that look random (the finaliser of splitmix64)."""
    x = (key + n * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


@lru_cache(maxsize=64)
def iso(ts_ms: int) -> str:
    """Milliseconds since 1970 in the form of the telemetry."""
    return f"{datetime.fromtimestamp(ts_ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{ts_ms % 1000:03d}Z"


class Plan:
    """The story of a shape. Brokers are numbers, places in `Shape.brokers`; times are ms from the story's start."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.interval_ms, n = shape, shape.interval_ms, shape.slots
        self.everybody, self.last = range(shape.backups + 1), shape.backups
        self._keys = [draw(draw(shape.seed & _MASK, 1), broker) for broker in self.everybody]
        self._day_ms = min(DAY_MS, shape.seconds * 1000)
        self._offset_ms = shape.start_ms % DAY_MS if self._day_ms == DAY_MS else 0
        self.slow, self.stall, self.lost, self.silence, self.outage = (
            Span(int(n * at), int(n * at) + max(least, min(int(n * share), most_s * 1000 // self.interval_ms)))
            for at, share, most_s, least in INCIDENTS.values()
        )
        at, share, most_s = KILL
        kill, self.switch = int(n * at), int(n * SWITCH)
        self.kill_ms = kill * self.interval_ms + 100
        self.serving_ms = self.kill_ms + GAP_MS
        second = -(-(self.serving_ms - self.interval_ms // 2) // self.interval_ms)
        self.down = Span(second, max(second + 5, kill + min(int(n * share), most_s * 1000 // self.interval_ms)))
        self.terms = (
            Term(1, 0, 0, kill),
            Term(2, 1, second, self.outage.begin),
            Term(3, 1, self.outage.end, self.switch),
            Term(4, 2, self.switch, n),
        )
        self.drops = {int(n * share): (reason, min(shape.queues, DROPPED)) for share, reason in DROPS.items()}

    def term_at(self, slot: int) -> Term | None:
        """The term whose samples that slot has; None if there is no primary then."""
        return next((term for term in self.terms if term.begin <= slot < term.end), None)

    def is_up(self, slot: int, broker: int) -> bool:
        """Whether that broker runs in that slot."""
        killed = broker == 0 and self.kill_ms <= self.sample_ms(slot) and slot < self.down.end
        return not killed and not self.outage.holds(slot)

    def backups(self, term: Term) -> list[int]:
        """All brokers except the primary."""
        return [broker for broker in self.everybody if broker != term.primary]

    def committed(self, at_ms: int) -> int:
        """The commit index at that time: the integral of `load`."""
        turn = 2 * pi / self._day_ms
        at, begin = at_ms + self._offset_ms - 0.12 * self._day_ms, -0.12 * self._day_ms
        done_ms = 0.55 * (at - begin) - 0.4 * (sin(turn * at) - sin(turn * begin)) / turn
        return 1000 + int(done_ms * _BATCHES_PER_S / 1000)

    def level(self, slot: int) -> int:
        """The load in a slot in steps: the lowest before dawn, the highest in the afternoon."""
        share = (self.sample_ms(slot) + self._offset_ms) / self._day_ms
        return round((0.55 - 0.4 * cos(2 * pi * (share - 0.12))) * (_LEVELS - 1))

    def records_per_s(self, level: int) -> float:
        """The approximate number of records committed in a second at that load."""
        return _BATCHES_PER_S * RECORDS_A_BATCH * level / (_LEVELS - 1)

    def sample_ms(self, slot: int) -> int:
        """When that slot is sampled, with a timer's jitter."""
        return slot * self.interval_ms + self.interval_ms // 2

    def ts_ms(self, slot: int, broker: int) -> int:
        """The time of that broker's clock then, since 1970."""
        return self.shape.start_ms + self.sample_ms(slot) + (self.chance(slot, broker) >> 40) % 9 - 4

    def chance(self, slot: int, broker: int) -> int:
        """64 random-looking bits for that slot and broker."""
        return draw(self._keys[broker], slot)

    def look(self, slot: int, broker: int) -> Look | None:
        """The primary's view of that backup in that slot; None if it reports nothing. The result does not consider whether
        there is a primary, and whether its lines were lost.
        """
        weakest, killed = broker == self.last, broker == 0 and slot >= self.down.begin
        if weakest and self.silence.holds(slot):
            return None
        if weakest and self.stall.holds(slot):
            age_us = (self.sample_ms(slot) - self.stall.begin * self.interval_ms) * 1000
            return Look(age_us, age_us, "ready", True)
        if killed and slot < self.down.end:
            age_us = (self.sample_ms(slot) - self.kill_ms) * 1000
            return Look(age_us, age_us, "", False)
        for concerned, behind in ((weakest, self.stall), (killed, self.down)):
            over = behind.after()
            if concerned and over.holds(slot):
                whole_us = (behind.end - behind.begin) * self.interval_ms * 1000
                return Look(whole_us * (over.end - slot) // (over.end - over.begin + 1), 0, "catchup", True)
        # The lag never exceeds that of the last slot by more than the time between them, because it cannot grow faster than
        # time.
        lag_us, interval_us = self._usual_us(slot, broker), self.interval_ms * 1000
        if lag_us > interval_us and slot:
            lag_us = min(lag_us, min(self._usual_us(slot - 1, broker), interval_us) + interval_us)
        return Look(lag_us, 0, "ready", True)

    def _usual_us(self, slot: int, broker: int) -> int:
        chance = self.chance(slot, broker)
        if broker == self.last and self.slow.holds(slot):
            return 400_000 + (chance >> 9) % 900_000
        base_us = 6000 if broker == self.last else 2000 + 1000 * (broker % 3)
        weight: float = 0.1 + 0.9 * (self.level(slot) / (_LEVELS - 1)) ** 1.5
        return round(_spread()[chance % _RANKS] * base_us * weight)

    def acked(self, slot: int, look: Look) -> int:
        """The last batch that a backup with this view has acknowledged."""
        commit = self.committed(self.sample_ms(slot))
        return min(self.committed(self.sample_ms(slot) - -(-look.lag_us // 1000)), commit - 1) if look.lag_us else commit


@cache
def _spread() -> list[float]:
    """The spread of lag at the same load, by rank: no lag, log-normal lags, and a few long ones."""
    usual = _RANKS - 49
    return (
        [0.0] * 25
        + [exp(0.5 * NormalDist().inv_cdf((i + 0.5) / usual)) for i in range(usual)]
        + [20.0 + 10 * i for i in range(24)]
    )
