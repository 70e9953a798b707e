"""A broker's life with its logs and connections: backup, primary and back, two logs, a full disk, clients that misbehave."""

from __future__ import annotations

from typing import Any

import proton
import pytest
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent

from broker.amqp.data import Condition
from broker.amqp.links import Link
from broker.amqp.receiver import Receiver
from broker.amqp.sender import Sender
from broker.core import limits
from broker.core.identity import Socket
from broker.core.nodes import CLUSTER, LOCAL
from broker.core.records import Batch, BatchBuilder
from broker.sessions.connection import Connection
from broker.sessions.principal import Principal
from tests.broker.clients import (
    ACCEPTED,
    ADMIN,
    REJECTED,
    Bench,
    Client,
    MemoryLog,
    bench,
    condition,
    creating,
    one_turn,
    request,
    statuses,
)

# ---- being a backup, becoming a primary, and no longer being one


def test_a_backup_turns_a_client_away_without_a_word_and_serves_an_administrator() -> None:
    """proton's clients go on to their next address at once only when they get no Open (measured)."""
    with bench(clustered=True, state="ready") as b:
        client = Client(b)
        b.clients.append(client)
        client.connection.open()
        b.settle()
        assert client.lost
        assert not client.connection.state & proton.Endpoint.REMOTE_ACTIVE
        admin = b.client(ADMIN)
        assert admin.request("QUERY", "broker")[0] == 200
        assert condition(admin.sender("anything")) == "amqp:not-allowed"
        status, text, _ = admin.request("CREATE", "queue", "q", {"replicate": "all"})
        assert status == 409
        assert "only the primary" in text


def test_a_backup_names_the_primary_when_it_refuses() -> None:
    with bench(clustered=True, start=False) as b:
        b.logs[LOCAL].become("standalone")
        b.logs[CLUSTER].become("active")
        assert b.client(ADMIN).request("CREATE", "queue", "mine", {"replicate": "none"})[0] == 201
        b.logs[CLUSTER].become("ready", "other:5672")
        admin = b.client(ADMIN)
        for level in ("all", "none"):
            status, text, _ = admin.request("CREATE", "queue", "q", {"replicate": level})
            assert (status, "other:5672" in text) == (409, True), "no client could use it here, whatever its level"
        assert "other:5672" in admin.receiver("q").remote_condition.description
        assert admin.request("UPDATE", "queue", "mine", {"arguments": {"qpid.max_count": 5}})[0] == 200
        assert admin.request("DELETE", "queue", "mine")[0] == 204, "what is its own it may change"


def test_opens_and_the_links_behind_them_wait_while_a_primary_recovers() -> None:
    """proton's clients send Open, Begin and Attach in one piece: none of it may be refused meanwhile."""
    with bench(clustered=True, state="recovering") as b:
        b.lead.take(creating("q"))
        client = Client(b)
        b.clients.append(client)
        client.connection.open()
        client.session.open()
        producer, consumer, gone = client.sender("q"), client.receiver("q"), client.receiver("q", name="gone")
        gone.close()
        b.pass_time(limits.OPEN_TIMEOUT_S + 2)
        assert not client.lost, "it is not the client that is slow"
        assert not client.connection.state & proton.Endpoint.REMOTE_ACTIVE
        b.lead.become("active")
        b.settle()
        assert client.connection.state & proton.Endpoint.REMOTE_ACTIVE
        client.send(producer, "one")
        assert client.bodies(consumer) == ["one"]


