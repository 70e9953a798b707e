"""`qpid-lag stream`: follow telemetry as it is written, into a folder that `summarise` and `dashboard` read.

The main thread watches: it prints a line for each batch, and compares the wall clock with the last time of each backup, because a
cluster that sends nothing starts no batch. While batches with old lines come, it compares the time of the newest line instead of
the wall clock; and it says nothing of silence while it catches up, as after a pause. A signal lets the current batch finish, and
then ends the command with 0; also if Java gets SIGTERM at the same time and ends in the middle of the batch, which the next start
repeats.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.lag.shell import Command, kafka_of, progress, reads, refuse, wipe
from cli.output import note
from cli.ranges import FloatRange

if TYPE_CHECKING:
    from spark_analytics.jobs.stream import Progress, Streaming

_LOOK_S = 0.5
_SILENT_AFTER_MS = 10_000
_SIGNAL_S = 1.0
"""So much later than Java's process, this one has its signal too, if both were sent one."""


@click.command(cls=Command)
@reads
@click.option(
    "--output", required=True, metavar="DIR", type=click.Path(file_okay=False), help="Folder for the lines, as Parquet."
)
@click.option("--checkpoint", metavar="DIR", help="Folder for Spark's checkpoint.  [default: OUTPUT/_checkpoint]")
@click.option("--trigger", default="10s", show_default=True, metavar="TIME", help="Time between two batches.")
@click.option("--since", metavar="TIME", help="Leave out older lines: 2026-01-02T15:04:05Z, or an age: 15m.")
@click.option(
    "--batch-mib",
    type=FloatRange(min=0.01),
    default=448,
    show_default=True,
    help="Maximum size of a batch from a folder. The first two batches take a sixteenth and a quarter of it.",
)
@click.option("--keep", metavar="LENGTH", help="Delete days older than this: 90d.  [default: keep everything]")
@click.option("--available-now", is_flag=True, help="Process the lines that are there now, and end.")
def stream(
    path: str | None,
    kafka: str | None,
    topic: str | None,
    master: str | None,
    output: str,
    checkpoint: str | None,
    trigger: str,
    since: str | None,
    batch_mib: float,
    keep: str | None,
    available_now: bool,
) -> None:
    """Follow telemetry while it is written, and keep it as Parquet for later summaries."""
    from spark_analytics.errors import Refused
    from spark_analytics.jobs import spans
    from spark_analytics.jobs.stream import Streaming, prepare
    from spark_analytics.locations import is_remote

    topics = kafka_of(path, kafka, topic)
    try:
        if path is not None and not is_remote(path) and not Path(path).is_dir():
            raise Refused(f"there is no folder {path}: give --input the folder that the brokers write telemetry to")
        asked = Streaming(
            path=path or "",
            output=output,
            trigger_ms=spans.parse_length(trigger, "--trigger"),
            since_ms=spans.parse_moment(since, int(time.time() * 1000), "--since") if since else None,
            available_now=available_now,
            checkpoint=checkpoint,
            batch_bytes=int(batch_mib * (1 << 20)),
            kafka=topics,
            keep_ms=spans.parse_keep(keep) if keep else None,
        )
        prepare(asked)
        _run(asked, master)
    except Refused as refused:
        refuse(refused)


def _run(asked: Streaming, master: str | None) -> None:
    from pyspark.errors import StreamingQueryException

    from spark_analytics import session
    from spark_analytics.errors import Refused
    from spark_analytics.jobs import stream as job
    from spark_analytics.locations import cause

    stopping = threading.Event()
    progress("starting Spark")
    spark = session.start(master, work="stream")
    # Only after the start, because Spark installs a handler for SIGINT of its own.
    previous = {number: signal.signal(number, lambda *_: stopping.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    watch = _Watch(asked)
    try:
        with _stops_with_java(stopping, watch), session.ends(spark):
            following = job.start(spark, asked, watch.batch, stopping)
            wipe()
            click.echo(f"following {asked.path or asked.kafka} into {asked.output}", err=True)
            try:
                while not stopping.is_set() and not following.await_end(_LOOK_S):
                    watch.look(busy=following.is_busy)
            except StreamingQueryException as error:
                raise Refused(f"the stream ended: {cause(error)}; start it again to continue") from None
            if stopping.is_set():
                following.stop()
                watch.stopped()
            else:
                click.echo(f"done: {watch.said()}", err=True)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _stops_with_java(stopping: threading.Event, watch: _Watch) -> Iterator[None]:
    """The end of Java's process is no failure if both processes were told to end, as by a service manager."""
    from spark_analytics import session
    from spark_analytics.errors import Refused

    try:
        yield
    except Refused:
        if not session.has_lost_java() or not stopping.wait(_SIGNAL_S):
            raise
        watch.stopped()


class _Watch:
    """The output while the stream runs; `batch` is called from the query's own thread."""

    def __init__(self, asked: Streaming) -> None:
        self._asked = asked
        self._last: Progress | None = None
        self._silent: dict[str, float] = {}
        """The backups that are said to be silent, each with the time at which it was so."""
        self._age_ms = math.inf
        self._is_catching_up = True
        """Whether the last batch had older lines than the one before, or the newest line is less old now."""
        self._busy_s = time.monotonic()
        self._limit_ms = max(_SILENT_AFTER_MS, 3 * asked.trigger_ms)

    def batch(self, done: Any) -> None:
        """Print the result of a batch."""
        age_ms = math.inf if done.newest_ms is None else time.time() * 1000 - done.newest_ms
        newest_ms, before_ms = done.newest_ms or 0, (self._last and self._last.newest_ms) or 0
        self._is_catching_up, self._age_ms = newest_ms <= before_ms or age_ms < self._age_ms, age_ms
        self._last, self._busy_s = done, time.monotonic()
        age = "" if done.newest_ms is None else f", newest {_length(age_ms)} old"
        click.echo(f"batch {done.batch}: {done.lines:,} lines, {done.total:,} in all{age}", err=True)

    def look(self, *, busy: bool = False) -> None:
        """Print when a backup falls silent, and when it is heard again or is no backup any more; only while following. `busy`
        says that a batch is running.
        """
        if busy:
            self._busy_s = time.monotonic()
        if self._last is None or self._asked.available_now:
            return
        at_ms, newest_ms = time.time() * 1000, self._last.newest_ms
        is_late = False
        if newest_ms is not None and (time.monotonic() - self._busy_s) * 1000 < self._limit_ms < at_ms - newest_ms:
            if self._is_catching_up:
                return  # newer lines may come at once
            is_late, at_ms = True, newest_ms
        for backup in sorted(self._silent.keys() - self._last.heard.keys()):
            del self._silent[backup]
            note(f"no longer a backup: {backup}")
        for backup, heard_ms in sorted(self._last.heard.items()):
            silent = at_ms - heard_ms > self._limit_ms
            if silent and backup not in self._silent:
                self._silent[backup] = at_ms
                note(f"SILENT {backup}: not heard for {_length(at_ms - heard_ms)}")
            elif not silent and backup in self._silent and (not is_late or heard_ms > self._silent[backup]):
                del self._silent[backup]
                note(f"heard again: {backup}")

    def stopped(self) -> None:
        """Print that it was stopped."""
        click.echo(f"stopped after {self.said()}; start it again to continue", err=True)

    def said(self) -> str:
        """The progress of the stream, as a text."""
        return f"batch {self._last.batch}, {self._last.total:,} lines in all" if self._last else "no batch"


def _length(ms: float) -> str:
    from spark_analytics.dashboard.formatting import duration

    return duration(max(0.0, ms))
