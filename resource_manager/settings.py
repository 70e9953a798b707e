"""The options of the resource manager, in the table `OPTIONS`, and the settings that are read from them.

Life: `broker.options.gather` reads the texts from all sources. `read` checks combinations of options and freezes the
result; nothing changes it afterwards. The command's options and the reference page are made from the table. Only this
module here reads the environment.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from broker.core import urls
from broker.core.limits import MIB
from broker.core.urls import Url
from broker.options import (
    PASSWORD_FILE,
    SASL_MECHANISM,
    Option,
    SettingsError,
    file,
    folder,
    gather,
    number,
    seconds,
    size,
    text,
    with_password,
)
from broker.secret_files import warnings
from broker.tls_files import FILES, NO_TLS, TlsFiles
from ha.settings import member_name
from resource_manager import arbiters
from resource_manager.arbiters.options import pairs
from resource_manager.core.arbiter import ArbiterSettings
from resource_manager.core.promotion import PromotionSettings

MAX_PRIORITY = 1_000_000
MAX_NAME_CHARS = 128


def _arbiter(value: str) -> str:
    if value not in arbiters.OWN and value not in (known := arbiters.names()):
        raise ValueError(f"there is no arbiter {value!r}; there are: {', '.join(known)}")
    return value


_patient = seconds(0, 3600)


def _patience(value: str) -> float:
    """The patience in seconds; infinite for `never`."""
    try:
        return inf if value == "never" else _patient(value)
    except ValueError as error:
        raise ValueError(f"{error}, nor `never`") from None


def _name(value: str) -> str:
    if not 0 < len(value) <= MAX_NAME_CHARS or not value.isprintable() or value != value.strip():
        raise ValueError(f"{value!r} is not a name of 1 to {MAX_NAME_CHARS} printable characters")
    return value


def _priorities(value: str) -> dict[str, int]:
    """The priorities in `ADDR=N,ADDR=N`, by member name."""
    found: dict[str, int] = {}
    for part in value.split(","):
        address, equals, number = part.strip().rpartition("=")
        if not equals or not number.removeprefix("-").isdecimal() or abs(int(number[:20])) > MAX_PRIORITY:
            raise ValueError(f"{part.strip()!r} is not ADDR=N, as in broker1:5672=10 (N from -{MAX_PRIORITY} to {MAX_PRIORITY})")
        found.update(dict.fromkeys(urls.parse(address).names, int(number)))
    return found


OPTIONS = (
    Option(
        "brokers",
        urls.parse,
        None,
        "URL",
        "Addresses of all brokers: amqp:host1:5672,host2:5672,host3:5672, or amqps:... for TLS.",
    ),
    Option(
        "arbiter",
        _arbiter,
        "builtin",
        "NAME",
        f"Arbiter: the plug-in that decides which of several resource managers acts: {', '.join(arbiters.OWN)}, or an installed "
        f"plug-in.",
    ),
    Option("arbiter-option", pairs, None, "KEY=VALUE", "Option of the arbiter. May be given several times."),
    Option(
        "arbiter-patience",
        _patience,
        10.0,
        "SECONDS|never",
        "When the arbiter's external system has been unreachable for this time, the daemon promotes without it. never: it waits.",
    ),
    Option("name", _name, "", "NAME", "Unique name of this daemon. Default: host name and process id."),
    Option(
        "detection-time", seconds(0.1, 60), 1.0, "SECONDS", "A broker that does not answer within this time counts as failed."
    ),
    Option("probe-interval", seconds(0.02, 30), 0.25, "SECONDS", "Time between two probes of a broker."),
    Option(
        "start-grace",
        seconds(0, 600),
        2.0,
        "SECONDS",
        "Time to wait at the start for an answer from all brokers. After it, a majority is enough.",
    ),
    Option(
        "promote-timeout",
        seconds(0.5, 600),
        5.0,
        "SECONDS",
        "Time for a broker to become the primary. After it, the next broker is asked.",
    ),
    Option(
        "priority",
        _priorities,
        None,
        "ADDR=N,...",
        "Priority of a broker: among backups with equally new logs, the highest is promoted. Default: the broker's tag, or 0.",
    ),
    Option("telemetry-dir", folder, None, "DIR", "Folder for telemetry files about failovers. Default: no telemetry."),
    Option(
        "telemetry-interval-ms", number(100, 3_600_000), 1000, "MS", "Time between two samples of the brokers' answers, in ms."
    ),
    Option(
        "telemetry-max-size",
        size(MIB, 1024**4),
        1024 * MIB,
        "BYTES",
        "Maximum size of all telemetry files of this daemon. The oldest are deleted first.",
    ),
    SASL_MECHANISM,
    PASSWORD_FILE,
    *FILES,
    Option("cluster-name", text, "", "NAME", "Name of the cluster in telemetry. Default: the cluster's id."),
    Option(
        "witness",
        member_name,
        "",
        "HOST:PORT",
        "Also run the cluster's witness: listen at this address of --brokers, vote, and store no messages. Needs --witness-dir.",
    ),
    Option("witness-dir", folder, None, "DIR", "Folder for the state of the witness. It is created if it does not exist."),
    Option(
        "witness-config",
        file,
        None,
        "FILE",
        "More options for the witness, as in a broker's --config file: interface, users, TLS, ha-username.",
    ),
)
"""All options of the resource manager."""


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """The daemon's settings. Times are in seconds."""

    brokers: Url
    arbiter: str
    name: str
    detection_s: float
    probe_interval_s: float
    promotion: PromotionSettings
    telemetry_dir: Path | None
    telemetry_interval_ms: int
    telemetry_max_size: int
    mechanism: str
    cluster_name: str
    """The cluster's name; "" for its id."""
    tls: TlsFiles = NO_TLS
    arbiter_options: Mapping[str, str] = field(default_factory=dict)
    arbiter_patience_s: float = 10.0
    """Infinite if the daemon must never act without its arbiter."""
    witness: str = ""
    """The name of the witness that also runs in this process; "" for none (`resource_manager.witness`)."""
    witness_dir: Path | None = None
    witness_config: Path | None = None

    @property
    def for_arbiter(self) -> ArbiterSettings:
        """The settings for its plug-in."""
        return ArbiterSettings(self.cluster_name, self.arbiter_options)


