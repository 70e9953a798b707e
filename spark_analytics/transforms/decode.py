"""Lines of telemetry to records, and a field of many records to a column of numbers: what the pass by the column begins with.

Lines come in one of two forms: as `texts`, an array of them, which is what Spark hands over; or as a `block`, a piece of a file
as it stands there, of which nothing is copied where all is plain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from pyarrow import compute

from spark_analytics.schemas import CORRUPT, LOOK

NULL: Final = int(np.iinfo(np.int64).min)
"""Stands for a number that is not there."""
BEYOND: Final = NULL + 1
"""Stands for one that is too large or too small."""
LEAST_LONG, MOST_LONG = NULL + 1, int(np.iinfo(np.int64).max)
TIME: Final = "2026-01-31T23:59:59.999Z"
"""A time as brokers write it."""
_TIMES_MARKS: Final = tuple((at, ord(mark)) for at, mark in enumerate(TIME) if not mark.isdigit())
_NEWLINE, _OPEN, _CLOSE = b"\n{}"

Decode = Callable[[Any], list[Any] | None]


class Lines(Protocol):
    """Some lines, and the files that they stand in."""

    def __len__(self) -> int: ...

    def parts(self, most: int) -> Iterator[Lines]:
        """The same in order, at most so many at a time."""

    def names(self) -> set[str]:
        """The files."""

    def objects(self) -> np.ndarray:
        """Which of them begin and end as an object does."""

    def joined(self) -> Any:
        """All of them, each ended by a newline."""

    def texts(self, at: np.ndarray) -> pa.Array:
        """The text of some of them."""

    def files(self, at: np.ndarray) -> pa.Array:
        """The files of some of them."""


@dataclass(frozen=True, slots=True)
class _Texts:
    value: pa.Array
    file: pa.Array

    def __len__(self) -> int:
        return len(self.value)

    def parts(self, most: int) -> Iterator[_Texts]:
        for first in range(0, len(self), most):
            yield _Texts(self.value.slice(first, most), self.file.slice(first, most))

    def names(self) -> set[str]:
        return set(self.file.unique().to_pylist())

    def objects(self) -> np.ndarray:
        found = compute.and_(compute.starts_with(self.value, "{"), compute.ends_with(self.value, "}"))
        return np.asarray(found.to_numpy(zero_copy_only=False))

    def joined(self) -> Any:
        return _joined(self.value)

    def texts(self, at: np.ndarray) -> pa.Array:
        return self.value.take(pa.array(at))

    def files(self, at: np.ndarray) -> pa.Array:
        return self.file.take(pa.array(at))


@dataclass(frozen=True, slots=True)
class _Block:
    """`begins` and `ends`: the place of each line's first byte in `content`, and of its newline."""

    content: memoryview
    letters: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    file: str

    def __len__(self) -> int:
        return len(self.ends)

    def parts(self, most: int) -> Iterator[_Block]:
        for first in range(0, len(self), most):
            begins, ends = self.begins[first : first + most], self.ends[first : first + most]
            yield _Block(self.content, self.letters, begins, ends, self.file)

    def longest(self) -> int:
        """The bytes of the longest."""
        return int((self.ends - self.begins).max(initial=0))

    def names(self) -> set[str]:
        return {self.file}

    def objects(self) -> np.ndarray:
        found: np.ndarray = (self.letters[self.begins] == _OPEN) & (self.letters[self.ends - 1] == _CLOSE)
        return found

    def joined(self) -> Any:
        return self.content[int(self.begins[0]) : int(self.ends[-1]) + 1]

    def texts(self, at: np.ndarray) -> pa.Array:
        ranges = zip(self.begins[at].tolist(), self.ends[at].tolist(), strict=True)
        return pa.array([self.content[begin:end] for begin, end in ranges], pa.binary()).view(pa.string())

    def files(self, at: np.ndarray) -> pa.Array:
        return pa.repeat(self.file, len(at))


def texts(value: pa.Array, file: pa.Array) -> Lines:
    """Lines in an array, and the file of each."""
    return _Texts(value, file)


def block(content: bytes, file: str) -> _Block:
    """The lines of a piece of a file, each ended by a newline. Their bytes stay what they are, of UTF-8 or not."""
    letters = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(letters == _NEWLINE)
    begins = np.append(0, ends[:-1] + 1)[: len(ends)]
    return _Block(memoryview(content), letters, begins, ends, file)


