"""What a broker does for clients when rules are in force, with real connections of the users that the rules name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import proton
import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.logger import ILogObserver, eventAsText, globalLogPublisher
from zope.interface import provider

from broker.core import limits
from broker.core.acl.grammar import read
from broker.core.acl.rules import Acl
from broker.core.commands import QueueAdd
from broker.core.filters import HEADERS_BINDING
from broker.core.nodes import LOCAL
from broker.sessions.connection import Connection
from broker.sessions.principal import Principal
from broker.sessions.relay import Relay
from tests.broker import clients
from tests.broker.clients import ACCEPTED, ADMIN, REJECTED, Bench, condition, request, statuses
from tests.broker.users import as_user, bench

DENIED = "amqp:unauthorized-access"
EVERYTHING = "acl allow boss all all\n"
"""For the user who makes what a test needs."""


def rules(text: str) -> Acl:
    return read(f"{text}\n{EVERYTHING}", "a.acl")


def enforce(b: Bench, text: str) -> None:
    b.broker.enforce(rules(text))
    b.settle()


def said(endpoint: Any) -> str:
    """The text with which the broker ended it."""
    return str(endpoint.remote_condition.description) if endpoint.remote_condition else ""


@pytest.fixture
def log() -> Iterator[list[str]]:
    """The lines of the audit log."""
    lines: list[str] = []

    @provider(ILogObserver)
    def observe(event: dict[str, Any]) -> None:
        if event.get("log_namespace") == "audit":
            lines.append(eventAsText(event, includeTimestamp=False, includeSystem=False))

    globalLogPublisher.addObserver(observe)
    yield lines
    globalLogPublisher.removeObserver(observe)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """Every decision that rules were asked for, as (user, action, object). The rules are the real ones."""
    found: list[tuple[str, str, str]] = []
    decide = Acl.decide

    def counted(self: Acl, user: str, action: str, kind: str, facts: Any) -> Any:
        found.append((user, action, kind))
        return decide(self, user, action, kind, facts)

    monkeypatch.setattr(Acl, "decide", counted)
    return found


# ---- links


def test_a_link_to_a_queue_needs_access_and_to_consume_or_to_publish() -> None:
    with bench() as b:
        b.queue("work", durable=True)
        enforce(
            b,
            "acl allow producer access queue name=work durable=true\n"
            "acl allow producer publish exchange name=amq.default routingkey=work\n"
            "acl allow consumer access queue name=work\n"
            "acl allow consumer consume queue name=work\n"
            "acl allow half publish exchange\nacl allow half consume queue",
        )
        producer, consumer, half, eve = (as_user(b, user) for user in ("producer", "consumer", "half", "eve"))
        sender, receiver = producer.sender("work"), consumer.receiver("work")
        assert [condition(sender), condition(receiver)] == ["", ""]
        producer.send(sender, "one")
        assert consumer.bodies(receiver) == ["one"]
        assert [said(producer.receiver("work")), said(consumer.sender("work"))] == [
            "producer may not: consume queue name=work",
            "consumer may not: publish exchange name=amq.default routingkey=work",
        ]
        for client in (half, eve):
            for link in (client.sender("work"), client.receiver("work"), client.receiver("work", browse=True)):
                assert condition(link) == DENIED
        assert said(half.sender("work")) == "half may not: access queue name=work"
        assert condition(eve.connection) == "", "the smallest thing that is denied is what ends"


def test_whoever_may_not_use_a_name_does_not_hear_whether_there_is_such_a_queue() -> None:
    with bench() as b:
        b.queue("secret")
        enforce(b, "acl allow ann access queue name=a*")
        eve, ann = as_user(b, "eve"), as_user(b, "ann")
        for address in ("secret", "nothing", "x/key"):
            assert condition(eve.sender(address)) == condition(eve.receiver(address)) == DENIED
        assert said(eve.sender("nothing")) == "eve may not: access queue name=nothing"
        assert condition(ann.sender("another")) == condition(ann.receiver("another")) == "amqp:not-found"


def test_without_rules_everything_is_allowed() -> None:
    with bench() as b:
        eve = as_user(b, "eve", ADMIN)
        assert eve.request("CREATE", "queue", "q")[0] == 201
        assert condition(eve.sender("q")) == condition(eve.receiver("amq.topic/k")) == ""
        assert condition(eve.sender("nothing")) == "amqp:not-found"
        created = next(iter(b.broker.ledgers[LOCAL].state.definitions.queues.values()))
        assert b"owner" not in created.text


def test_a_name_that_nothing_has_shown_to_be_its_own_counts_for_nothing(log: list[str]) -> None:
    """Breaks when with `--auth no` everybody is whom the rules name as soon as it says so."""
    with clients.bench() as b:
        enforce(b, "acl allow anonymous create queue")
        liar = b.client(mechanism="PLAIN", user="boss", password="x")
        assert liar.request("DELETE", "queue", "q")[1] == "anonymous may not: delete queue name=q"
        assert liar.request("CREATE", "queue", "q")[0] == 201
        assert log[-1] == "audit: boss@QPID (so it says) from 127.0.0.1:1: create queue name=q: 201 created"
        assert b.broker.nodes.queues["q"].definition.owner == "anonymous"


def test_a_subscription_to_an_exchange_needs_access_a_queue_of_its_own_and_the_binding() -> None:
    with bench() as b:
        enforce(
            b,
            "acl allow ann access exchange name=amq.topic type=topic\n"
            "acl allow ann create queue name=amq.topic_* exclusive=true autodelete=true queuemaxsizeupperlimit=1073741824\n"
            "acl allow ann bind exchange name=amq.topic routingkey=stocks.#\n"
            "acl allow bob access exchange\nacl allow bob bind exchange\n"
            "acl allow eve bind exchange\nacl allow eve create queue",
        )
        ann, bob, eve = (as_user(b, user) for user in ("ann", "bob", "eve"))
        allowed = ann.receiver("amq.topic/stocks.a")
        assert condition(allowed) == ""
        denied = [ann.receiver("amq.topic/news"), ann.receiver("amq.topic"), bob.receiver("amq.topic/stocks.a")]
        assert [condition(link) for link in denied] == [DENIED] * 3
        assert said(denied[0]).startswith("ann may not: bind exchange name=amq.topic routingkey=news queuename=amq.topic_")
        assert said(denied[2]).startswith("bob may not: create queue name=amq.topic_")
        assert said(eve.receiver("amq.topic/x")) == "eve may not: access exchange name=amq.topic"
        assert len(b.lead.committed) == 1, "nothing is made for who is denied, not even for a moment"
        wrong = eve.receiver("amq.topic/x", filters={proton.symbol(HEADERS_BINDING): {"x": b"no text"}})
        assert condition(wrong) == DENIED, "what is wrong with a wish is for those who might have it"


def test_a_mailbox_for_answers_is_everybody_s_and_so_is_management() -> None:
    with bench() as b:
        enforce(b, "")
        status, text, body = as_user(b, "eve").request("QUERY", "queue")
        assert (status, text, body) == (403, "eve may not: access query schemaclass=queue", {})


# ---- messages


def test_a_fixed_target_is_asked_about_once_and_never_by_the_message(asked: list[tuple[str, str, str]]) -> None:
    with bench() as b:
        b.queue("work")
        enforce(
            b,
            "acl allow ann access all\n"
            "acl allow ann publish exchange name=amq.direct\n"
            "acl allow ann publish exchange name=amq.topic routingkey=a.*\n"
            "acl allow ann publish exchange name=amq.default",
        )
        ann = as_user(b, "ann")
        for address in ("work", "amq.direct", "amq.topic/a.b"):
            asked.clear()
            sender = ann.sender(address)
            assert asked == [("ann", "access", "queue" if address == "work" else "exchange"), ("ann", "publish", "exchange")]
            asked.clear()
            for _ in range(3):
                ann.send(sender, *(["x"] * 50), subject="any")
            assert statuses(ann, sender) == [ACCEPTED] * 150
            assert asked == []


def test_where_the_key_decides_each_message_is_decided_and_each_key_asked_for_once(asked: list[tuple[str, str, str]]) -> None:
    with bench() as b:
        enforce(
            b, "acl allow ann access exchange\nacl allow ann publish exchange name=amq.topic routingkey=a.*\nacl deny ann publish"
        )
        ann = as_user(b, "ann")
        sender = ann.sender("amq.topic")
        assert condition(sender) == ""
        asked.clear()
        for _ in range(20):
            ann.send(sender, "x", subject="a.b")
            ann.send(sender, "x", subject="b")
            ann.send(sender, "x")
        assert statuses(ann, sender) == [ACCEPTED, REJECTED, REJECTED] * 20
        assert len(asked) == 3
        refused = next(delivery for _, delivery in ann.outcomes if str(delivery.remote_state) == REJECTED)
        assert (refused.remote.condition.name, refused.remote.condition.description) == (
            DENIED,
            "ann may not: publish exchange name=amq.topic routingkey=b",
        )
        assert condition(sender) == "", "the message is refused, and the link stays"
        assert condition(ann.sender("amq.topic/a.b")) == ""
        assert condition(ann.sender("amq.topic/b")) == DENIED


def test_a_large_message_is_decided_by_its_first_part(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(part_bytes=2000) as b:
        enforce(b, "acl allow ann access exchange\nacl allow ann publish exchange routingkey=a\nacl allow ann publish queue")
        ann = as_user(b, "ann")
        sender = ann.sender("amq.direct")
        ann.send(sender, b"x" * 30_000, subject="a")
        ann.send(sender, b"x" * 30_000, subject="b")
        assert statuses(ann, sender) == [ACCEPTED, REJECTED]


def test_each_message_to_a_node_that_it_names_itself_is_decided_and_each_node_asked_for_once(
    asked: list[tuple[str, str, str]],
) -> None:
    with bench() as b:
        b.queue("work")
        b.queue("secret")
        enforce(
            b,
            "acl allow ann access queue name=work\n"
            "acl allow ann access exchange name=amq.topic\n"
            "acl allow ann publish exchange name=amq.default routingkey=work\n"
            "acl allow ann publish exchange name=amq.topic routingkey=a",
        )
        ann = as_user(b, "ann")
        sender = ann.sender(None)
        assert condition(sender) == ""
        asked.clear()
        for _ in range(5):
            for address, subject in [("work", "x"), ("secret", "x"), ("nothing", "x"), ("amq.topic", "a"), ("amq.topic", "b")]:
                ann.send(sender, "m", address=address, subject=subject)
            ann.send(sender, "m", address="amq.topic/b")
        assert statuses(ann, sender) == [ACCEPTED, REJECTED, REJECTED, ACCEPTED, REJECTED, REJECTED] * 5
        assert b.depth("work") == 5
        assert b.depth("secret") == 0
        names = {str(delivery.remote.condition.name) for _, delivery in ann.outcomes if str(delivery.remote_state) == REJECTED}
        assert names == {DENIED}
        known = [entry for entry in asked if entry[1] == "publish"]
        assert len(known) <= 5, "what is known of a node and a key is kept"


def test_a_long_subject_passes_no_rule_that_denies_a_key() -> None:
    with bench() as b:
        b.queue("spy")
        enforce(b, "acl deny eve publish exchange routingkey=secret.#\nacl allow all all")
        for exchange, key in (("amq.topic", "#"), ("amq.fanout", "")):
            binding = {"exchange": exchange, "queue": "spy", "key": key}
            assert as_user(b, "boss").request("CREATE", "binding", "", binding)[0] == 201
        eve, ann = as_user(b, "eve"), as_user(b, "ann")
        for exchange in ("amq.topic", "amq.fanout"):
            sender = eve.sender(exchange)
            eve.send(sender, "x", subject="secret.x")
            eve.send(sender, "x", subject="secret." + "x" * 1100)
            assert statuses(eve, sender) == [REJECTED, REJECTED]
        assert b.depth("spy") == 0
        sender = ann.sender("amq.topic")
        ann.send(sender, "x", subject="secret." + "x" * 1100)
        assert (statuses(ann, sender), b.depth("spy")) == ([ACCEPTED], 1)


def test_a_queue_or_exchange_that_is_altered_is_looked_at_again_for_the_next_message_that_names_it() -> None:
    """Breaks when a link without an address is judged for ever by what the queue was at its first message, unlike all others."""
    with bench() as b:
        enforce(
            b,
            "acl allow boss all\nacl allow ann access queue queuemaxcountupperlimit=10\n"
            "acl allow ann access exchange alternate=amq.fanout\nacl allow ann publish exchange",
        )
        boss, ann = as_user(b, "boss"), as_user(b, "ann")
        assert boss.request("CREATE", "queue", "q", {"arguments": {"qpid.max_count": 5}})[0] == 201
        assert boss.request("CREATE", "exchange", "x", {"exchangeType": "topic"})[0] == 201
        relay = ann.sender(None)

        def outcomes() -> list[str]:
            ann.send(relay, "x", address="q")
            ann.send(relay, "x", address="x/k")
            return statuses(ann, relay)[-2:]

        assert outcomes() == [ACCEPTED, REJECTED]
        assert boss.request("UPDATE", "queue", "q", {"arguments": {"qpid.max_count": 11}})[0] == 200
        assert outcomes() == [REJECTED, REJECTED]
        assert boss.request("UPDATE", "exchange", "x", {"alternateExchange": "amq.fanout"})[0] == 200
        assert outcomes() == [REJECTED, ACCEPTED]


def test_denials_of_long_subjects_and_long_addresses_take_no_memory() -> None:
    """Breaks when a user without any right fills the memory of the primary with messages that are all rejected."""
    with bench() as b:
        enforce(b, "acl allow ann access exchange\nacl allow ann publish exchange name=amq.topic routingkey=a")
        ann, eve = as_user(b, "ann"), as_user(b, "eve")
        by_key, relay = ann.sender("amq.topic"), eve.sender(None)
        for number in range(20):
            ann.send(by_key, "x", subject=f"{number}" + "x" * 100_000)
            eve.send(relay, "x", address=f"amq.topic/{number}" + "x" * 100_000)
        ann.send(by_key, "x", subject="short")
        eve.send(relay, "x", address="amq.topic/short")
        assert statuses(ann, by_key) == statuses(eve, relay) == [REJECTED] * 21
        acl = b.broker.guard.acl
        assert acl is not None
        assert [key for _, _, key in acl._published] == ["short"]
        assert list(b.broker.guard.kept) == [("eve", "amq.topic/short")]


# ---- management


REQUESTS: list[tuple[str, str, str, dict[str, Any], str]] = [
    ("QUERY", "broker", "", {}, "access query schemaclass=broker"),
    ("QUERY", "queue", "q", {}, "access query name=q schemaclass=queue"),
    ("QUERY", "queue", "", {"name": "q"}, "access query name=q schemaclass=queue"),
    ("CREATE", "queue", "new", {"durable": True}, "create queue name=new"),
    ("DELETE", "queue", "q", {}, "delete queue name=q"),
    ("DELETE", "queue", "none", {}, "delete queue name=none"),
    ("CREATE", "exchange", "x", {"exchangeType": "topic"}, "create exchange name=x"),
    ("DELETE", "exchange", "amq.topic", {}, "delete exchange name=amq.topic"),
    ("DELETE", "exchange", "none", {}, "delete exchange name=none"),
    (
        "CREATE",
        "binding",
        "",
        {"exchange": "amq.topic", "queue": "q", "key": "k"},
        "bind exchange name=amq.topic routingkey=k queuename=q",
    ),
    ("DELETE", "binding", "", {"exchange": "x", "queue": "q"}, "unbind exchange name=x queuename=q"),
    ("PROMOTE", "ha", "", {}, "access method name=promote schemaclass=ha"),
    ("ADD-BROKER", "ha", "", {"address": "a:1"}, "access method name=add-broker schemaclass=ha"),
    ("JUGGLE", "queue", "", {}, "access method name=juggle schemaclass=queue"),
    ("CREATE", "queue", "odd", {"arguments": [1]}, "create queue name=odd"),
]


@pytest.mark.parametrize("operation, kind, name, body, wanted", REQUESTS, ids=str)
def test_every_request_to_management_is_refused_with_what_it_needed(
    operation: str, kind: str, name: str, body: dict[str, Any], wanted: str
) -> None:
    with bench() as b:
        b.queue("q")
        enforce(b, "")
        before = list(b.broker.nodes.queues)
        assert as_user(b, "eve").request(operation, kind, name, body) == (403, f"eve may not: {wanted}", {})
        assert list(b.broker.nodes.queues) == before
        assert as_user(b, "boss").request(operation, kind, name, body)[0] != 403, "whoever may, is not refused for that"


@pytest.mark.parametrize("kind, secret", [("queue", "secret"), ("exchange", "amq.match"), ("QueuePolicy", "secret")])
def test_an_entity_that_is_read_by_its_identity_is_asked_for_by_its_name(kind: str, secret: str) -> None:
    with bench() as b:
        b.queue("secret")
        b.queue("open")
        boss = as_user(b, "boss")
        enforce(b, "acl allow ann access query name=open")
        assert boss.request("CREATE", "QueuePolicy", "secret")[0] == 201
        assert boss.request("CREATE", "QueuePolicy", "open")[0] == 201
        identity = boss.request("READ", kind, secret)[2]["identity"]
        ann = as_user(b, "ann")
        wanted = f"ann may not: access query name={secret} schemaclass={kind}"
        for name in ("", "open"):
            assert ann.request("READ", kind, name, identity=identity)[:2] == (403, wanted)
        if kind == "queue":
            of_open = boss.request("READ", kind, "open")[2]["identity"]
            assert ann.request("READ", kind, "", identity=of_open)[0] == 200
        assert boss.request("READ", kind, "", identity="none")[0] == 404


@pytest.mark.parametrize("kind", ["connection", "binding", "QueuePolicy", "broker", "memory"])
def test_a_name_in_a_query_of_a_type_that_tells_all_is_not_the_name_that_rules_see(kind: str) -> None:
    """Breaks when a right to ask for one name shows everything of another type."""
    with bench() as b:
        b.queue("open")
        boss = as_user(b, "boss")
        enforce(b, "acl allow ann access query name=open")
        ann = as_user(b, "ann")
        assert ann.request("QUERY", "queue", "", {"name": "open"})[0] == 200
        for name, body in (("open", {}), ("", {"name": "open"})):
            assert ann.request("QUERY", kind, name, body)[:2] == (403, f"ann may not: access query schemaclass={kind}")
        assert boss.request("QUERY", kind, "", {"name": "open"})[0] == 200


def test_replication_and_the_cluster_s_administration_need_a_rule_that_names_the_user() -> None:
    with bench() as b:
        role = Accepting()
        b.broker.admission.roles["qpid.ha-peer"] = role
        enforce(b, "acl allow repl create link\nacl allow all all")
        assert condition(as_user(b, "eve", {"qpid.ha-peer": "a:1"}).connection) == DENIED
        assert role.accepted == []
        as_user(b, "repl", {"qpid.ha-peer": "b:1"})
        assert role.accepted == ["b:1"]
        assert as_user(b, "eve").request("PROMOTE", "ha")[0] == 403
        assert as_user(b, "eve").request("QUERY", "ha")[0] == 200, "to look is for `all`, if the file says so"


def test_who_asks_for_the_state_of_a_broker_learns_whether_he_may_promote_it() -> None:
    """Breaks when a daemon learns it when it has to promote a broker."""
    with bench() as b:
        asked = {user: as_user(b, user) for user in ("eve", "dan")}
        assert asked["eve"].request("QUERY", "ha")[2]["items"][0].get("promoteDenied") is None, "without an ACL file"
        enforce(b, "acl allow-log dan access method name=promote schemaclass=ha\nacl allow all access query")
        before = b.broker.guard.denied
        told = {user: each.request("QUERY", "ha")[2]["items"][0].get("promoteDenied") for user, each in asked.items()}
        assert told == {"eve": "eve may not: access method name=promote schemaclass=ha", "dan": None}
        assert b.broker.guard.denied == before, "nobody has tried it"


class Accepting:
    """A role whose connections are clients' after all."""

    def __init__(self) -> None:
        self.accepted: list[str] = []

    def accept(self, connection: Connection, value: str) -> Any:
        self.accepted.append(value)
        return connection.session


