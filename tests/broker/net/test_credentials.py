"""The files of TLS: what is wrong with them in one line, and what happens when they change under a broker that runs."""

from __future__ import annotations

import gc
import os
import time
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, globalLogPublisher
from zope.interface import provider

from broker.net.credentials import WATCH_S, Credentials, objection_to_server, told
from broker.net.output import TlsFailed
from broker.net.tls import TlsSocket
from broker.options import SettingsError
from broker.tls_files import TlsFiles
from tests.broker.net.visitor import Visitor
from tests.certificates import Authority, Issued, authority


class Above:
    """Nobody to speak of."""

    def makeConnection(self, transport: Any) -> None:
        pass

    def connectionLost(self, reason: Any) -> None:
        pass


class Server:
    """Takes every handshake."""

    took = False

    def ready(self, socket: TlsSocket) -> Above:
        self.took = True
        return Above()

    def failed(self, socket: TlsSocket, reason: str) -> None:
        pass


def files(folder: Path, issued: Issued | None = None, **others: Any) -> TlsFiles:
    """Those of a broker."""
    issued = issued or authority().issue("broker", "localhost")
    certificate, key = issued.write(folder, "broker")
    given: dict[str, Any] = {"certificate": certificate, "key": key, "authorities": authority().write(folder)}
    return TlsFiles(**given | others)


def shown_by(credentials: Credentials, host: str = "localhost") -> str:
    """The common name of the certificate that a client is shown who asks for that host."""
    end = TlsSocket(Clock(), credentials.server(), Server(), 10.0)
    ca = credentials.files.authorities
    assert ca is not None
    visitor = Visitor(end, trusts=ca, host=host).turn()
    assert visitor.ready, visitor.error
    subject: Any = visitor.tls.getpeercert()
    (found,) = [value for part in subject["subject"] for name, value in part if name == "commonName"]
    return str(found)


def touch(folder: Path, issued: Issued, later_s: int) -> None:
    """Other files under the same names, with a later time."""
    for path in issued.write(folder, "broker"):
        stat = path.stat()
        os.utime(path, (stat.st_atime, stat.st_mtime + later_s))


@pytest.fixture
def logged() -> Any:
    """The lines that were logged."""
    lines: list[str] = []

    @provider(ILogObserver)
    def write(event: Any) -> None:
        lines.append(str(event.get("log_format", "")).format(**event))

    globalLogPublisher.addObserver(write)
    yield lines
    globalLogPublisher.removeObserver(write)


# ---- what is wrong with a file


def test_a_certificate_and_its_key_may_be_one_file(tmp_path: Path) -> None:
    certificate, key = authority().issue("broker", "localhost").write(tmp_path, "broker")
    certificate.write_bytes(certificate.read_bytes() + key.read_bytes())
    assert shown_by(Credentials(TlsFiles(certificate, authorities=authority().write(tmp_path)))) == "broker"


def test_an_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    certificate, key = authority().issue("broker", "localhost").write(tmp_path, "broker", b"secret")
    ca, password = authority().write(tmp_path), tmp_path / "password"
    password.write_bytes(b"secret\n")
    assert shown_by(Credentials(TlsFiles(certificate, key, password, ca))) == "broker"
    with pytest.raises(SettingsError, match=r"broker.key: the private key is encrypted: give --ssl-cert-password-file"):
        Credentials(TlsFiles(certificate, key))
    password.write_bytes(b"wrong")
    with pytest.raises(SettingsError, match=r"broker.key: there is no private key .* or .*password has not its password"):
        Credentials(TlsFiles(certificate, key, password))


def test_a_password_for_a_key_that_has_none_is_told_of(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_bytes(b"secret")
    with pytest.raises(SettingsError, match=r"broker.key: the private key has no password"):
        Credentials(files(tmp_path, password=password))


def test_a_key_of_another_certificate_is_told_of_with_both_files(tmp_path: Path) -> None:
    _, key = authority().issue("other").write(tmp_path, "other")
    with pytest.raises(SettingsError, match=r"other.key: the private key is not that of the certificate in .*broker.pem"):
        Credentials(files(tmp_path, key=key))


def test_an_expired_certificate_is_told_of_with_its_day(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"broker.pem: the certificate of CN=broker,O=Understudy expired on 20.*UTC"):
        Credentials(files(tmp_path, authority().issue("broker", days=(-3, -1))))


def test_a_certificate_of_tomorrow_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"broker.pem: the certificate of CN=broker,O=Understudy is not valid before"):
        Credentials(files(tmp_path, authority().issue("broker", days=(1, 2))))


def test_a_file_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gone.pem: cannot be read: No such file or directory"):
        Credentials(files(tmp_path, authorities=tmp_path / "gone.pem"))


