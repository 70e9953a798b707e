"""Nodes that are made because a client attaches to them: dynamic ones, as JMS asks for temporary ones, and those of patterns."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from broker.core.filters import SELECTOR
from broker.core.nodes import QueueNode
from tests.broker.clients import ACCEPTED, ADMIN, Bench, Client, bench, condition, statuses
from tests.broker.core.stream import transfer
from tests.broker.test_acl import enforce
from tests.broker.test_subscriptions import queues

CLOSE, NO_LINKS, NO_MESSAGES, NEITHER = range(0x2B, 0x2F)


def dynamic(client: Client, *, sends: bool, capability: str = "", policy: int | None = CLOSE, **fields: Any) -> Any:
    """Attach to a node that the broker is to make, as Qpid JMS does: by a sending link, for a temporary queue or topic."""
    name = f"made-{len(client.events)}"
    link: Any = client.session.sender(name) if sends else client.session.receiver(name)
    terminus = link.target if sends else link.source
    terminus.dynamic = True
    terminus.expiry_policy = proton.Terminus.EXPIRE_WITH_LINK
    if policy is not None:
        described = proton.Described(proton.ulong(policy), [])
        terminus.properties.put_dict({proton.symbol("lifetime-policy"): described})
    if capability:
        terminus.capabilities.put_object(proton.symbol(capability))
    for field, value in fields.items():
        setattr(terminus, field, value)
    link.open()
    client.received[name] = []
    if not sends:
        link.flow(100)
    client.bench.settle()
    return link


def address_of(link: Any) -> str:
    """Where what was made for this link is."""
    assert condition(link) == ""
    return str((link.remote_target if link.is_sender else link.remote_source).address)


def attached(client: Client, address: str, capability: str = "", *, sends: bool = False) -> Any:
    """A link to what is, or is to be, named so."""
    link: Any = client.session.sender(f"to-{address}") if sends else client.session.receiver(f"from-{address}")
    terminus = link.target if sends else link.source
    terminus.address = address
    if capability:
        terminus.capabilities.put_object(proton.symbol(capability))
    link.open()
    client.received[link.name] = []
    if not sends:
        link.flow(100)
    client.bench.settle()
    return link


def test_a_temporary_queue_is_there_for_everybody_until_the_link_that_made_it_is_closed() -> None:
    with bench() as b:
        client, other = b.client(), b.client()
        made = dynamic(client, sends=True, capability="temporary-queue")
        address = address_of(made)
        assert made.remote_target.dynamic
        properties = made.remote_target.properties
        properties.rewind()
        properties.next()
        assert properties.get_object()["lifetime-policy"].descriptor == CLOSE
        sender = other.sender(address)
        other.send(sender, "one", properties={"n": 1})
        other.send(sender, "two", properties={"n": 2})
        wanted = {proton.symbol("s"): proton.Described(proton.symbol(SELECTOR), "n > 1")}
        assert client.bodies(client.receiver(address, filters=wanted)) == ["two"]
        client.send(made, "three")
        assert statuses(client, made) == [ACCEPTED], "the link that made it is one to it"
        assert client.bodies(client.receiver(address)) == ["one", "three"]
        made.close()
        b.settle()
        assert condition(sender) == "amqp:resource-deleted"
        assert queues(b) == []


@pytest.mark.parametrize("how", ["lose", "end the session", "close the connection"])
def test_a_temporary_queue_goes_with_its_connection(how: str) -> None:
    with bench() as b:
        client = b.client()
        dynamic(client, sends=True, capability="temporary-queue")
        assert len(queues(b)) == 1
        if how == "lose":
            client.lose()
        elif how == "end the session":
            client.session.close()
        else:
            client.connection.close()
        b.settle()
        assert queues(b) == []


def test_a_temporary_topic_is_no_alternate_exchange_because_it_goes_without_being_asked() -> None:
    with bench() as b:
        client = b.client()
        made = dynamic(client, sends=True, capability="temporary-topic")
        asked = {"alternateExchange": address_of(made)}
        status, text, _ = b.client(ADMIN).request("CREATE", "queue", "q", asked)
        assert (status, "is deleted with the link that made it" in text) == (409, True), text
        made.close()
        b.settle()
        assert b.client(ADMIN).request("CREATE", "queue", "q", asked)[0] == 404


def test_a_temporary_topic_gives_each_of_its_subscribers_everything() -> None:
    with bench() as b:
        client, other = b.client(), b.client()
        made = dynamic(client, sends=True, capability="temporary-topic")
        links = [each.receiver(address_of(made)) for each in (client, client, other)]
        other.send(other.sender(address_of(made)), "news")
        assert [each.bodies(link) for each, link in zip((client, client, other), links, strict=True)] == [["news"]] * 3
        address = address_of(made)
        sender = other.sender(address)
        made.close()
        b.settle()
        assert address not in b.broker.nodes.exchanges
        assert [condition(link) for link in (sender, links[2])] == ["amqp:resource-deleted"] * 2
        refused = dynamic(client, sends=True, capability="temporary-topic", policy=NO_LINKS)
        assert condition(refused) == "amqp:not-implemented"


def test_a_dynamic_source_is_a_mailbox_unless_it_asks_for_more() -> None:
    with bench() as b:
        client, other = b.client(), b.client()
        assert address_of(dynamic(client, sends=False)).startswith("$reply/")
        assert address_of(dynamic(client, sends=False, policy=None)).startswith("$reply/")
        assert queues(b) == []
        made = dynamic(client, sends=False, capability="temporary-queue")
        other.send(other.sender(address_of(made)), "one")
        assert client.bodies(made) == ["one"]
        assert queues(b) == [address_of(made)]
        topic = dynamic(client, sends=False, capability="temporary-topic")
        other.send(other.sender(address_of(topic)), "two")
        assert client.bodies(topic) == ["two"]
        made.close()
        topic.close()
        b.settle()
        assert queues(b) == []
        assert not [each for each in b.broker.nodes.exchanges.values() if not each.built_in]


@pytest.mark.parametrize("policy", [NO_LINKS, NO_MESSAGES, NEITHER])
def test_a_node_that_its_maker_has_left_goes_when_its_policy_says_so(policy: int) -> None:
    with bench() as b:
        client, other = b.client(), b.client()
        other.auto_accept = False
        made = dynamic(client, sends=True, policy=policy)
        sender = other.sender(address_of(made))
        other.send(sender, "one", "two")
        reader = other.receiver(address_of(made))
        made.close()
        b.settle()
        assert len(queues(b)) == 1
        if policy == NO_LINKS:
            reader.close()
            b.settle()
            assert len(queues(b)) == 1, "it has a link"
        sender.close()
        b.settle()
        for delivery, _ in other.received[reader.name] if policy != NO_LINKS else []:
            assert len(queues(b)) == 1
            other.give(delivery, delivery.ACCEPTED)
            b.pass_time(0.02, 0.01)  # dequeues wait for others a little
        if policy == NEITHER:
            assert len(queues(b)) == 1, "it has a link"
            reader.close()
        b.settle()
        assert queues(b) == []


def test_a_batch_looks_at_no_node_whose_maker_has_left_and_that_it_does_not_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when who makes very many of them slows down everybody's batches."""
    with bench() as b:
        client, other = b.client(), b.client()
        made = [dynamic(client, sends=True, policy=policy) for policy in (NO_MESSAGES, NO_MESSAGES, NEITHER)]
        for link in made:
            other.send(other.sender(address_of(link)), "one")
            link.close()
        b.settle()
        first, *others = (address_of(link) for link in made)
        looked, users = [], b.broker.queues.users

        def counted(node: QueueNode) -> int:
            looked.append(node.name)
            return users(node)

        monkeypatch.setattr(b.broker.queues, "users", counted)
        b.queue("q")
        other.send(other.sender("q"), "one", "two")
        other.receiver("q")
        b.pass_time(0.02, 0.01)
        assert looked == []
        other.receiver(first)
        b.pass_time(0.02, 0.01)
        assert set(looked) == {first}
        assert set(queues(b)) == {"q", *others}


