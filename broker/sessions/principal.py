"""Who a connection acts for. Every decision about what a client may do is handed its principal: each attach, each request to
management. This broker asks nobody for credentials yet, so that every principal is `ANONYMOUS`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """`user` as the mechanism gives it, the SASL `mechanism`, and whether anything has shown that it is that user."""

    user: str
    mechanism: str
    authenticated: bool


ANONYMOUS = Principal("anonymous", "ANONYMOUS", authenticated=False)
