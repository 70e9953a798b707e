"""A member's settings: what a cluster needs to be one, and who this broker is in it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from broker import qpidd_options
from broker import settings as broker_settings
from broker.core.sasl_client import Login
from broker.options import Option, SettingsError, show
from ha.core.membership import Membership
from ha.core.settings import ReplicaSettings
from ha.settings import OPTIONS, HaSettings, own_address, read

THREE = "amqp:127.0.0.1:6001,127.0.0.1:6002,127.0.0.1:6003"
ELSEWHERE = "192.0.2.1"  # an address of documentation (RFC 5737), which no machine has
LOOPBACK = ("127.0.0.1",)


def settings(environ: dict[str, str] | None = None, **given: str) -> HaSettings:
    return read(given, environ or {})[1]


def member(**given: str) -> HaSettings:
    return read({"ha_cluster": "yes", "ha_brokers_url": THREE, **given}, {})[1]


def test_a_file_of_apache_qpid_s_qpidd_is_taken_and_what_has_no_effect_is_noted(tmp_path: Path) -> None:
    file, noted = tmp_path / "qpidd.conf", list[str]()
    file.write_text("auth=no\nworker-threads=4\nlog-to-syslog=yes\nha-cluster=yes\nha-brokers-url=amqp:127.0.0.1:6001\n")
    assert read({"config": str(file)}, {}, noted.append)[1].ha_cluster
    assert [line.split(" has ")[0] for line in noted] == [f"{file}:2: worker-threads", f"{file}:3: log-to-syslog"]
    file.write_text("exchange-patterns=foo\n")
    with pytest.raises(SettingsError, match="'exchange-patterns': exchanges are made by attaching"):
        read({"config": str(file)}, {})


def test_what_is_said_of_the_other_broker_s_options_is_of_none_of_ours() -> None:
    ours = {name for option in (*broker_settings.OPTIONS, *OPTIONS) for name in option.names}
    assert not ours & (qpidd_options.WITHOUT_EFFECT.keys() | qpidd_options.INSTEAD.keys())
    assert not qpidd_options.WITHOUT_EFFECT.keys() & qpidd_options.INSTEAD.keys()
    assert "--data-dir" in qpidd_options.WITHOUT_EFFECT["store-dir"], "it tells where the messages are instead"


# ---- what a cluster needs


def test_a_program_for_roles_has_its_own_arguments() -> None:
    program, *own = member(ha_on_role_change="sh -c 'echo a b'").ha_on_role_change
    assert (Path(program).is_absolute(), own) == (True, ["-c", "echo a b"])


def test_virtual_ip_addresses_are_of_the_primary_alone_and_the_broker_listens_on_all() -> None:
    """Breaks when a broker is let start that could not listen on its virtual address, or would take a member's own away."""
    given = {"ha_virtual_ip": "10.0.0.9/24@eth0,fd00::9@eth1"}
    found = member(interface="::", **given).ha_virtual_ip
    assert [str(each) for each in found] == ["10.0.0.9/24@eth0", "fd00::9/128@eth1"]
    for interface, missing in (("127.0.0.1", "10.0.0.9/24@eth0 .* 0.0.0.0, or ::$"), ("0.0.0.0", "fd00::9/128@eth1 .* ::$")):
        with pytest.raises(SettingsError, match=f"--ha-virtual-ip {missing}"):
            member(interface=interface, **given)
    for wrong, said in (("10.0.0.9", "names no network device"), ("10.0.0.9@a,10.0.0.9@b", "an address is named twice")):
        with pytest.raises(SettingsError, match=f"--ha-virtual-ip: .*{said}"):
            member(ha_virtual_ip=wrong)
    with pytest.raises(SettingsError, match="this broker is in none"):
        settings(ha_virtual_ip="10.0.0.9@eth0")
    with pytest.raises(SettingsError, match="is the address of a broker"):
        member(ha_virtual_ip="192.0.2.1@eth0", ha_brokers_url=f"{ELSEWHERE}:5672,192.0.2.2:5672")


