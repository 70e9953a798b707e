"""Lookups of host names: one at a time for each name, in threads that nothing else needs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ha.net.names import Names
from tests.ha.net.name_server import NameServer


def found(answer: Deferred[list[str]]) -> Any:
    """What has come of a lookup, None if nothing has yet."""
    results: list[Any] = []
    answer.addBoth(results.append)
    (result,) = results or [None]
    return result.getErrorMessage() if isinstance(result, Failure) else result


@pytest.mark.parametrize("number", ["192.0.2.1", "2001:db8::1", "fe80::1%eth0"])
def test_a_number_needs_no_lookup(number: str) -> None:
    assert found(NameServer({}, silent=True).names.addresses(number)) == [number]


def test_the_addresses_of_both_families_come_in_the_same_order_however_they_are_told() -> None:
    server = NameServer({"both": ["2001:db8::1", "192.0.2.2", "192.0.2.1", "192.0.2.2"]})
    assert found(server.names.addresses("both")) == ["192.0.2.1", "192.0.2.2", "2001:db8::1"]
    server.known["both"].reverse()
    assert found(server.names.addresses("both")) == ["192.0.2.1", "192.0.2.2", "2001:db8::1"]


def test_who_asks_for_a_name_that_is_being_looked_up_gets_the_same_answer() -> None:
    server = NameServer({"one": ["192.0.2.1"]}, silent=True)
    names = server.names
    answers = [names.addresses("one"), names.addresses("one"), names.addresses("two")]
    assert [name for name, _ in server.held] == ["name one", "name two"]
    server.answer()
    assert [found(answer) for answer in answers] == [
        ["192.0.2.1"],
        ["192.0.2.1"],
        "no address of two was found: Name or service not known",
    ]
    server.known["one"] = ["192.0.2.9"]
    assert found(names.addresses("one")) == ["192.0.2.9"], "nothing is kept"


def test_a_text_that_can_be_no_name_and_a_lack_of_threads_are_answers_too() -> None:
    server = NameServer({"one": ["192.0.2.1"]})

    def getaddrinfo(host: str, *_: Any, **how: Any) -> Any:
        host.encode("idna")

    long = "x" * 64
    names = Names(server, threads=server, getaddrinfo=getaddrinfo)
    assert found(names.addresses(long)).startswith(f"no address of {long} was found: ")
    names, server.room = server.names, False
    assert found(names.addresses("one")) == "no address of one was found: can't start new thread"
    server.room = True
    assert found(names.addresses("one")) == ["192.0.2.1"]


def test_a_lookup_does_not_keep_the_process_alive() -> None:
    """Breaks when a broker that ends waits for a name server."""
    told: queue.SimpleQueue[tuple[threading.Thread, Callable[[], object]]] = queue.SimpleQueue()

    class Reactor:
        def callFromThread(self, call: Callable[..., object], *arguments: Any) -> None:  # noqa: N802
            told.put((threading.current_thread(), lambda: call(*arguments)))

    answer = Names(Reactor()).addresses("localhost")
    thread, call = told.get(timeout=60)
    assert thread is not threading.current_thread()
    assert thread.daemon
    call()
    assert set(found(answer)) <= {"127.0.0.1", "::1"}