@pytest.mark.parametrize("name", ["certificate", "key", "authorities", "revoked"])
def test_a_broken_file_is_told_of(tmp_path: Path, name: str) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_bytes(b"-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    given: dict[str, Any] = {name: broken}
    with pytest.raises(SettingsError, match=r"broken.pem: there is no "):
        Credentials(files(tmp_path, **given))


def test_a_file_that_is_far_too_large_is_not_read_whole(tmp_path: Path) -> None:
    large = tmp_path / "large.pem"
    with large.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(SettingsError, match=r"large.pem: has more than 4194304 bytes"):
        Credentials(files(tmp_path, authorities=large))


def test_an_expired_list_of_the_revoked_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"revoked.pem: the list of CN=The tests' authority expired on"):
        Credentials(files(tmp_path, revoked=authority().revoke(tmp_path, days=-1)))


def test_an_authority_whose_time_is_over_is_told_of_where_there_is_no_other(tmp_path: Path, logged: list[str]) -> None:
    """Breaks when a broker does not start any more because the old one of two authorities has expired, or when nobody is told."""
    old = Authority("Old", days=(-3, -1)).write(tmp_path, "old")
    with pytest.raises(SettingsError, match=r"old.pem: the certificate of CN=Old expired on"):
        Credentials(files(tmp_path, authorities=old))
    old.write_bytes(old.read_bytes() + authority().write(tmp_path).read_bytes())
    assert shown_by(Credentials(files(tmp_path, authorities=old))) == "broker"
    assert [line for line in logged if "old.pem: the certificate of CN=Old expires on" in line]


def test_what_expires_soon_is_told_of_once_a_day(tmp_path: Path, logged: list[str]) -> None:
    """Breaks when a certificate expires without a word, or the log is full of it."""
    clock = Clock()
    began = time.time()
    issued = authority().issue("broker", "localhost", days=(-1, 15.5))
    credentials = Credentials(files(tmp_path, issued), wall=lambda: began + clock.seconds())
    credentials.watch(clock)
    told = []
    for _ in range(4):
        told.append(len([line for line in logged if "broker.pem: the certificate of CN=broker,O=Understudy expires on" in line]))
        clock.pump([WATCH_S] * round(86_400 / WATCH_S / 100))
        clock.advance(86_400 * 0.99)
    credentials.stop()
    assert told == [0, 0, 1, 2]
    assert not [line for line in logged if "ca.pem" in line and "expires" in line]


def test_a_list_by_nobody_who_is_trusted_is_told_of(tmp_path: Path) -> None:
    """Breaks when it is taken: every certificate would be refused, for there is no list of their own authority."""
    with pytest.raises(SettingsError, match=r"revoked.pem: the list is of CN=Stranger, which is not an authority of .*ca.pem"):
        Credentials(files(tmp_path, revoked=Authority("Stranger").revoke(tmp_path)))


# ---- several certificates


def several(folder: Path, *named: tuple[str, ...]) -> tuple[Path, ...]:
    """Files of a certificate and its key each, with these names."""
    made = []
    for number, names in enumerate(named):
        certificate, key = authority().issue(f"further{number}", *names).write(folder, f"further{number}")
        certificate.write_bytes(key.read_bytes() + certificate.read_bytes())
        made.append(certificate)
    return tuple(made)


def test_who_asks_for_a_host_is_shown_the_certificate_that_names_it(tmp_path: Path) -> None:
    further = several(tmp_path, ("mq.example", "localhost"), ("*.hosts.example",))
    credentials = Credentials(replace(files(tmp_path), further=further))
    assert shown_by(credentials, "localhost") == "broker"
    assert shown_by(credentials, "MQ.example") == "further0"
    assert shown_by(credentials, "b1.hosts.example") == "further1"


def test_who_asks_for_an_unknown_host_or_for_none_is_shown_the_first(tmp_path: Path) -> None:
    first = authority().issue("broker", "localhost", "192.0.2.1")
    credentials = Credentials(replace(files(tmp_path, first), further=several(tmp_path, ("mq.example",))))
    assert shown_by(credentials, "192.0.2.1") == "broker"
    end = TlsSocket(Clock(), credentials.server(), Server(), 10.0)
    visitor = Visitor(end, trusts=authority().write(tmp_path), host="unknown.example").turn()
    assert "Hostname mismatch" in visitor.error


def test_a_client_s_certificate_is_verified_under_a_further_name_too(tmp_path: Path) -> None:
    """Breaks when who asks for another name is not asked for a certificate, or what was read since is gone from under it."""
    credentials = Credentials(replace(files(tmp_path), further=several(tmp_path, ("mq.example",))), demands=True)
    ca, client = authority().write(tmp_path), authority().issue("app").write(tmp_path, "app")
    stranger = Authority("Stranger").issue("app").write(tmp_path, "stranger")
    for shows, let_in in ((client, True), (stranger, False), (None, False)):
        server = Server()
        end = TlsSocket(Clock(), credentials.server(), server, 10.0)
        visitor = Visitor(end, trusts=ca, shows=shows, host="mq.example")
        first = weakref.ref(end.tls.get_context())
        visitor.say()
        credentials.reload()
        gc.collect()
        assert first() is not None, "OpenSSL is about to call what is gone"
        visitor.turn()
        assert server.took is let_in