def test_an_administrator_s_connection_needs_to_be_allowed_a_look_at_the_cluster() -> None:
    with bench(clustered=True, state="ready") as b:
        b.broker.enforce(read("acl allow ops access query", "a.acl"))
        assert condition(as_user(b, "eve", ADMIN).connection) == DENIED
        ops = as_user(b, "ops", ADMIN)
        assert condition(ops.connection) == ""
        assert ops.request("QUERY", "broker")[0] == 200


@pytest.mark.parametrize("operation, body", [("PURGE", {}), ("MOVE", {"to": "mine"}), ("REROUTE", {"exchange": "amq.fanout"})])
def test_an_address_of_a_queue_does_not_pass_a_rule_that_denies_to_purge_or_move_the_queue(
    operation: str, body: dict[str, Any]
) -> None:
    """Breaks when rules are asked about the text of the request, and the messages of the queue that it is an address of leave."""
    with bench() as b:
        for name in ("secret", "mine"):
            b.queue(name)
        b.client().request("CREATE", "binding", "", {"exchange": "amq.fanout", "queue": "mine", "key": ""})
        enforce(b, f"acl deny all {operation.lower()} queue name=secret\nacl allow all all")
        eve = as_user(b, "eve")
        eve.send(eve.sender("secret"), "a", "b")
        assert eve.request(operation, "queue", "secret", body)[0] == 403
        for address in ("/queues/secret", "/queues/%73ecret"):
            assert eve.request(operation, "queue", address, body)[0] == 404
        assert (b.depth("secret"), b.depth("mine")) == (2, 0)


