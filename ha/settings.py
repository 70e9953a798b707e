"""A broker's settings for its cluster: the `--ha-*` options, the settings read from them, and which member this broker is.

Life: `read` takes the command line and the environment and gives the broker's and the cluster's settings, checked together; when
the broker listens, `own_address` finds out which address of `--ha-brokers-url` is its own. Nothing changes them afterwards.

Invariants: a broker that belongs to a cluster knows the addresses of all members, and how to log in if that is required, or
it does not start. The times and bounds of the consensus core have their defaults in `ha.core.settings`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from broker import qpidd_options
from broker import settings as broker_settings
from broker.core import urls
from broker.core.commands import MACHINE_VERSION
from broker.core.sasl import EXTERNAL
from broker.core.sasl_client import MECHANISMS, Login
from broker.core.urls import Address, Url
from broker.options import Foreign, Option, SettingsError, gather, number, one_of, password_file, seconds, size, text, yes_no
from broker.settings import BrokerSettings
from ha.core.membership import BadMembership, Membership
from ha.core.settings import MIB, ReplicaSettings
from ha.core.virtual_ip import VirtualAddress, parsed

LEVELS = ("none", "configuration", "all")
HEARTBEATS_AN_ELECTION = 3
"""A backup considers its primary lost only after so many missed heartbeats: a smaller number would react to network noise."""
LEAST_WITH_WITNESS = 3
_CORE = ReplicaSettings()


def _brokers_url(value: str) -> Url:
    url = urls.parse(value)
    if url.user:
        raise ValueError(
            "give the addresses alone, without a user: brokers log in to each other with --ha-username and --ha-password-file"
        )
    if len({address.transport for address in url.addresses}) > 1:
        raise ValueError(
            "links between brokers use TLS for all addresses or for none: write amqps:host:port,host:port,... or amqp:..."
        )
    return url


def _program(value: str) -> tuple[str, ...]:
    """A program with its arguments, quoted as for a shell. It must exist, and this user must be allowed to run it."""
    words = tuple(shlex.split(value))
    found = shutil.which(words[0]) if words else None
    if found is None:
        raise ValueError(f"{value!r} is not a program that this user may run")
    return (found, *words[1:])


def member_name(value: str) -> str:
    """One address, in the spelling of a member's name."""
    addresses = urls.parse(value).addresses
    if len(addresses) != 1:
        raise ValueError(f"{value!r} has {len(addresses)} addresses: give the one address of this broker, as in broker1:5672")
    return addresses[0].name


def _virtual_ips(value: str) -> tuple[VirtualAddress, ...]:
    """Addresses separated by commas, without repetition."""
    found = tuple(parsed(part) for part in value.split(","))
    if len({address.ip for address in found}) < len(found):
        raise ValueError("an address is named twice")
    return found


