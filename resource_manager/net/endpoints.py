"""Parses the address of an external store in an option."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def endpoint(value: str, default_port: int, here: str) -> str:
    """The endpoint `https://host:port`, with that port if it has none. http is only allowed for loopback, which the
    text calls `here`. ValueError.
    """
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
