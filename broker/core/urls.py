"""Broker URLs, in the grammar that Apache Qpid's tools and clients take::

    url  = [ "amqp:" | "amqps:" ] [ user [ "/" password ] "@" ] addr *( "," addr )
    addr = [ "tcp:" | "ssl:" ] host [ ":" port ]            host: a name, an IPv4 address, or an IPv6 address in [ ]

The form `amqp://user:password@host:port` is accepted too, because people write it. Reserved characters in user and password are
written as %XX. The default port is 5672, over TLS 5671. "amqps:" means "ssl:" for every address.

Life of a Url: an operator types it, `parse` checks the whole of it, and all other code uses the addresses. The name of its
address, `host:port`, identifies a broker of a cluster, so two names for one broker would be two brokers: an address may occur
only once. A password is never shown: not by str(), not by repr(), not in an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from urllib.parse import quote, unquote

from broker.core import limits

DEFAULT_PORT = 5672
DEFAULT_TLS_PORT = 5671
TCP = "tcp"
SSL = "ssl"
_EXAMPLE = "amqp:broker1:5672,broker2:5672"
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_.])?", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


class BadUrl(ValueError):
    """This is not a broker URL. The text quotes the fault and shows a correct one."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where one broker listens. `host` is an IPv6 address without its brackets; `transport` is "tcp" or "ssl"."""

    host: str
    port: int = DEFAULT_PORT
    transport: str = TCP

    @property
    def name(self) -> str:
        """`host:port`, with brackets round an IPv6 address: how a member of a cluster is called."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        plain = self.transport == TCP and self.host.lower() not in (TCP, SSL)  # a host may have such a name
        return self.name if plain else f"{self.transport}:{self.name}"


@dataclass(frozen=True, slots=True)
class Url:
    """Addresses to try, in order, and the user and password ("" if the URL has none)."""

    addresses: tuple[Address, ...]
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the addresses."""
        return tuple(address.name for address in self.addresses)

    def __str__(self) -> str:
        """The URL in its plain form, with *** for the password."""
        who = quote(self.user, safe="") + ("/***" if self.password else "") + "@" if self.user else ""
        return "amqp:" + who + ",".join(map(str, self.addresses))


def parse(text: str) -> Url:
    """Read a URL. BadUrl quotes the part that is wrong (never the password) and shows a right example."""
    if len(text.encode(errors="replace")) > limits.MAX_URL_BYTES:
        raise BadUrl(f"a broker URL has at most {limits.MAX_URL_BYTES} bytes, and this one has more")
    rest, secure = text.strip(), False
    scheme, colon, after = rest.partition(":")
    if colon and scheme.lower() in ("amqp", "amqps"):
        rest, secure = after, scheme.lower() == "amqps"
    elif "://" in rest.rpartition("@")[2]:
        scheme = rest.rpartition("@")[2].partition(":")[0]
        raise BadUrl(f'"{scheme}" is not a scheme of a broker URL: write amqp: or amqps:, as in {_EXAMPLE}')
    rest = rest.removeprefix("//")
    credentials, at, hosts = rest.rpartition("@")
    user, password = _credentials(credentials) if at else ("", "")
    addresses = tuple(_address(part.strip(), secure) for part in hosts.split(","))
    if len(addresses) > limits.MAX_URL_ADDRESSES:
        raise BadUrl(f"a broker URL has at most {limits.MAX_URL_ADDRESSES} addresses, and this one has {len(addresses)}")
    url = Url(addresses, user, password)
    for i, name in enumerate(url.names):
        if name in url.names[:i]:
            raise BadUrl(f'"{name}" is given twice: name each broker once, as in {_EXAMPLE}')
    return url


def _credentials(text: str) -> tuple[str, str]:
    user, _, password = re.sub("[/:]", "/", text, count=1).partition("/")
    if not user:
        raise BadUrl(f'there is no user before the "@": write user/password@host, as in amqp:guest/secret@{_EXAMPLE[5:]}')
    if "," in text or "@" in text:
        raise BadUrl(
            'user and password stand once, before the first address; a "," or "@" in them is written as %2C or %40, '
            f"as in amqp:guest/sec%40ret@{_EXAMPLE[5:]}"
        )
    return unquote(user), unquote(password)


def _address(text: str, secure: bool) -> Address:
    transport, colon, rest = text.partition(":")
    if colon and transport.lower() in (TCP, SSL):
        transport = transport.lower()
        if secure and transport == TCP:
            raise BadUrl(f'"{text}" asks for no encryption in a URL that begins with amqps: write amqp:{text} or amqps:{rest}')
    else:
        transport, rest = SSL if secure else TCP, text
    default = DEFAULT_TLS_PORT if transport == SSL else DEFAULT_PORT
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        if not bracket or not _is_ipv6(host):
            raise BadUrl(f'"{rest}" is not an IPv6 address in brackets: write one as in amqp:[::1]:5672')
        if tail and not tail.startswith(":"):
            raise BadUrl(f'"{tail}" may not follow the address in "{rest}": write a port as in amqp:[::1]:5672')
        return Address(host, _port(tail[1:], text) if tail else default, transport)
    if rest.count(":") > 1:
        raise BadUrl(f'"{rest}" has more than one ":": an IPv6 address stands in brackets, as in amqp:[::1]:5672')
    host, colon, port = rest.partition(":")
    if not host:
        raise BadUrl(f'there is no host in the address "{text}": write one as in {_EXAMPLE}')
    if len(host) > limits.MAX_NAME_BYTES or not _HOST.fullmatch(host):
        raise BadUrl(f'"{host:.60}" is not a host name: it has letters, digits, ".", "-" and "_", as in {_EXAMPLE}')
    return Address(host, _port(port, text) if colon else default, transport)


def _port(text: str, address: str) -> int:
    if not _PORT.fullmatch(text) or not 0 < int(text) < 65536:
        raise BadUrl(f'"{text:.60}" in "{address:.80}" is not a port: it is a number from 1 to 65535, as in {_EXAMPLE}')
    return int(text)


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True
