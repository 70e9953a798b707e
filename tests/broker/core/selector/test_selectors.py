"""Which messages a selector takes: by the tables of JMS, by a plain reference, and what is read of a message for it."""

from __future__ import annotations

import math
import uuid
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as some

from broker.core import limits
from broker.core.selector import tree
from broker.core.selector.grammar import BadSelector, parsed
from broker.core.selector.like import ends_escaping, matcher
from broker.core.selector.selected import Selector, compiled
from tests.broker.core.selector import reference

NAMES = ("a", "b", "colour", "$n_1.x", "größe", "JMSXother", "order")


def message(properties: dict[str, Any] | None = None, **fields: Any) -> bytes:
    made: Any = proton.Message(body="x", **fields)
    if properties:
        made.properties = properties
    return bytes(made.encode())


def takes(text: str, properties: dict[str, Any] | None = None, failures: int = 0, **fields: Any) -> bool:
    return Selector(text).takes(message(properties, **fields), failures)


# ---- against the reference

LONGS = some.integers(-(1 << 63), (1 << 63) - 1)
NUMBERS = some.one_of(some.integers(-3, 3), LONGS, some.sampled_from([0.0, 0.5, -2.5, 1e300, 3.0]))
TEXTS = some.text("ab%_'é", max_size=5)
SAID = some.one_of(NUMBERS, TEXTS, some.booleans(), some.none(), some.just(reference.Unusable()), some.just(math.inf))
MESSAGES = some.dictionaries(some.sampled_from(NAMES), SAID)
IDENTIFIERS = some.sampled_from(NAMES).map(tree.Identifier)


def _number_literal(value: float) -> Any:
    return tree.Literal(value)


VALUES: some.SearchStrategy[Any] = some.recursive(
    some.one_of(IDENTIFIERS, NUMBERS.map(_number_literal)),
    lambda inner: some.one_of(
        some.builds(tree.Arithmetic, some.sampled_from("+-*/"), inner, inner, some.just(0)),
        IDENTIFIERS.map(lambda name: tree.Negative(name, 0)),
    ),
    max_leaves=4,
)
LIKES = some.tuples(IDENTIFIERS, some.text("ab%_\\'", max_size=7), some.sampled_from(["", "\\", "%", "a"])).filter(
    lambda found: not ends_escaping(found[1], found[2])
)
SIMPLE: some.SearchStrategy[Any] = some.one_of(
    IDENTIFIERS,
    some.booleans().map(tree.Literal),
    IDENTIFIERS.map(tree.IsNull),
    some.builds(tree.Compare, some.sampled_from(["=", "<>", "<", "<=", ">", ">="]), VALUES, VALUES, some.just(0)),
    some.builds(
        tree.Compare,
        some.sampled_from(["=", "<>"]),
        some.one_of(IDENTIFIERS, TEXTS.map(tree.Literal), some.booleans().map(tree.Literal)),
        some.one_of(IDENTIFIERS, TEXTS.map(tree.Literal), some.booleans().map(tree.Literal)),
        some.just(0),
    ),
    some.builds(tree.In, IDENTIFIERS, some.lists(some.one_of(TEXTS, NUMBERS), min_size=1, max_size=3).map(tuple)),
    LIKES.map(lambda found: tree.Like(*found)),
)
CONDITIONS: some.SearchStrategy[Any] = some.recursive(
    SIMPLE,
    lambda inner: some.one_of(
        some.builds(tree.Not, inner, some.just(0)),
        some.builds(tree.And, some.lists(inner, min_size=2, max_size=3).map(tuple), some.just(0)),
        some.builds(tree.Or, some.lists(inner, min_size=2, max_size=3).map(tuple), some.just(0)),
    ),
    max_leaves=6,
)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def written(node: Any) -> str:
    """A tree as a client would write it."""
    match node:
        case tree.Identifier(name):
            return f'"{name}"' if name == "order" else name
        case tree.Literal(value):
            return _text(value) if isinstance(value, str) else repr(value)
        case tree.Negative(operand) | tree.Not(operand):
            return f"({'-' if isinstance(node, tree.Negative) else 'nOt '}{written(operand)})"
        case tree.Arithmetic(sign, left, right) | tree.Compare(sign, left, right):
            return f"({written(left)}\t{sign} {written(right)})"
        case tree.IsNull(identifier):
            return f"{written(identifier)} is Null"
        case tree.Like(identifier, pattern, escape):
            return f"{written(identifier)} LIKE {_text(pattern)}" + (f" escape {_text(escape)}" if escape else "")
        case tree.In(identifier, values):
            return f"{written(identifier)} In ({', '.join(written(tree.Literal(each)) for each in values)})"
        case tree.And(operands):
            return "(" + " AND ".join(map(written, operands)) + ")"
        case tree.Or(operands):
            return "(" + " or ".join(map(written, operands)) + ")"
    raise AssertionError(node)