def test_a_broker_that_is_told_nothing_is_in_no_cluster() -> None:
    alone = settings()
    assert (alone.ha_cluster, alone.members, alone.ha_replicate) == (False, (), "none")
    assert alone.replica().standalone


def test_a_cluster_without_members_is_refused_and_told_what_to_give() -> None:
    with pytest.raises(
        SettingsError, match="--ha-cluster yes needs the addresses of all members: give --ha-brokers-url amqp:host1"
    ):
        settings(ha_cluster="yes")


def test_members_are_named_as_they_stand_in_the_url() -> None:
    assert member().members == ("127.0.0.1:6001", "127.0.0.1:6002", "127.0.0.1:6003")


@pytest.mark.parametrize("alias", ["QPID_HA_BROKERS", "QPID_HA_BROKERS_URL"])
def test_the_preview_s_spellings_still_work(alias: str) -> None:
    made = settings({alias: THREE, "QPID_HA_PUBLIC_BROKERS": "amqp:front:5672", "QPID_HA_CLUSTER": "yes"})
    assert len(made.members) == 3
    assert made.ha_public_url is not None
    assert made.ha_public_url.names == ("front:5672",)


def test_a_file_may_hold_broker_and_cluster_options_side_by_side(tmp_path: Path) -> None:
    config = tmp_path / "qpidd.conf"
    config.write_text(f"port=6002\nha-cluster\nha-brokers={THREE}\nha-replicate=all\n")
    broker, ha = read({"config": str(config)}, {})
    assert (broker.port, ha.ha_cluster, ha.ha_replicate) == (6002, True, "all")


def test_the_process_s_own_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QPID_HA_REPLICATE", "configuration")
    assert read({})[1].ha_replicate == "configuration"


