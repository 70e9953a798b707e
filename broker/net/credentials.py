"""Certificates, keys and authorities: read from their files, converted to OpenSSL's contexts, and read again when they change.

Life of `Credentials`: the files are read and checked together; all must be valid (`SettingsError` names the file and its fault).
`server` and `client` make an OpenSSL connection for each handshake. `reload` reads the files again. If they are valid, the next
handshake uses them; if not, the old content stays in force and the log file says so. Existing connections keep their
certificates. `watch` calls `reload` when a file has another time, size or inode number than before, and has not changed again for
one interval, because a certificate and its key are two files, which cannot be replaced at once.

Invariants: TLS 1.2 or newer, with forward secrecy and authenticated encryption; no renegotiation, no compression, and no
resumption (a resumed session would not be checked against the revocation lists again); `certificate_of` returns a certificate
only if OpenSSL has verified it against the authorities.

Sources: RFC 5280 (certificates), RFC 9525 (names in certificates), RFC 9325 (recommendations for TLS).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from OpenSSL import SSL
from OpenSSL.crypto import X509, X509StoreFlags
from service_identity import CertificateError, VerificationError
from service_identity.hazmat import DNS_ID, DNSPattern, verify_service_identity
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from broker.core.identity import Certificate
from broker.host import REAL_HOST
from broker.options import SettingsError
from broker.tls_files import TlsFiles

_log = Logger()
WATCH_S = 2.0
WARN_DAYS = 14
"""Days before the expiry of a certificate or revocation list in which the log file warns, once a day."""
_DAY_S = 86_400.0
MAX_FILE_BYTES = 4 << 20
_CIPHERS = b"ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL"
_SUITES = b"TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
"""The first is the cheapest, and as good as the others (RFC 9325, 4.2)."""
_PARTIAL_WRITE = 1
"""SSL_MODE_ENABLE_PARTIAL_WRITE: a write would end with its first record."""
_CRL_END = b"-----END X509 CRL-----"

Signature = tuple[tuple[int, int, int] | None, ...]


class Credentials:
    """See the module. `demands`: whether a client over TLS must show a certificate. `wall` gives seconds since 1970."""

    def __init__(self, files: TlsFiles, *, demands: bool = False, wall: Callable[[], float] = REAL_HOST.wall) -> None:
        self.files = files
        self._demands = demands
        self._wall = wall
        self._tried = self._seen = self._signature()
        self._expiries: list[tuple[datetime, str]] = []
        self._warned_s = 0.0
        self._server, self._client = self._read()
        self._warn()
        self._watching: LoopingCall | None = None

    # ---- connections

    def server(self) -> SSL.Connection:
        """A connection over memory that waits for a client."""
        assert self._server is not None, "a server has a certificate"
        connection = SSL.Connection(self._server, None)
        connection.set_accept_state()
        return connection

    def client(self, host: str) -> SSL.Connection:
        """A connection over memory to the server of that name or address."""
        connection = SSL.Connection(self._client, None)
        if not _is_address(host):
            connection.set_tlsext_host_name(host.encode())
        connection.set_connect_state()
        return connection

    # ---- the files, again

    def reload(self) -> bool:
        """Read the files again. Returns whether their content is in force now."""
        self._tried = self._seen = self._signature()
        try:
            self._server, self._client = self._read()
        except SettingsError as error:
            _log.error("TLS continues with the old files: {why}", why=str(error))
            return False
        _log.info("TLS files were read again: {files}", files=", ".join(map(str, self.files.all)))
        self._warn()
        return True

    def watch(self, clock: IReactorTime) -> None:
        """Look at the files each WATCH_S, until `stop`."""
        self._watching = LoopingCall(self.look)
        self._watching.clock = clock
        self._watching.start(WATCH_S, now=False)

    def stop(self) -> None:
        """Stop watching."""
        if self._watching is not None and self._watching.running:
            self._watching.stop()

    def look(self) -> None:
        """Read the files again if they are others than at the last time, and have been so for one look. Warn once a day."""
        if not 0 <= self._wall() - self._warned_s < _DAY_S:
            self._warn()
        before, self._seen = self._seen, self._signature()
        if self._seen == before and self._seen != self._tried:
            self.reload()

    def _warn(self) -> None:
        """Warn about certificates and lists that expire soon or have expired since they were read."""
        self._warned_s = self._wall()
        soon = datetime.fromtimestamp(self._warned_s, UTC) + timedelta(days=WARN_DAYS)
        for expiry, what in self._expiries:
            if expiry < soon:
                _log.warn("{what} expires on {day}: replace it", what=what, day=_day(expiry))

    def _signature(self) -> Signature:
        found: list[tuple[int, int, int] | None] = []
        for path in self.files.all:
            try:
                stat = path.stat()
            except OSError:
                found.append(None)
            else:
                found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(found)

    @property
    def expires(self) -> float | None:
        """When the first certificate or list of the revoked expires, in s since 1970; None when there is none."""
        return min((expiry.timestamp() for expiry, _ in self._expiries), default=None)

    # ---- what they hold

    def _read(self) -> tuple[SSL.Context | None, SSL.Context]:
        files = self.files
        shown = [_identity(files.certificate, files.key or files.certificate, files.password)] if files.certificate else []
        shown += [_identity(path, path, files.password) for path in files.further]
        authorities = _certificates(files.authorities) if files.authorities is not None else []
        revoked = _revocation_lists(files.revoked) if files.revoked is not None else []
        expiries = self._check_times(shown, authorities, revoked)
        servers = [(one, self._server_context(one, authorities, revoked)) for one in shown]
        client = _context(shown[0] if shown else None, authorities, revoked)
        if not authorities:
            client.set_default_verify_paths()
        client.set_verify(SSL.VERIFY_PEER, _verified)
        self._expiries = expiries
        return _by_name(servers) if servers else None, client

    def _server_context(
        self, shown: _Identity, authorities: list[x509.Certificate], revoked: list[x509.CertificateRevocationList]
    ) -> SSL.Context:
        context = _context(shown, authorities, revoked)
        context.set_options(SSL.OP_CIPHER_SERVER_PREFERENCE)
        demand = SSL.VERIFY_FAIL_IF_NO_PEER_CERT if self._demands else 0
        context.set_verify(SSL.VERIFY_PEER | demand if authorities else SSL.VERIFY_NONE, _verified)
        for authority in authorities:
            context.add_client_ca(authority)
        return context

    def _check_times(
        self,
        shown: list[_Identity],
        authorities: list[x509.Certificate],
        revoked: list[x509.CertificateRevocationList],
    ) -> list[tuple[datetime, str]]:
        """The expiry and the name of each file's content. SettingsError when our own certificate, all authorities, or a
        revocation list are not valid now, or the issuer of a list is unknown. One of several authorities may have expired."""
        files, now = self.files, datetime.fromtimestamp(self._wall(), UTC)
        ours = [(one.path, certificate) for one in shown for certificate in one.chain]
        for path, certificate in ours:
            _check_time(path, certificate, now)
        if authorities and not any(one.not_valid_before_utc <= now <= one.not_valid_after_utc for one in authorities):
            assert files.authorities is not None, "they come from a file"
            _check_time(files.authorities, authorities[0], now)
        known = [authority.subject for authority in authorities]
        expiries = [
            (certificate.not_valid_after_utc, f"{path}: the certificate of {_name(certificate.subject)}")
            for path, certificate in (*ours, *((files.authorities, one) for one in authorities))
        ]
        for crl in revoked:
            whose = _name(crl.issuer)
            if crl.issuer not in known:
                raise SettingsError(f"{files.revoked}: the list is of {whose}, which is not an authority of {files.authorities}")
            if crl.next_update_utc is not None:
                if crl.next_update_utc < now:
                    raise SettingsError(f"{files.revoked}: the list of {whose} expired on {_day(crl.next_update_utc)}")
                expiries.append((crl.next_update_utc, f"{files.revoked}: the list of {whose}"))
        return expiries


def _check_time(path: Path, certificate: x509.Certificate, now: datetime) -> None:
    """SettingsError when it has expired or is not valid yet."""
    whose = f"{path}: the certificate of {_name(certificate.subject)}"
    if certificate.not_valid_after_utc < now:
        raise SettingsError(f"{whose} expired on {_day(certificate.not_valid_after_utc)}")
    if certificate.not_valid_before_utc > now:
        raise SettingsError(f"{whose} is not valid before {_day(certificate.not_valid_before_utc)}")


# ---- contexts


def _context(
    shown: _Identity | None, authorities: list[x509.Certificate], revoked: list[x509.CertificateRevocationList]
) -> SSL.Context:
    """The common part of the contexts for servers and clients."""
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_cipher_list(_CIPHERS)
    context.set_tls13_ciphersuites(_SUITES)
    context.set_options(SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_COMPRESSION | SSL.OP_NO_TICKET)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    context.clear_mode(_PARTIAL_WRITE)
    if shown is not None:
        context.use_certificate(shown.chain[0])
        for certificate in shown.chain[1:]:
            context.add_extra_chain_cert(certificate)
        context.use_privatekey(shown.key)
    store = context.get_cert_store()
    assert store is not None, "every context has one"
    for authority in authorities:
        store.add_cert(X509.from_cryptography(authority))
    for one in revoked:
        store.add_crl(one)
    if revoked:
        store.set_flags(X509StoreFlags.CRL_CHECK)
    return context


def _by_name(servers: list[tuple[_Identity, SSL.Context]]) -> SSL.Context:
    """The first context; who asks for a host that it does not name, and another does, is answered by that (RFC 6066, 3)."""
    first = servers[0][1]
    if len(servers) == 1:
        return first
    named = [(told(one.chain[0]).dns_names, context) for one, context in servers]
    for _, context in named[1:]:
        # OpenSSL calls the first context's callback even when a handshake has switched to another context.
        context.set_app_data(first)

    def choose(connection: SSL.Connection) -> None:
        host = (connection.get_servername() or b"").decode("ascii", "replace")
        for names, context in named:
            if host and any(_covers(name, host) for name in names):
                connection.set_context(context)
                return

    first.set_tlsext_servername_callback(choose)
    return first


# ---- whose certificate it is


def certificate_of(connection: SSL.Connection) -> Certificate | None:
    """The content of the peer's certificate, after a handshake that has verified it; None if it has sent none."""
    if not connection.get_context().get_verify_mode() & SSL.VERIFY_PEER:
        return None
    found = connection.get_peer_certificate(as_cryptography=True)
    return None if found is None else told(found)