def test_a_node_that_its_maker_has_left_and_that_is_deleted_is_forgotten() -> None:
    with bench() as b:
        client = b.client()
        made = dynamic(client, sends=True, policy=NO_MESSAGES)
        client.send(made, "one")
        made.close()
        b.settle()
        assert len(b.broker.making.left) == 1
        assert b.client(ADMIN).request("DELETE", "queue", address_of(made))[0] == 204
        assert not b.broker.making.left


def test_a_node_that_its_last_message_leaves_while_its_deletion_is_refused_goes_too() -> None:
    with bench() as b:
        client, other = b.client(), b.client()
        made = dynamic(client, sends=True, policy=NO_MESSAGES)
        sender, reader = other.sender(address_of(made)), other.receiver(address_of(made))
        b.lead.automatic = False
        other.send(sender, "one")
        made.close()
        b.settle()
        b.lead.commit(1)
        b.pass_time(0.02, 0.01)
        assert other.bodies(reader) == ["one"]
        assert len(b.lead.waiting) == 2, "the deletion, and the end of the message behind it"
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert queues(b) == []


def test_a_message_that_comes_in_the_last_moment_keeps_a_node_that_goes_when_it_is_empty() -> None:
    with bench() as b:
        client, other = b.client(), b.client()
        made = dynamic(client, sends=True, policy=NO_MESSAGES)
        sender = other.sender(address_of(made))
        b.lead.automatic = False
        other.send(sender, "one")
        made.close()
        b.settle()
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert len(queues(b)) == 1
        other.receiver(address_of(made))
        b.pass_time(0.02, 0.01)
        assert queues(b) == []


