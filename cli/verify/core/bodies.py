"""What a message is called, and what it holds.

A message's id is `RUN.PRODUCER.QUEUE.NUMBER.MICROS`: the run that it belongs to, its stream and its number there, and when it was
sent for the first time, by the machine's monotonic clock. Its body follows from the stream and the number alone, so that a
consumer knows every byte that must come.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

_PATTERN = bytes(range(256))


class Bodies(Protocol):
    """What messages hold. It goes to the clients' processes, and hence can be pickled."""

    def body(self, stream: str, number: int) -> bytes:
        """Of a message."""
        ...


@dataclass(frozen=True)
class Numbered:
    """Bodies of `nbytes`, none like another: the message's name, and bytes that depend on its number. A body that is too short
    for the name is that much longer."""

    nbytes: int
    _pattern: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pattern", _PATTERN * (self.nbytes // len(_PATTERN) + 2))

    def body(self, stream: str, number: int) -> bytes:
        """The name, a colon, and bytes that count up from one that the number gives."""
        name = b"%s.%d:" % (stream.encode(), number)
        start = number % len(_PATTERN)
        return name + self._pattern[start : start + self.nbytes - len(name)] if len(name) < self.nbytes else name


class Name(NamedTuple):
    """A message's id, read."""

    run: str
    producer: int
    queue: int
    number: int
    sent_s: float


def write_id(stream: str, number: int, sent_s: float) -> str:
    """The id of a message of the stream `RUN.PRODUCER.QUEUE`."""
    return f"{stream}.{number}.{int(sent_s * 1e6)}"


def read_id(text: object) -> Name | None:
    """What an id says; None when it is none of ours."""
    if not isinstance(text, str) or len(text) > 128 or not text.isascii():
        return None
    run, *numbers = text.split(".")
    if len(numbers) != 4 or not all(number.isdecimal() for number in numbers):
        return None
    producer, queue, number, micros = map(int, numbers)
    return Name(run, producer, queue, number, micros / 1e6)
