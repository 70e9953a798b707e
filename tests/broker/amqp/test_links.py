"""Links: outcomes, credit, refusals, termini."""

from __future__ import annotations

import proton
import pytest

from broker.amqp.links import ACCEPTED, MODIFIED, REJECTED, RELEASED, Condition, Receiver, Sender
from broker.core import limits
from tests.broker.amqp.pairs import Proton


def test_outcomes_come_by_the_batch_with_the_keys_that_were_given() -> None:
    peer = Proton().open()
    link = peer.receiver(credit=10)
    out = peer.out("r")
    assert peer.server.credits[-1] == out.credit == 10
    assert not out.presettled
    out.send(b"abcd", (0, 1, 2, 3, 4), 0, 4, "wxyz", False)
    out.send_one(b"late", "late")
    peer.settle()
    assert len(out.unsettled) == 5
    received = []
    for outcome in (proton.Delivery.ACCEPTED, proton.Delivery.RELEASED, proton.Delivery.MODIFIED, proton.Delivery.REJECTED):
        delivery = link.current
        received.append(link.recv(delivery.pending))
        delivery.update(outcome)
        delivery.settle()
    peer.settle()
    assert received == [b"a", b"b", b"c", b"d"]
    (outcomes,) = peer.server.outcomes
    assert sorted(outcomes) == [("w", ACCEPTED, True), ("x", RELEASED, True), ("y", MODIFIED, True), ("z", REJECTED, True)]
    assert list(out.unsettled.values()) == ["late"]


def test_a_disposition_that_is_no_outcome_is_passed_over_and_an_outcome_counts_once() -> None:
    peer = Proton().open()
    link = peer.receiver(credit=1)
    peer.out("r").send_one(b"one", "key")
    peer.settle()
    delivery = link.current
    delivery.update(proton.Delivery.RECEIVED)
    peer.settle()
    assert peer.server.outcomes == []
    delivery.update(proton.Delivery.ACCEPTED)
    peer.settle()
    delivery.settle()
    peer.settle()
    assert peer.server.outcomes == [[("key", ACCEPTED, False)]]


def test_credit_is_given_back_to_who_drains() -> None:
    peer = Proton().open()
    link = peer.receiver()
    link.drain(5)
    peer.settle()
    out = peer.out("r")
    assert out.draining
    out.send_one(b"one", None, True)
    out.drained()
    peer.settle()
    assert link.recv(link.current.pending) == b"one"
    link.advance()
    assert (link.credit, out.credit) == (0, 0)


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
    link.close()
    peer.server.refusal = None
    assert peer.sender("again").credit == 100
    assert len(tuple(peer.server.engine.links)) == 1


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
    late.settle(peer.server.batches[0][2], ACCEPTED)
    late.flow(5)
    out = ends["rest"]
    assert isinstance(out, Sender)
    out.settle([], ACCEPTED)
    peer.send(stays, b"two")
    peer.settle()
    assert peer.server.messages == [b"one", b"two"]


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
        {"f": 1},
    )
    assert target.coordinator
    assert peer.server.links[1].source.address == ""


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
