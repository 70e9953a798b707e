"""A broker's settings: safe where nothing is said, refused where they cannot be."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from broker.core import limits
from broker.options import Option, SettingsError, gather, show
from broker.settings import OPTIONS, BrokerSettings
from broker.tls_files import TlsFiles


def settings(**given: str) -> BrokerSettings:
    return BrokerSettings.from_values(gather(OPTIONS, given, {}))


def test_a_broker_that_is_told_nothing_listens_on_loopback_only() -> None:
    assert settings().interface == ("127.0.0.1",)
    assert not settings().exposed


def test_every_address_but_loopback_exposes_the_broker() -> None:
    assert not settings(interface="127.0.0.1,::1").exposed
    assert settings(interface="127.0.0.1,192.0.2.1").exposed
    assert settings(interface="0.0.0.0").exposed
    assert settings(interface="::").exposed


def test_interfaces_are_addresses_named_once_each() -> None:
    assert settings(interface="localhost, 127.0.0.1,::1").interface == ("127.0.0.1", "::1")
    for wrong in ("eth0", "", "127.0.0.1,", "300.0.0.1", "127.0.0.1:5672"):
        with pytest.raises(SettingsError, match=r"^--interface: .* is not an IP address to listen on"):
            settings(interface=wrong)


def test_a_login_is_demanded_if_that_is_said_or_if_there_are_users() -> None:
    assert settings().auth is False
    assert settings(users="users").auth is True
    assert (settings(users="users", auth="no").auth, settings(users="users", auth="yes").auth) == (False, True)


def test_where_a_login_is_demanded_there_is_a_way_to_log_in() -> None:
    with pytest.raises(SettingsError, match=r"^--auth yes needs --users FILE: qpid-passwd add FILE NAME makes one$"):
        settings(auth="yes")
    assert settings(auth="yes", sasl_mechanisms="anonymous external").sasl_mechanisms == ("ANONYMOUS", "EXTERNAL")


def test_mechanisms_are_offered_in_the_order_in_which_they_stand_and_must_be_known() -> None:
    assert settings().sasl_mechanisms == ("EXTERNAL", "SCRAM-SHA-512", "SCRAM-SHA-256", "OAUTHBEARER", "XOAUTH2", "PLAIN")
    assert settings(sasl_mechanisms="plain, ANONYMOUS plain").sasl_mechanisms == ("PLAIN", "ANONYMOUS")
    for wrong in ("CRAM-MD5", ",", "PLAIN,GSSAPI"):
        with pytest.raises(SettingsError, match=r"^--sasl-mechanisms: "):
            settings(sasl_mechanisms=wrong)


@pytest.mark.parametrize("wrong", ["a b", "a@b", "a\n", "r" * 256])
def test_a_realm_can_stand_behind_a_name(wrong: str) -> None:
    assert (settings().realm, settings(realm="").realm, settings(realm="example.org").realm) == ("QPID", "", "example.org")
    with pytest.raises(SettingsError, match=r"^--realm: "):
        settings(realm=wrong)


def test_the_table_and_the_settings_name_the_same_things() -> None:
    assert [option.field for option in OPTIONS] == [field.name for field in fields(BrokerSettings)]


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.default is not None], ids=lambda option: option.name)
def test_every_default_is_a_value_that_could_be_written(option: Option) -> None:
    assert option.parse(show(option.default)) == option.default


@pytest.mark.parametrize("level, written", [("notice+", "notice"), ("DEBUG", "debug"), ("error+", "error")])
def test_log_levels_may_be_written_as_qpidd_writes_them(level: str, written: str) -> None:
    assert settings(log_enable=level).log_enable == written


def test_an_unknown_log_level_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        SettingsError, match="--log-enable: 'loud' is not one of trace, debug, info, notice, warning, error, critical"
    ):
        settings(log_enable="loud")


def test_folders_may_lie_in_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings().data_dir == tmp_path / ".qpidd"
    assert settings(telemetry_dir="~/lag").telemetry_dir == tmp_path / "lag"


def test_a_home_that_nobody_has_is_told() -> None:
    with pytest.raises(SettingsError, match=r"--data-dir ~nobody-has-this-name/x: there is no home folder"):
        settings(data_dir="~nobody-has-this-name/x")


def test_one_folder_cannot_be_store_and_telemetry() -> None:
    with pytest.raises(SettingsError, match="--telemetry-dir and --data-dir are the same folder, /srv/x"):
        settings(data_dir="/srv/x", telemetry_dir="/srv/x/")


def test_an_acl_file_lies_in_the_data_folder_unless_its_name_says_where(tmp_path: Path) -> None:
    assert settings(data_dir=str(tmp_path), acl_file="a.acl").acl_file == tmp_path / "a.acl"
    assert settings(data_dir=str(tmp_path), acl_file="/etc/qpid/a.acl").acl_file == Path("/etc/qpid/a.acl")
    assert settings(data_dir=str(tmp_path)).acl_file is None
    with pytest.raises(SettingsError, match="--acl-file: a file is needed"):
        settings(acl_file=" ")


@pytest.mark.parametrize("option", ["connection_limit_per_user", "max_queues_per_user"])
def test_quotas_of_users_may_be_set_with_an_acl_file_and_without_one(option: str) -> None:
    assert getattr(settings(**{option: "5"}), option) == 5
    assert getattr(settings(acl_file="a.acl", **{option: "5"}), option) == 5


TOKENS = {"token_keys": "/keys.json", "token_issuer": "https://issuer", "token_audience": "broker", "ssl_certificate": "/b.pem"}


def test_tokens_are_a_way_to_log_in() -> None:
    made = settings(**TOKENS)
    assert (made.auth, made.users, made.token_keys, made.token_user_claim) == (True, None, Path("/keys.json"), "sub")
    assert settings(**TOKENS | {"auth": "no"}).auth is False
    for url in ("https://issuer/keys", "http://127.0.0.1:8080/keys", "http://[::1]/keys", "http://localhost/keys"):
        assert settings(**TOKENS | {"token_keys": url}).token_keys == url


@pytest.mark.parametrize(
    "given, why",
    [
        ({"token_issuer": ""}, "--token-keys needs --token-issuer: a token of another issuer"),
        ({"token_issuer": "", "token_audience": ""}, "--token-keys needs --token-issuer and --token-audience"),
        ({"token_user_claim": ""}, "--token-keys needs --token-user-claim"),
        ({"token_keys": None}, "are of no use without --token-keys"),
        (dict.fromkeys(TOKENS) | {"token_put": "yes"}, "--token-put needs --token-keys"),
        ({"token_put": "yes", "auth": "no"}, "--token-put has no effect if every client is accepted"),
        ({"token_put": "yes", "sasl_mechanisms": "PLAIN,ANONYMOUS"}, "--token-put has no effect if every client is accepted"),
        ({"ssl_certificate": None}, "--token-keys needs --ssl-certificate: tokens are taken over TLS"),
        ({"token_keys": "http://issuer/keys"}, "keys come over https:, or over http: from this machine"),
        ({"token_keys": "ftp://issuer/keys"}, "keys come over https:"),
        ({"token_keys": "https://me:secret@issuer/keys"}, "is not a URL of keys"),
        ({"token_keys": "https://issuer:port/keys"}, "is not a URL of keys"),
        ({"token_keys": "https:///keys"}, "is not a URL of keys"),
        ({"token_keys": " "}, "--token-keys: a file is needed"),
    ],
)
def test_tokens_of_anybody_s_or_for_anybody_are_refused(given: dict[str, str | None], why: str) -> None:
    """Breaks when a token that the same issuer has made for another service, or another issuer's, lets somebody in."""
    texts = {name: text for name, text in (TOKENS | given).items() if text is not None}
    with pytest.raises(SettingsError, match=why):
        settings(**texts)


