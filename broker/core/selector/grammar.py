"""Parses the text of a selector to its tree, or to a BadSelector with the position of the error and what was expected there.
`Builder` and `tree_of` are also used for the SQL of broker.core.selector.sql.

The language is that of JMS 2.0, section 3.8.1: `AND`, `OR`, `NOT`; `=`, `<>`, `<`, `<=`, `>`, `>=`; `+`, `-`, `*`, `/`; `[NOT]
BETWEEN ... AND`, `[NOT] IN (...)`, `[NOT] LIKE ... [ESCAPE ...]`, `IS [NOT] NULL`. In addition, `!=` is `<>`; a name may have
dots, and any name may be in double quotes; the values of IN may be numbers.

Invariants: a text is at most `limits.MAX_SELECTOR_CHARS` long and its tree at most `limits.MAX_SELECTOR_DEPTH` deep, where a
chain of AND or of OR counts as one level; the parser is made once, at its first use; nothing here is recursive.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any, NamedTuple

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken

from broker.core import limits
from broker.core.selector.fields import fault_of_name
from broker.core.selector.like import ends_escaping
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
    Node,
    Not,
    Or,
    Value,
)

_GRAMMAR = r"""
start: disjunction

?disjunction: conjunction (_OR conjunction)*
?conjunction: opposite (_AND opposite)*
?opposite: _NOT opposite -> opposite
         | predicate
?predicate: sum
          | sum COMPARISON sum -> compare
          | sum _BETWEEN sum _AND sum -> between
          | sum _NOT _BETWEEN sum _AND sum -> not_between
          | sum _IN _LEFT number_or_text (_COMMA number_or_text)* _RIGHT -> is_in
          | sum _NOT _IN _LEFT number_or_text (_COMMA number_or_text)* _RIGHT -> is_not_in
          | sum _LIKE STRING (_ESCAPE STRING)? -> like
          | sum _NOT _LIKE STRING (_ESCAPE STRING)? -> not_like
          | sum _IS _NULL -> is_null
          | sum _IS _NOT _NULL -> is_not_null
?sum: product
    | sum PLUS product -> arithmetic
    | sum MINUS product -> arithmetic
?product: factor
        | product STAR factor -> arithmetic
        | product SLASH factor -> arithmetic
?factor: MINUS factor -> negative
       | PLUS factor -> positive
       | _LEFT disjunction _RIGHT
       | IDENTIFIER -> identifier
       | QUOTED -> quoted
       | TRUE -> true
       | FALSE -> false
       | constant
?number_or_text: constant
               | PLUS number -> signed
               | MINUS number -> signed
?constant: number
         | STRING -> text
?number: FLOAT -> approximate
       | HEXADECIMAL -> exact
       | INTEGER -> exact

