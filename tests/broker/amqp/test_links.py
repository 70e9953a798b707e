"""Links: outcomes, credit, refusals, termini."""

from __future__ import annotations

import proton
import pytest

from broker.amqp.data import Condition
from broker.amqp.receiver import Receiver
from broker.amqp.sender import Sender
from broker.core import limits
from broker.core.filters import Filter
from broker.core.links import ACCEPTED, FAILED, MODIFIED, REJECTED, RELEASED, UNDELIVERABLE
from tests.broker.amqp.pairs import Pair, Proton


def test_outcomes_come_by_the_batch_with_the_sequences_that_were_given() -> None:
    peer = Proton().open()
    link = peer.receiver(credit=10)
    out = peer.out("r")
    assert peer.server.credits[-1] == out.credit == 10
    assert not out.presettled
    out.send(b"abcd", (0, 1, 2, 3, 4), 0, 4, 70, False)
    out.send_one(b"late", 99)
    peer.settle()
    assert out.account.n_unsettled == 5
    received = []
    for outcome in (proton.Delivery.ACCEPTED, proton.Delivery.RELEASED, proton.Delivery.MODIFIED, proton.Delivery.REJECTED):
        delivery = link.current
        received.append(link.recv(delivery.pending))
        delivery.update(outcome)
        delivery.settle()
    peer.settle()
    assert received == [b"a", b"b", b"c", b"d"]
    (outcomes,) = peer.server.outcomes
    assert sorted(outcomes) == [(70, ACCEPTED, True), (71, RELEASED, True), (72, MODIFIED, True), (73, REJECTED, True)]
    assert out.account.unsettled() == [range(99, 100)]


def test_a_disposition_that_is_no_outcome_is_passed_over_and_an_outcome_counts_once() -> None:
    peer = Proton().open()
    link = peer.receiver(credit=1)
    peer.out("r").send_one(b"one", 7)
    peer.settle()
    delivery = link.current
    delivery.update(proton.Delivery.RECEIVED)
    peer.settle()
    assert peer.server.outcomes == []
    delivery.update(proton.Delivery.ACCEPTED)
    peer.settle()
    delivery.settle()
    peer.settle()
    assert peer.server.outcomes == [[(7, ACCEPTED, False)]]


def test_what_the_peer_settles_second_waits_for_us_run_by_run() -> None:
    peer = Proton().open()
    link = peer.receiver(credit=10)
    out = peer.out("r")
    out.send(b"abcdef", range(7), 0, 6, 70, False)
    peer.settle()
    deliveries = []
    while (delivery := link.current) is not None:
        deliveries.append(delivery)
        link.recv(delivery.pending)
        link.advance()
    peer.server.on_outcomes = lambda engine, link: None  # type: ignore[method-assign]
    for delivery in deliveries:
        delivery.update(proton.Delivery.ACCEPTED)
    deliveries[3].settle()
    peer.settle()
    runs = [(first, count, settled) for first, count, _, settled in out.take_outcomes()]
    assert runs == [(0, 3, False), (3, 1, True), (4, 2, False)]
    out.settle(0, 2, ACCEPTED)
    out.settle(3, 1, ACCEPTED)
    peer.settle()
    assert [each.settled for each in deliveries if each is not deliveries[3]] == [True, True, False, False, False]
    out.settle(2, 1)
    out.settle(4, 2)
    out.settle(4, 2)
    peer.settle()
    assert all(each.settled for each in deliveries if each is not deliveries[3])
    assert not out._told
    assert not out._ids


def test_outcomes_that_come_one_by_one_are_one_run_and_settled_as_one() -> None:
    peer = Proton().open()
    link = peer.receiver(credit=10)
    out = peer.out("r")
    out.send(b"abc", range(4), 0, 3, 70, False)
    peer.settle()
    peer.server.on_outcomes = lambda engine, link: link._tell()  # type: ignore[method-assign]
    deliveries = []
    for _ in range(3):
        deliveries.append(link.current)
        link.advance()
        deliveries[-1].update(proton.Delivery.ACCEPTED)
        peer.settle()
    assert out.take_outcomes() == [(0, 3, ACCEPTED, False)]
    assert not out.has_outcomes
    out.settle(0, 3, ACCEPTED)
    peer.settle()
    assert all(each.settled for each in deliveries)


