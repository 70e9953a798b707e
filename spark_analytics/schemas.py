"""The telemetry's schema as Spark reads it, version 1: the fields that `telemetry.schema` declares, as Spark's types.

One line is one JSON object of one kind: `sample`, `event`, `roster` or `probe`. All kinds are read with one flat schema, the
union of their fields, because one pass over the files must serve them all. Fields are only ever added. An older file lacks a
new field, which is then read as null. A line of a newer version is set aside and counted.
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
"""The fields of each kind. `ts` is read as text and parsed strictly, because Spark's own parser turns a number into the year
57742."""

LINE: Final = StructType([StructField(name, kind) for name, kind in {**SAMPLE, **EVENT, **ROSTER, **PROBE}.items()])
"""One line of any kind."""
CORRUPT: Final = "_corrupt_record"
JUDGED: Final = StructType([*LINE.fields, StructField(CORRUPT, StringType())])
"""The same with a column for corrupt records, for the checks. Without it torn lines would be read as rows of nulls."""

LINES: Final = StructType([StructField("value", StringType()), StructField("file", StringType())])
"""The rows of a source: the line's text, and its file. Blank lines do not count as lines."""