OPTIONS = (
    Option("ha-cluster", yes_no, False, "yes|no", "Join a cluster: start as a backup and wait to be promoted."),
    Option(
        "ha-brokers-url",
        _brokers_url,
        None,
        "URL",
        "Addresses of all brokers of the cluster: `amqp:host:port,...`, or `amqps:host:port,...` for TLS. The same list on each "
        "broker.",
        aliases=("ha-brokers",),
    ),
    Option(
        "ha-public-url",
        urls.parse,
        None,
        "URL",
        "Addresses that clients are told to fail over to. Default: the members of the cluster.",
        aliases=("ha-public-brokers",),
    ),
    Option(
        "ha-address",
        member_name,
        "",
        "HOST:PORT",
        "This broker's own address in --ha-brokers-url. Needed when --interface and --port do not show it.",
    ),
    Option(
        "ha-witness",
        member_name,
        "",
        "HOST:PORT",
        "Address in --ha-brokers-url of the witness, which votes and stores no messages. The same on each broker.",
    ),
    Option(
        "ha-replicate",
        one_of(*LEVELS),
        "none",
        "LEVEL",
        f"Replication level of a queue or exchange that is created without one: {', '.join(LEVELS)}.",
    ),
    Option(
        "ha-flow-bytes",
        size(65_536, 1024 * MIB),
        _CORE.max_inflight_bytes,
        "BYTES",
        "Maximum number of bytes sent to a backup and not yet acknowledged.",
    ),
    Option(
        "ha-heartbeat-interval", seconds(0.01, 10), _CORE.heartbeat_s, "SECONDS", "Time between two heartbeats of the primary."
    ),
    Option(
        "ha-election-timeout",
        seconds(0.05, 60),
        _CORE.election_s,
        "SECONDS",
        "A backup considers the primary failed when it hears nothing from it for this time.",
    ),
    Option(
        "ha-promote-timeout",
        seconds(0.05, 600),
        _CORE.campaign_timeout_s,
        "SECONDS",
        "A promotion fails when it does not get the votes of a majority within this time.",
    ),
    Option(
        "ha-switchover-timeout",
        seconds(0.05, 600),
        _CORE.transfer_timeout_s,
        "SECONDS",
        "A planned switchover is cancelled when it takes longer.",
    ),
    Option(
        "ha-machine-version-limit",
        number(1, MACHINE_VERSION),
        MACHINE_VERSION,
        "VERSION",
        "Keep the cluster at this machine version or below, so that a broker of an older release can still take over.",
    ),
    Option(
        "ha-username",
        text,
        "",
        "NAME",
        "User name with which the brokers of the cluster log in to each other. The same on each broker.",
    ),
    Option(
        "ha-password",
        text,
        "",
        "PASSWORD",
        "Password of --ha-username. Allowed in the --config file or the environment, not on the command line.",
        secret=True,
    ),
    Option(
        "ha-password-file",
        password_file,
        None,
        "FILE",
        "File whose first line is the password of --ha-username.",
        hides="its password is",
    ),
    Option(
        "ha-mechanism",
        one_of(*MECHANISMS),
        "",
        "MECH",
        f"SASL mechanism between brokers: {', '.join(MECHANISMS)}. Default: the strongest that is offered.",
    ),
    Option(
        "ha-on-role-change",
        _program,
        (),
        "COMMAND",
        "Command to run at each change of role. Its added arguments: role, epoch, the primary's address, this broker's address.",
    ),
    Option(
        "ha-on-role-change-timeout",
        seconds(0.1, 600),
        10.0,
        "SECONDS",
        "The command of --ha-on-role-change is killed after this time.",
    ),
    Option(
        "ha-virtual-ip",
        _virtual_ips,
        (),
        "ADDR/PREFIX@DEV,...",
        "IP addresses that the primary adds to its network device DEV. Needs CAP_NET_ADMIN and CAP_NET_RAW.",
    ),
    Option(
        "link-heartbeat-interval",
        number(1, 3600),
        2,
        "SECONDS",
        "A link between two brokers is closed when it is silent for this time.",
    ),
)
"""All options about the cluster, besides `broker.settings.OPTIONS`."""


