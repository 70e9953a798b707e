"""What the management node says of itself, apart from what a running broker has (see tests/broker/test_administration.py)."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core import schema


@pytest.mark.parametrize(
    "kind, item, name, identity",
    [
        ("queue", {"name": "q", "uuid": "u"}, "q", "u"),
        ("binding", {"exchange": "", "queue": "q", "key": "q"}, "/q/q", "/q/q"),
        ("connection", {"id": "qpid.1"}, "qpid.1", "qpid.1"),
        ("subscription", {"id": "s", "connection": "qpid.1"}, "s", "qpid.1/s"),
        ("history", {"epoch": 3}, "3", "3"),
        ("broker", {"name": "b"}, "b", "b"),
        ("ha", {"status": "ready"}, "ha", "ha"),
    ],
)
def test_an_entity_has_a_name_an_identity_and_a_type(kind: str, item: dict[str, Any], name: str, identity: str) -> None:
    assert schema.entity(kind, item) == item | {"name": name, "identity": identity, "type": kind}


def test_attributes_and_operations_are_listed_once_and_those_that_all_have_first() -> None:
    assert schema.attributes("ha", [{"status": 1, "name": 2}, {"status": 1, "lag": 3}]) == [
        "name",
        "identity",
        "type",
        "status",
        "lag",
    ]
    assert schema.attributes("binding")[:5] == ["name", "identity", "type", "exchange", "queue"]
    assert schema.operations("acl") == ["READ", "QUERY", "RELOAD"]
    assert schema.operations("connection") == ["READ", "QUERY"]
    assert "GET-TYPES" in schema.operations(schema.NODE)


def test_rows_have_the_attributes_that_were_asked_for_and_begin_behind_the_offset() -> None:
    stream = iter([(("a",), {"epoch": 1}), None, (("b",), {"epoch": 2}), (("c",), {"epoch": 3})])
    rows = list(schema.rows(stream, "history", ["type", "epoch", "colour"], 1))
    assert rows == [None, None, ((2,), ["history", 2, None]), ((3,), ["history", 3, None])]