def _joined(texts: pa.Array) -> Any:
    """Texts, each ended by a newline."""
    whole = compute.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), "\n")
    return whole[0].as_buffer()


def records_of(lines: Lines, decode: Decode | None) -> tuple[np.ndarray, list[Any], np.ndarray]:
    """The places of those lines that can be decoded, their records, and the places of the others."""
    everyone = np.arange(len(lines))
    if decode is None:
        return everyone[:0], [], everyone
    objects = lines.objects()
    if objects.all():
        records = decode(lines.joined())
        if records is not None and len(records) == len(lines):
            return everyone, records, everyone[:0]
    at, records, odd = _decoded(lines, np.flatnonzero(objects), decode)
    return at, records, np.concatenate((*odd, np.flatnonzero(~objects)))


def _decoded(lines: Lines, at: np.ndarray, decode: Decode) -> tuple[np.ndarray, list[Any], list[np.ndarray]]:
    """`records_of` the lines at those places, by halves, until the odd ones stand alone."""
    records = decode(_joined(lines.texts(at))) if len(at) else []
    if records is not None and len(records) == len(at):
        return at, records, []
    if len(at) == 1:
        return at[:0], [], [at]
    half = len(at) // 2
    found, records, odd = _decoded(lines, at[:half], decode)
    more_found, more_records, more_odd = _decoded(lines, at[half:], decode)
    return np.concatenate((found, more_found)), records + more_records, odd + more_odd


def decoder() -> Decode | None:
    """What makes records of lines that are each ended by a newline, None when one of them cannot be; None without msgspec."""
    try:
        import msgspec
    except ImportError:
        return None
    types = {"string": str, "bigint": int, "double": float, "boolean": bool, "array<string>": list[str]}
    fields = [(name, types[LOOK[name].dataType.simpleString()] | None, None) for name in LOOK.names if name != CORRUPT]
    decoding = msgspec.json.Decoder(msgspec.defstruct("Look", fields, gc=False))

    def decode(lines: Any) -> list[Any] | None:
        try:
            return decoding.decode_lines(lines)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    return decode


def longs(records: list[Any], name: str) -> np.ndarray:
    """A field of records: NULL where there is none, BEYOND where it does not fit."""
    get = attrgetter(name)
    with suppress(TypeError, OverflowError):
        found = np.fromiter(map(get, records), np.int64, len(records))
        if not len(found) or found.min() > BEYOND:
            return found
    numbers = list(map(get, records))
    if numbers.count(None) == len(numbers):
        return np.full(len(numbers), NULL)
    return np.array([NULL if n is None else n if BEYOND < n <= MOST_LONG else BEYOND for n in numbers], np.int64)


def doubles(records: list[Any], name: str) -> np.ndarray:
    """A field of records; not a number where there is none."""
    get = attrgetter(name)
    try:
        return np.fromiter(map(get, records), np.float64, len(records))
    except TypeError:
        return np.array([get(record) for record in records], np.float64)


def times(texts: list[str | None]) -> tuple[np.ndarray, np.ndarray]:
    """Times in ms since 1970, and which of them stand there as brokers write them; the others are of no meaning."""
    plain = np.ones(len(texts), bool)
    if None in texts or len("".join(texts).encode()) != len(TIME) * len(texts):  # type: ignore[arg-type]
        plain = np.array([text is not None and len(text) == len(TIME) and text.isascii() for text in texts])
        texts = [text if usual else TIME for text, usual in zip(texts, plain, strict=True)]
    column = pa.array(texts, pa.string())
    letters = np.frombuffer("".join(texts).encode(), np.uint8).reshape(len(texts), len(TIME))  # type: ignore[arg-type]
    for at, mark in _TIMES_MARKS:
        plain &= letters[:, at] == mark
    try:
        moments = column.cast(pa.timestamp("ms", "UTC"))
    except pa.ArrowInvalid:
        valid = np.array([_is_time(text) for text in column])
        plain &= valid
        moments = compute.if_else(pa.array(valid), column, TIME).cast(pa.timestamp("ms", "UTC"))
    return moments.cast(pa.int64()).to_numpy(), plain


def _is_time(text: pa.Scalar) -> bool:
    try:
        text.cast(pa.timestamp("ms", "UTC"))
    except pa.ArrowInvalid:
        return False
    return True
