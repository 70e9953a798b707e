"""The clients against a peer that does what brokers rarely do: real AMQP on a loopback port, served by proton."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from proton import Condition, Delivery, Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

from cli.verify.run import Run, Workload

COUNT = 50
SILENCE = object()
"""An outcome that never comes."""


class Peer(MessagingHandler):
    """Takes messages for every address. How it ends its first connections is in `ends`, what it says to the first messages in
    `outcomes`; afterwards it is as good as any."""

    def __init__(self, ends: list[str], outcomes: list[Any]) -> None:
        super().__init__(auto_accept=False)
        self.ends = ends
        self.outcomes = outcomes
        self.address = ""
        self.listens, self.was_accepted = threading.Event(), threading.Event()
        self.acceptor: Any = None
        self.ended = False

    def on_start(self, event: Any) -> None:
        self.acceptor = event.container.listen("127.0.0.1:0")
        host, port = self.acceptor._selectable._delegate.getsockname()
        self.address = f"{host}:{port}"
        self.listens.set()
        event.container.schedule(0.1, self)

    def on_timer_task(self, event: Any) -> None:
        if self.ended:
            self.acceptor.close()
            event.container.stop()
        else:
            event.container.schedule(0.1, self)

    def on_link_opening(self, event: Any) -> None:
        event.link.target.address = event.link.remote_target.address
        event.link.source.address = event.link.remote_source.address

    def on_link_opened(self, event: Any) -> None:
        end = self.ends.pop(0) if self.ends else ""
        what = {"connection": event.connection, "session": event.session, "link": event.link}.get(end.removesuffix(" error"))
        if what is not None:
            if end.endswith("error"):
                what.condition = Condition("example:whim", "for no reason")
            what.close()
        elif event.link.is_sender:
            event.link.send(Message(body=[1, 2]))

    def on_accepted(self, event: Any) -> None:
        self.was_accepted.set()

    def on_message(self, event: Any) -> None:
        outcome = self.outcomes.pop(0) if self.outcomes else Delivery.ACCEPTED
        if outcome == SILENCE:
            return
        if outcome is not None:
            event.delivery.update(outcome)
        event.delivery.settle()


@contextmanager
def peer(ends: list[str], outcomes: list[Any]) -> Iterator[Peer]:
    served = Peer(ends, outcomes)
    thread = threading.Thread(target=Container(served).run, daemon=True)
    thread.start()
    assert served.listens.wait(20)
    yield served
    served.ended = True
    thread.join(20)
    assert not thread.is_alive()


def sending(address: str, **more: Any) -> Run:
    return Run(Workload([address], ["anywhere"], consumers=0, at_least=COUNT, **more))


@pytest.mark.parametrize("end", ["connection", "connection error", "session", "session error", "link", "link error"])
def test_a_client_that_is_turned_out_comes_back_and_says_why(end: str) -> None:
    """Breaks when a client waits for ever after an end that was in order: proton connects anew only after one that was not."""
    with peer([end] * 3, []) as served, sending(served.address) as run:
        report = run.finish(timeout_s=30)
    assert (report.accepted, report.measures.drained) == (COUNT, True)
    assert run.opened("producer") == 4
    why = "for no reason" if end.endswith("error") else "without a word"
    assert [why in line for line in run.trouble()] == [True] * 3


def test_a_message_that_is_given_back_is_sent_again_and_one_that_is_refused_is_not() -> None:
    """An outcome that is none gives a message back, too."""
    outcomes = [Delivery.RELEASED, Delivery.MODIFIED, Delivery.REJECTED, None, Delivery.RELEASED]
    with peer([], outcomes) as served, sending(served.address, window=3) as run:
        report = run.finish(timeout_s=30)
    assert (report.sent, report.accepted, report.refused, report.sent_again) == (COUNT, COUNT - 1, 1, 4)
    assert report.measures.drained
    assert ["a message was refused" in line for line in run.trouble()] == [True]


def test_a_producer_that_waits_for_an_outcome_until_the_end_has_a_gap() -> None:
    with peer([], [Delivery.ACCEPTED, *[SILENCE] * COUNT]) as served, sending(served.address) as run:
        report = run.finish(timeout_s=1)
    assert (report.accepted, report.measures.drained) == (1, False)
    assert report.measures.accept_gap_s > 0.9


def test_what_is_no_message_of_the_run_is_unexpected_and_breaks_nothing() -> None:
    with peer([], []) as served, Run(Workload([served.address], ["anywhere"], producers=0)) as run:
        assert served.was_accepted.wait(20)
        report = run.finish(timeout_s=30)
    assert report.unexpected == 1
    assert "a message 'None' on anywhere" in report.examples["unexpected"]