def test_a_node_whose_link_the_broker_has_ended_goes_with_the_connection() -> None:
    with bench() as b:
        client = b.client()
        made = dynamic(client, sends=False, capability="temporary-topic")
        (queue,) = queues(b)
        assert b.client().request("DELETE", "queue", queue)[0] == 204
        assert condition(made) == "amqp:resource-deleted"
        client.lose()
        b.settle()
        assert not [each for each in b.broker.nodes.exchanges.values() if not each.built_in]


def test_a_temporary_queue_goes_with_a_link_that_the_broker_ends() -> None:
    with bench() as b:
        client = b.client()
        made = dynamic(client, sends=True, capability="temporary-queue")
        assert len(queues(b)) == 1
        one = bytes(proton.Message(body="x").encode())
        for number in range(made.credit + 1):
            client.say(transfer(one, number=number, settled=True, more=False))
        b.settle()
        assert condition(made) == "amqp:link:transfer-limit-exceeded"
        assert queues(b) == []


def test_a_link_that_is_gone_before_its_node_is_made_leaves_none() -> None:
    with bench(automatic=False) as b:
        client = b.client()
        made = dynamic(client, sends=True)
        made.close()
        b.settle()
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert queues(b) == []


def test_dynamic_nodes_do_not_outlive_their_broker() -> None:
    """Whatever their policy: nobody knows their addresses any more."""
    with bench() as b:
        client = b.client()
        for capability, policy in (("temporary-queue", NO_MESSAGES), ("temporary-topic", CLOSE)):
            made = dynamic(client, sends=True, capability=capability, policy=policy)
            client.send(made, "one")
        other = Bench(start=False)
        b.lead.replayed_into(other.lead)
        other.start()
        assert queues(other) == []
        assert not [each for each in other.broker.nodes.exchanges.values() if not each.built_in]
        other.close()


def test_a_dynamic_node_with_a_policy_that_there_is_none_of_is_refused() -> None:
    with bench() as b:
        client = b.client()
        link = dynamic(client, sends=True, policy=0x2F)
        assert condition(link) == "amqp:invalid-field"
        assert "delete-on-no-links" in link.remote_condition.description
        assert queues(b) == []


def test_a_backup_makes_mailboxes_and_no_queues() -> None:
    with bench(clustered=True, state="ready") as b:
        client = b.client({"qpid.ha-admin": True})
        assert address_of(dynamic(client, sends=False)).startswith("$reply/")
        assert condition(dynamic(client, sends=True)) == "amqp:not-allowed"


