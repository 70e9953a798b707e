"""Filters of properties: which messages pass, alone and beside a selector."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from broker.core.filters import APPLICATION_PROPERTIES, NO_LOCAL, PROPERTIES, SELECTOR, Filter
from broker.core.selector.grammar import BadSelector
from broker.core.selector.selected import compiled, selected
from tests.broker.core.selector.test_selectors import message

ONE = uuid.UUID("12345678123456781234567812345678")
FIELDS: dict[str, Any] = {
    "id": ONE,
    "user_id": b"jo",
    "address": "to",
    "subject": "a_subject%\\",
    "reply_to": "&reply",
    "correlation_id": 77,
    "content_type": "text/plain",
    "group_sequence": 3,
    "creation_time": 2.0,
}
SAID = {"colour": "red", "n": 7, "flag": True, "nothing": None, "JMSPriority": 1, "amqp.priority": 2}


def passes(name: str, asked: Any, *others: Filter) -> bool:
    found = selected([Filter(name, asked), *others])
    assert found is not None
    return found.takes(message(SAID, **FIELDS))


@pytest.mark.parametrize(
    "asked, right",
    [
        ({"message-id": ONE}, True),
        ({"message-id": str(ONE), "user-id": b"jo"}, True),
        ({"user-id": b"no"}, False),
        ({"correlation-id": 77, "to": "to"}, True),
        ({"correlation-id": 78, "to": "to"}, False),
        ({"subject": "&p:a_s"}, True),
        ({"subject": "&p:axs"}, False),
        ({"subject": "&s:%\\"}, True),
        ({"subject": "&s:x\\"}, False),
        ({"reply-to": "&&reply"}, True),
        ({"reply-to": "reply"}, False),
        ({"content-type": "text/plain", "group-sequence": 3, "creation-time": 2000}, True),
        ({"group-sequence": 3.0}, True),
        ({"group-id": None}, True),
        ({"group-id": "g"}, False),
    ],
)
def test_a_message_passes_when_each_property_that_is_named_has_its_value(asked: dict[str, Any], right: bool) -> None:
    assert passes(PROPERTIES, asked) == right


@pytest.mark.parametrize(
    "asked, right",
    [
        ({"colour": "red", "n": 7.0, "flag": True}, True),
        ({"colour": "&p:r", "n": 7}, True),
        ({"colour": "red", "n": 8}, False),
        ({"flag": 1}, False),
        ({"missing": None}, False),
        ({"colour": None}, True),
        ({"nothing": "x"}, False),
        ({"JMSPriority": 1, "amqp.priority": 2}, True),
    ],
)
def test_application_properties_are_compared_under_their_own_names(asked: dict[str, Any], right: bool) -> None:
    assert passes(APPLICATION_PROPERTIES, asked) == right


def test_a_message_passes_all_filters_of_a_source_or_does_not_pass() -> None:
    subject = Filter(PROPERTIES, {"subject": "&p:a"})
    for text, right in (("n = 7 AND colour = 'red' AND JMSPriority = 4", True), ("n = 8", False), (" ", True)):
        assert passes(APPLICATION_PROPERTIES, {"n": 7}, subject, Filter(SELECTOR, text)) == right
    assert not passes(APPLICATION_PROPERTIES, {"n": 7}, Filter(APPLICATION_PROPERTIES, {"n": 8}))
    assert selected([Filter(NO_LOCAL, [])]) is selected([Filter(SELECTOR, " ")]) is None
    assert selected([Filter(SELECTOR, "a = 1"), Filter(NO_LOCAL, [])]) is compiled("a = 1")
    one, same, other = (selected([Filter(APPLICATION_PROPERTIES, {"n": n})]) for n in (7, 7, 8))
    assert one == same != other, "consumers with the same filters share one scan"


@pytest.mark.parametrize(
    "name, asked, fault",
    [
        (PROPERTIES, {"subject": "&x:a"}, "the value of 'subject' begins with &, and not with &p:, &s: or &&"),
        (PROPERTIES, {"subject": [1]}, "the value of 'subject' is a list: strings, numbers and booleans are compared"),
        (PROPERTIES, {"priority": 1}, "names 'priority', which is not a property; there are absolute-expiry-time"),
        (PROPERTIES, {"message_id": 1}, "names 'message_id', which is not a property"),
        (PROPERTIES, {}, "the value of a properties-filter is a map of 1 to 16 names to values"),
        (PROPERTIES, "text", "the value of a properties-filter is a map"),
        (APPLICATION_PROPERTIES, {str(n): n for n in range(17)}, "is a map of 1 to 16 names to values"),
        (APPLICATION_PROPERTIES, {1: 2}, "the application-properties-filter names 1, but a name must be a string"),
        (APPLICATION_PROPERTIES, {"a": ONE}, "the value of 'a' is a UUID"),
        (SELECTOR, 3, "a source has one selector at most, and that is a string"),
    ],
)
def test_a_filter_of_properties_that_cannot_be_says_why(name: str, asked: Any, fault: str) -> None:
    with pytest.raises(BadSelector) as caught:
        selected([Filter(name, asked)])
    assert fault in str(caught.value)
