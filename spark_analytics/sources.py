"""Where telemetry lines come from: folders of JSON lines, read as text so that no bad line is lost or fatal.

Spark's JSON source would drop the second of two objects on one line and hide which file a bad line stands in; its text source
gives the line itself. Files that are still being written are hidden (a dot in front) and Spark leaves those alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_analytics.errors import Refused

SUFFIXES = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of telemetry: how many whole files, how many bytes, how many files that never became whole."""

    path: str
    files: int
    nbytes: int
    unfinished: int


def inspect(path: str) -> Folder:
    """Look at a local folder (or a single file) before Spark is started. Refused when there is nothing to read."""
    folder = Path(path)
    if not folder.exists():
        raise Refused(f"there is no folder {path}: give --input the folder that the brokers write telemetry to")
    if folder.is_file():
        if not folder.name.endswith(SUFFIXES):
            raise Refused(f"{path} is no telemetry: its name should end in .jsonl or .jsonl.gz")
        return Folder(path, 1, folder.stat().st_size, 0)
    try:
        whole = [file for file in folder.rglob("*") if file.name.endswith(SUFFIXES) and not file.name.startswith((".", "_"))]
        unfinished = sum(1 for _ in folder.rglob(".*.part"))
        nbytes = sum(file.stat().st_size for file in whole)
    except OSError as error:
        raise Refused(f"cannot read {error.filename or path}: {error.strerror}; check its owner and mode") from None
    if not whole:
        hint = f"{unfinished} unfinished file(s) will appear when their broker rolls them" if unfinished else "no *.jsonl in it"
        raise Refused(f"{path} holds no telemetry yet ({hint}): is it the folder that the brokers write telemetry to?")
    for file in whole:
        if not _readable(file):
            raise Refused(f"cannot read {file}: check its owner and mode")
    return Folder(path, len(whole), nbytes, unfinished)


def _readable(file: Path) -> bool:
    try:
        with file.open("rb"):
            return True
    except OSError:
        return False


def is_remote(path: str) -> bool:
    """Whether Spark alone can look there (s3a://, hdfs://, ...)."""
    return "://" in path and not path.startswith("file://")


def read_lines(spark: SparkSession, path: str) -> DataFrame:
    """Every line below `path`, as `schemas.LINES`: its text and the name of its file."""
    lines = spark.read.text(path, recursiveFileLookup=True, pathGlobFilter="*.{jsonl,jsonl.gz}")
    return lines.select("value", F.col("_metadata.file_path").alias("file")).where(F.length(F.trim("value")) > 0)