def told(certificate: x509.Certificate) -> Certificate:
    """The content of a certificate, for access decisions."""
    names = [str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    try:
        others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        others = x509.SubjectAlternativeName([])
    try:
        purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        serves = any(one in purposes for one in (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE))
    except x509.ExtensionNotFound:
        serves = True
    return Certificate(
        subject=certificate.subject.rfc4514_string(),
        common_name=names[-1] if names else "",
        dns_names=tuple(others.get_values_for_type(x509.DNSName)),
        addresses=tuple(map(str, others.get_values_for_type(x509.IPAddress))),
        uris=tuple(others.get_values_for_type(x509.UniformResourceIdentifier)),
        emails=tuple(others.get_values_for_type(x509.RFC822Name)),
        serves=serves,
    )


def objection_to_server(connection: SSL.Connection, host: str) -> str:
    """Why a server's verified certificate does not belong to this name or address; "" if it does."""
    found = connection.get_peer_certificate(as_cryptography=True)
    if found is None:
        return "the server has shown no certificate"
    certificate = told(found)
    if _is_address(host) and str(ip_address(host)) in certificate.addresses:
        return ""
    if not _is_address(host) and any(_covers(name, host) for name in certificate.dns_names):
        return ""
    names = ", ".join((*certificate.dns_names, *certificate.addresses)) or f"nothing but its subject {certificate.subject}"
    return f"the server's certificate is not for {host}: it names {names}"


def _covers(name: str, host: str) -> bool:
    """Whether a DNS name of a certificate, which may begin with a wildcard, is that of the host."""
    try:
        return bool(verify_service_identity([DNSPattern.from_bytes(name.encode())], [DNS_ID(host)], []))
    except (VerificationError, CertificateError, ValueError):
        return False


def _verified(connection: SSL.Connection, certificate: Any, number: int, depth: int, good: int) -> bool:
    if not good:
        socket = connection.get_app_data()
        if socket is not None:
            socket.untrusted = number
    return bool(good)


_WHY = {
    value: name.removeprefix("ERR_").replace("_", " ").lower()
    for name, value in vars(SSL.X509VerificationCodes).items()
    if name.startswith("ERR_")
}


def why_untrusted(number: int) -> str:
    """The text of OpenSSL's error number for a certificate."""
    return _WHY.get(number, f"error {number} of OpenSSL")


_OTHERWISE = ": the other side does not use TLS here; amqps: is for a port with TLS, amqp: for a port without"
"""What OpenSSL's "wrong version number" means: what has come is no record of TLS."""


def what_failed(error: SSL.Error, untrusted: int) -> str:
    """The text for people about an error of OpenSSL; `untrusted`: its error number for the certificate, or 0."""
    if untrusted:
        return f"the other side's certificate is not trusted: {why_untrusted(untrusted)}"
    parts = error.args[0] if error.args and isinstance(error.args[0], list) else []
    words = "; ".join(part[-1] for part in parts if part[-1])
    return f"TLS: {words or 'the connection broke off'}{_OTHERWISE if 'wrong version number' in words else ''}"


# ---- files


@dataclass(frozen=True, slots=True)
class _Identity:
    """A certificate, those between it and a known authority, and its key."""

    path: Path
    chain: list[x509.Certificate]
    key: Any


def _identity(certificate_file: Path, key_file: Path | None, password_file: Path | None) -> _Identity:
    assert key_file is not None, "it is the certificate's own if there is no other"
    chain, content = _certificates(certificate_file), _bytes(key_file)
    password = _bytes(password_file).strip(b"\r\n") if password_file is not None else None
    try:
        key: Any = load_pem_private_key(content, password)
    except TypeError:
        encrypted = "is encrypted: give --ssl-cert-password-file"
        why = encrypted if password is None else "has no password: leave --ssl-cert-password-file away"
        raise SettingsError(f"{key_file}: the private key {why}") from None
    except ValueError:
        which = "" if password is None else f", or {password_file} has not its password"
        raise SettingsError(f"{key_file}: there is no private key in PEM form that can be read{which}") from None
    if _public(key.public_key()) != _public(chain[0].public_key()):
        raise SettingsError(f"{key_file}: the private key is not that of the certificate in {certificate_file}")
    return _Identity(certificate_file, chain, key)


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_FILE_BYTES:
        raise SettingsError(f"{path}: has more than {MAX_FILE_BYTES} bytes: it is not a file of certificates")
    return content


def _certificates(path: Path) -> list[x509.Certificate]:
    content = _bytes(path)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        raise SettingsError(f"{path}: there is no certificate in PEM form that can be read") from None


def _revocation_lists(path: Path) -> list[x509.CertificateRevocationList]:
    parts = _bytes(path).split(_CRL_END)[:-1]
    try:
        found = [x509.load_pem_x509_crl(part + _CRL_END + b"\n") for part in parts]
    except ValueError:
        found = []
    if not found:
        raise SettingsError(f"{path}: there is no list of revoked certificates in PEM form that can be read")
    return found


def _public(key: Any) -> bytes:
    return bytes(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def _name(name: x509.Name) -> str:
    return name.rfc4514_string() or "nobody"


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
