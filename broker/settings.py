"""The settings of a broker: qpidd's options, with `OPTIONS` as their only table, and the values read from them.

Life: `broker.options.gather` reads the texts of all sources. `BrokerSettings.from_values` checks rules about several options and
freezes the result; nothing changes it afterwards. The command's options and the reference page are made from the table.

Invariants: by default a broker listens only on loopback, because by default it admits everybody (`--auth`); if a login is
required, at least one mechanism is possible; every limit has its default in `broker.core.limits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from broker.core import limits, sasl, urls
from broker.core.acl.grammar import MAX_QUOTA
from broker.core.limits import MIB
from broker.core.mechanisms import LOOKED_AT, NAMES_IN_CERTIFICATES, REALM
from broker.core.urls import Url
from broker.options import Option, SettingsError, file, folder, number, one_of, password_file, seconds, size, text, yes_no
from broker.tls_files import FILES, SERVER, TlsFiles

MECHANISMS = (*LOOKED_AT, sasl.ANONYMOUS)
ALONE = frozenset({sasl.ANONYMOUS, sasl.EXTERNAL})
"""Mechanisms that need no users' file."""
LOG_LEVELS = ("trace", "debug", "info", "notice", "warning", "error", "critical")
MAX_FRAME_SIZE = limits.SESSION_WINDOW_BYTES // 16
"""proton counts a session's window in frames: larger ones would leave it too few."""
MAX_MESSAGE_SIZE = 1024 * MIB
"""A large message is stored by the part; its manifest, which is in memory, has up to 12 bytes for each part."""


def _interfaces(value: str) -> tuple[str, ...]:
    """IP addresses to listen on, with commas between them; `localhost` is 127.0.0.1."""
    found: list[str] = []
    for part in value.split(","):
        name = "127.0.0.1" if part.strip() == "localhost" else part.strip()
        try:
            found.append(str(ip_address(name)))
        except ValueError:
            raise ValueError(f"{name!r} is not an IP address to listen on (0.0.0.0 or :: stand for all)") from None
    return tuple(dict.fromkeys(found))


def _patterns(value: str) -> tuple[str, ...]:
    """Patterns of names, with commas between them."""
    return tuple(filter(None, (part.strip() for part in value.split(","))))


def _mechanisms(value: str) -> tuple[str, ...]:
    """Names of SASL mechanisms, with commas or spaces between them, in the order in which they are offered."""
    found = value.replace(",", " ").upper().split()
    for name in found:
        one_of(*MECHANISMS)(name)
    if not found:
        raise ValueError(f"name at least one of {', '.join(MECHANISMS)}")
    return tuple(dict.fromkeys(found))


def _realm(value: str) -> str:
    if not value.isprintable() or " " in value or "@" in value or len(value.encode()) > limits.MAX_NAME_BYTES:
        raise ValueError(f"{value!r} cannot be a realm: it must consist of letters, digits, dots and hyphens, as in QPID")
    return value


def _token_keys(value: str) -> Path | str:
    """A file, or a URL whose answer cannot be changed on the way."""
    if "://" not in value:
        return file(value)
    try:
        parts = urlsplit(value)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or port == 0 or not value.isascii() or not value.isprintable() or " " in value or parts.username is not None:
        raise ValueError("this is not a URL of keys: https://host/path is one, without a user")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in ("localhost", "127.0.0.1", "::1")):
        raise ValueError("keys come over https:, or over http: from this machine (127.0.0.1) alone: others could change them")
    return value


def _log_level(value: str) -> str:
    """qpidd writes `notice+` for notice and all above."""
    return one_of(*LOG_LEVELS)(value.strip().lower().removesuffix("+"))