@pytest.mark.parametrize(
    "given, said",
    [
        ({"ha_cluster": "no"}, "names a cluster, and without --ha-cluster yes this broker would serve alone"),
        ({"ha_replicate": "some"}, "--ha-replicate: 'some' is not one of none, configuration, all"),
        (
            {"ha_on_role_change": "no-such-program x"},
            "--ha-on-role-change: 'no-such-program x' is not a program that this user may run",
        ),
        ({"ha_on_role_change": "unclosed '"}, "--ha-on-role-change: "),
        ({"ha_cluster": "maybe"}, "--ha-cluster: 'maybe' is neither yes nor no"),
        ({"ha_brokers_url": "amqp:a:b"}, '--ha-brokers-url: .*"b"'),
        (
            {"ha_brokers_url": "ssl:a:1,b:1"},
            "--ha-brokers-url: links between brokers use TLS for all addresses or for none: write amqps:host:port",
        ),
        ({"ha_address": "a:1,b:1"}, "--ha-address: 'a:1,b:1' has 2 addresses"),
        (
            {"ha_address": "127.0.0.1:6009"},
            r"--ha-address 127\.0\.0\.1:6009 is not among the addresses of --ha-brokers-url \(127",
        ),
        ({"ha_witness": "a:1"}, r"--ha-witness a:1 is not among the addresses of --ha-brokers-url \(127"),
        (
            {"ha_brokers_url": "a:1,b:1", "ha_address": "a:1", "ha_witness": "a:1"},
            "--ha-witness a:1 leaves 1 of the addresses of --ha-brokers-url to store messages, and a witness is of use beside",
        ),
        (
            {
                "ha_brokers_url": f"a:1,b:1,{'c' * 250}:1," + ",".join(f"{'d' * 250}{n}:1" for n in range(12)),
                "ha_address": "a:1",
                "ha_witness": "a:1",
            },
            "--ha-brokers-url: a witness can note members whose addresses have 3000 bytes in all",
        ),
        ({"ha_heartbeat_interval": "1"}, "--ha-election-timeout 1 must be at least 3 times --ha-heartbeat-interval 1,"),
    ],
)
def test_a_wrong_option_is_told_by_name_and_with_what_would_do(given: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        member(**given)


def test_an_own_address_without_any_members_is_refused() -> None:
    with pytest.raises(
        SettingsError, match=r"--ha-address a:1 is not among the addresses of --ha-brokers-url \(which is not given\)"
    ):
        settings(ha_address="a:1")


def test_credentials_that_nobody_would_check_are_refused_without_showing_them() -> None:
    with pytest.raises(SettingsError) as caught:
        member(ha_brokers_url="u/hunter2@127.0.0.1:6001")
    assert str(caught.value) == (
        "--ha-brokers-url: give the addresses alone, without a user: "
        "brokers log in to each other with --ha-username and --ha-password-file"
    )


def test_brokers_log_in_to_each_other_as_one_user(tmp_path: Path) -> None:
    assert member().login == Login()
    file = tmp_path / "password"
    file.write_text("hunter2\nmore\n")
    found = member(ha_username="brokers", ha_password_file=str(file), ha_mechanism="SCRAM-SHA-256")
    assert found.login == Login("brokers", "hunter2", "SCRAM-SHA-256")
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    "given, environ, said",
    [
        ({"ha_password": "hunter2"}, {}, "--ha-password: other users of this machine can see a password on a command line"),
        ({}, {"QPID_HA_PASSWORD": "hunter2"}, "there is a password for the links between brokers and no --ha-username"),
    ],
)
def test_a_password_between_brokers_is_nobody_else_s(given: dict[str, str], environ: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        read(given, environ)
    assert "hunter2" not in str(caught.value)


def test_one_password_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    with pytest.raises(SettingsError, match=r"^--ha-password and --ha-password-file name the same thing"):
        read({"ha_username": "brokers", "ha_password_file": str(file)}, {"QPID_HA_PASSWORD": "hunter2"})


def test_where_logins_are_demanded_the_brokers_have_one() -> None:
    given = {"ha_cluster": "yes", "ha_brokers_url": "127.0.0.1:6001", "users": "users"}
    with pytest.raises(SettingsError, match=r"^--auth yes in a cluster needs --ha-username and --ha-password-file"):
        read(given, {})
    assert read(given | {"ha_username": "brokers"}, {})[0].auth
    with pytest.raises(SettingsError, match=r"^--auth yes in a cluster needs"):
        read(given | {"ha_mechanism": "EXTERNAL"}, {})
    over_tls = given | TLS | {"ha_brokers_url": OVER_TLS}
    assert read(over_tls | {"ha_mechanism": "EXTERNAL"}, {})[1].by_certificate, "their certificates are enough"
    assert not read(over_tls | {"ha_username": "brokers"}, {})[1].by_certificate
    tokens = {"users": None, "token_keys": "/keys", "token_issuer": "https://issuer", "token_audience": "broker"}
    with pytest.raises(SettingsError, match=r"^--token-keys in a cluster needs --users FILE too"):
        read(over_tls | tokens | {"ha_username": "brokers"}, {})
    assert read(over_tls | tokens | {"ha_mechanism": "EXTERNAL"}, {})[0].auth
    assert read(over_tls | tokens | {"users": "users", "ha_username": "brokers"}, {})[0].auth


# ---- links over TLS

TLS = {"ssl_certificate": "/broker.pem", "ssl_ca_file": "/ca.pem"}
OVER_TLS = THREE.replace("amqp:", "amqps:")


def test_links_are_over_tls_when_the_addresses_are() -> None:
    assert member(ha_brokers_url=OVER_TLS, **TLS).encrypted
    assert not member(**TLS).encrypted
    assert not settings().encrypted


@pytest.mark.parametrize("missing", ["ssl_certificate", "ssl_ca_file"])
def test_brokers_that_could_not_know_each_other_do_not_start(missing: str) -> None:
    """Breaks when links are encrypted to whoever answers."""
    given = {name: path for name, path in TLS.items() if name != missing}
    with pytest.raises(SettingsError, match="amqps: needs --ssl-certificate and --ssl-ca-file"):
        member(ha_brokers_url=OVER_TLS, **given)


def test_links_in_the_clear_to_a_port_that_nobody_listens_on_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"--require-encryption yes needs --ha-brokers-url amqps"):
        member(require_encryption="yes", **TLS)