def test_a_modified_message_says_whether_it_failed_and_whether_it_may_come_again() -> None:
    peer = Proton().open()
    link = peer.receiver(credit=10)
    peer.out("r").send(b"abc", range(4), 0, 3, 1, False)
    peer.settle()
    for failed, undeliverable in ((True, False), (False, True), (True, True)):
        delivery = link.current
        link.advance()
        delivery.local.failed, delivery.local.undeliverable = failed, undeliverable
        delivery.update(proton.Delivery.MODIFIED)
        delivery.settle()
    peer.settle()
    assert peer.server.outcomes == [
        [
            (1, MODIFIED | FAILED, True),
            (2, MODIFIED | UNDELIVERABLE, True),
            (3, MODIFIED | FAILED | UNDELIVERABLE, True),
        ]
    ]


def test_the_account_s_credit_is_what_proton_has() -> None:
    peer = Proton().open()
    link = peer.receiver(credit=5)
    out = peer.out("r")
    out.send(b"abc", range(4), 0, 3, 1, False)
    assert out.credit == out.account.credit == 2
    link.flow(4)
    peer.settle()
    assert out.credit == out.account.credit == 6
    sender = peer.sender("s")
    into = peer.into("s")
    peer.send(sender, b"one")
    peer.settle()
    assert into.credit == into.account.credit == 99


def test_credit_is_given_back_to_who_drains() -> None:
    peer = Proton().open()
    link = peer.receiver()
    link.drain(5)
    peer.settle()
    out = peer.out("r")
    assert out.account.draining
    out.send_one(b"one", 0, True)
    out.drained()
    peer.settle()
    assert link.recv(link.current.pending) == b"one"
    link.advance()
    assert (link.credit, out.credit, out.account.credit) == (0, 0, 0)


def test_output_that_the_session_does_not_take_is_counted() -> None:
    peer = Proton()
    peer.session.incoming_capacity = 1 << 17
    peer.open()
    peer.receiver(credit=100)
    out = peer.out("r")
    for _ in range(30):
        out.send_one(b"x" * 60_000)
    peer.settle()
    assert out.buffered_bytes > 1 << 20


# ---- links and sessions


def test_a_link_that_is_refused_says_why_and_leaves_the_session_alone() -> None:
    peer = Proton().open()
    peer.server.refusal = Condition("amqp:not-found", "there is no queue 'q'")
    link = peer.sender()
    assert (link.remote_condition.name, link.remote_condition.description) == ("amqp:not-found", "there is no queue 'q'")
    assert link.remote_target.type == proton.Terminus.UNSPECIFIED, "clients take a link with a target for one that was made"
    link.close()
    peer.server.refusal = None
    assert peer.sender("again").credit == 100
    assert len(tuple(peer.server.engine.links)) == 1


@pytest.mark.parametrize("text", ["x" * 1000, "\u20ac" * 300_000, "x\U0001f600" * 200], ids=["x", "euro", "four"])
def test_a_condition_is_cut_so_that_its_frame_is_no_larger_than_any_peer_takes(text: str) -> None:
    """Breaks when a peer of small frames ends its connection because of the text of a refusal."""
    peer = Proton(frame=512).open()
    link, name = peer.sender(), "amqp:link:message-size-exceeded"
    delivery = peer.send(link, b"one")
    peer.settle()
    receiver = peer.into("s")
    receiver.settle(0, 1, REJECTED, Condition(name, text))
    sizes = frame_sizes(peer)
    receiver.close(Condition(name, text, {"hostname": "h" * 20, "port": 5672, "address": "q" * 255, "more": text}))
    sizes += frame_sizes(peer)
    assert len(sizes) == 2
    assert all(300 < size <= 512 for size in sizes), sizes
    assert link.remote_condition.info == {"hostname": "h" * 20, "port": 5672, "address": "q" * 255}
    for told in (delivery.remote.condition, link.remote_condition):
        assert (told.name, told.description[-3:]) == (name, "...")
        assert text.startswith(told.description[:-3])


