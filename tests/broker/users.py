"""Clients of users whom a broker knows, without users' files and keys: it believes what they say of themselves."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from twisted.internet.defer import succeed
from twisted.internet.interfaces import IReactorTime

from broker.core import sasl
from broker.core.identity import Socket
from broker.sessions.authentication import Authentication
from tests.broker import clients
from tests.broker.clients import Bench, Client


class Believed:
    """PLAIN by which whoever names itself counts as shown to be that user."""

    def step(self, response: bytes) -> sasl.Step:
        return sasl.Grant(response.split(b"\0")[1].decode(), sasl.PLAIN, authenticated=True)


class Believing(Authentication):
    """What is offered where nothing but the rules is tried."""

    def offer(self, socket: Socket) -> sasl.Offer:
        return {sasl.ANONYMOUS: sasl.Anonymous, sasl.PLAIN: Believed}


def believing(clock: IReactorTime, **options: Any) -> Authentication:
    return Believing(clock, lambda work: succeed(work()), lambda: "", **options)


def bench(**options: Any) -> AbstractContextManager[Bench]:
    """A bench whose broker believes its clients."""
    return clients.bench(authentication=believing, **options)


def as_user(b: Bench, user: str, properties: dict[str, Any] | None = None, address: str = "127.0.0.1:1") -> Client:
    """A client that has logged in as this user, from this address."""
    return b.client(properties, mechanism="PLAIN", user=user, password="x", socket=Socket(address))
