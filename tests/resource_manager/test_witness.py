"""The settings of a witness in the daemon's process: what follows from the daemon's, and what stands in a file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.core.urls import Address
from broker.options import SettingsError
from broker.settings import BrokerSettings
from ha.settings import HaSettings
from resource_manager import settings, witness

THREE = {"brokers": "amqp:a:1,b:1,w:7", "witness": "w:7", "witness_dir": "/var/lib/w"}


def here(address: Address) -> set[str]:
    """This machine has the witness's name."""
    return {"10.0.0.3", "10.0.0.4"} if address.host == "w" else set()


def of(given: dict[str, str]) -> tuple[BrokerSettings, HaSettings]:
    return witness.read(settings.read(given, {}), here)


def test_the_daemons_settings_are_enough() -> None:
    """Breaks when the witness listens where others do not look for it, or is told of other members than the daemon."""
    broker, ha = of(THREE | {"brokers": "amqp:ann@a:1,b:1,w:7"})
    assert (broker.port, broker.interface, broker.data_dir) == (7, ("10.0.0.3", "10.0.0.4"), Path("/var/lib/w"))
    assert (ha.ha_cluster, ha.ha_witness, ha.ha_address, ha.members) == (True, "w:7", "w:7", ("a:1", "b:1", "w:7"))
    assert ha.replica(ha.ha_address).witness


def test_over_tls_it_has_the_daemons_files_unless_it_has_its_own(tmp_path: Path) -> None:
    files = {"ssl_certificate": "c.pem", "ssl_key": "k.pem", "ssl_ca_file": "ca.pem"}
    secured = THREE | {"brokers": "amqps:a:1,b:1,w:7"} | files
    broker, ha = of(secured)
    assert (broker.ssl_port, broker.require_encryption, ha.encrypted) == (7, True, True)
    assert [str(path) for path in broker.tls.all] == ["c.pem", "k.pem", "ca.pem"]
    file = tmp_path / "witness.conf"
    file.write_text("ssl-certificate = own.pem\nssl-ca-file = own-ca.pem\n")
    broker, _ = of(secured | {"witness_config": str(file)})
    assert [str(path) for path in broker.tls.all] == ["own.pem", "own-ca.pem"]


def test_a_file_says_the_rest_and_never_who_it_is(tmp_path: Path) -> None:
    """Breaks when a file that was made for a broker turns the witness into one."""
    file = tmp_path / "witness.conf"
    file.write_text("interface = 0.0.0.0\nadmin-port = 8081\nport = 5672\nha-cluster = no\nha-witness = a:1\n")
    broker, ha = of(THREE | {"witness_config": str(file)})
    assert (broker.interface, broker.admin_port, broker.port) == (("0.0.0.0",), 8081, 7)
    assert (ha.ha_cluster, ha.ha_witness) == (True, "w:7")


def test_it_is_told_nothing_by_the_environment_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when QPID_TELEMETRY_DIR, which is the daemon's, makes two writers of one folder."""
    monkeypatch.setenv("QPID_TELEMETRY_DIR", "/telemetry")
    assert of(THREE)[0].telemetry_dir is None


@pytest.mark.parametrize(
    "given, text",
    [
        ({"witness_dir": "/w"}, "--witness-dir is for a daemon that is the witness"),
        ({"witness_config": "/w"}, "--witness-config is for a daemon that is the witness"),
        ({"witness": "c:1", "witness_dir": "/w"}, r"--witness c:1 is none of --brokers \(a:1, b:1, w:7\)"),
        ({"witness": "w:7"}, "--witness w:7 keeps its vote on disk: give --witness-dir"),
        ({"witness": "a:1,b:1"}, "has 2 addresses"),
        ({"witness": "a:1", "witness_dir": "/w"}, "--witness a:1: this machine has no such address"),
        ({"brokers": "a:1,w:7", "witness": "w:7", "witness_dir": "/w"}, "the witness: --witness w:7 leaves 1"),
        (
            {"brokers": "amqps:a:1,b:1,w:7", "witness": "w:7", "witness_dir": "/w"},
            "--witness w:7 is reached over TLS: give --ssl-certificate",
        ),
        ({"witness": "w:7", "witness_dir": "/w", "witness_config": "/nowhere"}, "cannot read the configuration file /nowhere"),
    ],
)
def test_what_cannot_be_a_witness_is_said_with_what_would_do(given: dict[str, str], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        of({"brokers": "a:1,b:1,w:7"} | given)


@pytest.mark.parametrize(
    "said, told",
    [
        ("name another --data-dir", "name another --witness-dir"),
        ("--ha-brokers-url names none of --ha-witness", "--brokers names none of --witness"),
        ("--ssl-certificate and --no-such-option", "--ssl-certificate and --no-such-option"),
        (
            "--auth yes needs --users, or --auth no",
            "auth yes needs users, or auth no (auth, users: in the file of --witness-config)",
        ),
    ],
)
def test_an_advice_for_a_broker_is_told_with_the_options_of_the_daemon(said: str, told: str) -> None:
    assert witness.in_words_of_the_daemon(said) == told


def test_its_file_is_told_if_it_has_a_password_that_others_may_read(tmp_path: Path) -> None:
    file, told = tmp_path / "witness.conf", list[str]()
    file.write_text("ha-username = brokers\nha-password = pencil\n")
    file.chmod(0o644)
    witness.read(settings.read(THREE | {"witness_config": str(file)}, {}), here, told.append)
    assert told == [f"{file} can be read or written by other users, but its password is secret: run chmod 600"]
