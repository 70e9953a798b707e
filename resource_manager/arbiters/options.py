"""A plug-in's own options, `--arbiter-option KEY=VALUE`, read by a table of `broker.options.Option`s, as all options are.

A plug-in need not use this: it is given its options as text, and may read them as it likes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from broker.options import Option, file, number, seconds

SECRETS = ("password", "secret", "token")
"""Words for what must not stand on a command line, which others on the machine can see."""


def pairs(value: str) -> dict[str, str]:
    """`KEY=VALUE KEY=VALUE`, quoted as in a shell where a value has spaces. ValueError."""
    found: dict[str, str] = {}
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise ValueError(f"{value!r} cannot be read: {str(error).lower()}") from None
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ValueError(f"{word!r} is not KEY=VALUE, as in endpoints=http://host1:2379")
        if key in found:
            raise ValueError(f"{key} is given twice")
        if key in SECRETS:
            raise ValueError(f"others on this machine can see a {key} here: put it into a file, and give {key}-file=FILE")
        found[key] = text
    return found


def read(table: Iterable[Option], given: Mapping[str, str], arbiter: str) -> dict[str, Any]:
    """The value of each option by its field name. ValueError for one that is not in the table, or cannot be read."""
    options = {option.name: option for option in table}
    for name in given:
        if name not in options:
            there_are = f"; there are: {', '.join(options)}" if options else ", and takes none"
            raise ValueError(f"{arbiter} has no option {name!r}{there_are}")
    values: dict[str, Any] = {}
    for name, option in options.items():
        try:
            values[option.field] = option.parse(given[name]) if name in given else option.default
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return values


# ---- what arbiters share that hold leases in a store over HTTP

TIMES = (
    Option("ttl", number(2, 600), 5, "SECONDS", "How long a daemon's lease runs: a dead daemon's turn ends after this time."),
    Option("timeout", seconds(0.1, 60), None, "SECONDS", "Time for one call. Default: 1, or ttl / 5 if less."),
)


def timeout(values: Mapping[str, Any]) -> float:
    """The time for one call, in seconds: of values read by TIMES. ValueError when it leaves no time to try again."""
    timeout_s: float = min(1.0, values["ttl"] / 5) if values["timeout"] is None else values["timeout"]
    if timeout_s > values["ttl"] / 4:
        raise ValueError(f"timeout: {timeout_s:g} is too long for a ttl of {values['ttl']}: a fourth of it at most")
    return timeout_s


def tls_files(store: str) -> tuple[Option, ...]:
    """The options of `net.tls.Tls`."""
    return (
        Option("ca-file", file, None, "FILE", f"Authorities that signed the certificates of {store}, in PEM form."),
        Option("certificate", file, None, "FILE", f"Certificate to show to {store}, in PEM form, above those between."),
        Option("key", file, None, "FILE", "Its private key. Default: it is in the same file."),
    )


def endpoint(value: str, default_port: int, here: str) -> str:
    """`https://host:port`, with that port if it has none; http is for loopback alone, for what is called `here`. ValueError."""
    try:
        url = urlsplit(value)
        host, port = url.hostname or "", default_port if url.port is None else url.port
    except ValueError:
        host, port = "", 0
    plain = f"{url.scheme}://{url.netloc}" if host else ""
    if not host or url.scheme not in ("http", "https") or value.rstrip("/") != plain or url.username or not 0 < port < 65536:
        raise ValueError(f"{value!r} is not an endpoint as https://host:{default_port}")
    if url.scheme == "http" and not _is_loopback(host):
        raise ValueError(f"{value}: over http a stranger could answer for {host}: use https, or {here}")
    return f"{url.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
