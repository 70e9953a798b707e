"""Writes the lines of each sender in each slot with the brokers' own encoder (`telemetry.lines`), and the files.

One pass over the slots. Each sender numbers its lines without a gap until it restarts, and ends its file after about 40,000 lines
of all senders. A file appears when it is complete: it is written under a hidden name, and renamed. Only one slot is in memory at
a time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final

from spark_analytics.demo_data import incidents
from spark_analytics.demo_data.plan import BATCHES_PER_S, CLUSTER, FAILED, RECORD_BYTES, RECORDS_A_BATCH, Plan, Term, draw, iso
from telemetry import lines

MANAGER: Final = "resource-manager"
_LINES_PER_FILE: Final = 40_000
_FEW_BATCHES: Final = 256
"""Up to so many unacknowledged batches a primary looks into each of them, and knows which queues wait."""
_STEMS: Final = ("orders", "billing", "mail", "audit", "search", "stock", "fraud", "reports")


class _Sender:
    """Numbers a sender's lines, and writes them to its files. While `is_cut_off`, they are lost."""

    def __init__(self, folder: Path, name: str, begin_ms: int, counts: Counter[str]) -> None:
        self.name, self.seq, self.is_cut_off = name, begin_ms * 1000, False
        self._folder, self._begin_ms, self._counts = folder, begin_ms, counts
        self._file: BinaryIO | None = None

    def say(self, text: str, lost: int = 0) -> list[str]:
        """Number these lines, and write them without the first `lost`; returns what is written."""
        said = text.splitlines(keepends=True)
        lost = len(said) if self.is_cut_off else lost
        self.seq += len(said)
        self._counts["holes"] += lost
        self.write(said[lost:])
        return said[lost:]

    def tell(self, epoch: int, ts_ms: int, record: Callable[..., dict[str, Any]], **fields: Any) -> None:
        """Say a line that is no sample, made by that function of `lines`."""
        told = record(lines.Head(CLUSTER, epoch, self.name, iso(ts_ms)), self.seq, **fields)
        self.say(lines.line(told).decode())

    def write(self, said: list[str]) -> None:
        """Append these lines to the file, which is created for its first line."""
        self._counts["lines"] += len(said)
        if said and self._file is None:
            self._file = (self._folder / f".{self.name.replace(':', '_')}.{self._begin_ms:015d}.part").open("wb")
        if self._file is not None:
            self._file.write("".join(said).encode("ascii"))

    def turn(self, next_ms: int) -> None:
        """Give the file its final name; the next one begins at `next_ms`."""
        self._begin_ms = next_ms
        if self._file is not None:
            self._file.close()
            part, self._file = Path(self._file.name), None
            part.rename(part.with_name(f"{part.stem[1:]}.jsonl"))
            self._counts["files"] += 1


