"""The witness of a cluster inside the daemon's process: the third vote of two brokers needs no third process.

Life: `read` makes of the daemon's settings those of a member that is told to be the witness (`ha.core.witness`); `start` takes
the port, locks the folder and joins, as `qpidd` does; it runs on the daemon's reactor, and ends when that stops. It is the same
code as a broker's process with `--ha-witness`: what listens, logs in, votes and answers is `ha.service.Process`.

The daemon and the witness know nothing of each other: the daemon asks it over loopback, as it asks every member. So the witness
votes while the daemon only watches, and a daemon that acts has no vote more.

Invariants: nothing is promoted here (a witness never is); when the witness cannot go on (its disk fails), the process ends, with
status 1, and a service manager that starts it again gives it back its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from broker import settings as broker_settings
from broker.core.urls import SSL, Address
from broker.options import SettingsError, gather
from broker.settings import BrokerSettings
from broker.tls_files import FILES, TlsFiles
from ha import settings as ha_settings
from ha.settings import HaSettings

if TYPE_CHECKING:
    from ha.service import Process
    from resource_manager.settings import ManagerSettings

_log = Logger(namespace="resource_manager.witness")


def read(
    settings: ManagerSettings, find_ips: Callable[[Address], set[str]] = ha_settings.local_ips
) -> tuple[BrokerSettings, HaSettings]:
    """The settings of the witness: what the daemon's say, and the rest from `--witness-config`. `find_ips` gives the IP addresses
    of this machine among those of a host. SettingsError says what is wrong, or lacks."""
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
        return ha_settings.read(config | own, {})
    except SettingsError as error:
        raise SettingsError(f"the witness: {error}") from None


def _interface(address: Address, file: Mapping[str, Any], find_ips: Callable[[Address], set[str]]) -> str | None:
    """Where it listens: the IP addresses of its own address, unless the file says something else (None)."""
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
    """The daemon's own files of TLS, unless the witness has its own."""
    if file["ssl_certificate"] is not None:
        return {}
    paths = (daemon.certificate, daemon.key, daemon.password, daemon.authorities, daemon.revoked)
    return {option.field: str(path) for option, path in zip(FILES, paths, strict=True) if path is not None}


def start(reactor: Any, broker: BrokerSettings, ha: HaSettings) -> Process:
    """Begin to be the witness; `stop` of what is returned ends it in order. ha.service.CannotStart, SettingsError."""
    from broker.host import raise_open_files
    from ha.service import Process  # what it brings takes time to load, and most daemons are no witness

    raise_open_files()
    process = Process(reactor, broker, ha)
    process.start()
    _log.info("{name}: this process is the witness; {folder} keeps its vote", name=ha.ha_witness, folder=broker.data_dir)
    if broker.exposed and not broker.auth:
        _log.warn(
            "{name}: the witness listens on a network address and requires no login: restrict its network, or "
            "give it users (--witness-config)",
            name=ha.ha_witness,
        )
    return process
