"""The telemetry's schema as Spark reads it, version 1: the fields that `telemetry.schema` declares, as Spark's types.

One line is one JSON object of one kind: `sample`, `event`, `roster` or `probe`. All kinds are read with one flat schema, the
union of their fields, because one pass over the files must serve them all. Fields are only ever added: an older file lacks a
field, which then reads as null; a line of a newer version is kept aside and counted.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import ArrayType, BooleanType, DataType, DoubleType, LongType, StringType, StructField, StructType

from telemetry import schema

VERSION: Final = schema.VERSION
KINDS: Final = tuple(schema.KINDS)
_TYPES: Final[dict[str, DataType]] = {
    "long": LongType(),
    "text": StringType(),
    "real": DoubleType(),
    "bool": BooleanType(),
    "texts": ArrayType(StringType()),
}
SAMPLE, EVENT, ROSTER, PROBE = (
    {name: _TYPES[kind] for name, kind in {**schema.COMMON, **schema.KINDS[one]}.items()}
    for one in ("sample", "event", "roster", "probe")
)
"""The fields of each kind. `ts` is read as text and parsed strictly: Spark's own reading turns a number into the year 57742."""

LINE: Final = StructType([StructField(name, kind) for name, kind in {**SAMPLE, **EVENT, **ROSTER, **PROBE}.items()])
"""One line of any kind."""
CORRUPT: Final = "_corrupt_record"
JUDGED: Final = StructType([*LINE.fields, StructField(CORRUPT, StringType())])
"""The same, while it is judged. Without the corrupt-record column torn lines would read as rows of nulls."""

LINES: Final = StructType([StructField("value", StringType()), StructField("file", StringType())])
"""What a source yields: the line's text, and the file that it stands in. Blank lines are no lines."""