@given(CONDITIONS, MESSAGES)
def test_a_selector_takes_what_a_plain_interpreter_takes(condition: Any, said: dict[str, Any]) -> None:
    sent = {
        name: uuid.uuid5(uuid.NAMESPACE_URL, name) if isinstance(value, reference.Unusable) else value
        for name, value in said.items()
    }
    for node in (condition, tree.Not(condition, 0)):
        text = written(node)
        assert takes(text, sent) == reference.matches(parsed(text), said) == reference.matches(node, said), text


@given(some.text("ab_%\\é", max_size=8), some.sampled_from(["", "\\", "_"]), some.text("abé_%\\", max_size=12))
def test_a_pattern_takes_what_a_table_of_all_ways_takes(pattern: str, escape: str, text: str) -> None:
    if not ends_escaping(pattern, escape):
        assert matcher(pattern, escape)(text) == reference.like(text, reference.characters(pattern, escape))


def test_a_thousand_wildcards_cost_no_more_steps_than_the_text_has_characters() -> None:
    """Trying the ways one after another would not end: each `%a` doubles them."""

    class Counted(str):
        looked_at = 0

        def __getitem__(self, key: Any) -> str:
            Counted.looked_at += 1
            return super().__getitem__(key)

    most = limits.MAX_WILD_SEARCHED_CHARS
    assert not matcher("%a_" * (most // 4) + "%b_%", "")(Counted("a" * most))
    assert most // 2 < Counted.looked_at <= most
    assert not matcher("%a" * 1000 + "%b%", "")("a" * 20_000)


@pytest.mark.parametrize("pattern", ["bc", "b%", "%b", "%b%", "b_", "%b_%", "b%c", "%"])
def test_each_form_of_a_pattern_has_the_reference_s_answer(pattern: str) -> None:
    """Whatever else is drawn."""
    for text in ("", "b", "bc", "ab", "abc", "bb", "bcb", "xbcy"):
        assert matcher(pattern, "")(text) == reference.like(text, reference.characters(pattern, "")), text


@pytest.mark.parametrize("condition", ["a LIKE '%b_c%'", "NOT (a LIKE '%b_c%')", "a NOT LIKE 'x%y_%z'"])
def test_a_text_that_is_too_long_to_search_it_for_a_part_with_wildcards_matches_nothing(condition: str) -> None:
    longest = "x" * limits.MAX_WILD_SEARCHED_CHARS
    assert takes(condition, {"a": longest}) != (condition == "a LIKE '%b_c%'")
    assert not takes(condition, {"a": longest + "x"})
    assert takes("a LIKE 'x_%' AND a LIKE '%_x' AND a LIKE '%xx%x%'", {"a": longest + "x"}), "these are not searched for a `_`"


def test_the_parts_of_patterns_that_are_searched_for_are_limited() -> None:
    plain, wild = limits.MAX_SELECTOR_SEARCHES, limits.MAX_SELECTOR_WILD_SEARCHES
    assert Selector(" OR ".join(["a LIKE '_b%b_'"] * 300)).weight == 0
    assert Selector(f"a LIKE '{'%b' * plain}%'").weight == plain
    assert Selector(" OR ".join(["a LIKE '%b_%'"] * wild)).weight == 100 * wild
    for text, found in (
        (f"a LIKE '{'%b' * (plain + 1)}%'", f"{plain + 1} parts between two %, 0 of them with _"),
        (f"a LIKE '{'%b_' * (wild + 1)}%'", f"{wild + 1} parts between two %, {wild + 1} of them with _"),
    ):
        with pytest.raises(BadSelector, match=found):
            Selector(text)


@pytest.mark.parametrize("pattern", ["%a_c%", "%_b%c", "x%a__d%", "%aab_%", "%a_%_c%"])
def test_a_piece_with_wildcards_is_found_where_it_first_stands(pattern: str) -> None:
    for text in ("abc", "xaabcd", "aaabc", "xxabxacx", "abaabaabc", "ab", ""):
        assert matcher(pattern, "")(text) == reference.like(text, reference.characters(pattern, "")), text


# ---- the language


@pytest.mark.parametrize(
    "text",
    [
        "a = 1 and b = 'x' AND Not (c IS NULL)",
        "a between 1 and 2 + 3 and b",
        "a NOT BETWEEN -1 and 0",
        "a not in ('x', -1, +2, 0x1F)",
        "a NOT LIKE 'x%' or a not like '!%' Escape '!'",
        "a is not null",
        '"strange name!" = 1',
        '"" = 1'.replace('""', '"a""b"'),
        "a != 7. or a > .5e3 or a < 0xFFl or a = 017 or a = 6f or a = 1e3",
        "((((((a))))))",
        "not not a = b",
        "a = TRUE or FALSE <> b or true",
        "JMSXfoo = 1 AND JMS_vendor = 2 and amqp.priority > 3",
        "a = " + "1 + " * 61 + "1",
        pytest.param(" and ".join("a" for _ in range(1000)), marks=pytest.mark.costs),
        pytest.param("(" * 4000 + "a" + ")" * 4000, marks=pytest.mark.costs),
    ],
)
def test_this_is_a_selector(text: str) -> None:
    assert Selector(text) == compiled(text)
    assert hash(Selector(text)) == hash(text)
    assert Selector(text) != text


@pytest.mark.parametrize(
    "text, fault",
    [
        ("", "the selector ends too early: expected (, +, -, FALSE, NOT, TRUE, a name, a number or a text in ' '"),
        ("a =", "the selector ends too early: expected (, +, -, FALSE, TRUE, a name, a number or a text in ' '"),
        ("a in (1", "the selector ends too early: expected ) or a comma"),
        ("a is 3", "at character 6: expected NOT or NULL, found '3'"),
        ("a like 3", "at character 8: expected a text in ' ', found '3'"),
        ("a = 'x", "at character 5: the text that begins here has no ' at its end"),
        ('a = "x', 'at character 5: what begins here has no " at its end, or is empty'),
        ("a # b", "at character 3: '#' has no meaning here"),
        ("a > 'x'", "at character 5: texts and truth values have no order"),
        ("true <= a", "at character 1: texts and truth values have no order"),
        ("b and a + 'x' = 1", "at character 11: expected a number"),
        ("-'x' = a", "at character 2: expected a number"),
        ("(a > 1) = b", "at character 2: expected a value, but this is a condition"),
        ("a + 1", "at character 1: expected a condition, but this is a value"),
        ("not 7", "at character 5: expected a condition, but this is a value"),
        ("b or -a", "at character 6: expected a condition, but this is a value"),
        ("1 like 'x'", "at character 1: LIKE is asked of a name alone"),
        ("a + 1 in (2)", "at character 1: IN is asked of a name alone"),
        ("'x' is null", "at character 1: IS NULL is asked of a name alone"),
        ("a like 'x' escape 'yz'", "at character 19: what escapes in a pattern is one character"),
        ("a like 'x!!!' escape '!'", "at character 8: the pattern ends with '!'"),
        ("a = 089", "at character 5: 089 begins with 0, so it is octal, and has a digit above 7"),
        ("a = 9223372036854775809", "at character 5: 9223372036854775809 is larger than 9223372036854775808"),
        ("JMSFoo = 1", "at character 1: JMS has no header field JMSFoo for selectors; there are JMSCorrelationID"),
        ("amqp.foo = 1", "at character 1: there is no amqp.foo; there are amqp.absolute_expiry_time"),
        ("a = 1" + " + 1" * 63, "at character 1: what begins here is nested more than 64 deep"),
        ("not " * 64 + "a", "nested more than 64 deep"),
        ("a" * 8193, "the selector has 8193 characters; at most 8192 are allowed"),
    ],
)
def test_this_is_none_and_what_is_wrong_is_said_with_its_place(text: str, fault: str) -> None:
    with pytest.raises(BadSelector) as caught:
        Selector(text)
    assert fault in str(caught.value)


def _fault(text: str) -> str:
    try:
        Selector(text).takes(message({"a": 1}))
    except BadSelector as error:
        return str(error)
    return ""


@given(some.text("a1'\"()=<>.,+-*/ \n#éNOTINKLE", max_size=30))
def test_any_text_is_a_selector_or_is_refused_with_words(text: str) -> None:
    assert (_fault(text) or "the selector ").startswith("the selector ")


def test_exact_numbers_are_exact_and_divide_without_a_fraction() -> None:
    for text in ("a / 2 = -3", "-a / 2 = 3", "a / 2.0 = -3.5", "a / -2 = 3", "+a = -7"):
        assert takes(text, {"a": -7}), text
    large = 1 << 53
    assert not takes("a = b", {"a": large + 1, "b": float(large)}), "a conversion to double would make them equal"


@pytest.mark.parametrize("value", ["a / 0", "a / 0.0", "b + 1", "a - b", "-c", "c * 2"])
def test_what_cannot_be_calculated_is_null(value: str) -> None:
    assert not takes(f"{value} = 1 OR {value} <> 1 OR NOT ({value} = 1)", {"a": 1, "c": "text"})


def test_a_product_that_no_double_holds_is_null() -> None:
    product = " * ".join(["a"] * 20)
    assert not takes(f"{product} * 1.5 > 0 OR {product} * 1.5 <= 0", {"a": 1 << 62})
    assert takes(f"{product} > 0", {"a": 1 << 62})


# ---- what is read of a message

FIELDS = [
    ("JMSDeliveryMode = 'PERSISTENT' AND amqp.durable", {"durable": True}),
    ("JMSPriority = 7", {"priority": 7}),
    ("JMSMessageID = 'ID:1'", {"id": "ID:1"}),
    ("amqp.message_id = '77'", {"id": 77}),
    ("amqp.message_id = '12345678-1234-5678-1234-567812345678'", {"id": uuid.UUID("12345678123456781234567812345678")}),
    ("JMSCorrelationID = '00ff'", {"correlation_id": b"\x00\xff"}),
    ("JMSTimestamp > 1000", {"creation_time": 2.0}),
    ("JMSType = 'news' AND amqp.subject = 'news'", {"subject": "news"}),
    ("JMSDestination = 'q' AND JMSReplyTo = 'r'", {"address": "q", "reply_to": "r"}),
    ("JMSExpiration = 5000", {"expiry_time": 5.0}),
    ("JMSXGroupID = 'g' AND JMSXGroupSeq = 3", {"group_id": "g", "group_sequence": 3}),
    ("JMSXUserID = 'jo'", {"user_id": b"jo"}),
    ("JMSXUserID = 'ff'", {"user_id": b"\xff"}),
    ("amqp.content_type = 'text/plain'", {"content_type": "text/plain"}),
    ("JMSRedelivered AND JMSXDeliveryCount = 3 AND amqp.delivery_count = 2", {"delivery_count": 2}),
]


@pytest.mark.parametrize("text, fields", FIELDS)
def test_fields_have_the_names_of_jms_and_of_qpid(text: str, fields: dict[str, Any]) -> None:
    assert takes(text, **fields)
    assert not takes(text)


def test_what_a_message_does_not_say_has_its_default_or_is_null() -> None:
    defaults = "JMSPriority = 4 AND JMSDeliveryMode = 'NON_PERSISTENT' AND JMSExpiration = 0 AND JMSXDeliveryCount = 1"
    nulls = " AND ".join(f"{name} IS NULL" for name in ("JMSType", "JMSMessageID", "JMSTimestamp", "JMSXGroupSeq", "a"))
    for data in (message(), b"", b"\x00\x53\x77\x40", b"\x00\x53\x70\x45\x00\x53\x73\x45\x00\x53\x74\xc1\x01\x00"):
        assert Selector(f"{defaults} AND {nulls} AND NOT JMSRedelivered").takes(data)


def test_failed_deliveries_count_whether_the_message_or_its_queue_knows_of_them() -> None:
    redelivered = Selector("JMSRedelivered AND JMSXDeliveryCount = 4")
    assert redelivered.counts
    assert not Selector("JMSPriority = 4").counts
    assert redelivered.takes(message(delivery_count=1), 2)
    assert redelivered.takes(b"\x00\x53\x77\x40", 3)


def test_a_selector_reads_one_message_of_several_that_lie_together() -> None:
    first, second = message({"a": 1}), message({"a": 2})
    data = first + second
    matches = Selector("a = 2").matches
    assert [matches(data, 0, len(first), 0), matches(data, len(first), len(data), 0)] == [False, True]


WHOLE = b"\x00\x53\x74\xc1\x06\x02\xa1\x01a\x54\x01"
"""Application properties alone: a = 1."""


@pytest.mark.parametrize(
    "properties",
    [
        WHOLE,
        b"\x00\xa3\x1famqp:application-properties:map" + WHOLE[3:],
        b"\x00\x80" + b"\0" * 7 + b"\x74\xd1\x00\x00\x00\x0c\x00\x00\x00\x02\xb1\x00\x00\x00\x01a\x54\x01",
        b"\x00\x53\x71\xc1\x01\x00\x00\x53\x72\xd1\x00\x00\x00\x04\x00\x00\x00\x00" + WHOLE,
        b"\x00\x53\x74\xc1\x1d\x08\xa1\x01c\xc0\x02\x01\x40\xa1\x01b\xa1\x03xyz\xa1\x01d\x71\x00\x00\x00\x07\xa1\x01a\x54\x01",
    ],
)
def test_properties_are_found_however_they_are_encoded(properties: bytes) -> None:
    assert Selector("a = 1").takes(properties)
    assert not Selector("a = 2").takes(properties)


@pytest.mark.parametrize(
    "value, text",
    [
        (b"\x50\x05", "a = 5"),
        (b"\x51\xff", "a = -1"),
        (b"\x60\x01\x00", "a = 256"),
        (b"\x70\x00\x00\x00\x05", "a = 5"),
        (b"\x43", "a = 0"),
        (b"\x72\x40\x20\x00\x00", "a = 2.5"),
        (b"\x83" + b"\0" * 7 + b"\x09", "a = 9"),
        (b"\x73\x00\x00\x00x", "a = 'x'"),
        (b"\xa3\x01x", "a = 'x'"),
        (b"\xb1\x00\x00\x00\x02\xc3\xa9", "a = 'é'"),
        (b"\x56\x01", "a"),
        (b"\x42", "NOT a"),
        (b"\x40", "a IS NULL"),
        (b"\x74\x00\x00\x00\x01", "NOT (a = 1 OR a <> 1 OR a = a OR a IN (0, 1)) AND a IS NOT NULL"),
        (b"\xa0\x01x", "NOT (a = 'x') AND NOT (a <> 'x') AND NOT (a LIKE '%') AND a NOT LIKE '%'"),
        (b"\x00\x53\x01\x43", "a IS NOT NULL AND NOT (a = 0)"),
        (b"\x45", "NOT (a < 1) AND NOT (a >= 1)"),
    ],
)
def test_a_property_is_compared_by_its_amqp_type(value: bytes, text: str) -> None:
    pairs = b"\xa1\x01a" + value
    data = b"\x00\x53\x74\xc1" + bytes((len(pairs) + 1, 2)) + pairs
    assert Selector(text).takes(data)


UNREADABLE = [
    WHOLE[:-1],
    WHOLE[:3],
    b"\x00\x53\x74\xc0" + WHOLE[4:],
    b"\x00\x53\x74\xc1\x06\x01\xa1\x01a\x54\x01",
    b"\x00\x53\x74\xc1\x05\x02\x54\x01\x54\x01",
    b"\x00\x53\x74\xc1\x06\x04\xa1\x01a\x54\x01",
    b"\x00\x53\x74\xc1\x04\x02\xa1\x01a",
    b"\x00\x53\x74\xc1\x04\x02\xa1\x01a\x54\x01",
    b"\x00\x53\x74\xc1\x07\x02\xa1\x01a\x54\x01\x40",
    b"\x00\x53\x74\xc1\x07\x02\xa1\x01a\xa1\x01\xff",
    b"\x00\x53\x74\xc1\x06\x02\xa1\x01a\x56\x02",
    b"\x00\x53\x74\xc1\x06\x02\xa1\x01a\x81\x00",
    b"\x00\x53\x74\xc1\x06\x02\xa1\x01a\x15\x00",
    b"\x00\x53\x74\xc1\xff\x02\xa1\x01a\x54\x01",
    b"no message",
    b"\x00\x53\x74\xd1\x00\x01\x00\x20\x00\x00\x00\x04\xa1\x01b\xb0\x00\x01\x00\x0f" + bytes(0x1000F) + b"\xa1\x01a\x54\x01",
]


@pytest.mark.parametrize("data", UNREADABLE)
def test_a_message_whose_properties_cannot_be_read_matches_nothing(data: bytes) -> None:
    for text in ("a = 1", "a IS NULL", "NOT (a = 1)"):
        assert not Selector(text).takes(data)
        assert not Selector(text).matches(b"x" + data + b"\x54\x01" * 10, 1, 1 + len(data), 0)


@pytest.mark.parametrize(
    "text, data",
    [
        ("JMSPriority = 4", b"\x00\x53\x70\xc0\x03\x02\x40\x41"),
        ("amqp.durable OR NOT amqp.durable", b"\x00\x53\x70\xc0\x02\x01\x43"),
        ("JMSMessageID IS NULL", b"\x00\x53\x73\xc0\x02\x01\x41"),
        ("JMSMessageID IS NULL", b"\x00\x53\x73\xc0\x02\x01\x45"),
        ("JMSType IS NULL", b"\x00\x53\x73\xc0\x05\x04\x40\x40\x40\x43"),
    ],
)
def test_a_field_of_a_wrong_type_cannot_be_read(text: str, data: bytes) -> None:
    assert not Selector(text).takes(data)


def test_faults_in_what_is_not_asked_for_do_not_matter() -> None:
    for text in ("TRUE", "JMSPriority = 4", "JMSType IS NULL"):
        assert Selector(text).takes(UNREADABLE[3])
    assert Selector("a = 1").takes(b"\x00\x53\x70\xc0\x02\x01\x43\x00\x53\x73\xc0\x02\x01\x41" + WHOLE)
    assert limits.MAX_SELECTOR_SECTION_BYTES == 1 << 16


def test_a_field_that_does_not_end_within_its_section_is_not_read_from_the_next_one() -> None:
    header, properties = b"\x00\x53\x70\xc0\x03\x02\x41\x70", b"\x00\x53\x73\x45"
    assert not compiled("JMSPriority > 0").takes(header + properties)