@pytest.mark.parametrize("host", [20, 162, 163, 164, 165, 253])
def test_the_info_of_a_condition_is_bounded_in_sum_and_its_first_entries_stay(host: int) -> None:
    """Breaks when a redirect to a node with a long name on a host with a long name ends the connection of a peer."""
    peer = Proton(frame=512).open()
    link = peer.sender()
    info = {"network-host": "h" * host, "port": 5672, "hostname": "h" * host, "address": "q" * 255}
    peer.into("s").close(Condition("amqp:link:redirect", "x" * 500, info))
    (size,) = frame_sizes(peer)
    assert size <= 512
    told = link.remote_condition.info
    assert told == {key: info[key] for key in told}
    assert list(told) == [*("network-host", "port"), *(["hostname"] if host < 165 else []), *(["address"] if host == 20 else [])]


def frame_sizes(peer: Proton) -> list[int]:
    """Of the frames that the server has to send, which are sent."""
    data, sizes = b"".join(peer.server.engine.take_output()), []
    peer.transport.push(data)
    while data:
        sizes.append(int.from_bytes(data[:4], "big"))
        data = data[sizes[-1] :]
    return sizes


def test_a_detached_link_and_a_closed_one_and_a_closed_session_end_what_they_had() -> None:
    peer = Proton().open()
    detached, closed, rest = peer.sender("detached"), peer.sender("closed"), peer.receiver("rest")
    other = peer.connection.session()
    other.open()
    stays = peer.sender("stays", session=other)
    ends = {link.name: link for link in peer.server.links}
    peer.send(closed, b"one")
    detached.detach()
    closed.close()
    peer.settle()
    assert peer.server.gone == ["detached", "closed"]
    assert peer.server.messages == [b"one"], "what came before the end is told before the end"
    peer.session.close()
    peer.settle()
    assert peer.server.gone == ["detached", "closed", "rest"]
    assert [link.open for link in ends.values()] == [False, False, False, True]
    assert rest.state & proton.Endpoint.LOCAL_ACTIVE
    late = ends["closed"]
    assert isinstance(late, Receiver)
    late.settle(0, 1, ACCEPTED)
    late.flow(5)
    out = ends["rest"]
    assert isinstance(out, Sender)
    out.settle(0, 1, ACCEPTED)
    peer.send(stays, b"two")
    peer.settle()
    assert peer.server.messages == [b"one", b"two"]


@pytest.mark.parametrize("how", ["detach", "close"])
@pytest.mark.parametrize("sends", [True, False])
def test_the_end_of_a_link_whose_attach_is_not_answered_yet_is_answered(sends: bool, how: str) -> None:
    """Breaks when its peer waits for ever for an Attach or a Detach."""
    peer, collector = Proton().open(), proton.Collector()
    peer.connection.collect(collector)
    peer.server.attaches_later = True
    link = peer.sender() if sends else peer.receiver()
    assert link.state & proton.Endpoint.REMOTE_UNINIT
    getattr(link, how)()
    peer.settle()
    assert peer.server.gone == [link.name]
    terminus = link.remote_target if sends else link.remote_source
    assert terminus.type == proton.Terminus.UNSPECIFIED
    assert not link.remote_condition
    told = []
    while (event := collector.peek()) is not None:
        told += [event.type] * event.type.name.startswith("PN_LINK_REMOTE")
        collector.pop()
    end = proton.Event.LINK_REMOTE_CLOSE if how == "close" else proton.Event.LINK_REMOTE_DETACH
    assert told == [proton.Event.LINK_REMOTE_OPEN, end]
    peer.server.attaches_later = False
    assert peer.sender("again").credit == 100, "the session goes on"