def test_a_broken_further_file_is_told_of(tmp_path: Path) -> None:
    certificate, _ = authority().issue("further", "mq.example").write(tmp_path, "further")
    with pytest.raises(SettingsError, match=r"further.pem: there is no private key"):
        Credentials(replace(files(tmp_path), further=(certificate,)))


# ---- files that change


def test_new_files_count_for_the_next_handshake(tmp_path: Path) -> None:
    credentials = Credentials(files(tmp_path))
    touch(tmp_path, authority().issue("newer", "localhost"), 5)
    assert shown_by(credentials) == "broker"
    assert credentials.reload()
    assert shown_by(credentials) == "newer"


def test_a_handshake_that_has_begun_and_a_connection_keep_what_they_began_with(tmp_path: Path) -> None:
    """Breaks when new files cost a connection."""
    credentials = Credentials(files(tmp_path))
    ca = authority().write(tmp_path)
    begun, done = (Visitor(TlsSocket(Clock(), credentials.server(), Server(), 10.0), trusts=ca) for _ in range(2))
    done.turn()
    touch(tmp_path, authority().issue("newer", "localhost"), 5)
    assert credentials.reload()
    assert begun.turn().ready
    done.end.write(b"still here")
    assert done.turn().came == b"still here"


def test_a_broken_file_leaves_the_old_ones_in_force_and_the_log_names_it(tmp_path: Path, logged: list[str]) -> None:
    credentials = Credentials(files(tmp_path))
    (tmp_path / "broker.pem").write_bytes(b"nonsense")
    assert not credentials.reload()
    assert shown_by(credentials) == "broker"
    assert [line for line in logged if "broker.pem: there is no certificate" in line and "continues with" in line]


def test_files_that_change_are_read_when_they_have_kept_still_for_a_moment(tmp_path: Path) -> None:
    """Breaks when the moment between a new certificate and its new key is taken for a mistake, or nobody looks at all."""
    clock = Clock()
    credentials = Credentials(files(tmp_path))
    credentials.watch(clock)
    newer = authority().issue("newer", "localhost")
    touch(tmp_path, newer, 5)
    clock.advance(WATCH_S)
    assert shown_by(credentials) == "broker"
    clock.advance(WATCH_S)
    assert shown_by(credentials) == "newer"
    credentials.stop()
    assert not clock.getDelayedCalls()


def test_a_broken_file_is_told_of_once_and_not_at_every_look(tmp_path: Path, logged: list[str]) -> None:
    clock = Clock()
    credentials = Credentials(files(tmp_path))
    credentials.watch(clock)
    (tmp_path / "broker.key").unlink()
    for _ in range(10):
        clock.advance(WATCH_S)
    credentials.stop()
    assert len([line for line in logged if "broker.key: cannot be read" in line]) == 1


# ---- whose certificate a server has


@pytest.mark.parametrize(
    "host, names, good",
    [
        ("broker1.example", ("broker1.example",), True),
        ("broker1.hosts.example", ("*.hosts.example",), True),
        ("broker1.example", ("broker2.example",), False),
        ("192.0.2.1", ("192.0.2.1",), True),
        ("192.0.2.1", ("192.0.2.2", "broker1.example"), False),
        ("::1", ("::1",), True),
        ("0:0::1", ("::1",), True),
        ("192.0.2.1", ("amqps://192.0.2.1:5671", "192.0.2.1", "*"), True),
        ("broker1.example", ("*", "*.*.example", "bröker".encode("idna").decode(), "BROKER1.example"), True),
        ("broker1.example", ("*", "amqps://broker1.example:5671"), False),
        ("broker", (), False),  # its common name alone
    ],
)
def test_a_server_is_the_one_whose_name_its_certificate_has(host: str, names: tuple[str, ...], good: bool) -> None:
    """Breaks when anybody with a certificate of the same authority can stand in for a broker."""
    certificate = authority().issue("broker", *names).certificate
    objection = objection_to_server(_Shows(certificate), host)  # type: ignore[arg-type]
    assert (objection == "") is good
    assert good or objection.startswith(f"the server's certificate is not for {host}: it names ")


def test_a_certificate_without_purposes_is_good_for_a_server() -> None:
    assert told(authority().issue("broker", purposes=None).certificate).serves


def test_the_reason_of_an_owner_ends_the_handshake(tmp_path: Path) -> None:
    reasons: list[str] = []

    class Suspicious:
        def ready(self, socket: TlsSocket) -> Above:
            raise TlsFailed("not you")

        def failed(self, socket: TlsSocket, reason: str) -> None:
            reasons.append(reason)

    end = TlsSocket(Clock(), Credentials(files(tmp_path)).server(), Suspicious(), 10.0)
    visitor = Visitor(end, trusts=authority().write(tmp_path)).turn()
    visitor.lose()
    assert reasons == ["not you"]


class _Shows:
    """A connection, as far as it shows a certificate."""

    def __init__(self, certificate: Any) -> None:
        self._certificate = certificate

    def get_peer_certificate(self, as_cryptography: bool) -> Any:
        return self._certificate