def test_an_answer_goes_to_no_queue_to_which_its_asker_may_not_send(log: list[str]) -> None:
    with bench() as b:
        b.queue("answers")
        enforce(b, "acl allow all access query\nacl allow ann access queue\nacl allow ann publish exchange")
        for user in ("eve", "ann"):
            client = as_user(b, user)
            client.send_encoded(client.sender("$management"), request("QUERY", "broker", "", "answers"))
        assert b.depth("answers") == 1
        assert log[-1] == "audit: eve from 127.0.0.1:1: the answer is dropped: 403 eve may not: access queue name=answers"


def test_a_limit_in_a_rule_is_about_the_limit_that_the_queue_would_have() -> None:
    with bench(default_queue_bytes=5000) as b:
        enforce(
            b, "acl allow ann create queue queuemaxsizeupperlimit=5000 queuemaxcountupperlimit=10\nacl allow bob create queue"
        )
        ann = as_user(b, "ann")
        for number, (arguments, status) in enumerate(
            [
                ({"qpid.max_count": 10}, 201),
                ({"qpid.max_count": 10, "qpid.max_size": 5000}, 201),
                ({"qpid.max_count": 11}, 403),
                ({"qpid.max_count": 10, "qpid.max_size": 5001}, 403),
                ({"qpid.max_count": 10, "qpid.max_size": 0}, 403),
                ({"qpid.max_count": 0}, 403),
                ({}, 403),
            ]
        ):
            assert ann.request("CREATE", "queue", f"q{number}", {"arguments": arguments})[0] == status, arguments
        assert as_user(b, "bob").request("CREATE", "queue", "q")[0] == 201