def test_a_name_that_matches_a_pattern_is_made_by_who_attaches_to_it() -> None:
    with bench(queue_patterns=("work.*", "both"), topic_patterns=("news", "both")) as b:
        client = b.client()
        sender = attached(client, "work.a", sends=True)
        client.send(sender, "one")
        assert client.bodies(attached(client, "work.a")) == ["one"]
        reader = attached(client, "news.of/a.#")
        client.send(attached(client, "news.of", sends=True), "sport", subject="a.b")
        assert client.bodies(reader) == ["sport"]
        assert b.broker.nodes.exchanges["news.of"].definition.kind == "topic"
        attached(client, "both1", "topic")
        attached(client, "both2", "queue", sends=True)
        attached(client, "both3", sends=True)
        assert {"both2", "both3"} <= set(b.broker.nodes.queues)
        assert {name for name in b.broker.nodes.exchanges if name.startswith("both")} == {"both1"}
        attached(client, "/queues/work.of%2Fmine")
        assert "work.of/mine" in b.broker.nodes.queues
        assert condition(attached(client, "else", sends=True)) == "amqp:not-found"
        assert condition(attached(client, "work.b", "topic")) == "amqp:not-found", "no pattern makes such a topic"
        assert condition(attached(client, "work." + "x" * 300)) == "amqp:invalid-field"


def test_two_that_attach_to_a_missing_name_at_once_get_one_queue() -> None:
    with bench(queue_patterns=("*",), automatic=False) as b:
        clients = [b.client(), b.client()]
        links = [attached(client, "q") for client in clients]
        assert condition(attached(clients[0], "$none")) == "amqp:not-found"
        b.lead.automatic = True
        b.lead.commit()
        b.settle()
        assert [condition(link) for link in links] == ["", ""]
        assert b.broker.queues.consumers(b.broker.nodes.queues["q"]) == 2


@pytest.mark.parametrize("capability", ["temporary-queue", "temporary-topic", ""])
@pytest.mark.parametrize("by_policy", [False, True])
def test_who_replies_to_a_dynamic_node_that_is_gone_creates_none(by_policy: bool, capability: str) -> None:
    """Breaks when each requestor that has gone leaves a queue for ever, with the replies that nobody reads."""
    patterns = () if by_policy else ("*",)
    with bench(queue_patterns=patterns, topic_patterns=patterns) as b:
        if by_policy:
            for kind in ("QueuePolicy", "TopicPolicy"):
                assert b.client(ADMIN).request("CREATE", kind, "*")[0] == 201
        requestor, responder = b.client(), b.client()
        address = address_of(dynamic(requestor, sends=True, capability=capability))
        there = set(b.broker.nodes.exchanges) - {address}
        requestor.lose()
        b.settle()
        url = f"/exchanges/{address}/key" if capability == "temporary-topic" else f"/queues/{address}"
        for name in (address, f"{address}/key", url):
            assert condition(attached(responder, name, capability, sends=True)) == "amqp:not-found"
        assert (queues(b), set(b.broker.nodes.exchanges)) == ([], there)


@pytest.mark.parametrize("level", ["all", "configuration", "none"])
def test_what_a_pattern_makes_has_the_level_that_is_the_default(level: str) -> None:
    with bench(clustered=True, default_level=level, queue_patterns=("q",)) as b:
        client = b.client()
        assert condition(attached(client, "q1")) == ""
        node = b.broker.nodes.queues["q1"]
        assert (node.definition.level, node.log) == (level, "local" if level == "none" else "cluster")


def test_who_may_not_create_makes_nothing_by_attaching() -> None:
    with bench(queue_patterns=("q",)) as b:
        enforce(b, "acl allow all access all\nacl allow all publish all\nacl deny all all")
        client = b.client()
        for link in (attached(client, "q1", sends=True), dynamic(client, sends=True)):
            assert condition(link) == "amqp:unauthorized-access"
            assert "create queue" in link.remote_condition.description
        assert queues(b) == []
