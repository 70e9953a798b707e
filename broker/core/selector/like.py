"""The patterns of LIKE: `_` matches one character, `%` any number of characters, also none.

A pattern is split at each `%` into pieces of fixed length. The first piece must be at the beginning of a text, the last one at
its end. Each of the others is searched after the one before it, as far to the left as possible: if the pattern matches at all, it
matches in this way. No character is examined again for another `%`, so the time is linear in the length of the text. A piece
without `_` is found by `str.find`; for another one, each of its characters has a bit, and all bits are moved on with each
character of the text. That takes about a hundred times as long, so it is done only with texts of up to
`limits.MAX_WILD_SEARCHED_CHARS` characters.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import TypeAlias

from broker.core import limits
from broker.core.values import BadValue

_Character: TypeAlias = str | None
"""None stands for any."""


def ends_escaping(pattern: str, escape: str) -> bool:
    """Whether the pattern ends with an escape character that has nothing to escape."""
    position = 0
    while position < len(pattern):
        if pattern[position] == escape:
            position += 1
            if position == len(pattern):
                return True
        position += 1
    return False


def searches(pattern: str, escape: str) -> tuple[int, int]:
    """How many pieces are searched for in a text: those without `_`, and those with it."""
    middle = [piece for piece in _pieces(pattern, escape)[1:-1] if piece]
    wild = sum(None in piece for piece in middle)
    return len(middle) - wild, wild


def matcher(pattern: str, escape: str) -> Callable[[str], bool]:
    """What says of a text whether it has the form of this pattern, which does not end escaping (see `ends_escaping`). BadValue
    when the text is too long to search it for this pattern."""
    pieces = [_Piece(piece) for piece in _pieces(pattern, escape)]
    match [piece.text for piece in pieces]:
        case [str(text), ""]:
            return methodcaller("startswith", text)
        case ["", str(text)]:
            return methodcaller("endswith", text)
        case ["", str(text), ""]:
            return methodcaller("__contains__", text)
    if len(pieces) == 1:
        (only,) = pieces
        return lambda text: len(text) == only.length and only.stands_at(text, 0)
    first, *middle, last = pieces
    middle = [piece for piece in middle if piece.length]
    shortest = sum(piece.length for piece in pieces)
    most = limits.MAX_WILD_SEARCHED_CHARS if any(piece.text is None for piece in middle) else limits.MAX_SELECTOR_SECTION_BYTES

    def matches(text: str) -> bool:
        end = len(text) - last.length
        if len(text) > most:
            raise BadValue(f"a text of {len(text)} characters is too long for the pattern")
        if len(text) < shortest or not first.stands_at(text, 0) or not last.stands_at(text, end):
            return False
        position = first.length
        for piece in middle:
            position = piece.find(text, position, end)
            if position < 0:
                return False
            position += piece.length
        return True

    return matches


def _pieces(pattern: str, escape: str) -> list[list[_Character]]:
    pieces: list[list[_Character]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            pieces[-1].append(next(characters))
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    return pieces


class _Piece:
    """A part of a pattern between two `%`."""

    __slots__ = ("_any", "_masks", "_texts", "_whole", "length")

    def __init__(self, characters: list[_Character]) -> None:
        self.length = len(characters)
        self._texts: list[tuple[int, str]] = []
        """The stretches without `_`, and how far from its beginning each is."""
        self._masks: dict[str, int] = {}
        """Character -> a bit for each place of this piece where it may stand."""
        self._any = sum(1 << place for place, character in enumerate(characters) if character is None)
        self._whole = "".join(character or "_" for character in characters)
        stretch = ""
        for place, character in enumerate([*characters, None]):
            if character is not None:
                stretch += character
                self._masks[character] = self._masks.get(character, self._any) | 1 << place
            elif stretch:
                self._texts.append((place - len(stretch), stretch))
                stretch = ""

    @property
    def text(self) -> str | None:
        """The text that it is, if it has no `_`."""
        return None if self._any else self._whole

    def stands_at(self, text: str, position: int) -> bool:
        """Whether it is here; there are enough characters."""
        if not self._any:
            return text.startswith(self._whole, position)
        return all(text.startswith(stretch, position + offset) for offset, stretch in self._texts)

    def find(self, text: str, position: int, end: int) -> int:
        """The first place from `position` on where it stands before `end`; -1 when there is none."""
        if not self._any:
            return text.find(self._whole, position, end)
        here, whole, masks, otherwise = 0, 1 << self.length - 1, self._masks, self._any
        for at in range(position, end):
            here = (here << 1 | 1) & masks.get(text[at], otherwise)
            if here & whole:
                return at + 1 - self.length
        return -1