@pytest.mark.parametrize("lasts", [True, False])
def test_many_opens_that_waited_are_answered_in_several_turns_or_dropped_if_service_ends_before(
    lasts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when ten thousand clients that wait make a new primary silent to its backups for a second."""
    monkeypatch.setattr(limits, "ADMIT_TURN_S", 0.0)
    with bench(clustered=True, state="recovering") as b:
        clients = [Client(b) for _ in range(5)]
        for client in clients:
            b.clients.append(client)
            client.connection.open()
        b.settle()
        clients[1].lose()
        b.lead.become("active")
        assert sum(client.server.opened for client in clients) == 1
        one_turn(b.clock)
        assert sum(client.server.opened for client in clients) == 2
        if not lasts:
            b.lead.become("ready")
        b.settle()
        assert [client.lost for client in clients] == [not lasts, True, *[not lasts] * 3]
        assert sum(client.server.opened for client in clients) == (4 if lasts else 2)


def test_opens_that_waited_for_a_promotion_that_failed_are_dropped() -> None:
    with bench(clustered=True, state="recovering") as b:
        client = Client(b)
        b.clients.append(client)
        client.connection.open()
        b.settle()
        gone = Client(b)
        b.clients.append(gone)
        gone.connection.open()
        b.settle()
        gone.lose()
        b.lead.become("ready")
        b.settle()
        assert client.lost
        assert not client.connection.state & proton.Endpoint.REMOTE_ACTIVE


def test_a_broker_that_steps_down_sends_its_clients_away_and_answers_nothing_of_that_term() -> None:
    with bench(clustered=True) as b:
        admin, client = b.client(ADMIN), b.client()
        admin.request("CREATE", "queue", "q", {"replicate": "all"})
        client.send(client.sender("q"), "one", "two")
        b.lead.automatic = False
        accepting = client.receiver("q", credit=1)
        assert client.bodies(accepting) == ["one"]
        client.auto_accept = False
        keeping = client.receiver("q", credit=1, name="keeping")
        assert client.bodies(keeping) == ["two"]
        producer = client.sender("q", name="late")
        client.send(producer, "never committed")
        b.lead.become("ready", "other:5672")
        b.settle()
        assert client.lost
        assert condition(client.connection) == "", "a Close would keep some clients from going on at once"
        assert statuses(client, producer) == []
        assert not admin.lost
        b.lead.become("recovering")
        b.lead.automatic = True
        b.lead.become("active")
        again = b.client()
        reader = again.receiver("q")
        assert again.bodies(reader) == ["one", "two"], "what was acquired is back, even if accepted; what was sent is not there"
        again.send(again.sender("q"), "three")
        assert again.bodies(reader) == ["one", "two", "three"]


def test_a_socket_that_outlives_its_term_gives_back_nothing_of_anothers() -> None:
    with bench(clustered=True) as b:
        stuck = b.client()
        stuck.request("CREATE", "queue", "q", {"replicate": "all"})
        stuck.send(stuck.sender("q"), "one")
        stuck.auto_accept = False
        stuck.receiver("q")
        stuck.socket.loseConnection = lambda: None  # type: ignore[method-assign]
        for state in ("ready", "recovering", "active"):
            b.lead.become(state)
        b.settle()
        holder, other = b.client(), b.client()
        holder.auto_accept = False
        assert holder.bodies(holder.receiver("q")) == ["one"]
        stuck.lose()
        assert other.bodies(other.receiver("q")) == []


def test_who_has_not_said_an_open_when_a_broker_steps_down_is_judged_when_it_says_it() -> None:
    with bench(clustered=True) as b:
        client = Client(b)
        b.clients.append(client)
        b.lead.become("ready")
        b.settle()
        assert [client.lost] == [False]
        client.connection.open()
        b.settle()
        assert client.lost
        assert not client.connection.state & proton.Endpoint.REMOTE_ACTIVE


def test_an_administrator_keeps_nothing_but_management_when_a_broker_steps_down() -> None:
    with bench(clustered=True) as b:
        admin = b.client(ADMIN)
        admin.request("CREATE", "queue", "q", {"replicate": "all"})
        consumer, producer = admin.receiver("q"), admin.sender("q")
        b.lead.become("ready", "other:5672")
        b.settle()
        assert [condition(consumer), condition(producer)] == ["amqp:not-allowed"] * 2
        builder = BatchBuilder()
        messages = b.lead.ledger.state.by_uuid[b.broker.nodes.queues["q"].uuid]
        builder.enqueue_at(messages.number, 1, [bytes(proton.Message(body=1).encode())])
        b.lead.take(builder)
        b.settle()
        assert admin.bodies(consumer) == [], "a backup gives nothing out"
        assert admin.request("QUERY", "queue")[2]["items"][0]["messages"] == 1


BACKUP_TEXT = "this broker is ready: it serves no queues; the primary is other:5672"


def backup(b: Bench) -> None:
    """This broker has a queue of each level and an exchange, and becomes a backup."""
    b.upgraded()
    for level in ("all", "configuration", "none"):
        b.queue(level, replicate=level)
    b.client(ADMIN).request("CREATE", "exchange", "x", {"exchangeType": "fanout", "replicate": "all"})
    b.lead.become("ready", "other:5672")
    b.settle()


@pytest.mark.parametrize("address", ["all", "configuration", "none", "x", "x/key", "$share/unknown", "made-on-the-primary"])
@pytest.mark.parametrize("nbytes", [100, 2 * limits.LARGE_PARTS * limits.PART_BYTES])
def test_a_backup_rejects_what_an_anonymous_link_brings_for_a_queue_and_names_the_primary(address: str, nbytes: int) -> None:
    """Breaks when an administrator's messages stay on a backup without an outcome, and its connection is not read any more."""
    with bench(clustered=True) as b:
        backup(b)
        admin = b.client(ADMIN)
        relay, depths = admin.sender(None), {name: b.depth(name) for name in ("all", "configuration", "none")}
        sent = admin.send(relay, b"x" * nbytes, b"x" * nbytes, address=address)
        assert statuses(admin, relay) == [REJECTED] * 2
        found = [(each.remote.condition.name, each.remote.condition.description) for each in sent]
        assert found == [("amqp:not-allowed", BACKUP_TEXT)] * 2
        assert admin.sender(address).remote_condition.description == BACKUP_TEXT, "as its attach is refused"
        assert (b.broker.logs.inflow.nbytes, relay.credit) == (0, limits.CREDIT_WINDOW)
        assert all(ledger.pending.idle for ledger in b.broker.logs.ledgers.values())
        assert {name: b.depth(name) for name in depths} == depths


def test_an_anonymous_link_to_a_backup_brings_messages_for_mailboxes_and_requests() -> None:
    with bench(clustered=True) as b:
        backup(b)
        admin = b.client(ADMIN)
        reply, relay = admin.receiver(None, dynamic=True), admin.sender(None)
        box = reply.remote_source.address
        admin.send(relay, "one", address=box)
        asked: Any = proton.Message(body={}, address="$management", reply_to=box, id=1)
        asked.properties = {"operation": "QUERY", "type": "broker", "name": ""}
        admin.send_encoded(relay, bytes(asked.encode()))
        assert statuses(admin, relay) == [ACCEPTED] * 2
        one, answer = admin.bodies(reply)
        assert (one, answer["items"][0]["cluster"]) == ("one", "ready")


def test_an_anonymous_link_ends_with_the_service_if_the_outcome_of_its_messages_is_not_known() -> None:
    """Breaks when an administrator waits for ever for outcomes of a term that is over."""
    with bench(clustered=True) as b:
        b.upgraded()
        b.queue("q", replicate="all")
        admin = b.client(ADMIN)
        waiting, midway, done = (admin.sender(None, name) for name in ("waiting", "midway", "done"))
        admin.send(done, "one", address="q")
        b.lead.automatic = False
        admin.send(waiting, "two", address="q")
        midway.delivery("large")
        midway.stream(proton.Message(body=b"x" * 2 * limits.LARGE_PARTS * limits.PART_BYTES, address="q").encode()[:3_000_000])
        b.settle()
        b.lead.become("ready", "other:5672")
        b.settle()
        assert [condition(each) for each in (waiting, midway, done)] == ["amqp:not-allowed", "amqp:not-allowed", ""]
        assert "other:5672" in waiting.remote_condition.description
        assert not admin.lost
        assert b.broker.logs.inflow.nbytes == 0
        assert admin.request("QUERY", "queue")[2]["items"][0]["messages"] == 1


def test_an_anonymous_link_that_is_paused_because_a_message_was_released_outlives_the_service() -> None:
    """Breaks when the credit that it gets back later counts as a message that waits for its outcome."""
    with bench(clustered=True) as b:
        b.queue("q", replicate="all")
        admin = b.client(ADMIN)
        relay, window = admin.sender(None), limits.CREDIT_WINDOW
        b.lead.automatic = False
        b.begin_deletion("q")
        (sent,) = admin.send(relay, "m", address="q")
        assert (sent.remote_state, relay.credit) == (proton.Delivery.RELEASED, window - 1)
        b.lead.become("ready", "another:1")
        b.settle()
        b.clock.advance(limits.RELEASED_PAUSE_S)
        b.settle()
        assert (condition(relay), relay.credit) == ("", window)


@pytest.mark.parametrize("level", ["all", "configuration", "none"])
def test_a_backup_rejects_a_request_whose_answer_is_to_go_to_a_queue_and_does_nothing_of_it(level: str) -> None:
    with bench(clustered=True) as b:
        backup(b)
        admin = b.client(ADMIN)
        link = admin.sender("$management")
        made = request("CREATE", "queue", "mine", level, 1, {"replicate": "none"})
        found = admin.send_encoded(link, request("QUERY", "exchange", "", level), made)
        assert statuses(admin, link) == [REJECTED] * 2
        assert [each.remote.condition.description for each in found] == [BACKUP_TEXT] * 2
        assert all(ledger.pending.idle for ledger in b.broker.logs.ledgers.values())
        assert b.broker.logs.inflow.nbytes == 0
        assert "mine" not in b.broker.nodes.queues
        assert admin.request("QUERY", "broker")[0] == 200, "the next request has its turn"


@pytest.mark.parametrize("stays", [True, False])
def test_an_answer_for_a_queue_is_dropped_if_this_broker_steps_down_before_it(stays: bool) -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        b.queue("q", replicate="all")
        extension = Slow()
        b.broker.administration.extensions["slow"] = extension
        admin = b.client(ADMIN)
        link = admin.sender("$management")
        admin.send_encoded(link, request("ASK", "slow", "", "q"))
        assert statuses(admin, link) == [ACCEPTED]
        if not stays:
            b.lead.become("ready", "other:5672")
        extension.answer.callback((200, "OK", {}))
        b.settle()
        assert b.depth("q") == int(stays)
        assert b.broker.logs.inflow.nbytes == 0
        assert b.lead.ledger.pending.idle


class Slow:
    """A kind of object whose operation ends when a test says so."""

    def __init__(self) -> None:
        self.answer: Deferred[tuple[int, str, dict[str, Any]]] = Deferred()

    def items(self) -> list[dict[str, Any]]:
        return []

    def act(self, operation: str, body: dict[str, Any], principal: Principal) -> Deferred[tuple[int, str, dict[str, Any]]]:
        return self.answer


def test_a_client_that_has_connected_and_says_nothing_is_dropped() -> None:
    with bench() as b:
        client = Client(b)
        b.clients.append(client)
        b.pass_time(limits.OPEN_TIMEOUT_S)
        assert not client.lost
        b.pass_time(2)
        assert client.lost


def test_sockets_that_are_refused_or_stay_silent_are_a_few_lines_in_the_log() -> None:
    """Breaks when whoever can connect can fill the disk of the log."""
    with bench(max_connections=1) as b, capturedLogs() as events:
        admission = b.broker.admission
        silent = [Client(b) for _ in range(limits.SPARE_CONNECTIONS + 1)]
        b.clients += silent
        for _ in range(30):
            assert admission.new_connection(Socket("10.0.0.1:5")) is None
        told = [formatEvent(event) for event in events]
        assert told == ["10.0.0.1:5 refused: there are 65 connections, with the spare ones"] * 20
        b.pass_time(limits.OPEN_TIMEOUT_S + 2)
        assert all(client.lost for client in silent)
        told = [str(formatEvent(event)) for event in events][20:]
        assert told[0].startswith("10 more connections")
        assert len(told) == 21
        assert all(line.endswith("is not open after 10 s: dropped") for line in told[1:])


def test_a_client_that_has_fallen_silent_is_given_up_and_one_that_says_it_lives_is_not() -> None:
    with bench() as b:
        silent, alive = b.client(), b.client()
        silent.pump = lambda: False  # type: ignore[method-assign]
        for _ in range(int(limits.IDLE_TIMEOUT_S) + 5):
            alive.transport.tick(b.clock.seconds() + 1)
            b.pass_time(1)
        assert silent.server.engine.finished
        assert not alive.lost


@pytest.mark.parametrize("bears_s", [0.6, 1, 2, 5, 9])
def test_a_client_that_bears_a_short_silence_hears_of_the_broker_in_time(bears_s: float) -> None:
    """A client of proton's with `heartbeat=1` bears a silence of 1 s, and was cut off each time nothing else came for so long."""
    with bench() as b:
        b.queue("q")
        client = Client(b)
        client.transport.idle_timeout = bears_s
        b.clients.append(client)
        b.broker.admission.hold()
        link = client.open().sender("q")
        for tick in range(n_ticks := int(6 * bears_s / 0.05)):
            client.transport.tick(b.clock.seconds() + 1)
            b.pass_time(0.05, step=0.05)
            if tick == n_ticks // 3:
                b.broker.admission.serve_again()
            elif tick == n_ticks // 2:
                client.send(link, "output that puts a heartbeat off")
        assert client.transport.condition is None
        assert not client.lost


def test_a_standalone_broker_admits_clients_when_it_has_read_its_log() -> None:
    with bench(start=False) as b:
        client = Client(b)
        b.clients.append(client)
        client.connection.open()
        client.session.open()
        b.settle()
        b.lead.take(creating("q", level="none"))
        b.start()
        assert client.connection.state & proton.Endpoint.REMOTE_ACTIVE
        assert condition(client.sender("q")) == ""


# ---- the two logs of a clustered broker


def test_messages_of_level_configuration_survive_a_restart_in_which_the_local_log_is_read_first() -> None:
    """Until the cluster's log has been read to its end, a queue that is not known yet is not one that was deleted."""
    with bench(clustered=True) as before:
        client = before.client()
        client.request("CREATE", "queue", "q", {"replicate": "configuration"})
        client.request("CREATE", "queue", "mine", {"replicate": "none"})
        client.request("CREATE", "exchange", "x", {"replicate": "none", "exchangeType": "fanout"})
        client.request("CREATE", "binding", "", {"exchange": "x", "queue": "q", "key": ""})
        client.send(client.sender("x"), "one", "two")
        client.send(client.sender("mine"), "three")
        assert before.depth("q") == 2
        with bench(clustered=True, start=False) as after:
            before.logs[LOCAL].replayed_into(after.logs[LOCAL])
            after.logs[LOCAL].become("standalone")
            after.settle()
            after.lead.become("ready", "other:5672")
            after.settle()
            before.logs[CLUSTER].replayed_into(after.lead)
            after.settle()
            after.lead.become("recovering")
            after.lead.become("active")
            after.settle()
            assert after.depth("q") == 2
            client = after.client()
            client.send(client.sender("x"), "four")
            assert client.bodies(client.receiver("q")) == ["one", "two", "four"], "the local binding holds too"
            assert client.bodies(client.receiver("mine")) == ["three"]


def test_a_backup_has_places_for_messages_of_level_configuration_before_it_is_the_primary() -> None:
    """Else its first clients would find queues that take nothing."""
    with bench(clustered=True) as primary, bench(clustered=True, start=False) as backup:
        primary.client().request("CREATE", "queue", "q", {"replicate": "configuration"})
        backup.logs[LOCAL].become("standalone")
        backup.lead.become("ready", "other:5672")
        primary.logs[CLUSTER].replayed_into(backup.lead)
        backup.settle()
        assert backup.broker.nodes.queues["q"].messages is not None


def test_a_snapshot_of_the_cluster_log_leaves_local_queues_where_they_were() -> None:
    with bench(clustered=True) as b:
        client = b.client(ADMIN)
        client.request("CREATE", "queue", "mine", {"replicate": "none"})
        client.request("CREATE", "queue", "ours", {"replicate": "all"})
        client.send(client.sender("mine"), 1, 2)
        b.lead.become("catchup", "other:5672")
        snapshot = [_batch(builder) for builder in b.lead.ledger.snapshot()]
        b.lead.ledger.on_reset(snapshot, 100)
        b.lead.index = 100
        b.lead.become("ready", "other:5672")
        b.lead.become("recovering")
        b.lead.become("active")
        b.settle()
        assert set(b.broker.nodes.queues) == {"mine", "ours"}
        client.send(client.sender("mine"), 3)
        assert client.bodies(client.receiver("mine")) == [1, 2, 3]


def _batch(builder: BatchBuilder) -> Any:
    return Batch.parse(builder.seal(1, 100, 0))


def test_the_local_log_forgets_what_the_cluster_has_deleted_once_this_broker_is_active() -> None:
    with bench(clustered=True) as b:
        client = b.client()
        client.request("CREATE", "queue", "q", {"replicate": "configuration"})
        client.request("CREATE", "exchange", "x", {"replicate": "none"})
        client.request("CREATE", "binding", "", {"exchange": "x", "queue": "q", "key": "k"})
        local = b.broker.ledgers[LOCAL].state
        assert len(local.definitions.stores) == len(local.definitions.bindings) == 1
        client.request("DELETE", "queue", "q")
        assert not local.definitions.stores
        assert not local.definitions.bindings


def test_a_subscription_of_the_last_process_leaves_no_queue_and_a_durable_one_stays() -> None:
    with bench(start=False) as b:
        b.lead.take(creating("left over", level="none", autoDelete=True, exclusive=True))
        b.lead.take(creating("kept", level="none", autoDelete=True, exclusive=True, durable=True))
        b.start()
        assert set(b.broker.nodes.queues) == {"kept"}


# ---- the disk


def test_a_full_disk_holds_producers_back_until_it_takes_writes_again() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        producer = client.sender("q")
        b.lead.automatic = False
        client.send(producer, *range(10))
        b.lead.ledger.on_storage_error("the disk of /var is full", False)
        b.settle()
        late = client.sender("q")
        assert (late.credit, producer.credit) == (0, limits.CREDIT_WINDOW - 10)
        b.lead.commit()
        b.settle()
        assert statuses(client, producer) == [ACCEPTED] * 10
        assert (late.credit, producer.credit) == (limits.CREDIT_WINDOW, limits.CREDIT_WINDOW)
        assert not b.fatal


def test_a_disk_that_failed_stops_the_broker() -> None:
    with bench() as b:
        b.lead.ledger.on_storage_error("the disk did not keep what it was given", True)
        assert b.fatal == ["the disk did not keep what it was given"]


# ---- connections that do not behave


def test_rubbish_ends_one_connection_and_no_other() -> None:
    with bench() as b:
        client, rude = b.client(), Client(b)
        b.clients.append(rude)
        rude.server.dataReceived(b"GET / HTTP/1.1\r\n\r\n")
        b.settle()
        assert rude.lost
        assert not client.lost
        assert client.request("QUERY", "broker")[0] == 200


def test_output_waits_while_the_socket_is_full() -> None:
    with bench() as b:
        b.queue("q")
        client = b.client()
        producer = client.sender("q")
        for _ in range(4):
            client.send(producer, *([b"x" * 100_000] * 10))
        consumer = client.receiver("q", credit=0)
        client.server.pauseProducing()
        consumer.flow(100)
        b.settle()
        assert client.received[consumer.name] == []
        waiting = client.server.engine.links
        assert sum(link.account.n_unsettled for link in waiting if isinstance(link, Sender)) < 40, "a slow reader is not fed"
        client.server.resumeProducing()
        b.settle()
        assert len(client.received[consumer.name]) == 40


def test_the_connection_of_a_silent_client_ends_though_its_socket_is_full() -> None:
    """Its host has gone, say. Breaks when the Close is waited for, which never leaves: the connection would be there for a
    quarter of an hour, until the operating system gives it up."""
    with bench() as b:
        b.queue("q")
        client, other = b.client(), b.client()
        client.send(client.sender("q"), "one", "two")
        client.auto_accept = False
        client.receiver("q", credit=2)
        client.pump = lambda: False  # type: ignore[method-assign]
        client.server.pauseProducing()
        for _ in range(int(limits.IDLE_TIMEOUT_S) + 5):
            other.transport.tick(b.clock.seconds() + 1)
            b.pass_time(1)
        assert client.socket.disconnecting
        assert other.bodies(other.receiver("q")) == ["one", "two"]


def test_a_link_between_brokers_is_refused_where_there_is_no_cluster() -> None:
    with bench() as b:
        peer = b.client({"qpid.ha-peer": "other:5672"})
        assert condition(peer.connection) == "amqp:not-allowed"
        assert "not in a cluster" in peer.connection.remote_condition.description


def test_a_link_between_brokers_goes_to_who_takes_it() -> None:
    class Peer:
        def __init__(self) -> None:
            self.got: list[bytes] = []
            self.is_lost = False

        def open_properties(self) -> dict[str, Any]:
            return {"qpid.ha-peer": "ours"}

        serves_clients = False

        def opened(self) -> None: ...

        def on_link(self, link: Link) -> None:
            link.accept()
            if isinstance(link, Receiver):
                link.flow(100)

        def on_messages(self, link: Receiver) -> None:
            self.got += link.take()[1]

        def on_lost_post(self, txn_id: bytes) -> None: ...

        def on_outcomes(self, link: Sender) -> None: ...

        def on_credit(self, link: Sender) -> None: ...

        def on_link_closed(self, link: Link) -> None: ...

        def resume(self) -> None: ...

        def subscriptions(self, behind: tuple[Any, ...] = ()) -> list[tuple[int, dict[str, Any]]]:
            return []

        def end(self) -> None: ...

        def end_service(self, condition: Condition) -> None: ...

        def look_again(self) -> None: ...

        def lost(self) -> None:
            self.is_lost = True

    class Acceptor:
        answer: Peer | None = None
        asked: str = ""

        def accept(self, connection: Connection, value: str) -> Peer:
            self.asked = value
            if self.answer is None:
                raise Condition("amqp:not-allowed", "the cluster's id differs")
            return self.answer

    with bench(clustered=True) as b:
        acceptor = b.broker.admission.roles["qpid.ha-peer"] = Acceptor()
        refused = b.client({"qpid.ha-peer": "other:5672"})
        assert "id differs" in refused.connection.remote_condition.description
        assert acceptor.asked == "other:5672"
        peer = acceptor.answer = Peer()
        client = b.client({"qpid.ha-peer": "other:5672"})
        link = client.sender("raft")
        client.send_encoded(link, b"one", b"two")
        assert peer.got == [b"one", b"two"]
        b.lead.become("ready")
        b.settle()
        assert not client.lost, "links between brokers outlive a term"
        client.lose()
        assert peer.is_lost


def test_closing_ends_the_connections_as_a_crash_would() -> None:
    b = Bench()
    client = b.client()
    b.close()
    assert client.lost
    assert condition(client.connection) == "", "a Close would keep some clients from going on at once"


def test_the_open_names_the_other_brokers() -> None:
    with bench() as b:
        urls: list[dict[Any, Any]] = [{proton.symbol("network-host"): "other", proton.symbol("port"): 5672}]
        b.broker.admission.failover_urls = lambda: urls
        properties = b.client().connection.remote_properties
        assert properties["product"] == "understudy"
        assert [dict(url) for url in properties["failover-server-list"]] == urls
        assert isinstance(b.lead, MemoryLog)


def test_a_client_with_the_smallest_frames_gets_an_open_that_fits_without_the_other_brokers() -> None:
    """AMQP 1.0 part 2.4.1 allows 512 bytes: seven addresses made a frame that proton takes for a malformed one."""
    with bench() as b:
        b.broker.admission.failover_urls = lambda: [
            {proton.symbol("network-host"): f"10.0.0.{number}", proton.symbol("port"): 5672} for number in range(7)
        ]
        client = Client(b)
        client.transport.max_frame_size = 512
        b.clients.append(client)
        client.open()
        assert client.connection.state & proton.Endpoint.REMOTE_ACTIVE
        assert client.connection.remote_properties["product"] == "understudy"
        assert "failover-server-list" not in client.connection.remote_properties


def test_many_connections_are_looked_at_in_more_than_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when the heartbeats of all connections are one turn: each second, 0.1 s for ten thousand of them, and more when they
    are due."""
    looked: list[int] = []

    with bench() as b:
        clients = [b.client(container=str(number)) for number in range(7)]

        def tick(connection: Connection, now_s: float) -> None:
            looked.append(connection.number)
            b.clock.rightNow += limits.TICK_TURN_S / 2.5

        monkeypatch.setattr(Connection, "tick", tick)
        numbers = [client.server.number for client in clients]
        b.clock.rightNow += limits.TICK_S
        one_turn(b.clock)
        assert looked == numbers[:3]
        clients[3].lose()
        one_turn(b.clock)
        assert looked == [*numbers[:3], *numbers[4:]]
        b.clock.rightNow += limits.TICK_S
        one_turn(b.clock)
        assert looked[6:] == numbers[:3]