def test_another_name_of_a_limit_policy_passes_no_rule() -> None:
    with bench() as b:
        enforce(
            b, "acl deny ann create queue policytype=ring_strict\nacl deny bob create queue policytype=none\nacl allow all all"
        )
        ann, bob = as_user(b, "ann"), as_user(b, "bob")
        for name, statuses_of_both in (("ring_strict", (403, 201)), ("ring-strict", (403, 201)), ("none", (201, 403))):
            body = {"arguments": {"qpid.policy_type": name}}
            found = tuple(
                user.request("CREATE", "queue", f"{user_name}-{name}", body)[0]
                for user_name, user in (("ann", ann), ("bob", bob))
            )
            assert found == statuses_of_both, name
        assert bob.request("CREATE", "queue", "plain")[0] == 403, "a queue without a policy rejects too"


# ---- quotas


def test_a_user_s_connections_are_counted_and_one_too_many_is_told(log: list[str]) -> None:
    with bench() as b:
        enforce(b, "quota connections 2 ann\nquota connections 1 all")
        first, second = as_user(b, "ann"), as_user(b, "ann")
        third = as_user(b, "ann")
        assert (condition(third.connection), said(third.connection)) == (
            "amqp:resource-limit-exceeded",
            "ann has 2 connections, and may have 2 (`quota connections` of the ACL)",
        )
        assert condition(as_user(b, "eve").connection) == ""
        assert condition(as_user(b, "eve").connection) == "amqp:resource-limit-exceeded"
        first.lose()
        assert condition(as_user(b, "ann").connection) == "", "one has gone"
        assert condition(second.connection) == ""


