"""Compiles a selector's tree to Python code that decides whether a message matches.

A condition is true, false or unknown (JMS 2.0 section 3.8.1.2), and a message matches when the whole is true. For this there are
two Python expressions, of which each part of the tree needs only one: `_true` is true exactly when the condition is true,
`_false` exactly when it is false. NOT exchanges them; AND is true when all parts are true, and false when one is false. A
condition is "unknown" when neither is true, which costs nothing.

Comparisons are those of JMS: with NULL they are unknown; values of different types are neither equal nor unequal nor ordered, so
every comparison of them is false. Arithmetic with a value that is not a number, and division by zero, give NULL. Exact numbers
are exact, however large, and compare with approximate ones by their mathematical values; a quotient of exact numbers loses its
fraction.

Invariants: texts of the selector are constants of the code and never part of its source; the code's size is linear in that of the
selector.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import ge, gt, le, lt
from typing import Any, Final, NamedTuple, TypeAlias, assert_never

from broker.core.selector.fields import FAULTS, Plan, Truth, Value
from broker.core.selector.like import matcher, searches
from broker.core.selector.tree import (
    And,
    Arithmetic,
    Compare,
    Condition,
    Identifier,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Not,
    Or,
)
from broker.core.selector.tree import Value as ValueNode

Matches: TypeAlias = Callable[[bytes, int, int, int], bool]
"""Whether the message `data[start:end]` matches whose delivery has failed so many times."""

_NUMBERS: Final = frozenset((int, float))


def _calculated(operate: Callable[[Any, Any], Any]) -> Callable[[Value, Value], Value]:
    def of(left: Value, right: Value) -> Value:
        if left.__class__ not in _NUMBERS or right.__class__ not in _NUMBERS:
            return None
        try:
            found: Value = operate(left, right)
        except (ZeroDivisionError, OverflowError):
            return None
        return found

    return of


def _divide(left: Any, right: Any) -> Any:
    if left.__class__ is int and right.__class__ is int:
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return left / right


def _remain(left: Any, right: Any) -> Any:
    """What is left over, with the sign of `left`; of exact numbers alone."""
    if left.__class__ is int and right.__class__ is int:
        return abs(left) % abs(right) * (-1 if left < 0 else 1)
    return None


def _equal(left: Value, right: Value) -> bool:
    return left is not None and left == right


def _unequal(left: Value, right: Value) -> bool:
    kind = left.__class__
    alike = kind is right.__class__ and (kind is str or kind is Truth)
    return (alike or (kind in _NUMBERS and right.__class__ in _NUMBERS)) and left != right


def _ordered(compare: Callable[[Any, Any], bool], *, texts: bool) -> Callable[[Value, Value], bool]:
    def ordered(left: Value, right: Value) -> bool:
        kind, other = left.__class__, right.__class__
        alike = (kind in _NUMBERS and other in _NUMBERS) or (texts and kind is str and other is str)
        return alike and compare(left, right)

    return ordered


def _no(compare: Callable[[Value, Value], bool], left: Value, right: Value) -> bool:
    return left is not None and right is not None and not compare(left, right)


_ORDERS: Final = {"less": lt, "at_most": le, "more": gt, "at_least": ge}
_HELPERS: Final[dict[str, Any]] = {
    "add": _calculated(lambda left, right: left + right),
    "subtract": _calculated(lambda left, right: left - right),
    "multiply": _calculated(lambda left, right: left * right),
    "divide": _calculated(_divide),
    "fraction": _calculated(lambda left, right: left / right),
    "remain": _calculated(_remain),
    "equal": _equal,
    "unequal": _unequal,
    **{name: _ordered(compare, texts=False) for name, compare in _ORDERS.items()},
    **{f"{name}_text": _ordered(compare, texts=True) for name, compare in _ORDERS.items()},
    "no": _no,
    "NUMBERS": _NUMBERS,
    "Truth": Truth,
    "TRUE": Truth.TRUE,
    "FALSE": Truth.FALSE,
    "FAULTS": FAULTS,
}
_ARITHMETIC: Final = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "fraction": "fraction", "%": "remain"}
_COMPARISONS: Final = {"=": "equal", "<>": "unequal", "<": "less", "<=": "at_most", ">": "more", ">=": "at_least"}
_PYTHON: Final = {"=": "==", "<>": "!="}
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Program(NamedTuple):
    """What a condition becomes. `counts`: whether the result can change with how often delivery has failed. `searches`,
    `wild_searches`: pieces of its patterns, see `like.searches`."""

    matches: Matches
    counts: bool
    searches: int
    wild_searches: int


def program(tree: Condition) -> Program:
    """The program of this condition."""
    writer = _Writer()
    condition = writer.true(tree)
    plan = Plan(writer.names)
    names = "".join(f"v{place}, " for place in range(len(writer.names)))
    lines = [
        "def matches(data, start, end, failures):",
        "    try:",
        f"        {names or 'nothing '}= read(data, start, end, failures)",
        f"        return {condition}",
        "    except FAULTS:",
        "        return False",
    ]
    if not writer.names:
        lines[1:] = [f"    return {condition}"]
    scope: dict[str, Any] = {**_HELPERS, **writer.constants, "read": plan.read}
    exec(compile("\n".join(lines), "<selector>", "exec"), scope)
    matches: Matches = scope["matches"]
    return Program(matches, plan.counts, writer.searches, writer.wild_searches)


class _Writer:
    """Writes the expressions of one selector. `names` are its identifiers, v0, v1 ... in the code; `constants` are k0, k1 ..."""

    def __init__(self) -> None:
        self.names: dict[Identifier, int] = {}
        self.constants: dict[str, Any] = {}
        self.searches = self.wild_searches = 0

    def _constant(self, value: Any) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    def _variable(self, identifier: Identifier) -> str:
        return f"v{self.names.setdefault(identifier, len(self.names))}"

    def _value(self, node: ValueNode) -> str:
        match node:
            case Identifier():
                return self._variable(node)
            case Literal(value):
                return self._constant(Truth(value) if isinstance(value, bool) else value)
            case Negative(operand):
                return f"subtract({self._constant(0)}, {self._value(operand)})"
            case Arithmetic(operator, left, right):
                return f"{_ARITHMETIC[operator]}({self._value(left)}, {self._value(right)})"
            case _ as never:
                assert_never(never)

    def true(self, node: Condition) -> str:
        """An expression that is true exactly when the condition is."""
        match node:
            case Identifier():
                return f"({self._variable(node)} is TRUE)"
            case Literal(value):
                return str(value)
            case IsNull(identifier):
                return f"({self._variable(identifier)} is None)"
            case Like(identifier, pattern, escape):
                variable = self._variable(identifier)
                plain, wild = searches(pattern, escape)
                self.searches += plain
                self.wild_searches += wild
                return f"({variable}.__class__ is str and {self._constant(matcher(pattern, escape))}({variable}))"
            case In(identifier, values):
                return f"({self._variable(identifier)} in {self._constant(frozenset(values))})"
            case Compare():
                return self._compared(node)
            case Not(operand):
                return self.false(operand)
            case And(operands):
                return f"({' and '.join(map(self.true, operands))})"
            case Or(operands):
                return f"({' or '.join(map(self.true, operands))})"
            case _ as never:
                assert_never(never)

    def false(self, node: Condition) -> str:
        """An expression that is true exactly when the condition is false."""
        match node:
            case Identifier():
                return f"({self._variable(node)} is FALSE)"
            case Literal(value):
                return str(not value)
            case IsNull(identifier):
                return f"({self._variable(identifier)} is not None)"
            case Like(identifier) | In(identifier):
                return f"({self._variable(identifier)} is not None and not {self.true(node)})"
            case Compare(_, left, right):
                return f"no({_helper(node)}, {self._value(left)}, {self._value(right)})"
            case Not(operand):
                return self.true(operand)
            case And(operands):
                return f"({' or '.join(map(self.false, operands))})"
            case Or(operands):
                return f"({' and '.join(map(self.false, operands))})"
            case _ as never:
                assert_never(never)

    def _compared(self, node: Compare) -> str:
        """A comparison; of a name with a literal, which most are, without a call."""
        operator, left, right = node.operator, node.left, node.right
        if isinstance(left, Literal) and isinstance(right, Identifier):
            operator, left, right = _MIRRORED[operator], right, left
        if isinstance(left, Identifier) and isinstance(right, Literal):
            name, constant, sign = self._variable(left), self._value(right), _PYTHON.get(operator, operator)
            if operator == "=":
                return f"({name} == {constant})"
            kind = "is Truth" if isinstance(right.value, bool) else "is str" if isinstance(right.value, str) else "in NUMBERS"
            return f"({name}.__class__ {kind} and {name} {sign} {constant})"
        return f"{_helper(node)}({self._value(node.left)}, {self._value(node.right)})"


def _helper(node: Compare) -> str:
    """What compares two values."""
    name = _COMPARISONS[node.operator]
    return f"{name}_text" if node.texts and name in _ORDERS else name