def read(
    command_line: Mapping[str, str | None],
    environ: Mapping[str, str] | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> ManagerSettings:
    """The settings from the command line, the environment and the file of `--config`. SettingsError says what is wrong. `note`
    gets a line for each file with a secret that others may read.
    """
    values = gather(OPTIONS, command_line, os.environ if environ is None else environ, note=note)
    url, priorities = values["brokers"], values["priority"] or {}
    if url is None:
        raise SettingsError("--brokers URL is needed: the addresses of all brokers, as in amqp:host1:5672,host2:5672,host3:5672")
    strangers = sorted(priorities.keys() - set(url.names))
    if strangers:
        raise SettingsError(f"--priority names {strangers[0]}, which is none of --brokers ({', '.join(url.names)})")
    if values["probe_interval"] >= values["detection_time"]:
        raise SettingsError(
            f"--probe-interval {values['probe_interval']:g} must be below --detection-time {values['detection_time']:g}: "
            "a broker would count as failed between two questions"
        )
    _check_witness(values, url)
    tls = TlsFiles.from_values(values)
    for line in warnings(tls.private):
        note(line)
    return ManagerSettings(
        brokers=with_password(url, values["password_file"], "brokers"),
        arbiter=values["arbiter"],
        name=values["name"] or f"{socket.gethostname()}-{os.getpid()}",
        detection_s=values["detection_time"],
        probe_interval_s=values["probe_interval"],
        promotion=PromotionSettings(
            start_grace_s=values["start_grace"],
            promote_timeout_s=values["promote_timeout"],
            priorities=priorities,
            kind=values["arbiter"],
        ),
        telemetry_dir=values["telemetry_dir"],
        telemetry_interval_ms=values["telemetry_interval_ms"],
        telemetry_max_size=values["telemetry_max_size"],
        mechanism=values["sasl_mechanism"],
        cluster_name=values["cluster_name"],
        tls=tls,
        arbiter_options=values["arbiter_option"] or {},
        arbiter_patience_s=values["arbiter_patience"],
        witness=values["witness"],
        witness_dir=values["witness_dir"],
        witness_config=values["witness_config"],
    )


def _check_witness(values: Mapping[str, Any], url: Url) -> None:
    """SettingsError if the options of the witness are incomplete."""
    witness, where = values["witness"], values["witness_dir"]
    if not witness:
        for name in ("witness-dir", "witness-config"):
            if values[name.replace("-", "_")] is not None:
                raise SettingsError(f"--{name} is for a daemon that is the witness: give --witness HOST:PORT, or leave it out")
    elif witness not in url.names:
        raise SettingsError(f"--witness {witness} is none of --brokers ({', '.join(url.names)}), which names all members")
    elif where is None:
        raise SettingsError(f"--witness {witness} keeps its vote on disk: give --witness-dir DIR, a folder of its own")


def jittered(interval_s: float, jitter: Callable[[], float]) -> float:
    """The interval, up to a tenth shorter or longer, so that daemons and brokers do not act at the same time. `jitter`
    gives [0, 1).
    """
    return interval_s * (0.9 + 0.2 * jitter())