# ---- who this broker is


def test_the_port_tells_which_member_of_this_machine_a_broker_is() -> None:
    assert own_address(member(), LOOPBACK, 6002).name == "127.0.0.1:6002"


def test_an_address_of_another_machine_is_not_mine_though_it_has_my_port() -> None:
    made = member(ha_brokers_url=f"{ELSEWHERE}:6001,127.0.0.1:6001")
    assert own_address(made, LOOPBACK, 6001).host == "127.0.0.1"


def test_a_broker_that_is_not_among_the_members_is_told_so() -> None:
    with pytest.raises(
        SettingsError, match=r"none of the addresses .*6003\) is this broker's, which listens on port 7000: add it"
    ):
        own_address(member(), LOOPBACK, 7000)
    with pytest.raises(SettingsError, match="none of the addresses"):
        own_address(member(ha_brokers_url=f"{ELSEWHERE}:7000"), LOOPBACK, 7000)


def test_a_broker_that_could_be_several_members_must_say_which() -> None:
    both = "127.0.0.1:6001,127.0.0.2:6001"
    with pytest.raises(
        SettingsError, match=r"127\.0\.0\.1:6001 and 127\.0\.0\.2:6001 of --ha-brokers-url are all this machine's"
    ):
        own_address(member(ha_brokers_url=both), ("0.0.0.0",), 6001)
    assert own_address(member(ha_brokers_url=both, ha_address="127.0.0.2:6001"), ("0.0.0.0",), 6001).host == "127.0.0.2"


def test_an_address_where_nobody_listens_is_refused_with_the_interface_that_would_do() -> None:
    made = member(ha_brokers_url="127.0.0.2:6001")
    with pytest.raises(SettingsError, match=r"could not reach this broker at 127\.0\.0\.2:6001.*give --interface 127\.0\.0\.2"):
        own_address(made, LOOPBACK, 6001)
    for interface in ("127.0.0.2", "0.0.0.0", "::"):
        assert own_address(made, (interface,), 6001).host == "127.0.0.2"


def test_a_host_that_does_not_exist_is_somebody_else() -> None:
    made = member(ha_brokers_url="256.256.256.256:6001,127.0.0.1:6001")
    assert own_address(made, LOOPBACK, 6001).host == "127.0.0.1"


# ---- the tables


def test_the_table_and_the_settings_name_the_same_things() -> None:
    assert [option.field for option in OPTIONS] == [field.name for field in fields(HaSettings)]


@pytest.mark.parametrize("option", [option for option in OPTIONS if show(option.default)], ids=lambda option: option.name)
def test_every_default_is_a_value_that_could_be_written(option: Option) -> None:
    assert option.parse(show(option.default)) == option.default


def test_the_core_works_with_what_was_said() -> None:
    made = member(
        ha_heartbeat_interval="0.2",
        ha_election_timeout="2",
        ha_promote_timeout="3",
        ha_switchover_timeout="4",
        ha_flow_bytes="1M",
    ).replica()
    assert made == ReplicaSettings(
        heartbeat_s=0.2, election_s=2.0, campaign_timeout_s=3.0, transfer_timeout_s=4.0, max_inflight_bytes=1 << 20
    )


def test_one_member_is_the_witness_and_all_are_told_which() -> None:
    given = {"ha_brokers_url": "a:1,b:1,w:1", "ha_witness": "w:1"}
    found = member(**given, ha_address="a:1")
    assert found.membership == Membership.of(["a:1", "b:1", "w:1"], witness="w:1")
    assert (found.replica("a:1").witness, found.replica("w:1").witness) == (False, True)
    assert member().membership.witness == ""


def test_what_nobody_said_is_as_the_core_has_it() -> None:
    assert member().replica() == ReplicaSettings()


def test_a_member_of_several_is_not_drained_by_itself() -> None:
    with pytest.raises(SettingsError, match="a member of several hands over"):
        member(drain_to="127.0.0.1:7000")
    assert member(drain_to="127.0.0.1:7000", ha_brokers_url="127.0.0.1:6001").members == ("127.0.0.1:6001",)