def test_the_connections_of_an_address_are_counted_too() -> None:
    with bench(max_connections_per_host=2) as b:
        clients = [as_user(b, user, address="10.0.0.1:77") for user in ("ann", "bob", "eve")]
        assert [condition(client.connection) for client in clients] == ["", "", "amqp:resource-limit-exceeded"]
        assert said(clients[2].connection) == "10.0.0.1 has 2 connections, and may have no more (--connection-limit-per-ip)"
        assert condition(as_user(b, "eve", address="10.0.0.2:77").connection) == ""
        clients[0].lose()
        assert condition(as_user(b, "eve", address="10.0.0.1:78").connection) == ""
        assert sorted(b.broker.admission._by_host) == ["10.0.0.1", "10.0.0.2"]


def test_rules_about_addresses_decide_who_connects() -> None:
    with bench() as b:
        enforce(b, "acl deny ann create connection host=10.0.0.1,10.0.0.9\nacl deny all create connection host=192.0.2.1")
        ann = as_user(b, "ann", address="10.0.0.5:1")
        assert (condition(ann.connection), said(ann.connection)) == (DENIED, "ann may not: create connection host=10.0.0.5")
        assert condition(as_user(b, "ann", address="10.0.0.10:1").connection) == ""
        assert condition(as_user(b, "bob", address="192.0.2.1:5").connection) == DENIED