OPTIONS = (
    Option("port", number(0, 65_535), 5672, "PORT", "TCP port to listen on. 0: any free port.", short="p"),
    Option("interface", _interfaces, ("127.0.0.1",), "IP,...", "IP addresses to listen on. 0.0.0.0 or :: means all."),
    *SERVER,
    *FILES,
    Option(
        "admin-port",
        number(0, 65_535),
        None,
        "PORT",
        "TCP port for probes and metrics by HTTP: /livez, /startedz, /readyz, /metrics. 0: any free port. Without it: none.",
    ),
    Option("admin-interface", _interfaces, ("127.0.0.1",), "IP,...", "IP addresses on which --admin-port listens."),
    Option(
        "metrics",
        one_of("none", "sums", "queues"),
        "sums",
        "WHAT",
        "Detail of /metrics on the admin port: `none`, `sums` over all queues, or also series for each queue (`queues`).",
    ),
    Option("data-dir", folder, Path("~/.qpidd"), "DIR", "Folder of the store. It is created if it does not exist."),
    Option(
        "auth", yes_no, None, "yes|no", "Require every client to log in. Default: `yes` with --users or --token-keys, else `no`."
    ),
    Option(
        "users",
        file,
        None,
        "FILE",
        "Users' file: names and keys of the users who may log in. qpid-passwd writes it. SIGHUP reads it again.",
    ),
    Option("realm", _realm, REALM, "NAME", "Realm: the part of a user's name after the @, as in ann@QPID."),
    Option(
        "sasl-mechanisms",
        _mechanisms,
        LOOKED_AT,
        "NAME,...",
        f"SASL mechanisms offered when a login is required: {', '.join(MECHANISMS)}.",
    ),
    Option(
        "ssl-user-name",
        one_of(*NAMES_IN_CERTIFICATES),
        "cn",
        "FIELD",
        f"Field of a client's certificate that has the user's name, for EXTERNAL: {', '.join(NAMES_IN_CERTIFICATES)}.",
    ),
    Option(
        "plain-without-tls", yes_no, False, "yes|no", "Also offer PLAIN and accept tokens on connections that are not encrypted."
    ),
    Option(
        "token-keys",
        _token_keys,
        None,
        "FILE|URL",
        "Public keys of the issuer that signs tokens (JWT), as JWKS or PEM. SIGHUP reads a file again; a URL is read every 5 "
        "minutes.",
    ),
    Option("token-issuer", text, "", "ISSUER", "Required issuer of a token (its claim `iss`)."),
    Option("token-audience", text, "", "NAME", "Required audience of a token: one of the values of its claim `aud`."),
    Option("token-user-claim", text, "sub", "CLAIM", "Claim of a token that has the user's name."),
    Option(
        "token-put",
        yes_no,
        False,
        "yes|no",
        "Let clients log in as ANONYMOUS and then send their token to the node `$cbs`, as clients of Azure Service Bus do.",
    ),
    Option(
        "check-user-id",
        yes_no,
        True,
        "yes|no",
        "Refuse messages whose property user-id names another user than the one that has logged in.",
    ),
    Option(
        "max-connections",
        number(1, 100_000),
        limits.MAX_CONNECTIONS,
        "N",
        "Maximum number of connections at a time. It is lower when the limit on open files (ulimit -n) is low.",
    ),
    Option(
        "max-negotiate-time",
        number(1000, 3_600_000),
        round(limits.OPEN_TIMEOUT_S * 1000),
        "MS",
        "Time for a new connection to log in and send its AMQP Open, in ms. A slower connection is closed.",
    ),
    Option("max-frame-size", size(512, MAX_FRAME_SIZE), limits.MAX_FRAME_BYTES, "BYTES", "Largest AMQP frame accepted."),
    Option(
        "max-message-size",
        size(1, MAX_MESSAGE_SIZE),
        limits.MAX_MESSAGE_BYTES,
        "BYTES",
        "Largest message accepted. A larger one is refused.",
    ),
    Option(
        "default-queue-limit",
        size(1, 1024**4),
        limits.MAX_QUEUE_BYTES,
        "BYTES",
        "Size limit of a queue that has no limit of its own.",
    ),
    Option(
        "message-memory",
        size(MIB, 1024**4),
        None,
        "BYTES",
        "Memory for message bodies, over all queues. Other bodies are read from disk. Default: a quarter of the machine's "
        "memory.",
    ),
    Option("telemetry-dir", folder, None, "DIR", "Folder for telemetry files about replication lag. Default: no telemetry."),
    Option("telemetry-interval-ms", number(100, 3_600_000), 1000, "MS", "Time between two samples of the lag, in ms."),
    Option(
        "telemetry-max-size",
        size(MIB, 1024**4),
        1024 * MIB,
        "BYTES",
        "Maximum size of all telemetry files of this broker. The oldest are deleted first.",
    ),
    Option(
        "acl-file",
        file,
        None,
        "FILE",
        "ACL file: rules about what each user may do (docs/reference/acl.md). A relative path starts at the data folder.",
    ),
    Option(
        "route-passwords",
        file,
        None,
        "FILE",
        "Passwords for the source brokers of routes, one on each line: `USER PASSWORD` or `USER@HOST:PORT PASSWORD`.",
    ),
    Option(
        "connection-limit-per-user",
        number(0, MAX_QUOTA),
        0,
        "N",
        "Maximum number of connections of a user, unless a quota in the ACL file names the user. 0: no limit.",
    ),
    Option(
        "connection-limit-per-ip",
        number(0, MAX_QUOTA),
        0,
        "N",
        "Maximum number of connections from one IP address. 0: no limit.",
    ),
    Option(
        "max-queues-per-user",
        number(0, MAX_QUOTA),
        0,
        "N",
        "Maximum number of queues that a user may create, unless a quota in the ACL file names the user. 0: no limit.",
    ),
    Option(
        "slow-consumer-time",
        number(0, 86_400_000),
        30_000,
        "MS",
        "A consumer is slow when it settles nothing, or reads nothing, for this time (ms) while messages or other consumers "
        "wait. 0: never.",
    ),
    Option(
        "slow-consumer-policy",
        one_of("log", "close"),
        "log",
        "WHAT",
        "`log` logs slow consumers. `close` closes their links, so that other consumers get the messages that they hold.",
    ),
    Option(
        "consumer-timeout",
        number(0, limits.MAX_CONSUMER_MS),
        0,
        "MS",
        "A message that a consumer has not settled after this time (ms) returns to its queue, unless the queue sets its own "
        "time. 0: never.",
    ),
    *(
        Option(
            f"{kind}-patterns",
            _patterns,
            (),
            "PATTERN,...",
            f"A client that attaches to a name that matches creates a {kind} of that name. A pattern has `*`, `?` or `[...]`; "
            f"else it is a prefix.",
        )
        for kind in ("queue", "topic")
    ),
    Option(
        "rabbitmq-clients",
        yes_no,
        False,
        "yes|no",
        "Present the broker as RabbitMQ 4.0.0 in its AMQP Open. RabbitMQ's AMQP 1.0 clients require this.",
    ),
    Option(
        "drain-to",
        urls.parse,
        None,
        "URL",
        "At SIGTERM, move all messages to this broker or cluster, and end when none is left (drain).",
    ),
    Option(
        "drain-password-file",
        password_file,
        None,
        "FILE",
        "File whose first line is the password of --drain-to's user.",
        hides="its password is",
    ),
    Option(
        "drain-deadline",
        seconds(0.1, 604_800),
        None,
        "SECONDS",
        "End the drain after this time even if messages are left: exit code 75, and the store is kept. Default: no deadline.",
    ),
    Option("log-enable", _log_level, "notice", "LEVEL+", f"Lowest level of log messages to write: {', '.join(LOG_LEVELS)}."),
)
"""All options of a broker. `ha.settings.OPTIONS` has those of its cluster."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """A broker's settings. Sizes in bytes, times as their names say, fields named after the options of `OPTIONS`."""

    port: int
    interface: tuple[str, ...]
    ssl_port: int
    ssl_sni_certificates: tuple[Path, ...] | None
    ssl_require_client_authentication: bool
    require_encryption: bool
    ssl_certificate: Path | None
    ssl_key: Path | None
    ssl_cert_password_file: Path | None
    ssl_ca_file: Path | None
    ssl_crl_file: Path | None
    admin_port: int | None
    admin_interface: tuple[str, ...]
    metrics: str
    data_dir: Path
    auth: bool
    users: Path | None
    realm: str
    sasl_mechanisms: tuple[str, ...]
    ssl_user_name: str
    plain_without_tls: bool
    token_keys: Path | str | None
    """A file, or a URL."""
    token_issuer: str
    token_audience: str
    token_user_claim: str
    token_put: bool
    check_user_id: bool
    max_connections: int
    max_negotiate_time: int
    max_frame_size: int
    max_message_size: int
    default_queue_limit: int
    message_memory: int | None
    """None: a quarter of the machine's."""
    telemetry_dir: Path | None
    telemetry_interval_ms: int
    telemetry_max_size: int
    acl_file: Path | None
    route_passwords: Path | None
    connection_limit_per_user: int
    connection_limit_per_ip: int
    max_queues_per_user: int
    slow_consumer_time: int
    slow_consumer_policy: str
    consumer_timeout: int
    queue_patterns: tuple[str, ...]
    topic_patterns: tuple[str, ...]
    rabbitmq_clients: bool
    drain_to: Url | None
    """The target that takes the messages at SIGTERM, with the password from its source; None: there is none."""
    drain_password_file: str | None = field(repr=False)
    """The content of this file."""
    drain_deadline: float | None
    log_enable: str
    """The lowest level that is written, one of LOG_LEVELS."""

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> BrokerSettings:
        """The settings for these values by field name (as `gather` gives them, other tables' among them); the rest by default.

        SettingsError when the folders cannot be (no home for `~`, one folder for two purposes), or TLS lacks something.
        """
        own = {option.field: values.get(option.field, option.default) for option in OPTIONS}
        for name in ("data_dir", "telemetry_dir", "users", "acl_file", "route_passwords"):
            own[name] = _at_home(name, own[name])
        if isinstance(own["token_keys"], Path):
            own["token_keys"] = _at_home("token_keys", own["token_keys"])
        if own["acl_file"] is not None:
            own["acl_file"] = own["data_dir"] / own["acl_file"]
        if own["data_dir"] == own["telemetry_dir"]:
            raise SettingsError(f"--telemetry-dir and --data-dir are the same folder, {own['data_dir']}: give each its own")
        if own["auth"] is None:
            own["auth"] = own["users"] is not None or own["token_keys"] is not None
        if own["auth"] and own["users"] is None and own["token_keys"] is None and not ALONE.issuperset(own["sasl_mechanisms"]):
            raise SettingsError("--auth yes needs --users FILE: qpid-passwd add FILE NAME makes one")
        _check_tokens(own)
        own["drain_to"] = _drain_to(own)
        settings = cls(**own)
        settings._check_tls()
        return settings

    def _check_tls(self) -> None:
        files = self.tls
        if files.certificate is None and self.require_encryption:
            raise SettingsError("--require-encryption yes leaves no port to listen on: give --ssl-certificate")
        if self.ssl_require_client_authentication and (files.certificate is None or files.authorities is None):
            raise SettingsError("--ssl-require-client-authentication yes needs --ssl-certificate and --ssl-ca-file")
        if files.certificate is not None and self.port == self.ssl_port != 0 and not self.require_encryption:
            raise SettingsError(
                f"--port and --ssl-port are both {self.port}: give each its own, or --require-encryption yes for TLS alone"
            )

    @property
    def tls(self) -> TlsFiles:
        """The files of TLS."""
        return TlsFiles.from_values({option.field: getattr(self, option.field) for option in (*FILES, *SERVER)})

    @property
    def exposed(self) -> bool:
        """Whether other machines can reach this broker. While `auth` is off, it serves every client that can reach it."""
        return not all(ip_address(one).is_loopback for one in self.interface)


