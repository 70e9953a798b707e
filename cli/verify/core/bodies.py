"""The id and the body of a message.

A message's id is `RUN.PRODUCER.QUEUE.NUMBER.MICROS`: its run, its stream and its number there, and the time when it was
first sent, by the machine's monotonic clock. Its body depends only on the stream and the number, so a consumer knows
every expected byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

_PATTERN = bytes(range(256))


class Bodies(Protocol):
    """The bodies of messages. It is sent to the clients' processes, so it can be pickled."""

    def body(self, stream: str, number: int) -> bytes:
        """The body of a message."""
        ...


@dataclass(frozen=True)
class Numbered:
    """Bodies of `nbytes`, all different: the message's name, and bytes that depend on its number. If `nbytes` is too
    short for the name, the body is longer.
    """

    nbytes: int
    _pattern: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pattern", _PATTERN * (self.nbytes // len(_PATTERN) + 2))

    def body(self, stream: str, number: int) -> bytes:
        """The name, a colon, and bytes that count up from a start value that depends on the number."""
        name = b"%s.%d:" % (stream.encode(), number)
        start = number % len(_PATTERN)
        return name + self._pattern[start : start + self.nbytes - len(name)] if len(name) < self.nbytes else name


class Name(NamedTuple):
    """A parsed message id."""

    run: str
    producer: int
    queue: int
    number: int
    sent_s: float


def write_id(stream: str, number: int, sent_s: float) -> str:
    """The id of a message of the stream `RUN.PRODUCER.QUEUE`."""
    return f"{stream}.{number}.{int(sent_s * 1e6)}"


def read_id(text: object) -> Name | None:
    """Parse an id; None if it is not one of ours."""
    if not isinstance(text, str) or len(text) > 128 or not text.isascii():
        return None
    run, *numbers = text.split(".")
    if len(numbers) != 4 or not all(number.isdecimal() for number in numbers):
        return None
    producer, queue, number, micros = map(int, numbers)
    return Name(run, producer, queue, number, micros / 1e6)
