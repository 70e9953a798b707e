"""Filters that compare properties with values, as in RabbitMQ 4: a map of names to the required values.

A message passes if each named property has its value. A number equals a number of another type with the same value. A string may
begin with a modifier: `&p:` for a required beginning of the property, `&s:` for a required end, and `&&` for a string that itself
begins with &. Null requires nothing of a field; of an application property it requires that it exists.

Source: AMQP Filter Expressions Version 1.0, section 4 (properties-filter, application-properties-filter).
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from broker.core import limits
from broker.core.selector.fields import FIELD_PREFIX, PROPERTIES_FIELDS, user_text
from broker.core.selector.grammar import BadSelector
from broker.core.selector.tree import And, Compare, Condition, Identifier, IsNull, Like, Literal, Not

_ESCAPE: Final = "\\"
_IDS: Final = frozenset(("message_id", "correlation_id", "user_id"))


def of_fields(asked: Any) -> Condition:
    """What a properties-filter asks. BadSelector."""
    conditions: list[Condition] = []
    for name, value in _pairs(asked, "properties-filter"):
        field = name.replace("-", "_")
        if field not in PROPERTIES_FIELDS or "_" in name:
            known = ", ".join(sorted(each.replace("_", "-") for each in PROPERTIES_FIELDS))
            raise BadSelector(f"the properties-filter names {name!r}, which is not a property; there are {known}")
        if value is not None:
            conditions.append(_is(Identifier(FIELD_PREFIX + field), _id(field, value), name))
    return _all(conditions)


def of_application(asked: Any) -> Condition:
    """What an application-properties-filter asks. BadSelector."""
    conditions: list[Condition] = []
    for name, value in _pairs(asked, "application-properties-filter"):
        identifier = Identifier(name, is_property=True)
        conditions.append(Not(IsNull(identifier), 3) if value is None else _is(identifier, value, name))
    return _all(conditions)


def _pairs(asked: Any, what: str) -> list[tuple[str, Any]]:
    if not isinstance(asked, dict) or not 0 < len(asked) <= limits.MAX_FILTER_FIELDS:
        raise BadSelector(f"the value of a {what} is a map of 1 to {limits.MAX_FILTER_FIELDS} names to values")
    for name in asked:
        if not isinstance(name, str):
            raise BadSelector(f"the {what} names {name!r:.40}, but a name must be a string")
    return list(asked.items())


def _id(field: str, value: Any) -> Any:
    """An id as selectors see it: a text. Other fields as they are."""
    if field not in _IDS:
        return value
    if isinstance(value, bytes):
        return user_text(value) if field == "user_id" else value.hex()
    return str(value) if isinstance(value, UUID | int) else value


def _is(identifier: Identifier, value: Any, name: str) -> Condition:
    if isinstance(value, str) and value.startswith("&"):
        modifier, rest = value[:3], value[3:]
        if modifier in ("&p:", "&s:"):
            form = "".join(_ESCAPE + each if each in (_ESCAPE, "%", "_") else each for each in rest)
            return Like(identifier, f"{form}%" if modifier == "&p:" else f"%{form}", _ESCAPE)
        if not value.startswith("&&"):
            raise BadSelector(f"the value of {name!r} begins with &, and not with &p:, &s: or &&")
        value = value[1:]
    if isinstance(value, str | int | float):
        return Compare("=", identifier, Literal(value), 2)
    raise BadSelector(f"the value of {name!r} is a {type(value).__name__}: strings, numbers and booleans are compared")


def _all(conditions: list[Condition]) -> Condition:
    return And(tuple(conditions), 3) if conditions else Literal(True)
