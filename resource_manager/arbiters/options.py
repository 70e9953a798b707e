"""A plug-in's own options, `--arbiter-option KEY=VALUE`, read by a table of `broker.options.Option`s, like all options.

A plug-in need not use this: it gets its options as text, and may read them in any way.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from twisted.logger import Logger

from broker.options import Option, file, number, seconds
from broker.secret_files import warnings

_log = Logger(namespace="resource_manager")

SECRETS = ("password", "secret", "token")
"""Parts of names whose values must not be on a command line, because other users of the machine can see it."""


def pairs(value: str) -> dict[str, str]:
    """The pairs in `KEY=VALUE KEY=VALUE`, quoted as in a shell if a value has spaces. ValueError."""
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
            raise ValueError(f"other users of this machine can see a {key} here: put it into a file, and give {key}-file=FILE")
        found[key] = text
    return found


def read(table: Iterable[Option], given: Mapping[str, str], arbiter: str) -> dict[str, Any]:
    """The value of each option by its field name. ValueError if one is not in the table, or is invalid."""
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
    private = [(values[option.field], option.hides) for option in options.values() if option.hides and values[option.field]]
    if values.get("certificate") and not values.get("key"):
        private.append((values["certificate"], "its key is"))
    for line in warnings(private):
        _log.warn("{line}", line=line)
    return values


# ---- what arbiters share that hold leases in a store over HTTP

TIMES = (
    Option("ttl", number(2, 600), 5, "SECONDS", "How long a daemon's lease runs: a dead daemon's turn ends after this time."),
    Option("timeout", seconds(0.1, 60), None, "SECONDS", "Time for one call. Default: 1, or ttl / 5 if less."),
)


def timeout(values: Mapping[str, Any]) -> float:
    """The timeout of one call, in seconds, from values that were read by TIMES. ValueError if it leaves no time for
    another attempt.
    """
    timeout_s: float = min(1.0, values["ttl"] / 5) if values["timeout"] is None else values["timeout"]
    if timeout_s > values["ttl"] / 4:
        raise ValueError(f"timeout: {timeout_s:g} is too long for a ttl of {values['ttl']}: a fourth of it at most")
    return timeout_s


def tls_files(store: str) -> tuple[Option, ...]:
    """The options of `net.tls.Tls`."""
    return (
        Option("ca-file", file, None, "FILE", f"Authorities that signed the certificates of {store}, in PEM form."),
        Option("certificate", file, None, "FILE", f"Certificate to show to {store}, in PEM form, above those between."),
        Option("key", file, None, "FILE", "Its private key. Default: it is in the same file.", hides="its key is"),
    )