def test_settings_can_be_made_without_texts_for_use_from_code(tmp_path: Path) -> None:
    made = BrokerSettings.from_values({"data_dir": tmp_path, "port": 0, "ha_cluster": True})
    assert (made.data_dir, made.port, made.max_connections) == (tmp_path, 0, limits.MAX_CONNECTIONS)


def test_a_message_of_the_largest_size_that_is_put_together_still_fits_a_batch_that_is_nearly_full() -> None:
    assert limits.BATCH_TARGET_BYTES + limits.GATHERED_BYTES <= limits.MAX_BATCH_BYTES
    assert limits.LARGE_PARTS * limits.PART_BYTES <= limits.GATHERED_BYTES


def test_messages_may_be_of_up_to_a_gibibyte() -> None:
    assert settings(max_message_size="1G").max_message_size == 1 << 30
    with pytest.raises(SettingsError, match=r"--max-message-size: '2G' is not a size from 1 to 1G"):
        settings(max_message_size="2G")


def test_a_broker_has_no_tls_unless_it_has_a_certificate() -> None:
    assert settings().tls == TlsFiles()
    assert settings(ssl_certificate="/b.pem", ssl_ca_file="/ca.pem").tls == TlsFiles(Path("/b.pem"), authorities=Path("/ca.pem"))


