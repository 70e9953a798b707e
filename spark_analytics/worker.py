"""Summaries on demand, by one Spark session that is kept: the process behind a dashboard that is refreshed.

Life of the process `python -m spark_analytics.worker`: it reads requests from its standard input, one JSON object in each
line, in the words of the command line. It answers each request with one line on its standard output: `report`, `refused` (a
sentence for people: the same request may succeed later), or `failed` (Spark broke). After `failed` it ends, and the caller
can start another one. Lines with `progress` come before the answer. It ends when its input ends. It also ends after a `report`
and a line with `outgrown`: the telemetry has become too much for a session for short jobs, and a new process has one for long
jobs.

It is a separate process so that a Spark that fails, hangs or uses all memory does not stop the page of the dashboard.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import IO, Any

from pyspark.sql import SparkSession

from spark_analytics import locations, session
from spark_analytics.errors import Refused
from spark_analytics.jobs.summarise import Report, summarise
from spark_analytics.requests import Asked, request_of, work_of
from spark_analytics.session import Work


class Worker:
    """One session, started when it is first needed."""

    def __init__(self) -> None:
        self._spark: SparkSession | None = None
        self._work: Work = "short"
        self.outgrown = False
        """Whether the last report was too much for this session, which is one for short jobs. Java's options cannot change."""

    def report(self, asked: Asked, progress: Callable[[str], None] = lambda _: None) -> Report:
        """The report of now. Refused if it cannot be made."""
        request = request_of(asked, int(time.time() * 1000))
        work = work_of(request)
        if self._spark is None:
            progress("starting Spark")
            self._spark, self._work = session.start(asked["master"], app="qpid-lag dashboard", work=work), work
        self.outgrown = (self._work, work) == ("short", "long")
        return summarise(self._spark, request, progress)

    def put(self, url: str, content: bytes) -> None:
        """Write a file at a URL, after a report. Refused if it cannot be written."""
        assert self._spark is not None, "a report was made before"
        locations.put(self._spark, url, content)

    def stop(self) -> None:
        """End the session."""
        if self._spark is not None:
            session.stop(self._spark)
            self._spark = None


def serve(requests: IO[bytes], answers: IO[bytes]) -> int:
    """Answer requests until there are no more. Returns the exit status."""

    def say(**words: Any) -> None:
        answers.write(json.dumps(words, separators=(",", ":"), allow_nan=False).encode() + b"\n")
        answers.flush()

    worker = Worker()
    try:
        for line in requests:
            try:
                say(report=worker.report(json.loads(line), lambda text: say(progress=text)))
                if worker.outgrown:
                    say(outgrown=True)
                    return 0
            except Refused as refused:
                say(refused=str(refused))
            except Exception as error:
                say(failed=session.why(error))
                return 1
    except BrokenPipeError:
        return 1
    finally:
        worker.stop()
    return 0


def main() -> int:
    """The process. Output of Spark to the standard output is discarded: only answers are written there."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after Ctrl-C the parent process ends this one
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    sys.exit(main())