%declare _AND _OR _NOT _BETWEEN _IN _LIKE _ESCAPE _IS _NULL TRUE FALSE
COMPARISON: /<>|!=|<=|>=|<|>|=/
PLUS: "+"
MINUS: "-"
STAR: "*"
SLASH: "/"
_LEFT: "("
_RIGHT: ")"
_COMMA: ","
STRING: /'(?:[^']|'')*'/
QUOTED: /"(?:[^"]|"")+"/
FLOAT.3: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?|[0-9]+[eE][+-]?[0-9]+[fFdD]?|[0-9]+[fFdD]/
HEXADECIMAL.2: /0[xX][0-9a-fA-F]+[lL]?/
INTEGER.1: /[0-9]+[lL]?/
IDENTIFIER: /[^\W\d][\w.$]*|\$[\w.$]*/
%ignore /[ \t\r\n\f]+/
"""
_KEYWORDS = {
    **{word: f"_{word}" for word in ("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL")},
    "TRUE": "TRUE",
    "FALSE": "FALSE",
}
_WORDS = {
    "$END": "the end",
    "COMPARISON": "a comparison",
    "PLUS": "+",
    "MINUS": "-",
    "STAR": "*",
    "SLASH": "/",
    "PERCENT": "%",
    "_DOT": ".",
    "_LEFT": "(",
    "_RIGHT": ")",
    "_COMMA": "a comma",
    "STRING": "a text in ' '",
    "IDENTIFIER": "a name",
    "QUOTED": "a name",
    "NAME": "a name",
    "BRACKETED": "a name",
    "BYTES": "a number",
    "FLOAT": "a number",
    "HEXADECIMAL": "a number",
    "INTEGER": "a number",
}
_LARGEST = 1 << 63


class BadSelector(ValueError):
    """This text is not a selector. What is wrong, where, and what was expected there."""


def parsed(text: str) -> Condition:
    """The tree of a selector. BadSelector."""
    return tree_of(_parser(), text)


def tree_of(parser: Lark, text: str) -> Condition:
    """What this parser, whose transformer is a Builder, makes of a text. BadSelector."""
    if len(text) > limits.MAX_SELECTOR_CHARS:
        raise BadSelector(f"the selector has {len(text)} characters; at most {limits.MAX_SELECTOR_CHARS} are allowed")
    try:
        found: Any = parser.parse(text)
    except UnexpectedCharacters as error:
        position = error.pos_in_stream or 0
        raise wrong(position, _of_character(text[position])) from None
    except UnexpectedToken as error:
        raise _unexpected(error) from None
    tree: Condition = found
    return tree


@cache
def _parser() -> Lark:
    callbacks = {"IDENTIFIER": _keyword}
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=Builder(), lexer_callbacks=callbacks)


def _keyword(token: Token) -> Token:
    kind = _KEYWORDS.get(token.upper())
    return token if kind is None else Token.new_borrow_pos(kind, token.value, token)


# ---- what is wrong


def wrong(position: int, what: str) -> BadSelector:
    """What is wrong at this character, counted from 0."""
    return BadSelector(f"the selector is wrong at character {position + 1}: {what}")


def _of_character(character: str) -> str:
    if character == "'":
        return "the text that begins here has no ' at its end"
    if character == '"':
        return 'what begins here has no " at its end, or is empty'
    return f"{character!r} has no meaning here"


def _unexpected(error: UnexpectedToken) -> BadSelector:
    words = sorted({_WORDS.get(name, name.lstrip("_")) for name in error.accepts or error.expected})
    due = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
    token = error.token
    if token.type == "$END":
        return BadSelector(f"the selector ends too early: expected {due}")
    return wrong(token.start_pos or 0, f"expected {due}, found {str(token)[:40]!r}")


# ---- from what the parser finds to nodes


class Found(NamedTuple):
    """A node, and where its text begins."""

    node: Any
    start: int


class Builder(Transformer[Token, Any]):
    """Called with the parts of each rule that the parser has found, from the leaves up. Those with a node are `Found`."""

    # The names of these methods are those of the rules above.

    def start(self, parts: list[Found]) -> Condition:
        (whole,) = parts
        return _condition(whole)

    def disjunction(self, parts: list[Found]) -> Found:
        operands = tuple(map(_condition, parts))
        return Found(Or(operands, _depth(parts)), parts[0].start)

    def conjunction(self, parts: list[Found]) -> Found:
        operands = tuple(map(_condition, parts))
        return Found(And(operands, _depth(parts)), parts[0].start)

    def opposite(self, parts: list[Found]) -> Found:
        (operand,) = parts
        return Found(Not(_condition(operand), _depth(parts)), operand.start)

    def compare(self, parts: list[Any]) -> Found:
        left, token, right = parts
        return _compare(left, "<>" if token == "!=" else str(token), right)

    def between(self, parts: list[Found]) -> Found:
        value, low, high = parts
        both = [_compare(value, ">=", low), _compare(value, "<=", high)]
        return Found(And(tuple(each.node for each in both), _depth(both)), value.start)

    def not_between(self, parts: list[Found]) -> Found:
        return _opposite(self.between(parts))

    def is_in(self, parts: list[Found]) -> Found:
        first, *values = parts
        return Found(In(_name(first, "IN"), tuple(each.node.value for each in values)), first.start)

    def is_not_in(self, parts: list[Found]) -> Found:
        return _opposite(self.is_in(parts))

    def like(self, parts: list[Any]) -> Found:
        first, pattern, *rest = parts
        escape = _unquoted(rest[0]) if rest else ""
        if rest and len(escape) != 1:
            raise wrong(rest[0].start_pos, "what escapes in a pattern is one character")
        form = _unquoted(pattern)
        if escape and ends_escaping(form, escape):
            raise wrong(pattern.start_pos, f"the pattern ends with {escape!r}, which is to escape what follows it")
        return Found(Like(_name(first, "LIKE"), form, escape), first.start)

    def not_like(self, parts: list[Any]) -> Found:
        return _opposite(self.like(parts))

    def is_null(self, parts: list[Found]) -> Found:
        (value,) = parts
        return Found(IsNull(_name(value, "IS NULL")), value.start)

    def is_not_null(self, parts: list[Found]) -> Found:
        return _opposite(self.is_null(parts))

    def arithmetic(self, parts: list[Any]) -> Found:
        left, token, right = parts
        node = Arithmetic(str(token), _number(left), _number(right), _depth((left, right)))
        return Found(node, left.start)

    def negative(self, parts: list[Any]) -> Found:
        token, operand = parts
        value = _number(operand)
        if isinstance(value, Literal):
            return Found(_minus(value), token.start_pos)
        return Found(Negative(value, _depth((operand,))), token.start_pos)

    def positive(self, parts: list[Any]) -> Found:
        token, operand = parts
        return Found(_number(operand), token.start_pos)

    def signed(self, parts: list[Any]) -> Found:
        token, number = parts
        return Found(_minus(number.node) if token == "-" else number.node, token.start_pos)

    def identifier(self, parts: list[Token]) -> Found:
        return _identifier(str(parts[0]), parts[0])

    def quoted(self, parts: list[Token]) -> Found:
        return _identifier(_unquoted(parts[0]), parts[0])

    def true(self, parts: list[Token]) -> Found:
        return _literal(True, parts[0])

    def false(self, parts: list[Token]) -> Found:
        return _literal(False, parts[0])

    def text(self, parts: list[Token]) -> Found:
        return _literal(_unquoted(parts[0]), parts[0])

    def approximate(self, parts: list[Token]) -> Found:
        return _literal(float(parts[0].rstrip("fFdD")), parts[0])

    def exact(self, parts: list[Token]) -> Found:
        """As in Java: 0x before hexadecimal digits, 0 before octal ones, and an L behind them that says nothing here."""
        (token,) = parts
        digits = token.rstrip("lL").lower()
        base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
        if base == 8 and set(digits) & {"8", "9"}:
            raise wrong(_start(token), f"{token} begins with 0, so it is octal, and has a digit above 7")
        if (value := int(digits, base)) > _LARGEST:
            raise wrong(_start(token), f"{token} is larger than {_LARGEST}, the largest exact number (2 to the power of 63)")
        return _literal(value, token)


def _start(token: Token) -> int:
    return token.start_pos or 0


def _literal(value: str | float | bool, token: Token) -> Found:
    return Found(Literal(value), _start(token))


def _identifier(name: str, token: Token) -> Found:
    fault = fault_of_name(name)
    if fault:
        raise wrong(_start(token), fault)
    return Found(Identifier(name), _start(token))


def _minus(number: Literal) -> Literal:
    assert isinstance(number.value, int | float)
    return Literal(-number.value)


def _unquoted(token: Token) -> str:
    return token[1:-1].replace(token[0] * 2, token[0])


def _depth(parts: Collection[Found]) -> int:
    depth: int = 1 + max(part.node.depth for part in parts)
    if depth > limits.MAX_SELECTOR_DEPTH:
        start = min(part.start for part in parts)
        raise wrong(start, f"what begins here is nested more than {limits.MAX_SELECTOR_DEPTH} deep")
    return depth


def _opposite(condition: Found) -> Found:
    return Found(Not(condition.node, _depth((condition,))), condition.start)


def _condition(found: Found) -> Condition:
    node: Node = found.node
    if isinstance(node, Negative | Arithmetic) or (isinstance(node, Literal) and not isinstance(node.value, bool)):
        raise wrong(found.start, "expected a condition, but this is a value: compare it with something")
    return node


def _value(found: Found) -> Value:
    node: Node = found.node
    if not isinstance(node, Identifier | Literal | Negative | Arithmetic):
        raise wrong(found.start, "expected a value, but this is a condition: join conditions by AND, OR and NOT")
    return node


def _number(found: Found) -> Value:
    value = _value(found)
    if isinstance(value, Literal) and isinstance(value.value, str | bool):
        raise wrong(found.start, "expected a number: arithmetic takes no texts and no booleans")
    return value


def _name(found: Found, what: str) -> Identifier:
    if not isinstance(found.node, Identifier):
        raise wrong(found.start, f"{what} is asked of a name alone")
    return found.node


def _compare(left: Found, operator: str, right: Found) -> Found:
    for side in (left, right):
        node = _value(side)
        if operator not in ("=", "<>") and isinstance(node, Literal) and isinstance(node.value, str | bool):
            raise wrong(side.start, "texts and truth values have no order: compare them by = or <>")
    return Found(Compare(operator, left.node, right.node, _depth((left, right))), left.start)
