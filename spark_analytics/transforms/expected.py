"""Who should have reported, and when. Without this, silence would be missing data instead of the worst lag.

A primary's *term* is the time of its epoch. It ends when the next term begins, not when its primary falls silent: the gap
between two primaries is silence of all backups. Within the term each backup and queue is expected while the primary's roster
names it, and before the first roster of the span from its first sample, if that roster names it. Without a roster in the
term, it is expected from its first sample to the end of the term. With a roster that does not name it, it is expected while
it is sampled. A queue without roster and samples does not exist, and is not silent. Times are cut at whole sampling
intervals, so that the interval of a sample is where the sample is, and no interval at either end is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_analytics.transforms.lag import lengths_of

_KEY: Final = ("backup", "queue")
Term = dict[str, Any]
_Whose = tuple[int, str, str | None]
_Times = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class Segment:
    """A time in which samples of a backup's queue (None: of its whole log) are expected without a gap."""

    backup: str
    queue: str | None
    from_ms: int
    to_ms: int
    interval_ms: int


def terms(inventory: Iterable[Mapping[str, Any]], *, end_ms: int) -> list[Term]:
    """One for each epoch and primary, in order, from `quality.inventory` of one cluster: `epoch`, `primary`, `begin_ms`,
    `end_ms`, `next_ms` (when the next one began, None for the last), `last_said_ms` (the primary's last sample or roster),
    the first and the last `interval_ms`, and `has_roster`: whether the epoch has a roster.

    A roster does not count after a primary of a higher epoch has begun, also if that was before the span: brokers of older
    releases repeat their last roster after they have handed over.
    """
    said: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    mine = [row for row in inventory if row["mine"] and not row["problem"]]
    began: dict[int, int] = {}
    for row in mine:
        began[row["epoch"]] = min(row["first_ms"], began.get(row["epoch"], row["first_ms"]))
    for row in mine:
        next_ms = min((began[epoch] for epoch in began if epoch > row["epoch"]), default=None)
        if row["inside"] and (own := _until(row, next_ms)) is not None:
            said.setdefault((row["epoch"], row["primary"]), []).append(own)
    with_roster = {epoch for (epoch, _), rows in said.items() if any(row["kind"] == "roster" for row in rows)}
    found: list[Term] = []
    for (epoch, primary), rows in said.items():
        first, last = min(rows, key=lambda row: row["first_ms"]), max(rows, key=lambda row: row["last_ms"])
        found.append(
            {
                "epoch": epoch,
                "primary": primary,
                "begin_ms": first["first_ms"],
                "last_said_ms": last["last_ms"],
                "first_interval_ms": first["begin_interval_ms"],
                "interval_ms": last["end_interval_ms"],
                "has_roster": epoch in with_roster,
            }
        )
    found.sort(key=lambda term: (term["epoch"], term["begin_ms"]))
    for term, following in zip_longest(found, found[1:]):
        term["next_ms"] = None if following is None else max(following["begin_ms"], term["begin_ms"])
        term["end_ms"] = max(end_ms if following is None else term["next_ms"], term["begin_ms"])
    return found


def _until(row: Mapping[str, Any], next_ms: int | None) -> Mapping[str, Any] | None:
    """A row, without the rosters in it that came after a primary of a higher epoch had begun; None if there is nothing else."""
    if row["kind"] != "roster" or next_ms is None or row["last_ms"] < next_ms:
        return row
    if row["first_ms"] >= next_ms:
        return None
    return {**row, "last_ms": row["first_ms"], "end_interval_ms": row["begin_interval_ms"]}


def segments(seen: Iterable[Mapping[str, Any]], rosters: Iterable[Mapping[str, Any]], terms: Sequence[Term]) -> list[Segment]:
    """The times in which each backup and queue is expected without a gap, in order for each of them.

    `seen` are the rows of `lag.seen`, `rosters` those of `lines.rosters` in order of time: one for each backup and queue, or for
    each change of the roster.
    """
    first_roster_ms: dict[int, int] = {}
    named: dict[_Whose, list[_Times]] = {}
    of_sender: dict[tuple[Any, ...], _Named] = {}
    for roster in rosters:
        epoch = roster["epoch"]
        first_roster_ms[epoch] = min(roster["from_ms"], first_roster_ms.get(epoch, roster["from_ms"]))
        sender = (roster["cluster"], epoch, roster["primary"])
        of_sender.setdefault(sender, _Named(epoch, named)).change(roster)
    for one in of_sender.values():
        one.end()
    sampled = {(row["epoch"], row["backup"], row["queue"]): (row["from_ms"], row["to_ms"]) for row in seen}
    told = {**{whose: [times] for whose, times in sampled.items()}, **named}
    for whose in sampled.keys() & named.keys():
        begin_ms, named_ms = sampled[whose][0], min(from_ms for from_ms, _ in named[whose])
        if begin_ms < named_ms == first_roster_ms[whose[0]]:  # no roster before the first one left it out
            told[whose] = [(begin_ms, named_ms), *named[whose]]
    of_epoch: dict[int, list[Term]] = {}
    for term in terms:
        of_epoch.setdefault(term["epoch"], []).append(term)
    cut: dict[tuple[str, str | None], list[Segment]] = {}
    for whose, times in told.items():
        epoch, backup, queue = whose
        for from_ms, to_ms in times:
            for term in of_epoch.get(epoch, ()):
                # A queue that is sampled but on no roster is expected while it is sampled; if there is no roster, until the
                # term ends.
                ends = to_ms if whose in named or term["has_roster"] else None
                first, last = _whole_intervals(term, from_ms, term["end_ms"] if ends is None else min(ends, term["end_ms"]))
                if first < last:
                    cut.setdefault((backup, queue), []).append(Segment(backup, queue, first, last, term["interval_ms"]))
    return [one for its in cut.values() for one in _joined(sorted(its, key=lambda one: (one.from_ms, one.to_ms)))]


