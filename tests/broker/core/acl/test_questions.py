"""What a broker asks rules for each thing that a client wants, in the words of an ACL file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.acl import questions
from broker.core.acl.lookups import LIMITED, LOOKUPS
from broker.core.acl.questions import UNLIMITED, Lookup, shown
from broker.core.commands import ExchangeAdd, QueueAdd
from broker.core.exchange import Exchange
from broker.core.nodes import ExchangeNode, QueueNode

QUEUE = QueueNode(
    QueueAdd(
        uuid="u",
        name="work",
        level="all",
        durable=True,
        exclusive=True,
        arguments={"qpid.policy_type": "none"},
        alternate="dead",
    ),
    "local",
    "local",
    None,
    max_bytes=700,
)
EXCHANGE = ExchangeNode(ExchangeAdd(uuid="x", name="news", kind="topic", level="none"), "local", Exchange("news", "topic"))
QUEUE_FACTS = {
    "name": "work",
    "durable": "true",
    "autodelete": "false",
    "exclusive": "true",
    "alternate": "dead",
    "policytype": "none",
    "queuemaxsize": 700,
    "queuemaxcount": UNLIMITED,
}
OWN = {
    "autoDelete": True,
    "exclusive": True,
    "alternateExchange": "dead",
    "arguments": {"qpid.policy_type": "ring", "qpid.max_count": 7},
}
"""What the queue of a link is made with, where there is a policy."""
EXCHANGE_FACTS = {"name": "news", "type": "topic", "durable": "false", "alternate": ""}


def request(operation: str, kind: str, name: str = "", body: Any = None) -> Lookup:
    return questions.request(
        operation,
        kind,
        name,
        body or {},
        queue=QUEUE if name == "work" else None,
        exchange=EXCHANGE if name == "news" else None,
        default_bytes=900,
    )


EVERYTHING: list[Lookup] = [
    *questions.send_to_queue(QUEUE),
    *questions.take_from_queue(QUEUE),
    *questions.subscribe(EXCHANGE, "own", "k", OWN, 900),
    *questions.unknown("a/b"),
    questions.publish("", "k"),
    questions.REPLICATE,
    questions.ADMINISTER,
    request("QUERY", "queue", "work"),
    request("PROMOTE", "ha"),
    *(request(operation, kind) for operation in ("CREATE", "DELETE") for kind in ("queue", "exchange", "binding")),
    request("DELETE", "queue", "work"),
    request("DELETE", "exchange", "news"),
    *(request(operation, "queue", "work", {"to": "other"}) for operation in ("PURGE", "MOVE", "REROUTE", "UPDATE")),
    request("UPDATE", "exchange", "news"),
    *questions.unsubscribe(QUEUE),
]


OF_NOTHING: list[Lookup] = [
    *questions.unknown("a/b"),
    request("DELETE", "queue"),
    request("DELETE", "exchange"),
]
"""Of an object that does not exist only the name is known."""


@pytest.mark.parametrize("lookup", EVERYTHING, ids=str)
def test_a_lookup_is_one_that_rules_can_be_about_and_tells_nothing_that_no_rule_can_name(lookup: Lookup) -> None:
    nameable = {LIMITED.get(name, name) for name in LOOKUPS[lookup.action, lookup.kind]}
    assert set(lookup.facts) <= nameable


@pytest.mark.parametrize("lookup", [each for each in EVERYTHING if each not in OF_NOTHING], ids=str)
def test_a_lookup_about_something_that_there_is_or_will_be_has_all_that_rules_can_name(lookup: Lookup) -> None:
    """Breaks when a rule that denies by a property is passed, because the lookup does not have the property."""
    assert set(lookup.facts) == {LIMITED.get(name, name) for name in LOOKUPS[lookup.action, lookup.kind]}


def test_every_action_that_rules_can_be_about_is_looked_at_here() -> None:
    assert {(each.action, each.kind) for each in EVERYTHING} == LOOKUPS.keys() - {("create", "connection")}


def test_a_link_asks_for_what_it_will_do() -> None:
    assert list(map(str, questions.send_to_queue(QUEUE))) == [
        "access queue name=work",
        "publish exchange name=amq.default routingkey=work",
    ]
    assert list(map(str, questions.take_from_queue(QUEUE))) == ["access queue name=work", "consume queue name=work"]
    assert questions.send_to_queue(QUEUE)[0].facts == QUEUE_FACTS
    assert list(map(str, questions.subscribe(EXCHANGE, "own", "k", OWN, 900))) == [
        "access exchange name=news",
        "create queue name=own",
        "bind exchange name=news routingkey=k queuename=own",
    ]
    assert questions.access_exchange(EXCHANGE).facts == EXCHANGE_FACTS
    assert questions.subscribe(EXCHANGE, "own", "k", OWN, 900)[1].facts == {
        "name": "own",
        "durable": "false",
        "autodelete": "true",
        "exclusive": "true",
        "alternate": "dead",
        "policytype": "ring",
        "queuemaxsize": 900,
        "queuemaxcount": 7,
    }
    assert list(map(str, questions.unknown("a/b"))) == ["access queue name=a/b", "access exchange name=a"]


def test_a_request_tells_of_a_queue_what_is_asked_for_and_what_it_gets_without_asking() -> None:
    plain = request("CREATE", "queue", "q").facts
    assert plain == {
        "name": "q",
        "durable": "false",
        "autodelete": "false",
        "exclusive": "false",
        "alternate": "",
        "policytype": "reject",
        "queuemaxsize": 900,
        "queuemaxcount": UNLIMITED,
    }
    arguments = {"qpid.max_size": 5, "qpid.max_count": 6, "qpid.policy_type": "ring", "qpid.auto_delete_timeout": 1}
    body = {"durable": True, "exclusive": True, "alternateExchange": "dead", "arguments": arguments}
    assert request("CREATE", "queue", "q", body).facts == {
        "name": "q",
        "durable": "true",
        "autodelete": "true",
        "exclusive": "true",
        "alternate": "dead",
        "policytype": "ring",
        "queuemaxsize": 5,
        "queuemaxcount": 6,
    }
    assert request("DELETE", "queue", "work").facts == QUEUE_FACTS
    assert request("DELETE", "queue", "none").facts == {"name": "none"}


@pytest.mark.parametrize("value", [0, -1, "many", None, 1.5])
def test_what_is_no_limit_of_a_queue_is_above_every_limit_of_a_rule(value: object) -> None:
    facts = request("CREATE", "queue", "q", {"arguments": {"qpid.max_size": value, "qpid.max_count": value}}).facts
    assert (facts["queuemaxsize"], facts["queuemaxcount"]) == (UNLIMITED, UNLIMITED)


def test_arguments_that_are_no_map_are_left_to_who_refuses_them() -> None:
    assert request("CREATE", "queue", "q", {"arguments": [1]}) == request("CREATE", "queue", "q")


def test_a_request_about_exchanges_bindings_and_everything_else_is_asked_in_the_words_of_rules() -> None:
    body = {"exchangeType": "topic", "durable": True, "alternateExchange": "dead"}
    assert request("CREATE", "exchange", "x", body).facts == {
        "name": "x",
        "type": "topic",
        "durable": "true",
        "alternate": "dead",
    }
    assert request("CREATE", "exchange", "x").facts["type"] == "direct"
    assert request("DELETE", "exchange", "news").facts == EXCHANGE_FACTS
    assert request("DELETE", "exchange", "none").facts == {"name": "none"}
    binding = {"exchange": "news", "queue": "work", "key": "k"}
    assert str(request("CREATE", "binding", "", binding)) == "bind exchange name=news routingkey=k queuename=work"
    assert str(request("DELETE", "binding", "", binding)) == "unbind exchange name=news routingkey=k queuename=work"
    assert str(request("QUERY", "queue", "work")) == "access query name=work schemaclass=queue"
    assert str(request("ADD-BROKER", "ha")) == "access method name=add-broker schemaclass=ha"
    assert str(request("PURGE", "queue", "work")) == "purge queue name=work"
    assert str(request("MOVE", "queue", "work", {"to": "other"})) == "move queue name=work queuename=other"
    assert str(request("REROUTE", "queue", "work")) == "reroute queue name=work exchangename=dead"
    assert str(request("REROUTE", "queue", "none", {"exchange": "news"})) == "reroute queue name=none exchangename=news"
    assert request("REROUTE", "queue", "work", {"exchange": ""}).facts["exchangename"] == "", "not its alternate exchange"
    assert str(request("UPDATE", "exchange", "news")) == "update exchange name=news"
    assert str(request("JUGGLE", "queue")) == "access method name=juggle schemaclass=queue"


SHOWN = {
    "plain@REALM.org/x-1": "plain@REALM.org/x-1",
    "": "''",
    "two words": "'two words'",
    "a\nb": r"'a\nb'",
    "é": "'é'",
    "it's": '"it\'s"',
    "x" * 100: "x" * 100,
    "x" * 101: "x" * 100 + "...",
}


@pytest.mark.parametrize("text, said", SHOWN.items())
def test_what_a_client_says_stands_in_a_line_cut_and_quoted(text: str, said: str) -> None:
    assert shown(text) == said


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
KEYS = ("arguments", "durable", "exchange", "queue", "key", "exchangeType", "alternateExchange", "autoDelete", "exclusive")


@given(
    st.sampled_from(["QUERY", "CREATE", "DELETE", "PROMOTE", "\0"]),
    st.sampled_from(["queue", "exchange", "binding", "ha", "\n"]),
    st.text(),
    st.dictionaries(st.sampled_from(KEYS), VALUES | st.dictionaries(st.just("qpid.max_size"), VALUES)),
)
def test_whatever_stands_in_a_request_becomes_one_lookup_that_can_be_written_in_one_line(
    operation: str, kind: str, name: str, body: dict[str, Any]
) -> None:
    lookup = request(operation, kind, name, body)
    assert all(isinstance(fact, str | int) for fact in lookup.facts.values())
    assert str(lookup).isprintable()
