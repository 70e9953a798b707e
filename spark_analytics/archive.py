"""An archive of the classes that Spark loads, which halves its start time. It is made once for each Java, PySpark and user.
Spark also starts without it.

`make` runs one small summary in its own process, which writes the archive when it ends. The file is written under another
name and renamed, so that no start can read an incomplete file. Java ignores an archive that does not fit, for example after
an upgrade, and warns. The warning goes to standard error, because standard output belongs to the command and may be JSON.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyspark

from spark_analytics.errors import Refused

TRAIN: Final = "UNDERSTUDY_SPARK_ARCHIVE_TO"
"""Set in the training process's environment: the file to which Java writes its archive."""
_TIMEOUT_S: Final = 300


def folder() -> Path:
    """The folder of this package in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "understudy"


def path(java: int) -> Path:
    """The file of the archive for this major version of Java."""
    return folder() / f"spark-{pyspark.__version__}-java-{java}.jsa"


def options(java: int) -> str:
    """Java's options for the archive: to write it in training, to use it if it exists, none otherwise."""
    if wanted := os.environ.get(TRAIN):
        return f"-XX:ArchiveClassesAtExit={wanted}"
    there = path(java)
    return f"-Xlog:disable -Xlog:all=warning:stderr -XX:SharedArchiveFile={there}" if there.is_file() else "-Xshare:auto"


def make() -> Path:
    """Make the archive, and replace an older one. Takes about half a minute. Refused if it cannot be written."""
    from spark_analytics import demo_data, session

    target = path(session.java_version())
    with tempfile.TemporaryDirectory(prefix="qpid-lag-") as folder:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = target.with_name(f".{target.name}.{os.getpid()}")
            aside.unlink(missing_ok=True)
        except OSError as error:
            raise Refused(f"cannot write to {target.parent}: {error.strerror}; set XDG_CACHE_HOME to a folder of yours") from None
        demo_data.write(folder, demo_data.Shape(start_ms=1_767_600_000_000, seconds=120, queues=2))
        code = "from spark_analytics.archive import train; import sys; train(sys.argv[1])"
        try:
            done = subprocess.run(
                [sys.executable, "-c", code, folder],
                env=os.environ | {TRAIN: str(aside)},
                timeout=_TIMEOUT_S,
                capture_output=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Refused(f"Spark did not finish a small summary in {_TIMEOUT_S} s; summaries work without the archive") from None
        if done.returncode or not aside.is_file():
            raise Refused("Java wrote no class archive; summaries work without it, only slower to start")
        aside.replace(target)
    return target


def train(folder: str) -> None:
    """Make one small summary, then wait for Java to end: it writes the archive as its last action."""
    from pyspark import SparkContext

    from spark_analytics import session
    from spark_analytics.jobs.summarise import Request, summarise

    spark = session.start()
    summarise(spark, Request(folder, now_ms=1_767_700_000_000))
    gateway = SparkContext._gateway
    spark.stop()
    if gateway is not None:
        java = gateway.proc
        gateway.shutdown()
        java.stdin.close()
        java.wait(_TIMEOUT_S)