class _Named:
    """Whom the rosters of a primary name, and since when: a time grows until a roster leaves the backup or the queue out."""

    def __init__(self, epoch: int, named: dict[_Whose, list[_Times]]) -> None:
        self._epoch, self._named = epoch, named
        self._backups: set[str] = set()
        self._queues: set[str] = set()
        self._since: dict[tuple[str, str | None], int] = {}

    def change(self, roster: Mapping[str, Any]) -> None:
        """A row of `lines.rosters`."""
        now_ms, backups, removed = roster["from_ms"], set(roster["backups"]), set(roster["removed"])
        for backup in self._backups:
            self._leave(now_ms, ((backup, queue) for queue in (removed if backup in backups else (None, *self._queues))))
        added = set(roster["added"])
        self._queues = (self._queues - removed) | added
        for backup in backups:
            come = added if backup in self._backups else (None, *self._queues)
            self._since.update(((backup, queue), now_ms) for queue in come)
        self._backups = backups

    def end(self) -> None:
        """The last roster holds until its term ends."""
        self._leave(None, list(self._since))

    def _leave(self, to_ms: int | None, keys: Iterable[tuple[str, str | None]]) -> None:
        for backup, queue in keys:
            self._named.setdefault((self._epoch, backup, queue), []).append((self._since.pop((backup, queue)), to_ms))


def _whole_intervals(term: Term, from_ms: int, to_ms: int) -> tuple[int, int]:
    """A part of a term, cut at sampling intervals.

    The end of a roster and the start of the next primary are within an interval in which the old primary has no sample yet,
    so that interval does not count. At the end of the span, the interval of the last sample counts. Its sample is at the same
    place in the interval as the first one, within a quarter. An interval that begins after `to_ms` never counts. The one after
    the primary's last line counts only when its sample is due by any means: the span may end before that, for example now.
    """
    begin, interval = term["first_interval_ms"], term["interval_ms"]
    first = max(from_ms, term["begin_ms"]) // begin * begin
    if term["next_ms"] is None and to_ms >= term["end_ms"]:
        place, quarter, end_ms = term["begin_ms"] % interval, interval // 4, to_ms - 1
        said, last = ((at - max(0, place - quarter)) // interval for at in (min(term["last_said_ms"], end_ms), end_ms))
        if last == said + 1:
            last = max(said, (end_ms - place - quarter) // interval)
        return first, (last + 1) * interval
    return first, to_ms // interval * interval


def _joined(cut: Iterable[Segment]) -> Iterator[Segment]:
    """Pieces in order; gaps up to one interval are closed."""
    whole: Segment | None = None
    for one in cut:
        if whole is None or one.from_ms > whole.to_ms + one.interval_ms:
            if whole is not None:
                yield whole
            whole = one
        else:
            longest = max(whole.interval_ms, one.interval_ms)
            whole = replace(whole, to_ms=max(whole.to_ms, one.to_ms), interval_ms=longest)
    if whole is not None:
        yield whole


def within(segments: Iterable[Segment], from_ms: int, to_ms: int, *, interval_ms: int) -> list[Segment]:
    """The parts of segments in a span that is extended to whole intervals.

    `interval_ms` is the longest interval of the span, of which the steps of the report are multiples. A term with another
    interval may begin before the first step, or end after the last one.
    """
    first, last = from_ms // interval_ms * interval_ms, -(-to_ms // interval_ms) * interval_ms
    cut = (replace(one, from_ms=max(one.from_ms, first), to_ms=min(one.to_ms, last)) for one in segments)
    return [one for one in cut if one.from_ms < one.to_ms]


def as_frame(spark: SparkSession, segments: Sequence[Segment]) -> DataFrame:
    """Segments as rows."""
    columns = {field.name: [getattr(one, field.name) for one in segments] for field in fields(Segment)}
    types = {"backup": pa.string(), "queue": pa.string()}
    return spark.createDataFrame(
        pa.table({name: pa.array(values, types.get(name, pa.int64())) for name, values in columns.items()})
    )


def windows(segments: DataFrame, lengths: Sequence[int], *, whole_log_only: Sequence[int] = ()) -> DataFrame:
    """Segments to one row per `lag.WINDOW`: the time `expected_ms` in it, from when (`since_ms`) to when (`to_ms`) it was
    expected without a gap at its end, and the `slot_ms` of one sample.
    """
    col = F.col
    cut = segments.withColumn("window_ms", F.explode(lengths_of(lengths, whole_log_only)))
    first = F.floor(col("from_ms") / col("window_ms")) * col("window_ms")
    last = F.floor((col("to_ms") - 1) / col("window_ms")) * col("window_ms")
    rows = cut.withColumn("start_ms", F.explode(F.sequence(first, last, "window_ms")))
    begin, end = F.greatest("from_ms", "start_ms"), F.least(col("to_ms"), col("start_ms") + col("window_ms"))
    return rows.groupBy(*_KEY, "window_ms", "start_ms").agg(
        F.sum(end - begin).alias("expected_ms"),
        F.max("from_ms").alias("since_ms"),
        F.max(end).alias("to_ms"),
        F.max("interval_ms").alias("slot_ms"),
    )
