"""The condition for the messages of a link, compiled and ready. The latest ones are cached, because many links of a client have
the same condition."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from broker.core import limits
from broker.core.filters import APPLICATION_PROPERTIES, PROPERTIES, SELECTOR, SQL, Filter
from broker.core.selector import sql
from broker.core.selector.grammar import BadSelector, parsed
from broker.core.selector.program import program
from broker.core.selector.properties import of_application, of_fields
from broker.core.selector.tree import And, Condition

_KEPT = 256
_WILD = 100
"""A search for a piece with `_` takes so many times as long."""
SELECTING: Final = frozenset((SELECTOR, SQL, PROPERTIES, APPLICATION_PROPERTIES))
"""Filters that select by what a message says."""


class Selector:
    """What says which messages a link is to get. Two with the same text are equal.

    `matches(data, start, end, failures)`: whether the message `data[start:end]` matches, the delivery of which has failed so many
    times. One that cannot be read, as far as the selector asks for it, does not. `counts`: whether `failures` matter to it.
    `weight`: how many pieces of patterns are searched for in texts, in searches of a byte per ns.
    """

    __slots__ = ("counts", "matches", "text", "weight")

    def __init__(self, text: str, condition: Condition | None = None) -> None:
        """`condition`: what `text` stands for, if that is not a selector itself. BadSelector when it is not one."""
        self.text = text
        made = program(parsed(text) if condition is None else condition)
        searches, wild = made.searches + made.wild_searches, made.wild_searches
        if searches > limits.MAX_SELECTOR_SEARCHES or wild > limits.MAX_SELECTOR_WILD_SEARCHES:
            raise BadSelector(
                f"the selector's patterns have {searches} parts between two %, {wild} of them with _; at most "
                f"{limits.MAX_SELECTOR_SEARCHES} and {limits.MAX_SELECTOR_WILD_SEARCHES} are allowed"
            )
        self.matches, self.counts = made.matches, made.counts
        self.weight = made.searches + _WILD * wild

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def takes(self, message: bytes, failures: int = 0) -> bool:
        """Whether this message matches."""
        return self.matches(message, 0, len(message), failures)


@lru_cache(_KEPT)
def compiled(text: str) -> Selector:
    """The selector of this text. BadSelector when it is not one."""
    return Selector(text)


def selected(filters: Sequence[Filter]) -> Selector | None:
    """What all of these filters let through, of those that are `SELECTING`; None when there are none. BadSelector."""
    asked = [each for each in filters if each.name in SELECTING]
    texts = [each.value for each in asked if each.name == SELECTOR]
    if len(texts) > 1 or not all(isinstance(text, str) for text in texts):
        raise BadSelector("a source has one selector at most, and that is a string")
    if len(asked) == len(texts):
        return compiled(texts[0]) if texts and texts[0].strip() else None
    conditions = [_condition(each.name, each.value) for each in asked if each.name != SELECTOR or each.value.strip()]
    return Selector(repr(asked), And(tuple(conditions), 0))


def _condition(name: str, value: Any) -> Condition:
    if name == SELECTOR:
        return parsed(value)
    if name == SQL:
        if not isinstance(value, str):
            raise BadSelector("the value of a sql-filter is a string")
        return sql.parsed(value)
    return of_fields(value) if name == PROPERTIES else of_application(value)
