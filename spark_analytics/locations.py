"""Locations: paths of this machine, and URLs that only Spark can read.

For this code, a path without a scheme is on this machine. For Spark it is on the cluster's file system, if there is one (HDFS
under YARN). So Spark never gets such a path: `located` makes it a URL.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_analytics.errors import Refused


def is_remote(path: str) -> bool:
    """Whether only Spark can read the location (s3a://, hdfs://, and also file://, which is a request to use Spark)."""
    return "://" in path


def here(path: str | Path) -> Path:
    """The path of a location on this machine; it may have the prefix file://."""
    return Path(str(path).removeprefix("file://"))


def located(path: str | Path) -> str:
    """The location for Spark: a URL unchanged, a path as a URL of this machine."""
    text = str(path)
    return text if is_remote(text) else f"file://{os.path.abspath(text)}"


def pattern(path: str | Path) -> str:
    """The location for Spark to read. It takes one for a pattern, so what is special in a path of this machine is escaped."""
    return located(path) if is_remote(str(path)) else _SPECIAL.sub(r"\\\g<0>", located(path))


def size(spark: SparkSession, url: str) -> int | None:
    """The total bytes at a URL and below it; None if they are not known, for example for a pattern."""
    try:
        target, files, _ = _hadoop(spark, url)
        return int(files.getContentSummary(target).getLength())
    except (Py4JError, PySparkException):
        return None


def writable(spark: SparkSession, url: str) -> None:
    """Check that Spark can write there, before the work is done and not after it. Refused."""
    try:
        target, files, _ = _hadoop(spark, url)
        is_folder = files.exists(target) and files.getFileStatus(target).isDirectory()
    except (Py4JError, PySparkException) as error:
        raise Refused(f"cannot write {url}: {first_line(error)}") from None
    if is_folder:
        raise Refused(f"cannot write {url}: it is a folder; name a file in it")


def put(spark: SparkSession, url: str, content: bytes) -> None:
    """Write a file at a URL: first under another name, and then rename it, so that no reader sees an incomplete file.
    Refused."""
    try:
        target, files, hadoop = _hadoop(spark, url)
        aside = hadoop.Path(target.getParent(), f".{target.getName()}.part")
        files.setWriteChecksum(False)  # a file of this machine gets no hidden checksum file
        stream = files.create(aside, True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()
        over = spark.sparkContext._gateway.new_array(getattr(hadoop, "Options$Rename"), 1)  # type: ignore[union-attr]
        over[0] = getattr(hadoop, "Options$Rename").OVERWRITE
        hadoop.FileContext.getFileContext(target.toUri(), files.getConf()).rename(aside, target, over)
    except (Py4JError, PySparkException) as error:
        raise Refused(f"cannot write {url}: {first_line(error)}") from None


def _hadoop(spark: SparkSession, url: str) -> tuple[Any, Any, Any]:
    """The path, its file system, and Hadoop's package, all as Java objects."""
    context: Any = spark.sparkContext
    hadoop = context._jvm.org.apache.hadoop.fs
    target = hadoop.Path(url)
    return target, hadoop.FileSystem.newInstance(target.toUri(), context._jsc.hadoopConfiguration()), hadoop


def why_not(spark: SparkSession, url: str, error: Exception) -> str:
    """Why Spark cannot read a URL, with the next step if it is known."""
    if "S3AFileSystem not found" not in str(error):
        return f"Spark cannot read {url}: {first_line(error)}"
    context: Any = spark.sparkContext
    package = f"org.apache.hadoop:hadoop-aws:{context._jvm.org.apache.hadoop.util.VersionInfo.getVersion()}"
    return f"this Spark has no reader for {url}: start it with the package {package} (spark-submit --packages {package} ...)"


def cause(error: Exception) -> str:
    """The part of Spark's message that says what happened."""
    return first_line(error).split("SQLSTATE", maxsplit=1)[0].strip()[:300]


def first_line(error: Exception) -> str:
    """The line of an exception that says what happened: for an error in Python code of Spark the end of its traceback, for
    Java the first line that names a cause.
    """
    text = str(error)
    if _TRACEBACK in text:
        said = text.rsplit(_TRACEBACK, 1)[1].splitlines()
        lines = [line for line in said if line.strip() and not line[0].isspace()]
    else:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith(": ")]
    return _REFUSED.sub("", (causes or lines or [type(error).__name__])[0].removeprefix(": "))[:300]


_SPECIAL: Final = re.compile(r"[][{}*?\\]")
_TRACEBACK: Final = "Traceback (most recent call last):"
_REFUSED: Final = re.compile(r"^([\w.]+\.)?Refused: ")
