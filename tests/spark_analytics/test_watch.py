"""All together: brokers write, a stream follows, a dashboard in a process of its own serves its folder, somebody looks."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from spark_analytics import demo_data
from spark_analytics.jobs import stream
from tests.spark_analytics.browsing import Browser
from tests.spark_analytics.conftest import START_MS

PATIENCE_S = 240.0


@contextmanager
def dashboard(kept: str) -> Iterator[str]:
    """The command in a process of its own, and the URL that it says; told to stop at the end, which is not a failure."""
    command = [sys.executable, "-m", "cli.lag.qpid_lag", "dashboard", "--input", kept, "--refresh", "8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said


@contextmanager
def following(spark: SparkSession, telemetry: Path, kept: str) -> Iterator[list[stream.Progress]]:
    """A stream that follows what is written; its batches."""
    batches: list[stream.Progress] = []
    stopping = threading.Event()
    follows = stream.start(spark, stream.Streaming(str(telemetry), kept, trigger_ms=2000), batches.append, stopping)
    try:
        yield batches
    finally:
        stopping.set()
        follows.stop()


class Brokers:
    """Telemetry as brokers write it: into hidden files, which get their names when they are rolled."""

    def __init__(self, folder: Path, story: Path) -> None:
        self.folder = folder
        self.lines = {path.stem: path.read_text().splitlines(keepends=True) for path in story.iterdir()}

    def write(self, until_ms: int) -> None:
        """Everything that was said before then, and not yet written."""
        until = demo_data.iso(until_ms)
        for name, lines in self.lines.items():
            with (self.folder / f".{name}.part").open("a") as file:
                file.writelines(line for line in lines if _moment(line) < until)
            self.lines[name] = [line for line in lines if _moment(line) >= until]

    def roll(self) -> None:
        """Write the rest, bad lines too, and give the files their names."""
        for name, lines in self.lines.items():
            part = self.folder / f".{name}.part"
            with part.open("a") as file:
                file.writelines(lines)
            part.rename(self.folder / f"{name}.jsonl")


def _moment(line: str) -> str:
    """When it was said; of bad lines, the end of time."""
    found = re.search(r'"ts": ?"(\d[^"]*Z)"', line)
    return found[1] if found else "9999"


def test_an_open_page_shows_what_a_running_stream_has_just_read(spark: SparkSession, tmp_path: Path) -> None:
    folder, kept = tmp_path / "telemetry", str(tmp_path / "kept")
    folder.mkdir()
    answers = demo_data.write(tmp_path / "story", demo_data.Shape(START_MS, seconds=120, queues=1))
    brokers = Brokers(folder, tmp_path / "story")
    brokers.write(START_MS + 40_000)
    with following(spark, folder, kept) as batches, dashboard(kept) as url, Browser() as browser:
        tab = browser.open(url)
        tab.wait("document.querySelector('.verdict')", PATIENCE_S)
        assert "The primary did not change" in tab.text("#card-failovers")
        brokers.roll()
        tab.wait("document.querySelector('#card-failovers').innerText.includes('without a primary')", PATIENCE_S)
        tab.wait(f"document.querySelector('#card-quality').innerText.includes('{answers['lines']:,}')", PATIENCE_S)
        assert browser.complaints() == []
    assert len(batches) > 1