@dataclass(frozen=True, slots=True)
class HaSettings:
    """A member's settings. Times are in seconds, sizes in bytes; the fields have the names of the options of `OPTIONS`."""

    ha_cluster: bool
    ha_brokers_url: Url | None
    ha_public_url: Url | None
    ha_address: str
    """A member's name, or "" for the one that `own_address` finds."""
    ha_witness: str
    """The name of the member that is the witness; "" without one."""
    ha_replicate: str
    """The default level: none, configuration or all."""
    ha_flow_bytes: int
    ha_heartbeat_interval: float
    ha_election_timeout: float
    ha_promote_timeout: float
    ha_switchover_timeout: float
    ha_machine_version_limit: int
    """The newest machine version that this broker applies (broker.core.commands)."""
    ha_username: str
    """"" if brokers do not log in to each other."""
    ha_password: str = field(repr=False)
    ha_password_file: str | None = field(repr=False)
    """The content of that file."""
    ha_mechanism: str
    ha_on_role_change: tuple[str, ...]
    """A program with its arguments; () for none."""
    ha_on_role_change_timeout: float
    ha_virtual_ip: tuple[VirtualAddress, ...]
    link_heartbeat_interval: int

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> HaSettings:
        """The settings for these values by field name (as `gather` gives them, other tables' among them); the rest by default.

        SettingsError if they contradict one another, or if a cluster lacks its members.
        """
        own = {option.field: values.get(option.field, option.default) for option in OPTIONS}
        url: Url | None = own["ha_brokers_url"]
        if own["ha_cluster"] and url is None:
            raise SettingsError(
                "--ha-cluster yes needs the addresses of all members: give --ha-brokers-url amqp:host1:5672,host2:5672,host3:5672"
            )
        if url is not None and not own["ha_cluster"]:
            raise SettingsError(
                "--ha-brokers-url names a cluster, and without --ha-cluster yes this broker would serve alone, with a log of its "
                "own: give --ha-cluster yes, or leave --ha-brokers-url out"
            )
        if own["ha_virtual_ip"] and not own["ha_cluster"]:
            raise SettingsError("--ha-virtual-ip follows a cluster's primary, and this broker is in none: give --ha-cluster yes")
        for address in own["ha_virtual_ip"]:
            if url is not None and str(address.ip) in [each.host for each in url.addresses]:
                raise SettingsError(
                    f"--ha-virtual-ip {address} is the address of a broker in --ha-brokers-url, which it has always: give one of "
                    "its own"
                )
        if own["ha_password"] and own["ha_password_file"]:
            raise SettingsError("--ha-password and --ha-password-file name the same thing: leave one of them out")
        if (own["ha_password"] or own["ha_password_file"]) and not own["ha_username"]:
            raise SettingsError("there is a password for the links between brokers and no --ha-username")
        if own["ha_address"] and (url is None or own["ha_address"] not in url.names):
            raise SettingsError(f"--ha-address {own['ha_address']} is not among the addresses of --ha-brokers-url ({_list(url)})")
        if own["ha_witness"]:
            _check_witness(own["ha_witness"], url)
        if own["ha_election_timeout"] < HEARTBEATS_AN_ELECTION * own["ha_heartbeat_interval"]:
            raise SettingsError(
                f"--ha-election-timeout {own['ha_election_timeout']:g} must be at least {HEARTBEATS_AN_ELECTION} times "
                f"--ha-heartbeat-interval {own['ha_heartbeat_interval']:g}, or a healthy primary would be given up"
            )
        return cls(**own)

    @property
    def members(self) -> tuple[str, ...]:
        """The names of all members; () outside a cluster."""
        return self.ha_brokers_url.names if self.ha_cluster and self.ha_brokers_url is not None else ()

    @property
    def membership(self) -> Membership:
        """The members for a store that has none."""
        return Membership.of(self.members, witness=self.ha_witness)

    @property
    def login(self) -> Login:
        """The identity of this broker for the other members."""
        return Login(self.ha_username or None, self.ha_password or self.ha_password_file or "", self.ha_mechanism, self.encrypted)

    @property
    def encrypted(self) -> bool:
        """Whether the members' links use TLS, so that a certificate identifies a member."""
        return self.ha_cluster and self.ha_brokers_url is not None and self.ha_brokers_url.addresses[0].transport == urls.SSL

    @property
    def by_certificate(self) -> bool:
        """Whether members log in by their certificates alone."""
        return self.encrypted and self.ha_mechanism == EXTERNAL

    def replica(self, me: str = "") -> ReplicaSettings:
        """The settings for the consensus core, at the member of this name."""
        return ReplicaSettings(
            standalone=not self.ha_cluster,
            witness=bool(self.ha_witness) and self.ha_witness == me,
            heartbeat_s=self.ha_heartbeat_interval,
            election_s=self.ha_election_timeout,
            campaign_timeout_s=self.ha_promote_timeout,
            transfer_timeout_s=self.ha_switchover_timeout,
            max_inflight_bytes=self.ha_flow_bytes,
        )


