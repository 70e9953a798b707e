"""A selector, ready to be asked. Those that were made last are kept: many links of a client have the same one."""

from __future__ import annotations

from functools import lru_cache

from broker.core.selector.grammar import parsed
from broker.core.selector.program import program

_KEPT = 256


class Selector:
    """What says which messages a link is to get. Two of the same text are equal.

    `matches(data, start, end, failures)`: whether the message `data[start:end]` matches, the delivery of which has failed so many
    times. One that cannot be read, as far as the selector asks for it, does not. `counts`: whether `failures` matter to it.
    """

    __slots__ = ("counts", "matches", "text")

    def __init__(self, text: str) -> None:
        """BadSelector when it is none."""
        self.text = text
        self.matches, self.counts = program(parsed(text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def takes(self, message: bytes, failures: int = 0) -> bool:
        """Whether this message matches."""
        return self.matches(message, 0, len(message), failures)


@lru_cache(_KEPT)
def compiled(text: str) -> Selector:
    """The selector of this text. BadSelector when it is none."""
    return Selector(text)
