"""Selectors as JMS tells of them, by the letter: trees are walked, NULL is a third truth value, patterns are tried every way.

Nothing of the code that is tested is used here but the classes of the tree. What a message says is a dict of Python values, where
a bool is a truth value, and `Unusable` stands for what has a type that selectors do not know.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from broker.core.selector import tree


class Unusable:
    """A value of another type."""


UNKNOWN = None
_NOT = {True: False, False: True, UNKNOWN: UNKNOWN}
_AND = {
    (True, True): True,
    (True, False): False,
    (True, UNKNOWN): UNKNOWN,
    (False, False): False,
    (False, UNKNOWN): False,
    (UNKNOWN, UNKNOWN): UNKNOWN,
}
_OR = {
    (True, True): True,
    (True, False): True,
    (True, UNKNOWN): True,
    (False, False): False,
    (False, UNKNOWN): UNKNOWN,
    (UNKNOWN, UNKNOWN): UNKNOWN,
}
"""Tables 3-4 to 3-6 of JMS 2.0, each pair in one order."""
_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def _looked_up(table: dict[Any, Any], one: Any, other: Any) -> Any:
    return table[one, other] if (one, other) in table else table[other, one]


def matches(node: Any, said: Mapping[str, Any]) -> bool:
    return truth(node, said) is True


def truth(node: Any, said: Mapping[str, Any]) -> bool | None:
    match node:
        case tree.Identifier(name):
            value = said.get(name)
            return value if isinstance(value, bool) else UNKNOWN
        case tree.Literal(value):
            assert isinstance(value, bool)
            return value
        case tree.Not(operand):
            return _NOT[truth(operand, said)]
        case tree.And(operands) | tree.Or(operands):
            table = _AND if isinstance(node, tree.And) else _OR
            found = truth(operands[0], said)
            for each in operands[1:]:
                found = _looked_up(table, found, truth(each, said))
            return found
        case tree.IsNull(identifier):
            return said.get(identifier.name) is None
        case tree.Compare(sign, left, right):
            return _compared(sign, value_of(left, said), value_of(right, said))
        case tree.In(identifier, values):
            value = said.get(identifier.name)
            return UNKNOWN if value is None else any(_compared("=", value, each) for each in values)
        case tree.Like(identifier, pattern, escape):
            value = said.get(identifier.name)
            return UNKNOWN if value is None else isinstance(value, str) and like(value, characters(pattern, escape))
    raise AssertionError(node)


def value_of(node: Any, said: Mapping[str, Any]) -> Any:
    match node:
        case tree.Identifier(name):
            return said.get(name)
        case tree.Literal(value):
            return value
        case tree.Negative(operand):
            value = value_of(operand, said)
            return -value if _is_number(value) else None
        case tree.Arithmetic(sign, left, right):
            return _calculated(sign, value_of(left, said), value_of(right, said))
    raise AssertionError(node)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _calculated(sign: str, left: Any, right: Any) -> Any:
    if not (_is_number(left) and _is_number(right)):
        return None
    try:
        if sign == "/" and isinstance(left, int) and isinstance(right, int):
            quotient = abs(left) // abs(right)
            return quotient if left * right > 0 else -quotient
        return {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}[sign](left, right)
    except ArithmeticError:
        return None


def _compared(sign: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return UNKNOWN
    numbers = _is_number(left) and _is_number(right)
    alike = numbers or (type(left) is type(right) and isinstance(left, str | bool))
    if sign == "=":
        return alike and bool(left == right)
    if sign == "<>":
        return alike and bool(left != right)
    return numbers and bool(_ORDERS[sign](left, right))


def characters(pattern: str, escape: str) -> list[str]:
    """The pattern, one item for each sign: "_", "%", or "=" with the character that must stand there."""
    found, rest = [], list(pattern)
    while rest:
        first = rest.pop(0)
        if first == escape:
            found.append("=" + rest.pop(0))
        else:
            found.append(first if first in ("_", "%") else "=" + first)
    return found


def like(text: str, pattern: list[str]) -> bool:
    """By a table: whether the text up to each place has the form of the pattern up to each sign."""
    row = [True] + [False] * len(text)
    for sign in pattern:
        if sign == "%":
            row = [any(row[: place + 1]) for place in range(len(row))]
        else:
            row = [False] + [row[place] and sign in ("_", "=" + text[place]) for place in range(len(text))]
    return row[-1]
