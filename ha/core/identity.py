"""Checks whether a broker may act as a member: compares its certificate with the address that it claims.

A member is known by its address, `host:port`. Its certificate is bound to that address by the first of these that it
has:

1. URIs `amqps://host:port` among its alternative names: valid for these addresses only. So several brokers on one host
   can be distinguished.
2. DNS names and IP addresses among them: valid for any port of these hosts. Names with a wildcard do not count.
3. its common name: valid for any port of that host.

It must also be valid for a server, which a client's certificate is not. Without a certificate, no broker is a member.

Source: RFC 9525 (names of services), without wildcards, because a member is one broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from broker.core import urls
from broker.core.identity import Certificate
from broker.core.urls import Address


def objection_to_member(address: str, certificate: Certificate | None) -> str:
    """Why the owner of this certificate is not the member with that address, in words that follow its address; "" if it
    is.
    """
    if certificate is None:
        return "presented no certificate, which links between these brokers need"
    if not certificate.serves:
        return f"presented a client's certificate, {certificate.subject}, which brokers must not have"
    try:
        member = urls.parse(address).addresses[0]
    except urls.BadUrl as error:
        return f"is not an address of a broker: {error}"
    bound = list(_addresses(certificate.uris))
    if bound:
        is_it = (_host(member.host), member.port) in [(_host(one.host), one.port) for one in bound]
        names = [one.name for one in bound]
    else:
        names = [*certificate.dns_names, *certificate.addresses] or [certificate.common_name]
        is_it = _host(member.host) in map(_host, names)
    if is_it:
        return ""
    return f"presented the certificate of {', '.join(names) or 'no host'} ({certificate.subject}), which is not its own"


def _addresses(uris: tuple[str, ...]) -> Iterator[Address]:
    for uri in uris:
        if uri.startswith("amqps:"):
            try:
                yield from urls.parse(uri).addresses
            except urls.BadUrl:
                continue


def _host(name: str) -> str:
    """A host in one spelling: IP addresses have several, and names ignore case."""
    try:
        return str(ip_address(name))
    except ValueError:
        return name.lower().removesuffix(".")
