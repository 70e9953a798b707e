"""The lines of one slot: what the plan says of it, put into the words of `text`."""

from __future__ import annotations

from typing import Final

from spark_analytics.demo_data import happenings, text
from spark_analytics.demo_data.happenings import MANAGER
from spark_analytics.demo_data.plan import DETECTION_MS, RECORDS_A_BATCH, Look, Reign, draw
from spark_analytics.demo_data.story import Piece, Story

_PROBE_MS: Final = 250


class Words:
    """The lines of one slot."""

    def __init__(self, story: Story, queues: text.Queues, slot: int) -> None:
        self._story, self._plan, self._queues, self._slot = story, story.plan, queues, slot
        self._names, self._interval_ms = story.senders, story.shape.interval_ms
        self._at_ms = story.plan.sample_ms(slot)
        self._commit = story.plan.committed(self._at_ms)
        self._reign = story.plan.reign_at(slot)
        self._texts: dict[int, tuple[str, str, Look, int]] = {}
        self._samples: text.SampleText | None = None

    def of(self, piece: Piece, seq: int) -> list[str]:
        """A piece's lines, of which it has some; `seq` is the number of the first, lost or not."""
        match piece.kind:
            case "event":
                assert piece.event is not None
                ts_ms = self._story.shape.start_ms + piece.event.at_ms
                return [text.event(piece.event.epoch, self._names[piece.sender], seq, ts_ms, piece.event.fields)]
            case "roster":
                return [self._roster(seq)]
            case "whole":
                return [self._whole(piece.about, seq)]
            case "queues":
                return self._of_queues(piece, seq)
            case "own":
                return [self._own(piece.about, seq)]
            case _:
                return [self._probe(piece.about, seq)]

    @property
    def _rule(self) -> Reign:
        assert self._reign is not None
        return self._reign

    def _roster(self, seq: int) -> str:
        reign, plan = self._rule, self._plan
        return text.roster(
            reign.epoch,
            self._names[reign.primary],
            seq,
            plan.ts_ms(self._slot, reign.primary),
            interval_ms=self._interval_ms,
            backups=sorted(self._names[backup] for backup in plan.backups(reign)),
            queues=self._queues.names,
        )

    # ---- a primary's

    def _text(self) -> text.SampleText:
        if self._samples is None:
            primary = self._rule.primary
            ts_ms, name = self._plan.ts_ms(self._slot, primary), self._names[primary]
            self._samples = text.SampleText(self._rule.epoch, name, ts_ms, interval_ms=self._interval_ms, primary=name)
        return self._samples

    def _parts(self, backup: int) -> tuple[str, str, Look, int]:
        """Of a backup: how far it is, its condition, and how many batches it lacks."""
        found = self._texts.get(backup)
        if found is None:
            look = self._plan.look(self._slot, backup)
            assert look is not None
            acked = self._plan.acked(self._slot, look)
            sent = self._commit if look.connected else None
            chance = self._plan.chance(self._slot, backup)
            condition = text.condition(
                look.state,
                in_sync=look.connected and look.state == "ready",
                connected=look.connected,
                role="primary",
                sync_us=_sync_us(self._plan.chance(self._slot, self._rule.primary)),
                round_trip_us=200 + (chance >> 20) % 700 if look.connected else None,
            )
            indexes = text.indexes(self._commit, sent=sent, received=None, acked=acked, applied=None)
            found = self._texts[backup] = (indexes, condition, look, self._commit - acked)
        return found

    def _rates(self, *, is_first: bool) -> str:
        if is_first:
            return text.rates(None, 0, self._interval_ms)
        records = (self._commit - self._plan.committed(self._at_ms - self._interval_ms)) * RECORDS_A_BATCH
        return text.rates(records, text.bytes_of(records), self._interval_ms)

    def _whole(self, backup: int, seq: int) -> str:
        indexes, condition, look, batches = self._parts(backup)
        records = batches * RECORDS_A_BATCH
        lag = text.lag(records, text.bytes_of(records), look.lag_us, look.stall_us)
        rates = self._rates(is_first=self._slot == self._rule.begin)
        return self._text().whole(seq, self._names[backup], indexes, lag, condition, rates)

    def _of_queues(self, piece: Piece, seq: int) -> list[str]:
        indexes, condition, look, batches = self._parts(piece.about)
        lines = self._text().queues(
            seq,
            self._names[piece.about],
            indexes,
            condition,
            queues=self._queues.texts,
            lags=self._queues.lags(self._slot, piece.about, look, batches),
            rates=self._queues.rates(self._slot, is_first=self._slot == self._rule.begin),
        )
        return lines[piece.lost :]

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
        return text.SampleText(
            epoch,
            name,
            plan.ts_ms(self._slot, broker),
            interval_ms=self._interval_ms,
            primary="" if primary is None else self._names[primary],
        ).whole(
            seq,
            name,
            text.indexes(heard, sent=None, received=durable, acked=durable, applied=durable),
            text.lag(records, text.bytes_of(records), look.lag_us if behind else 0, look.stall_us if behind else 0),
            text.condition(
                state,
                in_sync=state == "ready",
                connected=primary is not None,
                role="backup",
                sync_us=None if stands else _sync_us(chance, slow=slow),
                round_trip_us=None,
            ),
            self._rates(is_first=self._slot in (0, plan.down.end, plan.outage.end)),
        )

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
        said = {
            "interval_ms": self._interval_ms,
            "broker": self._names[broker],
            "reach": "reachable" if is_up else "absent",
            "asked": asked if is_up else 0,
            "answered": asked if is_up else 0,
            "round_trip_ms": round_trip_us / 1000 if is_up else None,
            "round_trip_max_ms": (round_trip_us + chance % 3000) / 1000 if is_up else None,
            "state": state,
            "primary": "" if primary is None else self._names[primary],
            "broker_epoch": epoch,
            "last_index": last,
            "detail": None if is_up else happenings.FAILED,
        }
        knows = self._known(broker)[0]
        ts_ms = self._story.shape.start_ms + self._at_ms + (draw(knows, self._slot) & 3)
        return text.line(text.head("probe", knows, MANAGER, seq, ts_ms) | said)


def _sync_us(chance: int, *, slow: bool = False) -> tuple[int, int]:
    mean = 40_000 + (chance >> 12) % 120_000 if slow else 180 + (chance >> 12) % 400
    return mean, mean * (2 + (chance >> 30) % 4)