def test_links_are_limited_and_who_goes_on_asking_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LINKS_PER_CONNECTION", 3)
    peer = Proton().open()
    links = [peer.sender(f"s{n}") for n in range(5)]
    names = [link.remote_condition.name if link.remote_condition else "" for link in links]
    assert names == ["", "", "", *["amqp:resource-limit-exceeded"] * 2]
    for n in range(5, 7):
        peer.sender(f"s{n}")
    assert peer.connection.remote_condition.name == "amqp:resource-limit-exceeded"


def test_a_dynamic_source_is_named_by_this_side() -> None:
    peer = Proton()
    peer.server.on_link = lambda engine, link: link.accept(dynamic_address="made-up")  # type: ignore[method-assign]
    peer.open()
    link = peer.session.receiver("r")
    link.source.dynamic = True
    link.open()
    target = peer.session.sender("s")
    target.target.dynamic = True
    target.open()
    peer.settle()
    assert (link.remote_source.address, target.remote_target.address) == ("made-up", "made-up")


def test_a_terminus_says_what_was_asked_for() -> None:
    peer = Proton().open()
    link = peer.session.receiver("r")
    link.source.address = "q"
    link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    link.source.filter.put_dict({proton.symbol("f"): 1})
    link.open()
    coordinator = peer.session.sender("c")
    coordinator.target.type = proton.Terminus.COORDINATOR
    coordinator.open()
    peer.settle()
    source, target = peer.server.links[0].source, peer.server.links[1].target
    assert (source.address, source.copy, source.dynamic, source.coordinator, source.filters) == (
        "q",
        True,
        False,
        False,
        [Filter("f", 1)],
    )
    assert target.coordinator
    assert peer.server.links[1].source.address == ""


@pytest.mark.parametrize("second", [True, False])
def test_a_sending_peer_hears_that_its_messages_are_settled_with_their_outcome(second: bool) -> None:
    """Breaks when it waits for a second round that does not come."""
    peer = Proton().open()
    link = peer.session.sender("s")
    link.target.address = "q"
    link.rcv_settle_mode = proton.Link.RCV_SECOND if second else proton.Link.RCV_FIRST
    link.open()
    peer.settle()
    assert link.remote_rcv_settle_mode == proton.Link.RCV_FIRST


def test_tags_are_text_and_do_not_repeat() -> None:
    """Proton's Python client reads a tag as UTF-8, and fails on one that is not."""
    peer = Proton().open()
    link = peer.receiver(credit=300)
    for number in range(300):
        peer.out("r").send_one(b"one", number)
    peer.settle()
    tags = []
    while (delivery := link.current) is not None:
        tags.append(delivery.tag)
        link.advance()
    assert len(set(tags)) == 300


@pytest.mark.parametrize("end", ["settled", "two steps", "taken back", "detached", "session", "closed here"])
def test_an_engine_knows_how_many_deliveries_are_kept_until_they_are_settled_or_their_link_is_gone(end: str) -> None:
    """Breaks when the number is wrong that limits them: a connection gets nothing more, or there is no limit."""
    peer = Proton().open()
    receiver = peer.receiver(credit=50)
    engine, link = peer.server.engine, peer.out("r")
    for number in range(10):
        link.send_one(b"x" * (limits.PIECE_BYTES + 1 if number == 9 else 1), number)
    link.send_one(b"settled", 10, True)
    assert engine.unsettled == 10
    peer.settle()
    if end == "closed here":
        link.close()
        assert engine.unsettled == 10, "proton keeps them until the peer has answered"
        peer.settle()
        receiver.close()
    elif end == "detached":
        receiver.close()
    elif end == "session":
        peer.session.close()
    elif end == "taken back":
        link.take_back(10)
    else:
        while receiver.current:
            delivery = receiver.current
            receiver.recv(1 << 20)
            receiver.advance()
            delivery.update(proton.Delivery.ACCEPTED)
            if end == "settled":
                delivery.settle()
    peer.settle()
    assert engine.unsettled == 0


def test_a_pack_is_one_delivery_that_is_kept() -> None:
    pair = Pair()
    link = pair.sender()
    link.tags_sequences = link.packed = True
    link.send(b"x" * 70, range(71), 0, 70, 0, False)
    assert pair.client.engine.unsettled == 2
