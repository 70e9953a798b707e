"""What happens in the story, slot by slot: who is the primary, how much load there is, and how far each backup is behind.

A slot is one sampling interval; a sample is taken in its middle. Load rises and falls with the day (a story shorter than a
day counts as one day), and lag follows the load. INCIDENTS has the other events. All of it is arithmetic on the shape, the
slot and the broker: no state passes from slot to slot, and random values come from `draw`, a hash of the seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, exp, pi, sin
from statistics import NormalDist
from typing import Final, NamedTuple

from telemetry import lines

CLUSTER: Final = "demo"
DAY_MS: Final = 86_400_000
DETECTION_MS: Final = 900
GAP_MS: Final = 1240
"""From the kill until the new primary serves, in ms."""
SWITCH_MS: Final = 180
FEWEST_SLOTS: Final = 120
RECORDS_A_BATCH: Final = 3
RECORD_BYTES: Final = 1100
FAILED: Final = "closed the connection"
INCIDENTS: Final = {
    "slow_disk": (0.10, 0.08, 7200, -1),
    "stalled": (0.22, 0.08, 1200, -1),
    "stopped": (0.517, 0.08, 1800, 0),
    "silent": (0.66, 0.06, 600, -1),
    "lost": (0.37, 0.01, 120, None),
    "outage": (0.78, 0.04, 300, None),
}
"""When each incident begins, as a share of the story; how long it lasts: as a share, and in seconds at most; and which broker
it is about: the first, the last (the weakest backup), or no certain one. `slow_disk`: its disk is slow. `stalled`: it
acknowledges nothing. `stopped`: it was the primary, and is killed. `silent`: there are no lines about it. `lost`: all lines of
the primary are lost (far from any restart, because a summary does not see missing lines in the minute of a restart). `outage`:
there are no lines at all."""
SWITCH: Final = 0.92
DROPS: Final = {0.34: "buffer full", 0.35: "buffer full", 0.64: "not written: No space left on device"}
"""When the primary cannot write DROPPED lines of queues of the weakest backup, as a share of the story, and the reason."""
DROPPED: Final = 250
BATCHES_PER_S: Final = 400
"""Committed at a load of 1."""
_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Shape:
    """The amount of telemetry: `seconds` of it from `start_ms` on, a sample at each `interval_ms`, of `queues` queues and the
    whole log, for each of `backups` backups, of which there are two or more. `start_ms` and `seconds` are whole intervals, and
    an interval whole seconds.
    """

    start_ms: int
    seconds: int = 600
    queues: int = 8
    seed: int = 1
    backups: int = 2
    interval_ms: int = 1000

    def __post_init__(self) -> None:
        assert self.slots >= FEWEST_SLOTS, "too short for all that happens"

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
    """Slots from `begin` up to `end`, about one broker, or none in particular."""

    begin: int
    end: int
    broker: int | None

    def holds(self, slot: int, broker: int | None = None) -> bool:
        """Whether the slot belongs to this span, and the span is about that broker."""
        return self.begin <= slot < self.end and self.broker == broker

    def after(self) -> Span:
        """The time after it that the backup needs to catch up."""
        return Span(self.end, self.end + max(2, (self.end - self.begin) // 3), self.broker)


class Term(NamedTuple):
    """One primary's epoch: its samples are those of the slots from `begin` up to `end`. It serves from `served_ms` on, `gap_ms`
    after the primary before it; None if it cannot know that."""

    epoch: int
    primary: int
    begin: int
    end: int
    served_ms: int
    gap_ms: float | None
    kind: str
    why: str


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


def iso(ts_ms: int) -> str:
    """Milliseconds since 1970 in the form of the telemetry."""
    return lines.timestamp(ts_ms / 1000)


class Plan:
    """The story of a shape. Brokers are numbers, places in `Shape.brokers`; times are ms since 1970."""

    def __init__(self, shape: Shape) -> None:
        self.shape, n = shape, shape.slots
        self.everybody, self.last = range(shape.backups + 1), shape.backups
        self._keys = [draw(draw(shape.seed, 1), broker) for broker in self.everybody]
        self._day_ms = min(DAY_MS, shape.seconds * 1000)
        self._midnight_ms = shape.start_ms // DAY_MS * DAY_MS if self._day_ms == DAY_MS else shape.start_ms
        self.spans = dict[str, Span]()
        for name, (at, share, most_s, broker) in INCIDENTS.items():
            begin, number = int(n * at), max(2, min(int(n * share), most_s * 1000 // shape.interval_ms))
            self.spans[name] = Span(begin, begin + number, None if broker is None else self.everybody[broker])
        self.slow_disk, self.stalled, self.killed, self.silent, self.lost, self.outage = self.spans.values()
        kill, third, switch = self.killed.begin, self.outage.end, int(n * SWITCH)
        self.kill_ms = self.begin_ms(kill) + 100
        serving_ms, failed = self.kill_ms + GAP_MS, f"the primary {shape.brokers[0]} failed: {FAILED}"
        second = kill + (self.sample_ms(kill) < serving_ms)
        self.stopped = self.spans["stopped"] = self.killed._replace(begin=second)
        back_ms, switched_ms = self.begin_ms(third) + 230, self.begin_ms(switch) + 100 + SWITCH_MS
        self.terms = (
            Term(1, 0, 0, kill, 0, None, "", ""),
            Term(2, 1, second, self.outage.begin, serving_ms, float(GAP_MS), "failover", failed),
            Term(3, 1, third, switch, back_ms, None, "failover", "there is no primary yet"),
            Term(4, 2, switch, n, switched_ms, float(SWITCH_MS), "switchover", "planned switchover"),
        )
        self.drops = {int(n * share): (reason, min(shape.queues, DROPPED)) for share, reason in DROPS.items()}

    def term(self, slot: int) -> Term:
        """The term that began last; from its end on there is no primary."""
        return max(term for term in self.terms if term.begin <= slot)

    def committed(self, at_ms: int) -> int:
        """The commit index at that time: the integral of the load."""
        turn, dawn_ms = 2 * pi / self._day_ms, 0.12 * self._day_ms
        since_ms = at_ms - self._midnight_ms - dawn_ms
        done_ms = 0.55 * (since_ms + dawn_ms) - 0.4 * (sin(turn * since_ms) - sin(turn * -dawn_ms)) / turn
        return 1000 + int(done_ms * BATCHES_PER_S / 1000)

    def load(self, slot: int) -> float:
        """The load in a slot, of at most 1, in steps: the lowest before dawn, the highest in the afternoon."""
        share = (self.sample_ms(slot) - self._midnight_ms) / self._day_ms
        return round((0.55 - 0.4 * cos(2 * pi * (share - 0.12))) * 31) / 31

    def begin_ms(self, slot: int) -> int:
        """When that slot begins."""
        return self.shape.start_ms + slot * self.shape.interval_ms

    def sample_ms(self, slot: int) -> int:
        """When that slot is sampled."""
        return self.begin_ms(slot) + self.shape.interval_ms // 2

    def ts_ms(self, slot: int, broker: int) -> int:
        """When that broker samples it by its clock, with a timer's jitter."""
        return self.sample_ms(slot) + (self.chance(slot, broker) >> 40) % 9 - 4

    def chance(self, slot: int, broker: int) -> int:
        """64 random-looking bits for that slot and broker."""
        return draw(self._keys[broker], slot)

    def look(self, slot: int, broker: int) -> Look:
        """The primary's view of that backup in that slot, whether or not its lines tell it."""
        interval_us = self.shape.interval_ms * 1000
        for span, since_ms, state in (
            (self.stalled, self.begin_ms(self.stalled.begin), "ready"),
            (self.stopped, self.kill_ms, ""),
        ):
            over, age_us = span.after(), (self.sample_ms(slot) - since_ms) * 1000
            if span.holds(slot, broker):
                return Look(age_us, age_us, state, state == "ready")
            if over.holds(slot, broker):
                whole_us = (span.end - span.begin) * interval_us
                return Look(whole_us * (over.end - slot) // (over.end - over.begin + 1), 0, "catchup", True)
        # The lag never exceeds that of the last slot by more than the time between them, because it cannot grow faster than
        # time.
        lag_us = self._usual_us(slot, broker)
        if lag_us > interval_us and slot:
            lag_us = min(lag_us, min(self._usual_us(slot - 1, broker), interval_us) + interval_us)
        return Look(lag_us, 0, "ready", True)

    def _usual_us(self, slot: int, broker: int) -> int:
        """The lag at that load by chance: none, a log-normal one, or a long one."""
        chance = self.chance(slot, broker)
        if self.slow_disk.holds(slot, broker):
            return 400_000 + (chance >> 9) % 900_000
        base_us = 6000 if broker == self.last else 2000 + 1000 * (broker % 3)
        weight: float = 0.1 + 0.9 * self.load(slot) ** 1.5
        rank = chance % 512 - 25
        spread = 0.0 if rank < 0 else exp(0.5 * NormalDist().inv_cdf((rank + 0.5) / 463)) if rank < 463 else 10.0 * (rank - 461)
        return round(spread * base_us * weight)

    def acked(self, slot: int, look: Look) -> int:
        """The last batch that a backup with this view has acknowledged."""
        commit = self.committed(self.sample_ms(slot))
        return min(self.committed(self.sample_ms(slot) - -(-look.lag_us // 1000)), commit - 1) if look.lag_us else commit