def test_a_user_s_queues_are_counted_by_their_owner_wherever_they_were_made() -> None:
    with bench() as b:
        b.queue("before")
        enforce(b, "quota queues 3 ann\nacl allow all all")
        ann = as_user(b, "ann")
        assert ann.request("CREATE", "queue", "one")[0] == 201
        subscription = ann.receiver("amq.topic/k")
        assert ann.request("CREATE", "queue", "two")[0] == 201
        refused = ann.request("CREATE", "queue", "three")
        assert refused[:2] == (403, "ann has 3 queues, and may have 3 (`quota queues` of the ACL)")
        over = ann.receiver("amq.topic/k")
        assert (condition(over), said(over)) == ("amqp:resource-limit-exceeded", refused[1])
        assert as_user(b, "eve").request("CREATE", "queue", "four")[0] == 403, "whom no quota names may have none"
        subscription.close()
        b.settle()
        assert ann.request("CREATE", "queue", "three")[0] == 201
        assert ann.request("DELETE", "queue", "one")[0] == 204
        assert ann.request("CREATE", "queue", "one")[0] == 201
        owners = {name: node.definition.owner for name, node in b.broker.nodes.queues.items()}
        assert owners == {"before": "", "one": "ann", "two": "ann", "three": "ann"}


def test_a_request_with_an_argument_that_cannot_be_stored_takes_nothing_of_the_quota() -> None:
    """Breaks when a request that is answered with 400 counts as a queue until the end of the term."""
    with bench() as b:
        enforce(b, "quota queues 1 ann\nacl allow all all")
        ann = as_user(b, "ann")
        values = (b"x", UUID(int=7), {1: 2, "a": 3})
        for value in values:
            for kind in ("queue", "exchange"):
                assert ann.request("CREATE", kind, "bad", {"arguments": {"note": value}})[0] == 400
        assert ann.request("CREATE", "queue", "mine")[0] == 201
        for value in values:
            for operation, kind, name, body in (
                ("UPDATE", "queue", "mine", {}),
                ("CREATE", "binding", "", {"exchange": "amq.match", "queue": "mine"}),
            ):
                assert ann.request(operation, kind, name, body | {"arguments": {"note": value}})[0] == 400
        assert ann.request("CREATE", "queue", "more")[:2] == (403, "ann has 1 queues, and may have 1 (`quota queues` of the ACL)")
        assert not b.broker.administration._under_way, "nothing waits for an answer"


def test_queues_that_are_proposed_at_once_count_though_none_of_them_is_there_yet() -> None:
    with bench(automatic=False) as b:
        enforce(b, "quota queues 2 ann\nacl allow all all")
        ann = as_user(b, "ann")
        reply, sender = ann.receiver(None, dynamic=True), ann.sender("$management")
        wishes = [request("CREATE", "queue", f"q{n}", reply.remote_source.address, n) for n in range(4)]
        ann.send_encoded(sender, *wishes)
        b.clock.advance(1)
        b.lead.commit()
        b.settle()
        answers = {answer.correlation_id: answer.properties["statusCode"] for _, answer in ann.received[reply.name]}
        assert answers == {0: 201, 1: 201, 2: 403, 3: 403}
        b.lead.automatic = True


def test_a_queue_that_is_there_and_whose_maker_has_not_heard_of_it_yet_counts_once() -> None:
    with bench(automatic=False) as b:
        enforce(b, "quota queues 2 ann\nacl allow all all")
        ann = as_user(b, "ann")
        sender = ann.sender("$management")
        ann.send_encoded(sender, request("CREATE", "queue", "one", "$nowhere"))
        b.clock.advance(1)
        b.lead.commit()
        assert "one" in b.broker.nodes.queues
        ann.send_encoded(sender, request("CREATE", "queue", "two", "$nowhere"), settle=False)
        ann.pump()
        b.lead.automatic = True
        b.settle()
        b.lead.commit()
        b.settle()
        assert sorted(b.broker.nodes.queues) == ["one", "two"]


def test_what_was_proposed_when_this_broker_serves_no_more_is_told_and_counts_no_longer(log: list[str]) -> None:
    with bench(clustered=True) as b:
        enforce(b, "quota queues 1 ann\nacl allow all all")
        ann = as_user(b, "ann", ADMIN)
        ann.request("CREATE", "exchange", "before", {"replicate": "all"})
        b.lead.automatic = False
        ann.send_encoded(ann.sender("$management"), request("CREATE", "queue", "q", "$nowhere", 1, {"replicate": "all"}))
        assert len(log) == 1, "what was made before has its line"
        b.clock.advance(1)
        b.lead.become("ready", "10.0.0.2:5672")
        b.settle()
        assert log[-1] == (
            "audit: ann from 127.0.0.1:1: create queue name=q: unknown this broker is no longer the primary: the next primary "
            "has the result"
        )
        assert len(log) == 2
        b.lead.automatic = True
        b.lead.become("active")
        b.settle()
        assert as_user(b, "ann").request("CREATE", "queue", "q2", {"replicate": "all"})[0] == 201


# ---- other rules


