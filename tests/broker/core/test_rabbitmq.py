"""Requests of RabbitMQ's clients, as requests to management."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.rabbitmq import Native, Unserved, answer, native

NO_ARGUMENTS: dict[str, Any] = {"autoDelete": False, "arguments": {}}


@pytest.mark.parametrize(
    "given, made",
    [
        (None, NO_ARGUMENTS),
        (
            {"durable": False, "auto_delete": True, "arguments": {"x-queue-type": "classic"}},
            {"autoDelete": True, "arguments": {}},
        ),
        ({"arguments": {"x-message-ttl": 5, "x-unknown": 1}}, NO_ARGUMENTS | {"arguments": {"x-message-ttl": 5, "x-unknown": 1}}),
        ({"arguments": {"x-max-length": 3}}, NO_ARGUMENTS | {"arguments": {"qpid.max_count": 3, "qpid.policy_type": "ring"}}),
        (
            {"arguments": {"x-max-length-bytes": 3, "x-overflow": "reject-publish"}},
            NO_ARGUMENTS | {"arguments": {"qpid.max_size": 3, "qpid.policy_type": "reject"}},
        ),
        ({"arguments": {"x-overflow": "drop-head"}}, NO_ARGUMENTS | {"arguments": {"qpid.policy_type": "ring"}}),
        ({"arguments": {"x-dead-letter-exchange": "dlx"}}, NO_ARGUMENTS | {"alternateExchange": "dlx"}),
        ({"arguments": {"x-dead-letter-exchange": ""}}, NO_ARGUMENTS),
    ],
)
def test_a_queue_is_made_with_management_s_arguments(given: Any, made: dict[str, Any]) -> None:
    """Breaks when one is dropped: what is not known must come to management, which refuses it."""
    assert native("PUT", "/queues/a%2Fb", given) == Native("CREATE", "queue", "a/b", made)


@pytest.mark.parametrize(
    "method, path, body, wanted",
    [
        ("GET", "/queues/q", None, Native("QUERY", "queue", "q", {"name": "q"})),
        ("DELETE", "/queues/q", None, Native("DELETE", "queue", "q")),
        ("PUT", "/exchanges/x", {"type": "topic"}, Native("CREATE", "exchange", "x", {"exchangeType": "topic", "arguments": {}})),
        ("PUT", "/exchanges/x", {"type": None}, Native("CREATE", "exchange", "x", {"exchangeType": "direct", "arguments": {}})),
        ("DELETE", "/exchanges/x", None, Native("DELETE", "exchange", "x")),
        (
            "POST",
            "/bindings",
            {"source": "x", "destination_queue": "q", "binding_key": "k", "arguments": {"x-match": "any"}},
            Native("CREATE", "binding", "", {"exchange": "x", "queue": "q", "key": "k", "arguments": {"x-match": "any"}}),
        ),
        (
            "POST",
            "/bindings",
            {"source": None, "destination_queue": "q"},
            Native("CREATE", "binding", "", {"exchange": "", "queue": "q", "key": "", "arguments": {}}),
        ),
        (
            "DELETE",
            "/bindings/src=x;dstq=a%3Bb;key=%2F;args=",
            None,
            Native("DELETE", "binding", "", {"exchange": "x", "queue": "a;b", "key": "/"}),
        ),
    ],
)
def test_every_other_request_has_its_word(method: str, path: str, body: Any, wanted: Native) -> None:
    assert native(method, path, body) == wanted


@pytest.mark.parametrize(
    "method, path, body, word",
    [
        ("PUT", "/queues/q", {"arguments": {"x-queue-type": "stream"}}, "'stream'"),
        ("PUT", "/queues/q", {"exclusive": True}, "dynamic source"),
        ("PUT", "/queues/q", {"arguments": {"x-overflow": "reject-publish-dlx"}}, "drop-head and reject-publish"),
        ("PUT", "/queues/q", {"arguments": {"x-dead-letter-routing-key": "k"}}, "x-dead-letter-routing-key"),
        ("PUT", "/exchanges/x", {"internal": True}, "internal"),
        ("PUT", "/exchanges/x", {"type": ["direct"]}, "type must be a text"),
        ("POST", "/bindings", {"source": [], "destination_queue": "q", "binding_key": "k"}, "source must be a text"),
        ("POST", "/bindings", {"source": "x", "destination_queue": {}, "binding_key": "k"}, "destination_queue must be a text"),
        ("POST", "/bindings", {"source": "x", "destination_queue": "q", "binding_key": 7}, "binding_key must be a text"),
        ("PUT", "/exchanges/x", {"auto_delete": True}, "auto_delete"),
        ("POST", "/bindings", {"source": "x", "destination_exchange": "y"}, "destination_exchange"),
        ("DELETE", "/bindings/src=x;dstq=q;key=k;args=5", None, "without arguments"),
        ("DELETE", "/bindings/src=x;dste=y;key=k;args=", None, "src, dstq and key"),
        ("DELETE", "/queues/q/messages", None, "qpid-config"),
        ("PUT", "/auth/tokens", None, "qpid-config"),
        ("GET", "/queues/100%", None, "qpid-config"),
        ("", "", None, "qpid-config"),
    ],
)
def test_what_has_no_word_is_refused_with_what_to_do(method: str, path: str, body: Any, word: str) -> None:
    with pytest.raises(Unserved, match=word):
        native(method, path, body)


QUEUE = {"name": "q", "arguments": {"a": 1}, "autoDelete": True, "messages": 2, "consumers": 1}


@pytest.mark.parametrize(
    "request_, status, alike, wanted",
    [
        (Native("CREATE", "queue", "q"), 201, True, (201, {})),
        (Native("CREATE", "queue", "q"), 409, True, (200, {})),
        (Native("CREATE", "queue", "q"), 409, False, (409, "the text")),
        (Native("CREATE", "exchange", "x"), 201, True, (204, None)),
        (Native("CREATE", "binding", ""), 409, True, (204, None)),
        (Native("DELETE", "queue", "q"), 204, False, (200, {})),
        (Native("DELETE", "binding", ""), 204, False, (204, None)),
        (Native("DELETE", "binding", ""), 404, False, (404, "the text")),
    ],
)
def test_an_answer_is_in_rabbitmq_s_words(request_: Native, status: int, alike: bool, wanted: tuple[int, Any]) -> None:
    assert answer(request_, status, "the text", {}, alike=alike) == wanted


def test_a_queue_is_shown_with_what_its_clients_look_for() -> None:
    status, shown = answer(Native("QUERY", "queue", "q"), 200, "OK", {"items": [QUEUE]}, alike=False)
    assert status == 200
    assert shown["durable"] is True
    assert {
        "name": "q",
        "auto_delete": True,
        "message_count": 2,
        "consumer_count": 1,
        "arguments": {"a": 1},
    }.items() <= shown.items()
