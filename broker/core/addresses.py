"""Addresses as RabbitMQ's clients write them: `/queues/NAME`, `/exchanges/NAME` and `/exchanges/NAME/KEY`; and as Azure's
do, which put the broker's own URL before the name: `amqps://HOST/NAME`.

Each segment is percent-encoded UTF-8. A text with a fault (a `%` without two hexadecimal digits, bytes that are not UTF-8, a
segment too many or an empty name) is no such address. A node whose name is the whole address takes precedence: the lookup of
nodes calls this module only if there is none.

Source: RabbitMQ's documentation of AMQP 1.0, "Address v2".
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

QUEUES: Final = "/queues/"
EXCHANGES: Final = "/exchanges/"
_URL = re.compile("amqps?://(?P<authority>[^/@]+)/(?P<name>(?!.*://).+)", re.DOTALL)
"""A URL within a URL is not resolved again."""
_PORT = re.compile(":[0-9]+$")
_CUT_SHORT = re.compile("%(?![0-9A-Fa-f]{2})")


def queue_in(address: str) -> str:
    """The name of the queue that the address is of, "" if it is not of a queue."""
    found = _named(address, QUEUES)
    return found[0] if len(found) == 1 else ""


def exchange_in(address: str) -> tuple[str, str]:
    """The name of the exchange that the address is of, and the routing key, "" where it has none; ("", "") if it is not of an
    exchange."""
    found = _named(address, EXCHANGES)
    if not 1 <= len(found) <= 2:
        return "", ""
    return found[0], found[1] if len(found) == 2 else ""


def behind_url(address: str, host: str) -> str:
    """The name in an address that is a URL of the host which its client has connected to (`host`, with or without a port); "" if
    it has none, or another one's."""
    found = _URL.fullmatch(address)
    if found is None or not host or _host_of(found["authority"]) != _host_of(host):
        return ""
    return "/".join(segments(f"/{found['name']}"))


def _host_of(authority: str) -> str:
    return _PORT.sub("", authority).lower()


def segments(path: str) -> list[str]:
    """The decoded segments of a path that begins with `/`; none if the path has a fault."""
    if not path.startswith("/") or _CUT_SHORT.search(path):
        return []
    try:
        return [unquote(segment, errors="strict") for segment in path[1:].split("/")]
    except UnicodeDecodeError:
        return []


def _named(address: str, prefix: str) -> list[str]:
    found = segments(address)[1:] if address.startswith(prefix) else []
    return found if found and found[0] else []