def test_links_that_other_rules_do_not_allow_are_detached_and_the_rest_stays() -> None:
    with bench() as b:
        for name in ("kept", "lost"):
            b.queue(name)
        enforce(b, "acl allow ann all all")
        ann = as_user(b, "ann")
        links = {
            address: (ann.sender(address), ann.receiver(address))
            for address in ("kept", "lost", "amq.topic/kept", "amq.topic/lost", "amq.direct")
        }
        relay, management = ann.sender(None), ann.sender("$management")
        ann.auto_accept = False
        ann.send(links["lost"][0], "unsettled")
        ann.send(links["lost"][0], "waiting", settle=False)
        enforce(
            b,
            "acl allow ann access queue name=kept\nacl allow ann consume queue name=kept\n"
            "acl allow ann publish exchange name=amq.default routingkey=kept\n"
            "acl allow ann access exchange\nacl allow ann create queue\nacl allow ann bind exchange routingkey=kept\n"
            "acl allow ann publish exchange name=amq.topic routingkey=kept\n"
            "acl allow ann publish exchange name=amq.direct routingkey=kept",
        )
        ended = {address: tuple(condition(link) == DENIED for link in pair) for address, pair in links.items()}
        assert ended == {
            "kept": (False, False),
            "lost": (True, True),
            "amq.topic/kept": (False, False),
            "amq.topic/lost": (True, True),
            "amq.direct": (False, True),
        }
        assert said(links["lost"][0]) == "ann may not: access queue name=lost"
        assert [condition(relay), condition(management), condition(ann.connection)] == ["", "", ""]
        ann.send(links["amq.direct"][0], "x", subject="kept")
        ann.send(links["amq.direct"][0], "x", subject="other")
        assert statuses(ann, links["amq.direct"][0]) == [ACCEPTED, REJECTED], "now the key decides"
        ann.send(relay, "x", address="lost")
        assert statuses(ann, relay) == [REJECTED]
        assert b.depth("lost") >= 1, "what was not settled is on its queue again"
        order = b.broker.nodes.queues["lost"].messages
        assert order is not None
        assert order.order.available == b.depth("lost")


def test_what_a_relay_was_told_of_a_node_is_forgotten_with_the_rules() -> None:
    with bench() as b:
        b.queue("work")
        enforce(b, "acl allow ann access queue")
        ann = as_user(b, "ann")
        sender = ann.sender(None)
        ann.send(sender, "x", address="work")
        enforce(b, "acl allow ann all")
        ann.send(sender, "x", address="work")
        assert statuses(ann, sender) == [REJECTED, ACCEPTED]
        assert isinstance(next(iter(ann.server.engine.links)).context.target, Relay)


def test_connections_that_other_rules_do_not_allow_are_closed() -> None:
    with bench() as b:
        b.queue("q")
        ann, bob = as_user(b, "ann"), as_user(b, "bob")
        receiver = bob.receiver("q")
        enforce(b, "acl deny ann create connection host=all\nacl allow all all")
        assert (condition(ann.connection), said(ann.connection)) == (DENIED, "ann may not: create connection host=127.0.0.1")
        assert ann.lost
        assert condition(bob.connection) == condition(receiver) == ""


