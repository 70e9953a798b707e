"""The sources of telemetry lines: folders of JSON lines, read as text, so that a bad line is neither lost nor fatal.

Spark's JSON source would drop the second of two objects on one line, and would not tell the file of a bad line. Its text
source gives the line itself. Files that are still being written are hidden (a dot in front), and Spark does not read them. In
a folder of this machine they are few and small, so their complete lines are read here. Otherwise a healthy primary would look
silent while its newest file is hidden.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyspark
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_analytics.errors import Refused
from spark_analytics.locations import first_line, is_remote, pattern, why_not

SUFFIXES: Final = (".jsonl", ".jsonl.gz")
UNFINISHED: Final = ".*.part"
_PEEK_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of telemetry: the number of complete files, their bytes, and the number of files that are still being written."""

    path: str
    files: int
    nbytes: int
    unfinished: int
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class Kafka:
    """A topic whose messages are lines of telemetry."""

    servers: str
    topic: str


def inspect(path: str) -> Folder:
    """Inspect a local folder (or a single file) before Spark is started. Refused if there is nothing to read."""
    folder = Path(path)
    if not folder.exists():
        raise Refused(f"there is no folder {path}: give --input the folder that the brokers write telemetry to")
    if folder.is_file():
        if not folder.name.endswith(SUFFIXES):
            raise Refused(f"{path} is not telemetry: its name should end in .jsonl or .jsonl.gz")
        return Folder(path, 1, folder.stat().st_size, 0, int(not _is_whole_gzip(folder)))
    try:
        whole = [file for file in folder.rglob("*") if file.name.endswith(SUFFIXES) and not file.name.startswith((".", "_"))]
        unfinished = len(_unfinished(folder))
        sizes = {file: size for file in whole if (size := _size(file)) is not None}
    except OSError as error:
        raise Refused(f"cannot read {error.filename or path}: {error.strerror}; check its owner and mode") from None
    if not sizes and not unfinished:
        raise Refused(f"{path} holds no telemetry yet (no *.jsonl in it): is it the folder that the brokers write telemetry to?")
    for file in sizes:
        if not _readable(file):
            raise Refused(f"cannot read {file}: check its owner and mode")
    return Folder(path, len(sizes), sum(sizes.values()), unfinished, sum(not _is_whole_gzip(file) for file in sizes))


def _size(file: Path) -> int | None:
    """Its bytes; None if its broker has deleted it meanwhile."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return None


def _readable(file: Path) -> bool:
    try:
        with file.open("rb"):
            return True
    except FileNotFoundError:
        return True  # its broker has deleted it meanwhile
    except OSError:
        return False


def _is_whole_gzip(file: Path) -> bool:
    """Whether the beginning of a packed file can be unpacked; True for other files. Spark silently skips files that it cannot
    unpack."""
    if file.suffix != ".gz":
        return True
    try:
        with gzip.open(file) as unpacked:
            unpacked.read(_PEEK_BYTES)
    except FileNotFoundError:
        return True
    except (OSError, EOFError, zlib.error):
        return False
    return True


def read_lines(spark: SparkSession, path: str) -> DataFrame:
    """All lines below `path`, as `schemas.LINES`: the text and the name of the file. Refused if Spark cannot read the
    location."""
    unfinished = {} if is_remote(path) else unfinished_lines(Path(path))
    try:
        # A broker deletes its oldest files at any time, also after Spark has listed them.
        reader = spark.read.option("ignoreMissingFiles", "true")
        lines = reader.text(pattern(path), recursiveFileLookup=True, pathGlobFilter="*.{jsonl,jsonl.gz}")
    except Exception as error:
        raise Refused(why_not(spark, path, error)) from None
    found = lines.select("value", F.col("_metadata.file_path").alias("file"))
    if unfinished:  # Spark listed the files later than we did: it also reads files that were renamed meanwhile
        finished = {unquote(uri.rpartition("/")[2]) for uri in lines.inputFiles()}
        unfinished = {file: text for file, text in unfinished.items() if finished.isdisjoint(_finished_names(file))}
    return found.unionByName(_as_lines(spark, unfinished)) if any(unfinished.values()) else found


def unfinished_lines(folder: Path) -> dict[Path, list[str]]:
    """The complete lines of the files below a folder that are still being written."""
    found = {}
    for file in _unfinished(folder) if folder.is_dir() else ():
        try:
            text = file.read_bytes()
        except FileNotFoundError:
            text = b""
        found[file] = text[: text.rfind(b"\n") + 1].decode("utf-8", "replace").split("\n")[:-1]
    return found


def _unfinished(folder: Path) -> list[Path]:
    """The files that are still being written. If NAME.jsonl is beside `.NAME.part`, that is an old copy, which `rsync` leaves."""
    files = sorted(folder.rglob(UNFINISHED))
    return [file for file in files if not any(file.with_name(name).exists() for name in _finished_names(file))]


def _finished_names(unfinished: Path) -> list[str]:
    """`NAME.jsonl` and `NAME.jsonl.gz` for `.NAME.part`; the name is unique for each sender and time."""
    return [unfinished.name[1 : -len(".part")] + suffix for suffix in SUFFIXES]


def _as_lines(spark: SparkSession, texts: dict[Path, list[str]]) -> DataFrame:
    columns = {
        "value": [line for lines in texts.values() for line in lines],
        "file": [file.absolute().as_uri() for file, lines in texts.items() for _ in lines],
    }
    return spark.createDataFrame(pa.table(columns))


def stream_lines(spark: SparkSession, path: str, *, files_per_batch: int) -> DataFrame:
    """New lines below a URL as they appear, by Spark's own file source: only complete files, each once. Refused if it cannot."""
    reader = spark.readStream.option("recursiveFileLookup", "true").option("pathGlobFilter", "*.{jsonl,jsonl.gz}")
    try:
        lines = reader.option("maxFilesPerTrigger", files_per_batch).option("maxFileAge", "3650d").text(path)
    except Exception as error:
        raise Refused(why_not(spark, path, error)) from None
    return lines.select("value", F.col("_metadata.file_path").alias("file"))


def read_kafka(spark: SparkSession, kafka: Kafka) -> DataFrame:
    """All lines that the topic has now, as `schemas.LINES`; a message may hold several. Refused if Spark cannot read it."""
    try:
        messages = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", kafka.servers)
            .option("subscribe", kafka.topic)
            .option("startingOffsets", "earliest")
            .load()
        )
    except AnalysisException as error:
        raise Refused(no_kafka(error)) from None
    return kafka_lines(messages)


def kafka_lines(messages: DataFrame) -> DataFrame:
    """Kafka's rows to `schemas.LINES`; the file is the topic's partition."""
    name = F.concat_ws("/", "topic", F.col("partition").cast("string"))
    return messages.select(F.explode(F.split(F.col("value").cast("string"), "\n")).alias("value"), name.alias("file"))


def no_kafka(error: Exception) -> str:
    """The message for users that ask for Kafka, if their Spark has no reader for it."""
    if "kafka" not in str(error).lower():
        return first_line(error)
    package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    return f"this Spark has no reader for Kafka: start it with the package {package} (spark-submit --packages {package} ...)"