@pytest.mark.parametrize(
    "given, why",
    [
        ({"ssl_key": "/b.key"}, "--ssl-key has no effect without --ssl-certificate"),
        ({"ssl_cert_password_file": "/b"}, "--ssl-cert-password-file has no effect without --ssl-certificate"),
        ({"ssl_sni_certificates": "/a.pem,/b.pem"}, "give --ssl-certificate for who asks for no name"),
        ({"ssl_certificate": "/b.pem", "ssl_sni_certificates": "/a.pem,"}, "--ssl-sni-certificates: a file is needed"),
        ({"ssl_crl_file": "/crl.pem"}, "--ssl-crl-file needs the authorities .*: give --ssl-ca-file"),
        ({"require_encryption": "yes"}, "leaves no port to listen on: give --ssl-certificate"),
        ({"ssl_certificate": "/b.pem", "ssl_require_client_authentication": "yes"}, "needs --ssl-certificate and --ssl-ca-file"),
        ({"ssl_certificate": "/b.pem", "port": "5671"}, "--port and --ssl-port are both 5671"),
        ({"ssl_certificate": ""}, "--ssl-certificate: a file is needed"),
    ],
)
def test_tls_that_lacks_something_is_refused(given: dict[str, str], why: str) -> None:
    """Breaks when a broker that was told to encrypt, or to demand certificates, starts and does not."""
    with pytest.raises(SettingsError, match=why):
        settings(**given)


def test_one_port_is_enough_where_all_is_encrypted() -> None:
    assert settings(ssl_certificate="/b.pem", port="5671", require_encryption="yes").ssl_port == 5671


@pytest.mark.parametrize(
    "given,why",
    [
        ({"drain_deadline": "5"}, "--drain-deadline has no effect without --drain-to"),
        ({"drain_password_file": __file__}, "--drain-password-file has no effect without --drain-to"),
        ({"drain_to": "127.0.0.1"}, "is this broker itself"),
        ({"drain_to": "a:1,localhost:6000", "port": "6000"}, "is this broker itself"),
        ({"drain_to": "a", "drain_password_file": __file__}, "--drain-password-file needs a user"),
        ({"drain_to": "ann/secret@a"}, "other users of this machine can see a password"),
    ],
)
def test_a_drain_to_nowhere_or_in_a_circle_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        settings(**given)


def test_the_password_for_a_drain_may_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    to = settings(drain_to="ann@a:1,b:2", drain_password_file=str(file), drain_deadline="5").drain_to
    assert to is not None
    assert (to.names, to.user, to.password) == (("a:1", "b:2"), "ann", "secret")
