"""The registry of termini, and what every decision is told of whom it is for."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from broker.amqp.data import Condition
from broker.amqp.sender import Sender
from broker.core import limits
from broker.core.acl.questions import Lookups
from broker.core.nodes import Routed
from broker.sessions.attach import Attach, LinkEnd, Output
from broker.sessions.principal import ANONYMOUS, Principal
from broker.sessions.producer import Producer, Upload
from broker.sessions.termini import by_address, source_by_address
from broker.sessions.uploads import Gathering
from tests.broker.clients import ACCEPTED, bench, condition, statuses

ANN = Principal("ann", "PLAIN", authenticated=True)


class Echo:
    """A terminus of a kind that the broker does not have: what is sent to it goes out to who listens there."""

    window = 2
    serves_queues = False
    takes_large = False
    in_transactions = False
    in_any_order = False
    of_any_user = False
    identity = ""

    def __init__(self, *, only: Principal | None = None) -> None:
        self.only = only
        self.asked_by: list[Principal] = []
        self.got: list[tuple[int, int]] = []
        self.listener: Sender | None = None
        self.told: list[str] = []
        self.wants_more = True

    def named(self, address: str) -> Echo | None:
        return self if address == "$echo" else None

    def needs_of_sender(self, session: Output) -> Lookups:
        return ()

    def admit(self, attach: Attach) -> None:
        self.asked_by.append(attach.principal)
        if self.only is not None and attach.principal != self.only:
            raise Condition("amqp:unauthorized-access", f"{attach.principal.user} may not")

    def attached(self, producer: Producer) -> None:
        self.told.append("attached")

    def left(self, producer: Producer) -> None:
        self.told.append("left")

    def receive(self, producer: Producer, first: int, messages: list[bytes]) -> None:
        self.got.append((first, len(messages)))
        for delivery_id, data in enumerate(messages, first):
            if self.listener is not None:
                self.listener.send_one(data, 0, True)
                self.listener.context.session.touch()
            producer.done(delivery_id)

    def destinations(self, producer: Producer, data: bytes) -> Routed:
        return Routed([])

    def begin(self, producer: Producer, head: bytes) -> Upload:
        return Gathering(producer, self.receive, "echo")

    def may_flow(self, producer: Producer) -> bool:
        return self.wants_more

    def knows_filter(self, name: str) -> bool:
        return name == "echo"

    def subscribe(self, attach: Attach, link: Sender) -> None:
        self.admit(attach)
        link.context = LinkEnd(attach.session)
        link.accept()
        self.listener = link


def test_a_new_kind_of_terminus_is_one_line_in_the_registry() -> None:
    with bench() as b:
        echo = Echo()
        b.broker.termini.targets.insert(0, by_address(echo.named))
        b.broker.termini.sources.insert(0, source_by_address(echo.named))
        client = b.client()
        consumer = client.receiver("$echo")
        producer = client.sender("$echo")
        assert producer.credit == 2
        client.send(producer, "one", "two")
        client.send(producer, "three")
        assert statuses(client, producer) == [ACCEPTED] * 3
        assert client.bodies(consumer) == ["one", "two", "three"]
        assert echo.got == [(0, 2), (2, 1)]
        assert producer.credit == 2
        echo.wants_more = False
        client.send(producer, "four")
        assert producer.credit == 1, "its credit is held"
        producer.close()
        b.settle()
        assert echo.told == ["attached", "left"]
        assert condition(client.sender("$echoes")) == "amqp:not-found"


def test_a_link_that_its_terminus_keeps_survives_the_end_of_service_and_others_do_not() -> None:
    with bench(clustered=True) as b:
        b.queue("q")
        echo = Echo()
        b.broker.termini.targets.insert(0, by_address(echo.named))
        admin = b.client({"qpid.ha-admin": True})
        kept, lost = admin.sender("$echo"), admin.sender("q")
        b.lead.become("ready", "10.0.0.2:5672")
        b.settle()
        assert condition(lost) == "amqp:not-allowed"
        admin.send(kept, "still here")
        assert statuses(admin, kept) == [ACCEPTED]


@pytest.mark.parametrize("principal", [ANONYMOUS, ANN])
def test_every_attach_is_decided_with_its_principal(principal: Principal) -> None:
    with bench() as b:
        echo = Echo(only=ANN)
        b.broker.termini.targets.insert(0, by_address(echo.named))
        b.broker.termini.sources.insert(0, source_by_address(echo.named))
        client = b.client()
        client.server.principal = principal
        wanted = "" if principal is ANN else "amqp:unauthorized-access"
        assert [condition(client.sender("$echo")), condition(client.receiver("$echo"))] == [wanted, wanted]
        assert echo.asked_by == [principal, principal]


class Weather:
    """A type of management requests that the broker does not have."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Principal]] = []

    def items(self) -> list[dict[str, Any]]:
        return [{"sky": "blue"}]

    def act(self, operation: str, body: dict[str, Any], principal: Principal) -> Deferred[tuple[int, str, dict[str, Any]]]:
        self.asked.append((operation, principal))
        return succeed((200, "OK", {}))


@pytest.mark.parametrize("turn_s", [limits.MANAGEMENT_TURN_S, 0.0])
def test_every_request_to_management_comes_with_its_principal(turn_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MANAGEMENT_TURN_S", turn_s)
    with bench() as b:
        b.broker.administration.extensions["weather"] = weather = Weather()
        client = b.client()
        client.server.principal = ANN
        assert client.request("RAIN", "weather")[0] == 200
        assert client.request("QUERY", "weather")[2]["items"] == [{"sky": "blue"}]
        assert weather.asked == [("RAIN", ANN)]


def test_connections_show_who_they_act_for() -> None:
    with bench() as b:
        nobody, ann = b.client(), b.client()
        ann.server.principal = ANN
        items = nobody.request("QUERY", "connection")[2]["items"]
        assert [(item["user"], item["mechanism"]) for item in items] == [("anonymous", "ANONYMOUS"), ("ann", "PLAIN")]