@pytest.mark.parametrize("ends", [False, True])
def test_many_connections_are_looked_at_in_several_turns_and_all_of_them_by_the_newest_rules(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MANAGEMENT_TURN_S", 0.0)
    with bench() as b:
        users = [as_user(b, user) for user in ("ann", "bob", "ann", "bob")]
        b.broker.enforce(rules("acl deny ann create connection host=all\nacl allow all all"))
        closed = [client for client in users if client.socket.disconnecting]
        assert len(closed) <= 1, "one is looked at in a turn"
        if ends:
            return
        b.broker.enforce(rules("acl deny bob create connection host=all\nacl allow all all"))
        b.settle()
        assert [condition(client.connection) for client in users if client not in closed] == [
            DENIED if client in (users[1], users[3]) else "" for client in users if client not in closed
        ]


def test_a_connection_that_is_closed_and_does_not_read_gives_back_what_it_had_at_once_and_is_dropped() -> None:
    with bench(open_timeout_s=2.0) as b:
        b.queue("q")
        deaf = as_user(b, "ann")
        deaf.auto_accept = False
        deaf.receiver("q")
        deaf.send(deaf.sender("q"), "one")
        deaf.server.pauseProducing()  # its socket is full, and stays so
        enforce(b, "acl deny ann create connection host=all\nacl allow all all")
        messages = b.broker.nodes.queues["q"].messages
        assert messages is not None
        assert messages.order.available == 1
        assert not deaf.socket.disconnecting
        b.pass_time(3)
        assert deaf.socket.disconnecting


def test_an_open_that_waits_for_the_broker_is_looked_at_again_too() -> None:
    with bench(clustered=True, state="recovering") as b:
        ann, deaf = as_user(b, "ann"), as_user(b, "ann")
        assert ann.server.waiting
        assert deaf.server.waiting
        deaf.server.pauseProducing()  # its socket is full, and stays so
        enforce(b, "acl deny ann create connection host=all\nacl allow all all")
        assert condition(ann.connection) == DENIED
        b.lead.become("active")
        b.settle()
        assert not deaf.server.opened


def test_a_subscription_that_is_being_made_when_the_rules_change_is_not_begun() -> None:
    with bench(automatic=False) as b:
        enforce(b, "acl allow ann all all")
        ann = as_user(b, "ann")
        receiver = ann.receiver("amq.topic/k")
        b.broker.guard.enforce(rules("acl allow ann access"))
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert condition(receiver) == DENIED
        b.settle()
        assert not b.broker.nodes.queues


def test_a_member_whose_right_to_replicate_is_taken_away_is_closed() -> None:
    with bench() as b:
        b.broker.admission.roles["qpid.ha-peer"] = Accepting()
        enforce(b, "acl allow repl create link")
        peer = as_user(b, "repl", {"qpid.ha-peer": "b:1"})
        assert condition(peer.connection) == ""
        enforce(b, "acl allow other create link")
        assert (condition(peer.connection), said(peer.connection)) == (DENIED, "repl may not: create link")


# ---- the audit log


class Slow:
    """A type of requests that are answered later."""

    def __init__(self) -> None:
        self.ended: Deferred[tuple[int, str, dict[str, Any]]] = Deferred()

    def items(self) -> list[dict[str, Any]]:
        return []

    def act(self, operation: str, body: dict[str, Any], principal: Principal) -> Deferred[tuple[int, str, dict[str, Any]]]:
        return succeed((200, "done", {"password": "secret"}))


def test_each_change_that_management_makes_is_a_line_with_who_from_where_what_and_how_it_ended(log: list[str]) -> None:
    with bench() as b:
        b.broker.administration.extensions["slow"] = Slow()
        ann = as_user(b, "ann@REALM", address="10.0.0.7:1234")
        ann.request("QUERY", "queue")
        ann.request("CREATE", "queue", "q", {"arguments": {"x": "secret"}})
        ann.request("CREATE", "queue", "q")
        ann.request("CREATE", "binding", "", {"exchange": "amq.topic", "queue": "q", "key": "a b"})
        ann.request("DELETE", "queue", "q\nfake line")
        ann.request("ADD-BROKER", "slow", "", {"address": "a:1", "password": "secret"})
        ann.request("DELETE", "queue", "q")
        who = "audit: ann@REALM from 10.0.0.7:1234: "
        assert [line.removeprefix(who) for line in log] == [
            "create queue name=q: 201 created",
            "create queue name=q: 409 a queue named 'q' exists already",
            "bind exchange name=amq.topic routingkey='a b' queuename=q: 201 created",
            r"delete queue name='q\nfake line': 404 there is no queue named 'q\nfake line'",
            "access method name=add-broker schemaclass=slow address=a:1: 200 done",
            "delete queue name=q: 204 deleted",
        ]


def test_decisions_of_rules_that_log_are_lines_and_a_flood_of_them_is_a_number(log: list[str]) -> None:
    with bench() as b:
        b.queue("q")
        log.clear()
        enforce(b, "acl allow-log ann access queue name=q\nacl deny-log all create connection host=10.0.0.1\nacl allow ann all")
        ann = as_user(b, "ann")
        ann.sender("q")
        as_user(b, "eve", address="10.0.0.1:5")
        assert log == [
            "audit: ann from 127.0.0.1:1: allowed by line 1 of the ACL: access queue name=q",
            "audit: eve from 10.0.0.1:5: denied by line 2 of the ACL: create connection host=10.0.0.1",
        ]
        for _ in range(100):
            ann.sender("q").close()
        eve = as_user(b, "eve", address="10.0.0.2:5")
        for _ in range(100):
            eve.request("DELETE", "queue", "q")
        assert len(log) == 40, "twenty decisions, and twenty refusals"
        b.pass_time(11)
        ann.sender("q")
        assert log[-2].endswith("82 more decisions of rules that log in the 11 s before")


def test_what_changes_something_is_a_line_however_much_it_is(log: list[str]) -> None:
    with bench() as b:
        ann = as_user(b, "ann")
        for number in range(50):
            ann.request("CREATE", "queue", f"q{number}")
        assert len(log) == 50


def test_an_owner_is_in_the_definition_that_every_broker_gets() -> None:
    with bench(clustered=True) as b:
        enforce(b, "acl allow ann all")
        assert as_user(b, "ann").request("CREATE", "queue", "q", {"replicate": "all"})[0] == 201
        with bench(clustered=True, start=False) as other:
            b.lead.replayed_into(other.lead)
            (queue,) = other.broker.lead.state.definitions.queues.values()
            assert isinstance(queue, QueueAdd)
            assert (queue.owner, other.broker.nodes.queues_of("ann")) == ("ann", 1)
            other.start()


def test_messages_go_out_on_a_link_that_was_allowed_whatever_is_asked_meanwhile(asked: list[tuple[str, str, str]]) -> None:
    with bench() as b:
        b.queue("q")
        enforce(b, "acl allow ann all")
        ann = as_user(b, "ann")
        receiver, sender = ann.receiver("q"), ann.sender("q")
        asked.clear()
        ann.send(sender, *(["x"] * 80))
        assert len(ann.bodies(receiver)) == 80
        assert asked == []
        assert all(str(delivery.local_state) == str(proton.Delivery.ACCEPTED) for delivery, _ in ann.received[receiver.name])


def test_without_rules_each_user_may_have_so_many_connections_and_queues() -> None:
    with bench(quotas=(2, 1)) as b:
        ann, _ = as_user(b, "ann"), as_user(b, "ann")
        third, eve = as_user(b, "ann"), as_user(b, "eve")
        assert condition(third.connection) == "amqp:resource-limit-exceeded"
        assert (
            "ann has 2 connections, and may have 2 (--connection-limit-per-user)" in third.connection.remote_condition.description
        )
        assert ann.request("CREATE", "queue", "mine")[0] == 201
        assert ann.request("CREATE", "queue", "more")[:2] == (403, "ann has 1 queues, and may have 1 (--max-queues-per-user)")
        assert eve.request("CREATE", "queue", "hers")[0] == 201
        ann.lose()
        assert condition(as_user(b, "ann").connection) == ""
        enforce(b, "acl allow all all")
        assert condition(as_user(b, "ann").connection) == "", "the rules' quotas count where there are rules"
