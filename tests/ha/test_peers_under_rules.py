"""Links to other members where rules are in force: who may not replicate does not, and not for longer than it may."""

from __future__ import annotations

from typing import Any

from twisted.internet.testing import MemoryReactor

from broker.core.acl.grammar import read
from broker.core.commands import MACHINE_VERSION
from ha.amqp import replication_link
from ha.core.membership import Membership
from ha.core.messages import Message, TimeoutNow
from ha.core.versions import Versions
from ha.net.peers import PEER_ADDRESS, PEER_PROPERTY, Peers
from tests.broker.clients import Bench
from tests.broker.users import as_user, bench

OTHER, ME = "10.0.0.2:5672", "10.0.0.1:5672"
REPLICATES = read("acl allow brokers create link\nacl allow all all", "a.acl")
NOT_ANY_MORE = read("acl allow all all", "a.acl")


class Told:
    """What members have said."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def connected(self, peer: str) -> None: ...

    def disconnected(self, peer: str) -> None: ...

    def receive(self, peer: str, message: Message, payload: bytes | memoryview) -> None:
        self.messages.append(message)

    def heard(self, peer: str) -> None: ...


def peers(b: Bench, told: Told) -> Any:
    reactor: Any = MemoryReactor()
    made = Peers(
        reactor,
        b.clock,
        me=ME,
        broker_id="broker-1",
        events=told,
        silence_s=2.0,
        cluster_id=lambda: "",
        members=lambda: Membership.of([ME, OTHER]),
        versions=Versions(MACHINE_VERSION),
        cluster_version=lambda: 1,
    )
    b.broker.admission.roles[PEER_PROPERTY] = made
    return made


def test_a_member_whose_user_no_rule_names_replicates_nothing() -> None:
    with bench() as b:
        made = peers(b, Told())
        b.broker.enforce(REPLICATES)
        for user, taken in (("ann", []), ("brokers", [OTHER])):
            member = as_user(b, user, {PEER_PROPERTY: OTHER})
            assert list(made.incoming) == taken
            said = member.connection.remote_condition
            assert (said.name if said else "") == ("" if taken else "amqp:unauthorized-access")
        made.stop()


def test_what_a_member_says_after_its_right_was_taken_away_is_not_heard() -> None:
    """Its socket is full, so that its connection cannot end at once."""
    with bench() as b:
        told = Told()
        made = peers(b, told)
        b.broker.enforce(REPLICATES)
        member = as_user(b, "brokers", {PEER_PROPERTY: OTHER})
        link = member.sender(PEER_ADDRESS, presettled=True)
        data = replication_link.encode(TimeoutNow(epoch=1), ())
        member.send_encoded(link, data)
        assert told.messages == [TimeoutNow(epoch=1)]
        member.server.pauseProducing()
        b.broker.enforce(NOT_ANY_MORE)
        member.send_encoded(link, data)
        assert len(told.messages) == 1
        member.server.resumeProducing()
        b.settle()
        assert member.connection.remote_condition.description == "brokers may not: create link"
        assert made.incoming == {}
        made.stop()
