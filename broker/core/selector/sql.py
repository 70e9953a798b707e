"""Parses the text of a SQL filter to its tree, or to a BadSelector with the position of the error and what was expected there.

The language is the part of AMQP Filter Expressions Version 1.0, section 6, that RabbitMQ 4.2 supports: conditions, comparisons
and arithmetic as in JMS's selectors, with these differences. Words such as `AND` are in capitals. Texts are in single or double
quotes, and have an order. `%` is the remainder, and `/` keeps the fraction. A name contains its section: `header.priority` or
`h.priority`, `properties.subject` or `p.subject`, `application_properties.x` or `a.x`; `x` alone means `a.x`. A name with any
other characters is in brackets: `[order-status]`.

These are refused with a text: sections that filters do not read, constants of bytes, and functions. `UTC()` is one of these,
because a filter examines a message once, and the result would change with time.

Invariants: those of broker.core.selector.grammar.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from lark import Lark, Token

from broker.core.selector.fields import FIELD_PREFIX, HEADER_FIELDS, PROPERTIES_FIELDS
from broker.core.selector.grammar import BadSelector, Builder, Found, tree_of, wrong
from broker.core.selector.tree import Arithmetic, Compare, Condition, Identifier, Literal

_GRAMMAR = r"""
start: disjunction

?disjunction: conjunction (_OR conjunction)*
?conjunction: opposite (_AND opposite)*
?opposite: _NOT opposite -> opposite
         | predicate
?predicate: sum
          | sum COMPARISON sum -> compare
          | sum _IN _LEFT constant (_COMMA constant)* _RIGHT -> is_in
          | sum _NOT _IN _LEFT constant (_COMMA constant)* _RIGHT -> is_not_in
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
        | product PERCENT factor -> arithmetic
?factor: MINUS factor -> negative
       | PLUS factor -> positive
       | _LEFT disjunction _RIGHT
       | NAME -> name
       | BRACKETED -> bracketed
       | NAME _DOT NAME -> of_section
       | NAME _DOT BRACKETED -> bracketed_of_section
       | NAME _LEFT _RIGHT -> function
       | NAME _LEFT sum (_COMMA sum)* _RIGHT -> function
       | TRUE -> true
       | FALSE -> false
       | number
       | STRING -> text
?constant: number
         | STRING -> text
         | PLUS number -> signed
         | MINUS number -> signed
?number: FLOAT -> approximate
       | BYTES -> of_bytes
       | INTEGER -> exact

%declare _AND _OR _NOT _IN _LIKE _ESCAPE _IS _NULL TRUE FALSE
COMPARISON: /<>|!=|<=|>=|<|>|=/
PLUS: "+"
MINUS: "-"
STAR: "*"
SLASH: "/"
PERCENT: "%"
_LEFT: "("
_RIGHT: ")"
_COMMA: ","
_DOT: "."
STRING: /'(?:[^']|'')*'|"(?:[^"]|"")*"/
BRACKETED: /\[[^\[\]]+\]/
FLOAT.3: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
BYTES.2: /0x[0-9a-fA-F]*/
INTEGER.1: /[0-9]+/
NAME: /[^\W\d]\w*/
%ignore /[ \t\r\n\f]+/
"""
_KEYWORDS = {
    **{word: f"_{word}" for word in ("AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL")},
    "TRUE": "TRUE",
    "FALSE": "FALSE",
}
_SECTIONS: Final = {
    "header": frozenset(HEADER_FIELDS),
    "properties": PROPERTIES_FIELDS,
    "application_properties": None,
}
"""Section -> the fields that it has; None: any."""
_SHORT: Final = {"h": "header", "p": "properties", "a": "application_properties"}
_NOT_READ: Final = frozenset(
    ("delivery_annotations", "d", "message_annotations", "m", "footer", "f", "body", "b"),
)


def parsed(text: str) -> Condition:
    """The tree of a SQL filter. BadSelector."""
    return tree_of(_parser(), text)


@cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_SqlBuilder(), lexer_callbacks={"NAME": _keyword})


def _keyword(token: Token) -> Token:
    kind = _KEYWORDS.get(token)
    return token if kind is None else Token.new_borrow_pos(kind, token.value, token)


class _SqlBuilder(Builder):
    """See Builder: the rules that are not those of JMS."""

    def compare(self, parts: list[Any]) -> Found:
        """Texts have an order."""
        left, token, right = parts
        for side in (left, right):
            if token not in ("=", "<>", "!=") and isinstance(side.node, Literal) and isinstance(side.node.value, bool):
                raise wrong(side.start, "truth values have no order: compare them by = or <>")
        equal = super().compare([left, "=", right]).node
        return Found(Compare("<>" if token == "!=" else str(token), equal.left, equal.right, equal.depth, True), left.start)

    def arithmetic(self, parts: list[Any]) -> Found:
        """A quotient has its fraction."""
        found = super().arithmetic(parts)
        node: Arithmetic = found.node
        return found if node.operator != "/" else Found(Arithmetic("fraction", node.left, node.right, node.depth), found.start)

    def name(self, parts: list[Token]) -> Found:
        return _property(str(parts[0]), parts[0])

    def bracketed(self, parts: list[Token]) -> Found:
        return _property(parts[0][1:-1], parts[0])

    def of_section(self, parts: list[Token]) -> Found:
        return _of_section(parts[0], str(parts[1]))

    def bracketed_of_section(self, parts: list[Token]) -> Found:
        return _of_section(parts[0], parts[1][1:-1])

    def function(self, parts: list[Any]) -> Found:
        raise _refused(parts[0], "UTC(): its answer changes with time" if parts[0] == "UTC" else f"functions, such as {parts[0]}")

    def of_bytes(self, parts: list[Token]) -> Found:
        raise _refused(parts[0], "constants of bytes")

    def exact(self, parts: list[Token]) -> Found:
        """Decimal digits, whatever the first one is."""
        return super().exact([Token.new_borrow_pos("INTEGER", parts[0].lstrip("0") or "0", parts[0])])


def _refused(token: Token, what: str) -> BadSelector:
    return wrong(token.start_pos or 0, f"SQL filters of this broker do not take {what}")


def _property(name: str, token: Token) -> Found:
    return Found(Identifier(name, is_property=True), token.start_pos or 0)


def _of_section(token: Token, name: str) -> Found:
    if token in _NOT_READ:
        raise _refused(token, f"the section {token}: they read header, properties and application_properties")
    section = _SHORT.get(token, str(token))
    if section not in _SECTIONS:
        raise wrong(token.start_pos or 0, f"there is no section {token!s:.40}; there are {', '.join(sorted(_SECTIONS))}")
    fields = _SECTIONS[section]
    if fields is None:
        return _property(name, token)
    if name not in fields:
        raise wrong(token.start_pos or 0, f"{section} has no field {name:.40}; there are {', '.join(sorted(fields))}")
    return Found(Identifier(FIELD_PREFIX + name), token.start_pos or 0)
