"""Files of this machine that Spark's Python workers open themselves, so that no line of theirs goes through Java.

Spark finds the files, leaves the hidden ones alone, and deals them out to tasks as it does for any source; only what stands in
them it does not touch. What its own reader makes of the same bytes is what comes out here: a line ends at a newline, at a return,
or at both; a byte order mark at a file's beginning is no part of it; a file whose reading fails is passed over from there on
(`session.MEANING`), and one that has gone is an error. Packed files, files that are worth splitting, and all that lies at a URL
are left to Spark's reader of text: whole files as bytes (`binaryFile`) reach a worker no cheaper than their lines do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_analytics.errors import Refused
from spark_analytics.places import located
from spark_analytics.transforms import columnar, decode

WHOLE_BELOW: Final = 64 << 20
"""Files of so many bytes and more are read by Spark, which splits them among tasks."""
CHUNK: Final = 4 << 20
_MARK: Final = b"\xef\xbb\xbf"


def whole(spark: SparkSession, path: str, *, below: int = WHOLE_BELOW) -> DataFrame:
    """The names of those files below a folder of this machine that are read here, as `file`. Not one of them is opened."""
    every = spark.read.format("binaryFile").load(located(path), recursiveFileLookup=True, pathGlobFilter="*.jsonl")
    return every.where(F.col("length") < below).select(F.col("_metadata.file_path").alias("file"))


def looked_over(files: DataFrame, rules: columnar.Rules) -> DataFrame:
    """The names of files to `columnar.FOUND`."""
    return files.mapInArrow(partial(_in_worker, rules), columnar.FOUND)


def path_of(uri: str) -> Path:
    """The path of a file:// URL."""
    return Path(url2pathname(urlsplit(uri).path))


def _in_worker(rules: columnar.Rules, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    uris = (uri for batch in batches for uri in batch.column("file").to_pylist())
    return columnar.added_up(rules, (piece for uri in uris for piece in pieces_of(uri)))


def pieces_of(uri: str) -> Iterator[decode.Lines]:
    """A whole file's lines, some thousands at a time."""
    try:
        with path_of(uri).open("rb") as file:
            for number, content in enumerate(blocks(file)):
                said = content if number else content.removeprefix(_MARK)
                if b"\r" in said:
                    said = said.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
                yield decode.block(said, uri)
    except FileNotFoundError:
        raise Refused(f"{path_of(uri)} has gone since its folder was listed: ask again") from None
    except OSError:
        return


def blocks(file: Any, nbytes: int | None = None, *, longest: int | None = None) -> Iterator[bytes]:
    """What an open file holds from here on, or so many bytes of it, in pieces that end with a newline each.

    A line that is longer than a piece is cut at `longest` bytes.
    """
    rest = b""
    while block := file.read(CHUNK if nbytes is None else min(CHUNK, nbytes)):
        nbytes = None if nbytes is None else nbytes - len(block)
        end = block.rfind(b"\n")
        if end >= 0:
            yield rest + block[: end + 1]
            rest = block[end + 1 :]
        else:
            rest += block
        if longest is not None:
            rest = rest[:longest]
    if rest:
        yield rest + b"\n"
