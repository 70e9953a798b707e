"""Writes the lines of each sender in each slot with the brokers' own encoder (`telemetry.lines`), and the files.

One pass over the slots. Each sender numbers its lines without a gap until it restarts, and about ten thousand lines of a
sender make a file. A file appears when it is complete: it is written under a hidden name, and renamed. Only one slot is in
memory at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Final

from spark_analytics.demo_data import incidents
from spark_analytics.demo_data.incidents import MANAGER, REPEATED
from spark_analytics.demo_data.plan import CLUSTER, DETECTION_MS, RECORD_BYTES, RECORDS_A_BATCH, Look, Plan, Shape, draw, iso
from telemetry import lines

_LINES_PER_FILE: Final = 40_000
_FEW_BATCHES: Final = 256
"""Up to so many unacknowledged batches a primary looks into each of them, and knows which queues wait."""
_STEMS: Final = ("orders", "billing", "mail", "audit", "search", "stock", "fraud", "reports")
_Pair = tuple[float | None, float | None]
_Indexes = tuple[int, int | None, int | None, int, int | None]
Lines = tuple[int, str, list[str], int, int]
"""Consecutive lines of one sender: its place, their kind, the lines that are written, the number of numbered lines, and how
many of these are lost."""


class Story:
    """A plan with its lines; `counts` has the numbers of what `write` has written."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.plan = shape, Plan(shape)
        self.manager = shape.backups + 1
        self.senders = (*shape.brokers, MANAGER)
        self.counts: Counter[str] = Counter()
        number, seed = shape.queues, shape.seed & 0xFFFF_FFFF
        stems = len(_STEMS)
        self.queues = sorted(_STEMS[i] if i < stems else f"{_STEMS[i % stems]}.{i // stems}" for i in range(number))
        self.queue_texts = [lines.queue_text(name, "all") for name in self.queues]
        weights = [1 / (draw(seed, i) % number + 3) ** 0.9 for i in range(number)]  # a few queues have most of the load
        self._shares = [weight / sum(weights) for weight in weights]
        self._sizes = [200 + draw(seed, i + number) % 3800 for i in range(number)]
        self._key = draw(seed, 2 * number)
        self._rates = lru_cache(maxsize=64)(self._rates_of)

    # ---- the whole story

    def write(self, directory: Path | None, progress: Callable[[str, float], None]) -> int:
        """Write all lines, into files if there is a directory; returns the number of files. `progress` gets a text and the
        share that is done."""
        shape, plan = self.shape, self.plan
        chunk, doing = max(1, _LINES_PER_FILE * shape.slots // shape.about_lines), f"writing about {shape.about_lines:,} lines"
        seqs, files = [shape.start_ms * 1000] * len(self.senders), 0
        events, spoils = dict[int, list[incidents.Event]](), incidents.spoils(plan)
        for event in incidents.events(plan):
            events.setdefault(event[0] // shape.interval_ms, []).append(event)
        for begin in range(0, shape.slots, chunk):
            parts = _Parts(directory, self.senders, shape.start_ms + begin * shape.interval_ms)
            for slot in range(begin, min(begin + chunk, shape.slots)):
                for sender in [0] * (slot == plan.down.end) + [*range(len(seqs))] * (slot == plan.outage.end):
                    seqs[sender] = (shape.start_ms + slot * shape.interval_ms) * 1000  # a restarted sender numbers from its clock
                now = events.get(slot, [])
                samples = list[str]()
                for sender, kind, said, numbered, lost in self._slot(slot, seqs, now, is_first=slot == begin):
                    seqs[sender] += numbered
                    self.counts.update({"lines": len(said), "holes": lost, "samples_used": len(said) * (kind == "sample")})
                    parts.write(sender, said)
                    samples += said if kind == "sample" and slot in spoils else []
                for problem in spoils.get(slot, ()):
                    bad = [incidents.spoiled(problem, *samples[:2])] if problem else samples[REPEATED - 1 :: -1]
                    self.counts.update({"lines": len(bad), "bad_lines" if problem else "repeated_lines": len(bad)})
                    parts.write(0, bad)
            files += parts.appear()
            progress(doing, min(1.0, (begin + chunk) / shape.slots))
        return files

    def _slot(self, slot: int, seqs: list[int], events: list[incidents.Event], *, is_first: bool) -> Iterator[Lines]:
        """The lines of a slot, in order of time. `seqs` are the numbers of each sender's next line."""
        plan, sample_ms = self.plan, self.plan.sample_ms(slot)
        yield from (self._event(event, seqs) for event in events if event[0] < sample_ms)
        if not plan.outage.holds(slot):
            said = _Said(self, slot)
            if said.term is not None:
                yield from self._of_primary(said, seqs, with_roster=is_first or slot == said.term.begin)
            for broker in plan.everybody:
                silent = broker == plan.last and plan.silence.holds(slot)
                if plan.is_up(slot, broker) and not silent and broker != said.primary:
                    yield broker, "own", [said.own(broker, seqs[broker])], 1, 0
            for broker in plan.everybody:
                yield self.manager, "probe", [said.probe(broker, seqs[self.manager])], 1, 0
        yield from (self._event(event, seqs) for event in events if event[0] >= sample_ms)

    def _event(self, event: incidents.Event, seqs: list[int]) -> Lines:
        at_ms, sender, epoch, type_, about, fields = event
        head = lines.Head(CLUSTER, epoch, self.senders[sender], iso(self.shape.start_ms + at_ms))
        told = lines.event_record(head, seqs[sender], broker=self.senders[about], type=type_, **fields)
        return sender, "event", [lines.line(told).decode()], 1, 0

    def _of_primary(self, said: _Said, seqs: list[int], *, with_roster: bool) -> Iterator[Lines]:
        plan, slot, primary, queues = self.plan, said.slot, said.primary, self.shape.queues
        assert said.term is not None, "there is a primary"
        assert primary is not None, "a term has a primary"
        is_lost = plan.lost.holds(slot)
        if with_roster:
            yield primary, "roster", [] if is_lost else [said.roster(seqs[primary])], 1, int(is_lost)
        backups = [b for b in plan.backups(said.term) if not (b == plan.last and plan.silence.holds(slot))]
        for backup in backups:
            yield primary, "sample", [] if is_lost else [said.whole(backup, seqs[primary])], 1, int(is_lost)
        reason, dropped = plan.drops.get(slot, ("", 0))
        for backup in backups:
            lost = queues if is_lost else dropped if backup == plan.last else 0
            yield primary, "sample", said.of_queues(backup, seqs[primary], lost) if lost < queues else [], queues, lost
        if reason:
            self.counts.update({f"drop {reason}": dropped})
            fields = {"lost_records": dropped, "detail": reason}
            yield self._event((plan.sample_ms(slot) + 10, primary, said.epoch, "drop", primary, fields), seqs)

    # ---- queues

    def _rates_of(self, level: int, variant: int) -> list[str]:
        """The ends of all queues' samples at that load."""
        found = []
        for i, (share, size) in enumerate(zip(self._shares, self._sizes, strict=True)):
            chance = draw(self._key, 1_000_000 + i * 4 + variant)
            records = round(share * self.plan.records_per_s(level) * (75 + chance % 50) / 100)
            found.append(lines.rate_text(float(records), float(records * size)))
        return found

    def rates(self, slot: int, *, is_first: bool) -> list[str]:
        """The ends of all queues' samples in a slot; in a primary's first slot the rates are not known."""
        none = [lines.rate_text(None, None)] * len(self.queues)
        return none if is_first else self._rates(self.plan.level(slot), draw(self._key, slot) % 4)

    def waiting(self, slot: int, backup: int, lag_us: int, stall_us: int, batches: int) -> dict[int, lines.QueueLag]:
        """The unacknowledged part of the queues, by position, for so many unacknowledged batches of the whole log: by their
        shares, or of a few queues."""
        number, found = len(self.queues), dict[int, lines.QueueLag]()
        if batches > _FEW_BATCHES:
            waits = ((i, round(batches * RECORDS_A_BATCH * share)) for i, share in enumerate(self._shares))
            return {i: (n, n * self._sizes[i], lag_us / 1000, stall_us / 1000) for i, n in waits if n}
        for turn in range(min(batches, 1 + number // 32)):
            chance = draw(self._key, (slot * 64 + backup) * 256 + turn)
            i, n = chance % number, 1 + (chance >> 32) % RECORDS_A_BATCH
            found[i] = (n, n * self._sizes[i], (lag_us * (chance >> 40 & 0xFF) >> 8 if turn else lag_us) / 1000, 0.0)
        return found


class _Parts:
    """The files of a run of slots, each created when its sender has its first line; none without a directory."""

    def __init__(self, directory: Path | None, senders: tuple[str, ...], start_ms: int) -> None:
        self._directory = directory
        self._names = [f"{sender.replace(':', '_')}.{start_ms:015d}" for sender in senders]
        self._files: dict[int, BinaryIO] = {}

    def write(self, sender: int, said: list[str]) -> None:
        """Append these lines to the sender's file."""
        if self._directory is not None and said:
            if sender not in self._files:
                self._files[sender] = (self._directory / f".{self._names[sender]}.part").open("wb")
            self._files[sender].write("".join(said).encode("ascii"))

    def appear(self) -> int:
        """Give the files their final names; returns the number of files."""
        for sender, file in self._files.items():
            file.close()
            hidden = Path(file.name)
            hidden.rename(hidden.with_name(f"{self._names[sender]}.jsonl"))
        return len(self._files)


class _Said:
    """The lines of one slot."""

    def __init__(self, story: Story, slot: int) -> None:
        self._story, self._plan, self.slot = story, story.plan, slot
        self._names, self._interval_ms = story.senders, story.shape.interval_ms
        self._at_ms = story.plan.sample_ms(slot)
        self._commit = story.plan.committed(self._at_ms)
        self.term = story.plan.term_at(slot)
        before = max(term for term in story.plan.terms if term.begin <= slot)
        noticed = self.term is None and self._at_ms >= story.plan.kill_ms + DETECTION_MS
        self.epoch, self.primary = before.epoch, None if noticed else before.primary
        self._named = "" if self.primary is None else self._names[self.primary]
        self._text: lines.SampleText | None = None

    def _sample_text(self, sender: int) -> lines.SampleText:
        head = lines.Head(CLUSTER, self.epoch, self._names[sender], iso(self._plan.ts_ms(self.slot, sender)))
        return lines.SampleText(head, interval_ms=self._interval_ms, primary=self._named)

    def _rates(self, *, is_first: bool) -> tuple[float | None, float | None]:
        """Records and bytes a second of the whole log."""
        if is_first:
            return None, None
        records = (self._commit - self._plan.committed(self._at_ms - self._interval_ms)) * RECORDS_A_BATCH
        return records * 1000 / self._interval_ms, records * RECORD_BYTES * 1000 / self._interval_ms

    def roster(self, seq: int) -> str:
        """The backups and queues for which the primary expects samples."""
        assert self.term is not None, "there is a primary"
        sender = self._names[self.term.primary]
        head = lines.Head(CLUSTER, self.epoch, sender, iso(self._plan.ts_ms(self.slot, self.term.primary)))
        backups, queues = sorted(self._names[backup] for backup in self._plan.backups(self.term)), self._story.queues
        told = lines.roster_record(head, seq, interval_ms=self._interval_ms, primary=sender, backups=backups, queues=queues)
        return lines.line(told).decode()

    def _sample(self, backup: int) -> lines.LagSample:
        """The primary's sample of a backup's whole log."""
        assert self.term is not None, "there is a primary"
        plan, look = self._plan, self._plan.look(self.slot, backup)
        assert look is not None, "somebody speaks of it"
        acked = plan.acked(self.slot, look)
        indexes = (self._commit, self._commit if look.connected else None, None, acked, None)
        trip_ms = (200 + (plan.chance(self.slot, backup) >> 20) % 700) / 1000 if look.connected else None
        sync, rates = _sync_ms(plan.chance(self.slot, self.term.primary)), self._rates(is_first=self.slot == self.term.begin)
        return _sample_of(self._names[backup], "primary", indexes, look, sync, trip_ms, rates)

    def _of_term(self) -> tuple[lines.SampleText, int]:
        assert self.term is not None, "there is a primary"
        if self._text is None:
            self._text = self._sample_text(self.term.primary)
        return self._text, self.term.begin

    def whole(self, backup: int, seq: int) -> str:
        """The line with the primary's sample of a backup's whole log."""
        return self._of_term()[0].line(seq, self._sample(backup))

    def of_queues(self, backup: int, seq: int, lost: int) -> list[str]:
        """The primary's samples of its queues, except the first `lost` of them; `seq` is the number of the first."""
        (text, begin), sample, look = self._of_term(), self._sample(backup), self._plan.look(self.slot, backup)
        assert look is not None, "somebody speaks of it"
        assert sample.acked_index is not None, "a primary knows it"
        waiting = self._story.waiting(self.slot, backup, look.lag_us, look.stall_us, self._commit - sample.acked_index)
        rates, texts = self._story.rates(self.slot, is_first=self.slot == begin), self._story.queue_texts
        rest = {i - lost: lag for i, lag in waiting.items() if i >= lost}
        return text.queue_lines(seq + lost, sample, texts[lost:], rest, rates[lost:]).splitlines(keepends=True)

    def own(self, broker: int, seq: int) -> str:
        """A backup's own sample: it knows a slightly older commit index."""
        plan, look = self._plan, self._plan.look(self.slot, broker)
        assert look is not None, "who speaks is there"
        heard = plan.committed(self._at_ms - 40)
        durable = min(plan.acked(self.slot, look), heard) if look.lag_us >= self._interval_ms * 1000 else heard
        lag_us, stall_us = (look.lag_us, look.stall_us) if durable < heard else (0, 0)
        state = look.state if self.primary is not None else "joining"
        own = Look(lag_us, stall_us, state, self.primary is not None)
        stands, slow = (broker == plan.last and span.holds(self.slot) for span in (plan.stall, plan.slow))
        sync = (None, None) if stands else _sync_ms(plan.chance(self.slot, broker), slow=slow)
        rates = self._rates(is_first=self.slot in (0, plan.down.end, plan.outage.end))
        indexes = (heard, None, durable, durable, durable)
        return self._sample_text(broker).line(seq, _sample_of(self._names[broker], "backup", indexes, own, sync, None, rates))

    def probe(self, broker: int, seq: int) -> str:
        """The resource manager's probe of a broker."""
        plan, epoch, named, last = self._plan, self.epoch, self._named, self._commit + 1
        chance, asked = plan.chance(self.slot, broker) >> 8, max(1, self._interval_ms // 250)
        trip_ms, state = (300 + chance % 900) / 1000, "active"
        answer: tuple[str, int, int, float | None, float | None] = ("absent", 0, 0, None, None)
        if not plan.is_up(self.slot, broker):
            epoch, named, last = 1, self._names[0], plan.committed(plan.kill_ms)
        else:
            answer = ("reachable", asked, asked, trip_ms, trip_ms + chance % 3)
            look = plan.look(self.slot, broker)
            if self.primary is None:
                state = "joining"
            elif broker != self.primary:
                state, last = ("ready", last) if look is None else (look.state, plan.acked(self.slot, look))
        why = incidents.FAILED if answer[0] == "absent" else None
        told = lines.Probe(self._names[broker], *answer, state, named, epoch, last, why)
        ts_ms = self._story.shape.start_ms + self._at_ms + (draw(self.epoch, self.slot) & 3)
        head = lines.Head(CLUSTER, self.epoch, MANAGER, iso(ts_ms))
        return lines.line(lines.probe_record(head, seq, interval_ms=self._interval_ms, probe=told)).decode()


def _sample_of(
    name: str, role: str, indexes: _Indexes, look: Look, sync: _Pair, trip_ms: float | None, rates: _Pair
) -> lines.LagSample:
    """A sample of a backup's whole log; the indexes are in the order of their fields."""
    commit, sent, received, acked, applied = indexes
    records, ready = (commit - acked) * RECORDS_A_BATCH, look.connected and look.state == "ready"
    lag, condition = (records, records * RECORD_BYTES, look.lag_us / 1000, look.stall_us / 1000), (look.state, ready)
    head = (name, None, "all", commit, sent, received, acked, applied)
    return lines.LagSample(*head, *lag, *condition, look.connected, None, role, *sync, trip_ms, *rates)


def _sync_ms(chance: int, *, slow: bool = False) -> tuple[float, float]:
    mean_us = 40_000 + (chance >> 12) % 120_000 if slow else 180 + (chance >> 12) % 400
    return mean_us / 1000, mean_us * (2 + (chance >> 30) % 4) / 1000
