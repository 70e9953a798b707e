"""The witness of a cluster in the daemon's process, so that two brokers need no third broker process for the third
vote.

Life: `read` makes the settings of a member that is the witness (`ha.core.witness`) from the daemon's settings. `start`
opens the port, locks the folder and joins the cluster, as `qpidd` does. The witness runs on the daemon's reactor, and
ends when the reactor stops. It is the same code as a broker's process with `--ha-witness`: `ha.service.Process`
listens, checks logins, votes and answers.

The daemon and the witness are independent: the daemon queries it over loopback, like every member. So the witness also
votes while the daemon only watches, and a daemon that acts has no additional vote.

Invariants: this module promotes no broker, and a witness is never promoted. If the witness cannot continue because its
disk fails, the process ends with exit code 1. A service manager then starts it again on the same folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from broker import settings as broker_settings
from broker.core.urls import SSL, Address
from broker.options import CONFIG, SettingsError, gather
from broker.settings import BrokerSettings
from broker.tls_files import FILES, TlsFiles
from ha import settings as ha_settings
from ha.settings import HaSettings

if TYPE_CHECKING:
    from ha.service import Process
    from resource_manager.settings import ManagerSettings

_log = Logger(namespace="resource_manager.witness")


_DAEMONS_OWN = {
    "data-dir": "--witness-dir",
    "ha-brokers-url": "--brokers",
    **dict.fromkeys(("ha-witness", "ha-address", "port", "ssl-port"), "--witness"),
}
"""The options of a member that follow from the daemon's."""


def in_words_of_the_daemon(text: str) -> str:
    """An advice for a broker, with the options of the daemon; what only the file of `--witness-config` can have is named without
    dashes."""
    in_file: dict[str, None] = {}

    def said(found: re.Match[str]) -> str:
        name = found[1]
        if name in _DAEMONS_OWN:
            return _DAEMONS_OWN[name]
        if name in _daemons() or name not in _brokers():
            return found[0]
        in_file[name] = None
        return name

    text = re.sub(r"--([a-z][a-z-]*[a-z])", said, text)
    return f"{text} ({', '.join(in_file)}: in the file of --witness-config)" if in_file else text


def _daemons() -> set[str]:
    from resource_manager.settings import OPTIONS

    return {option.name for option in (*OPTIONS, CONFIG)}


def _brokers() -> set[str]:
    return {name for option in (*broker_settings.OPTIONS, *ha_settings.OPTIONS) for name in option.names}


def read(
    settings: ManagerSettings,
    find_ips: Callable[[Address], set[str]] = ha_settings.local_ips,
    note: Callable[[str], None] = lambda line: None,
) -> tuple[BrokerSettings, HaSettings]:
    """The settings of the witness: from the daemon's settings, and the others from `--witness-config`. `find_ips`
    returns the IP addresses of a host that belong to this machine. SettingsError says what is wrong or missing. `note`
    gets a line for each file with a password that others may read.
    """
    address = next(each for each in settings.brokers.addresses if each.name == settings.witness)
    config = {"config": None if settings.witness_config is None else str(settings.witness_config)}
    file = gather((*broker_settings.OPTIONS, *ha_settings.OPTIONS), config, {})
    if address.transport == SSL and file["ssl_certificate"] is None and settings.tls.certificate is None:
        raise SettingsError(
            f"--witness {settings.witness} is reached over TLS: give --ssl-certificate and --ssl-ca-file, to be known by"
        )
    port = str(address.port)
    over_tls = {"ssl_port": port, "require_encryption": "yes"} if address.transport == SSL else {"port": port}
    own = {
        "data_dir": str(settings.witness_dir),
        "ha_cluster": "yes",
        "ha_brokers_url": "amqp:" + ",".join(map(str, settings.brokers.addresses)),
        "ha_witness": settings.witness,
        "ha_address": settings.witness,
        "interface": _interface(address, file, find_ips),
        **over_tls,
        **_tls_files(settings.tls, file),
    }
    try:
        return ha_settings.read(config | own, {}, note)
    except SettingsError as error:
        raise SettingsError(f"the witness: {in_words_of_the_daemon(str(error))}") from None


def _interface(address: Address, file: Mapping[str, Any], find_ips: Callable[[Address], set[str]]) -> str | None:
    """The IP addresses on which it listens: those of its own address, unless the file has others (None)."""
    default = next(option.default for option in broker_settings.OPTIONS if option.name == "interface")
    if file["interface"] != default:
        return None
    found = find_ips(address)
    if not found:
        raise SettingsError(
            f"--witness {address.name}: this machine has no such address: give the one of --brokers that is its own, or "
            "`interface=IP` in the file of --witness-config when others reach it by an address that it does not know"
        )
    return ",".join(sorted(found))


def _tls_files(daemon: TlsFiles, file: Mapping[str, Any]) -> dict[str, str]:
    """The daemon's TLS files, unless the witness has its own."""
    if file["ssl_certificate"] is not None:
        return {}
    paths = (daemon.certificate, daemon.key, daemon.password, daemon.authorities, daemon.revoked)
    return {option.field: str(path) for option, path in zip(FILES, paths, strict=True) if path is not None}


def start(reactor: Any, broker: BrokerSettings, ha: HaSettings) -> Process:
    """Start the witness. `stop` of the result ends it in order. ha.service.CannotStart, SettingsError."""
    from broker.host import raise_open_files
    from ha.service import CannotStart, Process  # this import takes time, and most daemons are not a witness

    raise_open_files()
    process = Process(reactor, broker, ha)
    try:
        process.start()
    except (CannotStart, SettingsError) as error:
        raise type(error)(in_words_of_the_daemon(str(error))) from None
    _log.info("{name}: this process is the witness; {folder} keeps its vote", name=ha.ha_witness, folder=broker.data_dir)
    if broker.exposed and not broker.auth:
        _log.warn(
            "{name}: the witness listens on a network address and requires no login: restrict its network, or "
            "give it users (--witness-config)",
            name=ha.ha_witness,
        )
    return process
