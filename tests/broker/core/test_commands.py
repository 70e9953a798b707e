"""Commands as they stand in a log: their texts, what is carried, and what is not applied."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.commands import (
    MACHINE_VERSION,
    Alter,
    Bind,
    Command,
    ExchangeAdd,
    ExchangeDel,
    MachineVersion,
    Numbers,
    QueueAdd,
    QueueDel,
    QueueDelIfEmpty,
    Setting,
    StoreAdd,
    StoreDel,
    Term,
    Unbind,
    UnknownCommand,
    decode,
    numbered,
)

FIRST_RELEASE: list[tuple[Command, bytes]] = [
    (
        QueueAdd(uuid="u", name="q", level="all", durable=True, auto_delete=True, arguments={"b": 1, "a": None}, alternate="x"),
        b'{"alternate":"x","arguments":{"a":null,"b":1},"autoDelete":true,"durable":true,"exclusive":false,"level":"all",'
        b'"name":"q","op":"queue-add","uuid":"u"}',
    ),
    (QueueDel(uuid="u"), b'{"op":"queue-del","uuid":"u"}'),
    (StoreAdd(uuid="u"), b'{"arguments":{},"op":"store-add","uuid":"u"}'),
    (StoreAdd(uuid="u", number=3), b'{"arguments":{},"number":3,"op":"store-add","uuid":"u"}'),
    (StoreDel(uuid="u"), b'{"op":"store-del","uuid":"u"}'),
    (
        ExchangeAdd(uuid="u", name="\u00e4", kind="topic", level="none"),
        b'{"alternate":"","arguments":{},"durable":false,"kind":"topic","level":"none","name":"\\u00e4","op":"exchange-add",'
        b'"uuid":"u"}',
    ),
    (ExchangeDel(uuid="u"), b'{"op":"exchange-del","uuid":"u"}'),
    (
        Bind(exchange="x", queue="q", key="k", arguments={"n": 1.5}),
        b'{"arguments":{"n":1.5},"exchange":"x","key":"k","op":"bind","queue":"q"}',
    ),
    (Unbind(exchange="x", queue="q", key="k"), b'{"exchange":"x","key":"k","op":"unbind","queue":"q"}'),
    (
        Term(epoch=3, primary="a:1", reason="asked", ts="2026-01-01", gap_ms=7),
        b'{"epoch":3,"gapMs":7,"op":"reign","primary":"a:1","reason":"asked","ts":"2026-01-01"}',
    ),
    (Numbers(next=4, seqs=[(1, 2), (3, 4)]), b'{"next":4,"op":"numbers","seqs":[[1,2],[3,4]]}'),
]
"""Each command with the text that release 0.1.0 wrote for it."""


@pytest.mark.parametrize("command,text", FIRST_RELEASE, ids=lambda value: value.OP if isinstance(value, Command) else "")
def test_a_command_of_the_first_version_has_the_text_that_release_0_1_wrote_and_is_read_from_it(
    command: Command, text: bytes
) -> None:
    """A cluster of both releases must come to the same bytes."""
    assert command.text == text
    again = decode(text)
    assert again == command
    assert isinstance(again, Command)
    assert again.text is text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.text(), st.integers(1, 2**31))
def test_whatever_stands_in_an_argument_is_read_as_python_reads_it_and_written_as_it_was(
    arguments: dict[str, Any], name: str, number: int
) -> None:
    """Among it NaN, infinities and halves of surrogate pairs, which strict JSON does not have."""
    fields = {"op": "queue-add", "uuid": "u", "name": name, "level": "all", "arguments": arguments, "later": arguments}
    text = json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
    command = decode(text)
    assert isinstance(command, QueueAdd)
    assert repr(command.arguments) == repr(json.loads(text)["arguments"])
    assert (command.name, command.text) == (name, text)
    with_number = numbered(command, number)
    expected = json.dumps(fields | {"number": number}, separators=(",", ":"), sort_keys=True).encode()
    assert (with_number.number, with_number.text) == (number, expected)
    assert numbered(with_number, number) is with_number


@pytest.mark.parametrize(
    "text,why",
    [
        (b'{"op":"juggle","needs":1}', "'juggle' is unknown"),
        (b'{"op":"queue-del","uuid":"u","needs":11}', "'queue-del' needs machine version 11"),
        (b'{"op":"juggle","needs":11}', "'juggle' needs machine version 11"),
        (b'{"op":"queue-add","uuid":"u","name":"q","level":"all","arguments":{"x":NaN},"needs":11}', "needs machine version 11"),
        (b'{"op":"queue-del"}', "missing required field `uuid`"),
        (b'{"op":"queue-del","uuid":NaN}', "is not a command"),
        (b'{"op":NaN}', "is not a command"),
        (b"[1]", "is not a command"),
        (b"{", "is not a command"),
        (b"\xff", "is not a command"),
    ],
)
def test_what_this_version_cannot_apply_is_no_guess(text: bytes, why: str) -> None:
    found = decode(text)
    assert isinstance(found, UnknownCommand)
    assert why in found.why
    assert found.text == text


def test_what_needs_no_more_than_this_version_is_applied() -> None:
    found = decode(b'{"op":"queue-del","uuid":"u","needs":%d}' % MACHINE_VERSION)
    assert found == QueueDel(uuid="u", needs=MACHINE_VERSION)


SECOND_VERSION: list[tuple[Command, bytes]] = [
    (MachineVersion(), b'{"needs":2,"op":"machine-version"}'),
    (MachineVersion(needs=3), b'{"needs":3,"op":"machine-version"}'),
    (QueueDelIfEmpty(uuid="u"), b'{"needs":2,"op":"queue-del-if-empty","uuid":"u"}'),
    (Setting(key="k", value={"n": 1}), b'{"key":"k","needs":4,"op":"setting","value":{"n":1}}'),
    (Alter(uuid="u", arguments={"a": 1}), b'{"alternate":"","applies":1,"arguments":{"a":1},"needs":6,"op":"alter","uuid":"u"}'),
]


@pytest.mark.parametrize("command,text", SECOND_VERSION)
def test_what_the_second_version_brought_is_unknown_to_the_first_and_says_what_it_needs(command: Command, text: bytes) -> None:
    assert command.text == text
    assert decode(text, MACHINE_VERSION) == command
    found = decode(text, command.needs - 1)
    assert isinstance(found, UnknownCommand)
    assert found.why == f"{command.OP!r} needs machine version {command.needs}"


def test_a_command_is_unknown_to_a_version_before_its_own_even_if_its_text_does_not_say_so() -> None:
    for text in (
        b'{"op":"queue-del-if-empty","uuid":"u","needs":1}',
        b'{"op":"queue-del-if-empty","uuid":"u","x":NaN,"needs":1}',
    ):
        assert isinstance(decode(text, 1), UnknownCommand)
        assert isinstance(decode(text, 2), QueueDelIfEmpty)


def test_who_asked_for_a_term_stands_in_a_text_only_if_somebody_is_known_and_needs_no_newer_version() -> None:
    text = b'{"by":"etcd","epoch":0,"gapMs":-1,"op":"reign","planned":true,"primary":"","reason":"","ts":""}'
    assert Term(by="etcd", planned=True).text == text
    assert decode(text, 1) == Term(by="etcd", planned=True)


def test_an_owner_stands_in_a_text_only_if_there_is_one_and_needs_no_newer_version() -> None:
    """Breaks when a broker without rules writes other bytes than before, or an older release would refuse the queue."""
    owned = QueueAdd(uuid="u", name="q", level="all", owner="ann@REALM")
    assert b'"owner":"ann@REALM"' in owned.text
    assert owned.needs == 1
    assert decode(owned.text) == owned
    assert b"owner" not in QueueAdd(uuid="u", name="q", level="all").text
    kept = numbered(owned, 7)
    assert (kept.owner, kept.number) == ("ann@REALM", 7)
    assert b'"owner":"ann@REALM"' in kept.text
