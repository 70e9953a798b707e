"""Which messages a SQL filter takes, and what it is told that is none."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core import limits
from broker.core.filters import SQL, Filter
from broker.core.selector.grammar import BadSelector
from broker.core.selector.selected import selected
from tests.broker.core.selector.test_selectors import message

ORDER = {"region": "emea", "price": 7, "rate": 1.5, "premium": True, "order-status": "new", "AND": 1, "JMSPriority": "mine"}
FIELDS: dict[str, Any] = {"subject": "order.created", "priority": 5, "user_id": b"John", "group_sequence": 7, "id": "A"}


def takes(text: str) -> bool:
    selector = selected([Filter(SQL, text)])
    assert selector is not None
    return selector.takes(message(ORDER, **FIELDS))


@pytest.mark.parametrize(
    "text",
    [
        "region = 'emea' AND (h.priority > 4 OR price >= 99.99) AND NOT p.subject = 'x'",
        "header.priority = 5 AND properties.subject LIKE 'order.%' AND p.user_id = 'John'",
        "region IN ('a', \"emea\") AND region NOT IN (-1, +2, 2.5)",
        "a.region < 'f' AND application_properties.region >= \"emea\" AND region > p.message_id",
        "price / 2 = 3.5 AND price % 2 = 1 AND -price % 4 = -3 AND price / 2 > 3.4",
        "[order-status] = 'new' AND a.[order-status] <> 'old' AND [AND] = 1 AND region != 'a'",
        "JMSPriority = 'mine' AND 010 = 10 AND 0 = 00 AND 1e1 = 10. AND .5 < +1",
        "premium AND premium = TRUE AND NOT FALSE",
        "missing IS NULL AND p.reply_to IS NULL AND region IS NOT NULL AND p.group_sequence % 3 = 1",
        "region NOT LIKE 'e!_%' ESCAPE '!' AND 'it''s' = \"it's\" AND \"a\"\"b\" = 'a\"b'",
    ],
)
def test_a_filter_takes_a_message(text: str) -> None:
    assert takes(text)


@pytest.mark.parametrize(
    "text",
    [
        "missing < 'a'",
        "NOT missing < 'a'",
        "price < 'a' OR region < 1 OR premium < region",
        "rate % 2 = 1.5",
        "price / 0 = 1 OR price % 0 = 0",
        "and_ = 1",
    ],
)
def test_what_is_false_or_unknown_does_not_match(text: str) -> None:
    assert not takes(text)


@pytest.mark.parametrize(
    "text, told",
    [
        ("p.absolute_expiry_time > UTC()", "at character 26: SQL filters of this broker do not take UTC(): its answer changes"),
        ("LOWER(region) = 'a'", "at character 1: SQL filters of this broker do not take functions, such as LOWER"),
        ("p.message_id = 0x12", "do not take constants of bytes"),
        ("m.x = 1", "do not take the section m: they read header, properties and application_properties"),
        ("x.y = 1", "there is no section x; there are application_properties, header, properties"),
        ("p.colour = 'red'", "properties has no field colour; there are absolute_expiry_time,"),
        ("h.ttl = 1", "header has no field ttl; there are delivery_count, durable, priority"),
        ("TRUE < premium", "at character 1: truth values have no order"),
        ("region = 'a' and price = 1", "at character 14: expected"),
        ("region = 'a", "at character 10: the text that begins here has no ' at its end"),
        ("price IN (price)", "expected"),
        ("", "ends too early"),
        ("x = 1 OR " * 1000 + "x = 1", f"at most {limits.MAX_SELECTOR_CHARS}"),
    ],
)
def test_what_is_no_filter_is_told_why(text: str, told: str) -> None:
    with pytest.raises(BadSelector) as refused:
        takes(text)
    assert told in str(refused.value)


def test_a_filter_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadSelector, match="the value of a sql-filter is a string"):
        selected([Filter(SQL, 7)])
