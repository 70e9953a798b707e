"""Tokens that are put to the node `$cbs` behind an ANONYMOUS login: what a client may do before, and as whom afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import proton
import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock

from broker.core import limits
from broker.core.identity import Socket
from broker.core.tokens import Rules, Tokens, parse_keys
from broker.sessions.authentication import Authentication
from broker.sessions.principal import Principal
from tests.broker.clients import Bench, Client, bench, condition
from tests.broker.sessions.test_authentication import ENCRYPTED, USERS, ann, is_open
from tests.broker.test_acl import enforce
from tests.tokens import AUDIENCE, ISSUER, NOW_S, key_set, token

UNAUTHORIZED = "amqp:unauthorized-access"


def taking(**options: Any) -> Callable[[Clock], Authentication]:
    """Where clients may put tokens, and the clock begins at `NOW_S`."""

    def make(clock: Clock) -> Authentication:
        tokens = Tokens(Rules(ISSUER, AUDIENCE), lambda: NOW_S + clock.seconds())
        tokens.keys = parse_keys(key_set("RS256"))
        given: dict[str, Any] = {"in_thread": maybeDeferred, "demanded": True, "users": USERS, "token_put": True} | options
        return Authentication(clock, new_nonce=lambda: "nonce", tokens=tokens, **given)

    return make


class Putting:
    """A client that has come in as nobody, with links to `$cbs`."""

    def __init__(self, b: Bench, socket: Socket = ENCRYPTED, properties: dict[str, Any] | None = None) -> None:
        self.b = b
        self.client: Client = b.client(properties, mechanism="ANONYMOUS", socket=socket)
        self.answers = self.client.receiver("$cbs")
        self.sender = self.client.sender("$cbs")

    def put(self, body: Any = None, number: Any = 1, **said: Any) -> list[tuple[int, str]]:
        """Put a token. Returns status and text of each answer so far to this request."""
        message: Any = proton.Message(body=body if body is not None else signed(self.b), id=number)
        message.properties = {"operation": "put-token", "type": "jwt", "name": "amqps://broker/q"} | said
        self.client.send_encoded(self.sender, message.encode())
        return self.answered(number)

    def answered(self, number: Any = 1) -> list[tuple[int, str]]:
        came = [message for _, message in self.client.received[self.answers.name] if message.correlation_id == number]
        return [(each.properties["status-code"], each.properties["status-description"]) for each in came]


def signed(b: Bench, exp_s: float = 600, **claims: Any) -> str:
    return token("RS256", exp=NOW_S + b.clock.seconds() + exp_s, **claims)


def make_queue(b: Bench) -> None:
    assert ann(b).request("CREATE", "queue", "q")[0] == 201


def test_a_client_puts_its_token_and_acts_for_its_user() -> None:
    with bench(authentication=taking()) as b:
        make_queue(b)
        here = Putting(b)
        assert is_open(here.client)
        assert here.put() == [(200, "OK")]
        assert here.client.server.principal == Principal("ann@QPID", "CBS", True, NOW_S + 600 + limits.TOKEN_LEEWAY_S)
        here.client.send(here.client.sender("q"), "one")
        assert b.depth("q") == 1
        items = here.client.request("QUERY", "connection")[2]["items"]
        assert (items[-1]["user"], items[-1]["mechanism"]) == ("ann@QPID", "CBS")


@pytest.mark.parametrize("address", ["q", "$management", "amq.fanout", None, "nothing"])
def test_who_has_shown_no_token_reaches_no_other_node_and_does_not_hear_whether_it_is_there(address: str | None) -> None:
    with bench(authentication=taking()) as b:
        make_queue(b)
        client = Putting(b).client
        links = [client.sender(address), client.receiver(address, dynamic=address is None)]
        assert [condition(link) for link in links] == [UNAUTHORIZED] * 2
        assert len({link.remote_condition.description for link in links}) == 1
        assert is_open(client)


def test_links_that_come_ahead_of_the_answer_to_an_open_are_refused_too() -> None:
    with bench(authentication=taking()) as b:
        make_queue(b)
        client = Client(b, mechanism="ANONYMOUS", socket=ENCRYPTED)
        b.clients.append(client)
        client.connection.open()
        client.session.open()
        sender = client.sender("q")
        assert condition(sender) == UNAUTHORIZED


def test_nobody_comes_in_without_the_sasl_layer_because_tokens_may_be_put() -> None:
    """Breaks when a client that says no SASL at all is taken for one that has logged in as nobody, and owes nothing."""
    with bench(authentication=taking()) as b:
        assert not is_open(b.client(sasl=False, socket=ENCRYPTED))


@pytest.mark.parametrize("name", ["qpid.ha-admin", "qpid.ha-peer"])
def test_who_is_to_put_a_token_is_no_administrator_and_no_broker(name: str) -> None:
    with bench(authentication=taking()) as b:
        client = b.client({name: "x"}, mechanism="ANONYMOUS", socket=ENCRYPTED)
        assert condition(client.connection) == UNAUTHORIZED


def test_tokens_are_put_where_that_was_asked_for_and_over_tls_alone() -> None:
    with bench(authentication=taking()) as b:
        assert not is_open(b.client(mechanism="ANONYMOUS"))
    with bench(authentication=taking(token_put=False)) as b:
        assert not is_open(b.client(mechanism="ANONYMOUS", socket=ENCRYPTED))


WRONG: dict[str, tuple[Callable[[Bench], Any], dict[str, Any], int]] = {
    "of another issuer": (lambda b: signed(b, iss="https://other"), {}, 401),
    "no token": (lambda b: "eyJhbGci.x.y", {}, 401),
    "expired": (lambda b: signed(b, -600), {}, 401),
    "no text": (lambda b: 7, {}, 400),
    "one of Azure's own": (lambda b: "SharedAccessSignature sr=q", {"type": "servicebus.windows.net:sastoken"}, 400),
    "of a type that is not text": (signed, {"type": {"jwt": 1}}, 400),
    "another operation": (signed, {"operation": "delete-token"}, 400),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_token_that_does_not_count_is_answered_and_changes_nothing(wrong: str) -> None:
    make, said, status = WRONG[wrong]
    with bench(authentication=taking()) as b:
        here = Putting(b)
        body = make(b)
        ((found, text),) = here.put(body, **said)
        assert found == status
        assert str(body) not in text
        assert here.client.server.principal.owes_token
        assert condition(here.client.sender("q")) == UNAUTHORIZED
        assert here.put(number=2) == [(200, "OK")], "it may try again"


def test_who_puts_no_token_in_time_is_turned_out_and_who_has_put_one_stays() -> None:
    with bench(authentication=taking(), open_timeout_s=5.0) as b:
        idle, shown = Putting(b), Putting(b)
        shown.put()
        b.pass_time(4.0)
        assert is_open(idle.client)
        b.pass_time(3.0)
        assert condition(idle.client.connection) == UNAUTHORIZED
        assert is_open(shown.client)


def test_a_stranger_stays_one_until_its_token_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FEW_STRANGERS", 4)
    with bench(authentication=taking(), max_connections=16) as b:
        first, _ = Putting(b), Putting(b)
        assert b.broker.new_connection(ENCRYPTED) is None, "two of four may come from one host"
        first.put()
        assert b.broker.new_connection(ENCRYPTED) is not None


def test_a_connection_ends_with_its_token_unless_its_user_puts_a_later_one() -> None:
    with bench(authentication=taking()) as b:
        ends, stays = Putting(b), Putting(b)
        for here in (ends, stays):
            here.put(signed(b, 10 - limits.TOKEN_LEEWAY_S))
        assert stays.put(signed(b, sub="bob"), number=2)[0][0] == 401, "it is somebody else's"
        assert stays.put(signed(b, 300), number=3) == [(200, "OK")]
        b.pass_time(12.0)
        assert condition(ends.client.connection) == UNAUTHORIZED
        assert is_open(stays.client)
        assert stays.client.server.principal.user == "ann@QPID"


def test_who_has_logged_in_otherwise_puts_no_token() -> None:
    with bench(authentication=taking()) as b:
        here = Putting.__new__(Putting)
        here.b, here.client = b, ann(b)
        here.answers, here.sender = here.client.receiver("$cbs"), here.client.sender("$cbs")
        assert here.put(signed(b, sub="bob"))[0][0] == 403
        assert here.client.server.principal.user == "ann@QPID"


def test_the_rules_are_asked_when_the_token_has_said_who_it_is() -> None:
    with bench(authentication=taking()) as b:
        make_queue(b)
        given = ("quota connections 2 all", "acl deny bob@QPID create connection host=all", "acl allow ann@QPID all")
        enforce(b, "\n".join((*given, "acl deny all all")))
        first, second, other = Putting(b), Putting(b), Putting(b)
        assert first.put() == [(200, "OK")]
        second.put()
        assert condition(second.client.connection) == "amqp:resource-limit-exceeded"
        other.put(signed(b, sub="bob"))
        assert condition(other.client.connection) == UNAUTHORIZED
        assert condition(first.client.sender("q")) == ""


def test_a_token_takes_one_thread_of_a_connection_and_nothing_comes_of_it_when_that_has_gone() -> None:
    working: list[Deferred[bytes]] = []

    def in_thread(work: Any) -> Deferred[bytes]:
        working.append(Deferred())
        return working[-1]

    with bench(authentication=taking(in_thread=in_thread)) as b:
        here = Putting(b)
        assert here.put() == []
        other = here.client.sender("$cbs")
        here.sender, first = other, here.sender
        assert here.put(number=2)[0][0] == 429
        assert first.credit == 0, "one token ahead of its answer"
        here.client.lose()
        working[0].callback(b"")
        b.settle()
        assert not b.broker.connections


def test_a_message_for_a_token_is_small() -> None:
    with bench(authentication=taking()) as b:
        here = Putting(b)
        here.client.send(here.sender, "x" * limits.TOKEN_MESSAGE_BYTES)
        assert condition(here.sender) == "amqp:link:message-size-exceeded"


@pytest.mark.parametrize("known_as", ["id", "correlation_id"])
@pytest.mark.parametrize("piece", ["x", "\u20ac", b"x"])
def test_the_id_of_a_message_with_a_token_is_short(known_as: str, piece: str | bytes) -> None:
    """Breaks when answers that repeat ids of 16 KiB wait for a client that takes none."""
    with bench(authentication=taking()) as b:
        here = Putting(b)
        message: Any = proton.Message(body=signed(b), **{known_as: piece * 256})
        message.properties = {"operation": "put-token", "type": "jwt"}
        (delivery,) = here.client.send_encoded(here.sender, message.encode())
        assert delivery.remote.condition.name == "amqp:decode-error"
        assert "255 bytes" in delivery.remote.condition.description
        longest = "x" * 255
        assert [status for status, _ in here.put(number=longest)] == [200]


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    with bench(authentication=taking()) as b:
        here = Putting(b)
        here.answers.close()
        b.settle()
        assert here.put() == []
        assert not here.client.server.principal.owes_token