def read(
    command_line: Mapping[str, str | None],
    environ: Mapping[str, str] | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> tuple[BrokerSettings, HaSettings]:
    """All settings of a broker: `command_line` as `broker.options.gather` takes it; `environ` is the process's environment by
    default. `note` gets a line for each option of Apache Qpid's qpidd in the file that has no effect here, and for each
    file with a password that others may read."""
    table, given = (*broker_settings.OPTIONS, *OPTIONS), os.environ if environ is None else environ
    values = gather(table, command_line, given, Foreign(qpidd_options.WITHOUT_EFFECT, qpidd_options.INSTEAD, note), note)
    broker, ha = BrokerSettings.from_values(values), HaSettings.from_values(values)
    if broker.auth and ha.ha_cluster and not ha.ha_username and not ha.by_certificate:
        raise SettingsError(
            "--auth yes in a cluster needs --ha-username and --ha-password-file: the brokers log in to each other, too"
        )
    if ha.encrypted and (broker.ssl_certificate is None or broker.ssl_ca_file is None):
        raise SettingsError(
            "--ha-brokers-url with amqps: needs --ssl-certificate and --ssl-ca-file: brokers know each other by them"
        )
    if broker.auth and ha.ha_cluster and not ha.by_certificate and broker.token_keys is not None and broker.users is None:
        raise SettingsError(
            "--token-keys in a cluster needs --users FILE too, or --ha-mechanism EXTERNAL over TLS: no broker logs in by a token"
        )
    for address in ha.ha_virtual_ip:
        if not any(_covers_all(interface, address.ip.version) for interface in broker.interface):
            every = "0.0.0.0, or ::" if address.ip.version == 4 else "::"
            raise SettingsError(
                f"--ha-virtual-ip {address} is not on this machine when it begins to listen, on {', '.join(broker.interface)}: "
                f"give --interface {every}"
            )
    if broker.drain_to is not None and len(ha.members) > 1:
        raise SettingsError(
            "--drain-to is for a broker by itself, or the only one of its cluster: a member of several hands over to another at "
            "SIGTERM, which has all messages already; qpid-drain drains a whole cluster"
        )
    if ha.ha_cluster and broker.require_encryption and not ha.encrypted:
        raise SettingsError(
            "--require-encryption yes needs --ha-brokers-url amqps:...: otherwise the other brokers would connect without TLS"
        )
    return broker, ha


def own_address(settings: HaSettings, interfaces: tuple[str, ...], port: int) -> Address:
    """Which member this broker is, if it listens on `port` of these interfaces.

    It is the value of `--ha-address`, else the one address of the URL that has this port and a host of this machine. Names
    are looked up, which may take some time. SettingsError if none or several match, or if the others could not reach the
    broker there.
    """
    url = settings.ha_brokers_url
    assert url is not None, "only a member of a cluster has an address"
    if settings.ha_address:
        return next(address for address in url.addresses if address.name == settings.ha_address)
    here = {address: local_ips(address) for address in url.addresses if address.port == port}
    matching = [address for address, ips in here.items() if ips]
    if not matching:
        raise SettingsError(
            f"none of the addresses of --ha-brokers-url ({_list(url)}) is this broker's, which listens on port {port}: add it "
            "there, or give --ha-address when this machine cannot tell that it is its own"
        )
    if len(matching) > 1:
        raise SettingsError(
            f"{' and '.join(address.name for address in matching)} of --ha-brokers-url are all this machine's: say with "
            "--ha-address which of them this broker is"
        )
    own = matching[0]
    if not any(_covers(interface, ip) for interface in interfaces for ip in here[own]):
        raise SettingsError(
            f"the other members could not reach this broker at {own.name}, because it listens on {', '.join(interfaces)} only: "
            f"give --interface {min(here[own])}"
        )
    return own


def _check_witness(witness: str, url: Url | None) -> None:
    """SettingsError unless this member of the URL can be the witness of the cluster."""
    if url is None or witness not in url.names:
        raise SettingsError(f"--ha-witness {witness} is not among the addresses of --ha-brokers-url ({_list(url)})")
    if len(url.names) < LEAST_WITH_WITNESS:
        raise SettingsError(
            f"--ha-witness {witness} leaves {len(url.names) - 1} of the addresses of --ha-brokers-url to store messages, and a "
            "witness is of use beside two"
        )
    try:
        Membership.of(url.names, witness=witness)
    except BadMembership as error:
        raise SettingsError(f"--ha-brokers-url: {error}") from None


def _list(url: Url | None) -> str:
    return ", ".join(url.names) if url is not None else "which is not given"


def local_ips(address: Address) -> set[str]:
    """The IP addresses of this address's host that belong to this machine."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
    except OSError:
        return set()
    return {str(ip_address(sockaddr[0])) for family, _, _, _, sockaddr in found if _is_local(family, sockaddr)}


def _is_local(family: int, sockaddr: tuple[Any, ...]) -> bool:
    """Only an address of this machine can be bound. A datagram socket's port does not conflict with the broker's port."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((sockaddr[0], 0, *sockaddr[2:]))
        except OSError:
            return False
    return True


def _covers(interface: str, ip: str) -> bool:
    wanted = ip_address(ip)
    return ip_address(interface) == wanted or _covers_all(interface, wanted.version)


def _covers_all(interface: str, version: int) -> bool:
    """Whether it stands for all addresses of this IP version, including later ones."""
    listening = ip_address(interface)
    return listening.is_unspecified and listening.version in (version, 6)
