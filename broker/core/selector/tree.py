"""A selector as a tree. A value is a number, a text, a truth value or NULL; a condition is true, false or unknown.

Invariant: a condition is never an operand of a comparison or of arithmetic. So a tree defines when it is true and when it is
false, without a third result on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias


@dataclass(frozen=True, slots=True)
class Identifier:
    """What a message says under this name: a value, or NULL. As a condition: true or false when it is that, else unknown.

    `is_property`: an application property, whatever its name; else names that stand for fields stand for these.
    """

    name: str
    is_property: bool = False
    depth: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, a text or a truth value that stands in the selector."""

    value: str | int | float | bool
    depth: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Negative:
    """Minus a number."""

    operand: Value
    depth: int


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`operator` is one of + - * / of JMS, or one of SQL's: "fraction" (a quotient of exact numbers may have one), "%"."""

    operator: str
    left: Value
    right: Value
    depth: int


@dataclass(frozen=True, slots=True)
class Compare:
    """`operator` is one of = <> < <= > >=. `texts`: texts have an order, too; it is that of their characters' numbers."""

    operator: str
    left: Value
    right: Value
    depth: int
    texts: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a message says nothing under this name."""

    identifier: Identifier
    depth: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Like:
    """Whether a text has this form. `escape` is one character, or ""."""

    identifier: Identifier
    pattern: str
    escape: str
    depth: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class In:
    """Whether a value is one of these."""

    identifier: Identifier
    values: tuple[str | int | float, ...]
    depth: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite; unknown stays unknown."""

    operand: Condition
    depth: int


@dataclass(frozen=True, slots=True)
class And:
    """Whether all of them are true."""

    operands: tuple[Condition, ...]
    depth: int


@dataclass(frozen=True, slots=True)
class Or:
    """Whether one of them is true."""

    operands: tuple[Condition, ...]
    depth: int


Value: TypeAlias = Identifier | Literal | Negative | Arithmetic
Condition: TypeAlias = Identifier | Literal | Compare | IsNull | Like | In | Not | And | Or
Node: TypeAlias = Value | Condition