def _drain_to(own: Mapping[str, Any]) -> Url | None:
    url: Url | None = own["drain_to"]
    if url is None:
        for name in ("drain_password_file", "drain_deadline"):
            if own[name] is not None:
                raise SettingsError(f"--{name.replace('_', '-')} has no effect without --drain-to")
        return None
    itself = {f"{'[::1]' if ':' in one else one}:{own['port']}" for one in (*own["interface"], "localhost")}
    if itself & set(url.names):
        raise SettingsError(f"--drain-to {url} is this broker itself: its messages must go to another broker")
    if own["drain_password_file"] is None:
        return url
    if not url.user or url.password:
        raise SettingsError("--drain-password-file needs a user without a password in --drain-to, as in ann@host")
    return replace(url, password=own["drain_password_file"])


def _check_tokens(own: Mapping[str, Any]) -> None:
    needed = {"--token-issuer": own["token_issuer"], "--token-audience": own["token_audience"]}
    missing = [name for name, value in needed.items() if not value]
    if own["token_keys"] is None:
        if len(missing) < len(needed):
            raise SettingsError("--token-issuer and --token-audience are of no use without --token-keys")
        if own["token_put"]:
            raise SettingsError("--token-put needs --token-keys: by them a token is looked at")
    elif missing or not own["token_user_claim"]:
        raise SettingsError(
            f"--token-keys needs {' and '.join(missing) or '--token-user-claim'}: a token of another issuer, or for another "
            "service, must not let anybody in here"
        )
    elif own["ssl_certificate"] is None and not own["plain_without_tls"]:
        raise SettingsError("--token-keys needs --ssl-certificate: tokens are taken over TLS, or with --plain-without-tls yes")
    elif own["token_put"] and (not own["auth"] or sasl.ANONYMOUS in own["sasl_mechanisms"]):
        raise SettingsError(
            "--token-put has no effect if every client is accepted (--auth no, or ANONYMOUS in --sasl-mechanisms)"
        )


def _at_home(name: str, path: Path | None) -> Path | None:
    try:
        return path.expanduser() if path is not None else None
    except RuntimeError:
        raise SettingsError(
            f"--{name.replace('_', '-')} {path}: there is no home folder for `~`; name the folder in full"
        ) from None