class Story:
    """The lines of a plan."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        shape, number, seed, stems = plan.shape, plan.shape.queues, plan.shape.seed & 0xFFFF_FFFF, len(_STEMS)
        self._plan, self._shape, self._names, self._counts = plan, shape, shape.brokers, Counter[str]()
        self._senders = [_Sender(folder, name, shape.start_ms, self._counts) for name in (*shape.brokers, MANAGER)]
        self._events = deque(sorted(incidents.events(plan), key=lambda event: event[0]))
        self._damages = incidents.damages(plan)
        self._queues = sorted(_STEMS[i] if i < stems else f"{_STEMS[i % stems]}.{i // stems}" for i in range(number))
        self._queue_texts = [lines.queue_text(name, "all") for name in self._queues]
        weights = [1 / (draw(seed, i) % number + 3) ** 0.9 for i in range(number)]  # a few queues have most of the load
        self._shares = [weight / sum(weights) for weight in weights]
        self._sizes = [200 + draw(seed, i + number) % 3800 for i in range(number)]
        self._key = draw(seed, 2 * number)
        self._rates = lru_cache(maxsize=64)(self._rates_of)

    def write(self, progress: Callable[[str, float], None]) -> Counter[str]:
        """Write all lines; returns the numbers of `lines`, lost ones (`holes`) and `files`. `progress` gets a text and the share
        that is done."""
        slots, about = self._shape.slots, self._shape.about_lines
        chunk = max(1, _LINES_PER_FILE * slots // about)
        for begin in range(0, slots, chunk):
            for slot in range(begin, min(begin + chunk, slots)):
                self._slot(slot, is_first=slot == begin)
            for sender in self._senders:
                sender.turn(self._plan.begin_ms(begin + chunk))
            progress(f"writing about {about:,} lines", min(1.0, (begin + chunk) / slots))
        return self._counts

    def _slot(self, slot: int, *, is_first: bool) -> None:
        """The lines of a slot, those of a sender in order of time."""
        plan, term, sample_ms = self._plan, self._plan.term(slot), self._plan.sample_ms(slot)
        for sender in self._senders if slot == plan.outage.end else self._senders[: slot == plan.stopped.end]:
            sender.seq = plan.begin_ms(slot) * 1000  # a restarted sender numbers from its clock
        self._tell_events(sample_ms)
        if slot < term.end:
            self._tell_of_backups(slot, term, with_roster=is_first or slot == term.begin)
        for broker in plan.everybody if not plan.outage.holds(slot) else ():
            if not (broker == term.primary or plan.killed.holds(slot, broker) or plan.silent.holds(slot, broker)):
                sender, sample = self._senders[broker], self._sample(slot, term, broker, broker)
                sender.say(self._text(slot, term, broker).line(sender.seq, sample))
            told, ts_ms = self._probe(slot, term, broker), sample_ms + (draw(term.epoch, slot) & 3)
            self._senders[-1].tell(term.epoch, ts_ms, lines.probe_record, interval_ms=self._shape.interval_ms, probe=told)
        self._tell_events(plan.begin_ms(slot + 1))

    def _tell_events(self, until_ms: int) -> None:
        while self._events and self._events[0][0] < until_ms:
            at_ms, sender, epoch, type_, broker, fields = self._events.popleft()
            about = {"broker": self._senders[broker].name, "type": type_}
            self._senders[sender].tell(epoch, at_ms, lines.event_record, **about, **fields)

    def _tell_of_backups(self, slot: int, term: Term, *, with_roster: bool) -> None:
        """The primary's lines."""
        plan, primary, names, said = self._plan, self._senders[term.primary], self._names, list[str]()
        primary.is_cut_off = plan.lost.holds(slot)
        if with_roster:
            expected = {"backups": [name for name in names if name != primary.name], "queues": self._queues}
            own = {"interval_ms": self._shape.interval_ms, "primary": primary.name}
            primary.tell(term.epoch, plan.ts_ms(slot, term.primary), lines.roster_record, **own, **expected)
        text, (_, dropped) = self._text(slot, term, term.primary), plan.drops.get(slot, ("", 0))
        backups = [b for b in plan.everybody if b != term.primary and not plan.silent.holds(slot, b)]
        samples = {backup: self._sample(slot, term, term.primary, backup) for backup in backups}
        for sample in samples.values():
            said += primary.say(text.line(primary.seq, sample))
        rates = self._rates(None if slot == term.begin else plan.load(slot), draw(self._key, slot) % 4)
        for backup, sample in samples.items():
            waiting = self._waiting(slot, backup, sample)
            told = text.queue_lines(primary.seq, sample, self._queue_texts, waiting, rates)
            said += primary.say(told, dropped if backup == plan.last else 0)
        for problem in (problem for at, problem in self._damages if at == slot):
            primary.write(incidents.damaged(problem, said))

    def _text(self, slot: int, term: Term, sender: int) -> lines.SampleText:
        head = lines.Head(CLUSTER, term.epoch, self._names[sender], iso(self._plan.ts_ms(slot, sender)))
        return lines.SampleText(head, interval_ms=self._shape.interval_ms, primary=self._names[term.primary])

    def _sample(self, slot: int, term: Term, sender: int, backup: int) -> lines.LagSample:
        """A backup's whole log, as its primary sees it, or itself: it knows a slightly older commit index."""
        plan, look, interval_ms = self._plan, self._plan.look(slot, backup), self._shape.interval_ms
        at_ms, is_own, chance = plan.sample_ms(slot), sender == backup, plan.chance(slot, sender) >> 12
        commit, acked = plan.committed(at_ms), plan.acked(slot, look)
        records_per_s = (commit - plan.committed(at_ms - interval_ms)) * RECORDS_A_BATCH * 1000 / interval_ms
        begins = (0, plan.stopped.end, plan.outage.end) if is_own else (term.begin,)
        rates = (None, None) if slot in begins else (records_per_s, records_per_s * RECORD_BYTES)
        sync_us = 40_000 + chance % 120_000 if plan.slow_disk.holds(slot, sender) else 180 + chance % 400
        sync = (None, None) if plan.stalled.holds(slot, sender) else (sync_us / 1000, sync_us * (2 + (chance >> 18) % 4) / 1000)
        sent, known, trip_ms = None, None, None
        if is_own:
            commit = plan.committed(at_ms - 40)
            known = acked = min(acked, commit) if look.lag_us >= interval_ms * 1000 else commit
            look = look if acked < commit else look._replace(lag_us=0, stall_us=0)
        elif look.connected:
            sent, trip_ms = commit, (200 + (plan.chance(slot, backup) >> 20) % 700) / 1000
        records = (commit - acked) * RECORDS_A_BATCH
        return lines.LagSample(
            *(self._names[backup], None, "all", commit, sent, known, acked, known),
            *(records, records * RECORD_BYTES, look.lag_us / 1000, look.stall_us / 1000),
            *(look.state, look.connected and look.state == "ready", look.connected, None),
            *("backup" if is_own else "primary", *sync, trip_ms, *rates),
        )

    def _rates_of(self, load: float | None, variant: int) -> list[str]:
        """The ends of all queues' samples at that load; None if it is not known."""
        if load is None:
            return [lines.rate_text(None, None)] * len(self._queues)
        per_s = BATCHES_PER_S * RECORDS_A_BATCH * load
        chances = (75 + draw(self._key, 1_000_000 + i * 4 + variant) % 50 for i in range(len(self._queues)))
        records = [round(share * per_s * chance / 100) for share, chance in zip(self._shares, chances, strict=True)]
        return lines.rate_texts(records, (n * size for n, size in zip(records, self._sizes, strict=True)), 1.0)

    def _waiting(self, slot: int, backup: int, whole: lines.LagSample) -> dict[int, lines.QueueLag]:
        """The unacknowledged part of the queues, by position: by their shares of the whole log's, or of a few queues."""
        number, found, batches = len(self._queues), dict[int, lines.QueueLag](), whole.lag_records // RECORDS_A_BATCH
        if batches > _FEW_BATCHES:
            waits = ((i, round(whole.lag_records * share)) for i, share in enumerate(self._shares))
            return {i: (n, n * self._sizes[i], whole.lag_ms, whole.stall_ms) for i, n in waits if n}
        for turn in range(min(batches, 1 + number // 32)):
            chance = draw(self._key, (slot * 64 + backup) * 256 + turn)
            i, n = chance % number, 1 + (chance >> 32) % RECORDS_A_BATCH
            lag_ms = (round(whole.lag_ms * 1000) * (chance >> 40 & 0xFF) >> 8) / 1000 if turn else whole.lag_ms
            found[i] = (n, n * self._sizes[i], lag_ms, 0.0)
        return found

    def _probe(self, slot: int, term: Term, broker: int) -> lines.Probe:
        """The resource manager's probe of a broker."""
        plan, name, primary = self._plan, self._names[broker], self._names[term.primary]
        if plan.killed.holds(slot, broker):
            return lines.Probe(name, "absent", 0, 0, None, None, "active", name, 1, plan.committed(plan.kill_ms), FAILED)
        chance, look, serves = plan.chance(slot, broker) >> 8, plan.look(slot, broker), broker == term.primary
        is_newest = serves or plan.silent.holds(slot, broker)
        last = plan.committed(plan.sample_ms(slot)) + 1 if is_newest else plan.acked(slot, look)
        state = "active" if serves else look.state
        asked, trip_ms = max(1, self._shape.interval_ms // 250), (300 + chance % 900) / 1000
        return lines.Probe(name, "reachable", asked, asked, trip_ms, trip_ms + chance % 3, state, primary, term.epoch, last, None)
