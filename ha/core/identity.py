"""Who may speak as a member: the certificate that a broker has shown against the address that it says it is.

A member is known by its address, `host:port`. Its certificate binds it to that address, by the first of these that it has:

1. URIs `amqps://host:port` among its alternative names: these addresses and no others. So several brokers of one host can be told
   from one another.
2. DNS names and IP addresses among them: any port of these hosts. A name with a wildcard is nobody's.
3. its common name: any port of that host.

And it must be good for a server, which a client's certificate is not. Without a certificate nobody is a member.

Source: RFC 9525 (names of services), of which wildcards are left out: a member is one broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from broker.core import urls
from broker.core.identity import Certificate
from broker.core.urls import Address


def objection_to_member(address: str, certificate: Certificate | None) -> str:
    """Why who has shown this certificate is not the member of that address, in words that follow its address; "" when it is."""
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
    """One spelling of a host: IP addresses have several, and names know no case."""
    try:
        return str(ip_address(name))
    except ValueError:
        return name.lower().removesuffix(".")
