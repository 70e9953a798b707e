"""The lines of one slot: what the plan says of it, by the brokers' own encoder (`telemetry.lines`)."""

from __future__ import annotations

from typing import Final

from spark_analytics.demo_data import incidents
from spark_analytics.demo_data.incidents import MANAGER
from spark_analytics.demo_data.plan import CLUSTER, DETECTION_MS, RECORDS_A_BATCH, Reign, draw, iso
from spark_analytics.demo_data.queues import Queues, bytes_of
from spark_analytics.demo_data.story import Piece, Story
from telemetry.lines import Head, LagSample, Probe, SampleText, event_record, line, probe_record, roster_record

_PROBE_MS: Final = 250


class Words:
    """The lines of one slot."""

    def __init__(self, story: Story, queues: Queues, slot: int) -> None:
        self._story, self._plan, self._queues, self._slot = story, story.plan, queues, slot
        self._names, self._interval_ms = story.senders, story.shape.interval_ms
        self._at_ms = story.plan.sample_ms(slot)
        self._commit = story.plan.committed(self._at_ms)
        self._reign = story.plan.reign_at(slot)
        self._samples: dict[int, LagSample] = {}
        self._primary: SampleText | None = None

    def of(self, piece: Piece, seq: int) -> str:
        """A piece's lines, of which it has some; `seq` is the number of the first, lost or not."""
        match piece.kind:
            case "event":
                return self._event(piece, seq)
            case "roster":
                return self._roster(seq)
            case "whole":
                return self._text().line(seq, self._sample(piece.about))
            case "queues":
                return self._of_queues(piece, seq)
            case "own":
                return self._own(piece.about, seq)
            case _:
                return self._probe(piece.about, seq)

    @property
    def _rule(self) -> Reign:
        assert self._reign is not None
        return self._reign

    def _head(self, epoch: int, sender: str, ts_ms: int) -> Head:
        return Head(CLUSTER, epoch, sender, iso(ts_ms))

    def _roster(self, seq: int) -> str:
        reign, plan = self._rule, self._plan
        primary = self._names[reign.primary]
        head = self._head(reign.epoch, primary, plan.ts_ms(self._slot, reign.primary))
        backups = sorted(self._names[backup] for backup in plan.backups(reign))
        said = roster_record(
            head, seq, interval_ms=self._interval_ms, primary=primary, backups=backups, queues=self._queues.names
        )
        return line(said).decode()

    def _event(self, piece: Piece, seq: int) -> str:
        event = piece.event
        assert event is not None
        head = self._head(event.epoch, self._names[piece.sender], self._story.shape.start_ms + event.at_ms)
        named = {"from_" if name == "from" else name: value for name, value in event.fields.items()}
        return line(event_record(head, seq, **named)).decode()

    # ---- a primary's

    def _sample(self, backup: int) -> LagSample:
        """Of a backup's whole log."""
        found = self._samples.get(backup)
        if found is None:
            plan, look = self._plan, self._plan.look(self._slot, backup)
            assert look is not None
            acked = plan.acked(self._slot, look)
            records = (self._commit - acked) * RECORDS_A_BATCH
            sync_ms, sync_max_ms = _sync_ms(plan.chance(self._slot, self._rule.primary))
            found = self._samples[backup] = LagSample(
                self._names[backup],
                None,
                "all",
                self._commit,
                self._commit if look.connected else None,
                None,
                acked,
                None,
                records,
                bytes_of(records),
                look.lag_us / 1000,
                look.stall_us / 1000,
                look.state,
                look.connected and look.state == "ready",
                look.connected,
                None,
                "primary",
                sync_ms,
                sync_max_ms,
                (200 + (plan.chance(self._slot, backup) >> 20) % 700) / 1000 if look.connected else None,
                *self._rates(is_first=self._slot == self._rule.begin),
            )
        return found

    def _text(self) -> SampleText:
        if self._primary is None:
            primary = self._rule.primary
            head = self._head(self._rule.epoch, self._names[primary], self._plan.ts_ms(self._slot, primary))
            self._primary = SampleText(head, interval_ms=self._interval_ms, primary=self._names[primary])
        return self._primary

    def _rates(self, *, is_first: bool) -> tuple[float | None, float | None]:
        """Records and bytes a second."""
        if is_first:
            return None, None
        records = (self._commit - self._plan.committed(self._at_ms - self._interval_ms)) * RECORDS_A_BATCH
        return records * 1000 / self._interval_ms, bytes_of(records) * 1000 / self._interval_ms

    def _of_queues(self, piece: Piece, seq: int) -> str:
        whole, look, first = self._sample(piece.about), self._plan.look(self._slot, piece.about), piece.lost
        assert look is not None
        assert whole.acked_index is not None
        waiting = self._queues.lags(self._slot, piece.about, look, self._commit - whole.acked_index)
        rates = self._queues.rates(self._slot, is_first=self._slot == self._rule.begin)
        rest = {position - first: lag for position, lag in waiting.items() if position >= first}
        return self._text().queue_lines(seq + first, whole, self._queues.texts[first:], rest, rates[first:])

    # ---- a backup's own, and the resource manager's

    def _known(self, broker: int) -> tuple[int, int | None]:
        """The epoch, and the primary that a running broker knows of."""
        if self._reign is not None:
            return self._reign.epoch, self._reign.primary
        before = self._plan.reign_before(self._slot)
        noticed = self._at_ms >= self._plan.kill_ms + DETECTION_MS
        return before.epoch, None if noticed else before.primary

    def _own(self, broker: int, seq: int) -> str:
        plan, (epoch, primary) = self._plan, self._known(broker)
        look = plan.look(self._slot, broker)
        assert look is not None
        chance, name = plan.chance(self._slot, broker), self._names[broker]
        heard = plan.heard(self._slot)
        durable = min(plan.acked(self._slot, look), heard) if look.lag_us >= self._interval_ms * 1000 else heard
        behind = heard - durable
        stands = plan.stall.holds(self._slot) and broker == plan.last
        slow = plan.slow.holds(self._slot) and broker == plan.last
        records = behind * RECORDS_A_BATCH
        state = look.state if primary is not None else "joining"
        sync_ms, sync_max_ms = (None, None) if stands else _sync_ms(chance, slow=slow)
        head = self._head(epoch, name, plan.ts_ms(self._slot, broker))
        sample = LagSample(
            name,
            None,
            "all",
            heard,
            None,
            durable,
            durable,
            durable,
            records,
            bytes_of(records),
            look.lag_us / 1000 if behind else 0.0,
            look.stall_us / 1000 if behind else 0.0,
            state,
            state == "ready",
            primary is not None,
            None,
            "backup",
            sync_ms,
            sync_max_ms,
            None,
            *self._rates(is_first=self._slot in (0, plan.down.end, plan.outage.end)),
        )
        known = "" if primary is None else self._names[primary]
        return SampleText(head, interval_ms=self._interval_ms, primary=known).line(seq, sample)

    def _probe(self, broker: int, seq: int) -> str:
        plan, (epoch, primary) = self._plan, self._known(broker)
        chance = plan.chance(self._slot, broker) >> 8
        is_up = plan.is_up(self._slot, broker)
        asked = max(1, self._interval_ms // _PROBE_MS)
        round_trip_us = 300 + chance % 900
        state, last = "active", self._commit + 1
        if not is_up:
            epoch, primary, last = 1, 0, plan.committed(plan.kill_ms)
        elif primary is None:
            state = "joining"
        elif broker != primary:
            look = plan.look(self._slot, broker)
            state, last = ("ready", last) if look is None else (look.state, plan.acked(self._slot, look))
        probe = Probe(
            self._names[broker],
            "reachable" if is_up else "absent",
            asked if is_up else 0,
            asked if is_up else 0,
            round_trip_us / 1000 if is_up else None,
            (round_trip_us + chance % 3000) / 1000 if is_up else None,
            state,
            "" if primary is None else self._names[primary],
            epoch,
            last,
            None if is_up else incidents.FAILED,
        )
        knows = self._known(broker)[0]
        ts_ms = self._story.shape.start_ms + self._at_ms + (draw(knows, self._slot) & 3)
        head = self._head(knows, MANAGER, ts_ms)
        return line(probe_record(head, seq, interval_ms=self._interval_ms, probe=probe)).decode()


def _sync_ms(chance: int, *, slow: bool = False) -> tuple[float, float]:
    mean_us = 40_000 + (chance >> 12) % 120_000 if slow else 180 + (chance >> 12) % 400
    return mean_us / 1000, mean_us * (2 + (chance >> 30) % 4) / 1000
