"""Who says what in which slot, and how it is numbered, without a word of it.

`pieces` is the one list of what is said. The numbers of a sender's lines rise over the whole story, so they are counted by it
first, which is quick, and each chunk (a run of slots with some ten thousand lines) is told where its senders' numbers begin; then
any process can write it, in any order. The answers count lines by the same list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from spark_analytics.demo_data import incidents
from spark_analytics.demo_data.incidents import MANAGER, Event
from spark_analytics.demo_data.plan import Drop, Plan, Reign, Shape

_LINES_PER_CHUNK: Final = 40_000
_SEQ_PER_MS: Final = 1000


class Piece(NamedTuple):
    """Lines of one sender (a place among the brokers, or behind them: the resource manager) in a row: `lines` are numbered, and
    the first `lost` of them never written. `about` is the broker that they speak of.
    """

    sender: int
    kind: str
    about: int
    lines: int
    lost: int
    event: Event | None = None


class Chunk(NamedTuple):
    """Slots from `begin` up to `end`, and each sender's first number in them."""

    begin: int
    end: int
    seqs: tuple[int, ...]


class Story:
    """A plan with what is said in it."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.plan = Plan(shape)
        self.manager = shape.backups + 1
        self.senders = (*shape.brokers, MANAGER)
        self._events: dict[int, list[Event]] = {}
        for event in incidents.events(self.plan):
            self._events.setdefault(event.at_ms // shape.interval_ms, []).append(event)
        self.spoils: dict[int, list[str]] = {}
        for spoil in incidents.spoils(self.plan):
            self.spoils.setdefault(spoil.slot, []).append(spoil.problem)
        self._chunk_slots = max(1, _LINES_PER_CHUNK * shape.slots // shape.about_lines)

    # ---- who says what

    def pieces(self, slot: int) -> Iterator[Piece]:
        """What is said in a slot, in order of time."""
        plan, sample_ms = self.plan, self.plan.sample_ms(slot)
        events = self._events.get(slot, ())
        yield from (self._of_event(event) for event in events if event.at_ms < sample_ms)
        if plan.outage.holds(slot):
            return
        reign = plan.reign_at(slot)
        if reign is not None:
            yield from self._of_primary(slot, reign)
        for broker in range(self.manager):
            is_primary = reign is not None and broker == reign.primary
            told = plan.is_up(slot, broker) and not (broker == plan.last and plan.silence.holds(slot))
            if told and not is_primary:
                yield Piece(broker, "own", broker, 1, 0)
        yield from (Piece(self.manager, "probe", broker, 1, 0) for broker in range(self.manager))
        yield from (self._of_event(event) for event in events if event.at_ms >= sample_ms)

    def _of_event(self, event: Event) -> Piece:
        return Piece(self.manager if event.sender is None else event.sender, "event", 0, 1, 0, event)

    def _of_primary(self, slot: int, reign: Reign) -> Iterator[Piece]:
        plan, queues = self.plan, self.shape.queues
        is_lost, drop = plan.lost.holds(slot), plan.drops.get(slot)
        if slot % self._chunk_slots == 0 or slot == reign.begin:
            yield Piece(reign.primary, "roster", reign.primary, 1, int(is_lost))
        backups = [b for b in plan.backups(reign) if not (b == plan.last and plan.silence.holds(slot))]
        yield from (Piece(reign.primary, "whole", backup, 1, int(is_lost)) for backup in backups)
        for backup in backups:
            dropped = drop.lines if drop is not None and drop.backup == backup else 0
            yield Piece(reign.primary, "queues", backup, queues, queues if is_lost else dropped)
        if drop is not None:
            yield Piece(reign.primary, "event", reign.primary, 1, 0, self._drop_event(drop, reign))

    def _drop_event(self, drop: Drop, reign: Reign) -> Event:
        fields = {"broker": self.senders[reign.primary], "type": "drop", "lost_records": drop.lines, "detail": drop.reason}
        return Event(self.plan.sample_ms(drop.slot) + 10, reign.primary, reign.epoch, fields)

    def chunks(self) -> Iterator[Chunk]:
        """All of them, in order."""
        plan, start_ms = self.plan, self.shape.start_ms
        seqs = [start_ms * _SEQ_PER_MS] * len(self.senders)
        for begin in range(0, self.shape.slots, self._chunk_slots):
            end = min(begin + self._chunk_slots, self.shape.slots)
            yield Chunk(begin, end, tuple(seqs))
            for slot in range(begin, end):
                self.restart(slot, seqs)
                for piece in self.pieces(slot):
                    seqs[piece.sender] += piece.lines
        assert plan.reigns[-1].end == self.shape.slots

    def restart(self, slot: int, seqs: list[int]) -> None:
        """Who starts in that slot numbers anew, from its clock."""
        number = (self.shape.start_ms + slot * self.shape.interval_ms) * _SEQ_PER_MS
        if slot == self.plan.down.end:
            seqs[0] = number
        if slot == self.plan.outage.end:
            seqs[:] = [number] * len(seqs)

    @property
    def chunk_count(self) -> int:
        """How many chunks there are."""
        return -(-self.shape.slots // self._chunk_slots)
