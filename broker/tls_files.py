"""The PEM files for TLS, as options: those that brokers, daemons and commands share, and those of brokers only.

Life: each program's options contain the tables below. `TlsFiles.from_values` collects the given values. `broker.net.credentials`
reads the files, and reads them again when they change.

qpidd keeps certificates in an NSS database (`--ssl-cert-db`, `--ssl-cert-name`). Here they are files in PEM form, with the names
of qpid-tools. Options with the same meaning as in qpidd have the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.core.urls import DEFAULT_TLS_PORT
from broker.options import Option, SettingsError, number, yes_no


def _file(value: str) -> Path:
    """A file, `~` allowed; "" is refused."""
    if not value.strip() or "\0" in value:
        raise ValueError("a file is needed")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise ValueError(f"{value}: there is no home folder for `~`; give the full path") from None


FILES = (
    Option(
        "ssl-certificate",
        _file,
        None,
        "FILE",
        "TLS certificate in PEM format, followed by any intermediate certificates.",
    ),
    Option(
        "ssl-key",
        _file,
        None,
        "FILE",
        "Private key of --ssl-certificate in PEM format. Default: the certificate's file also has the key.",
    ),
    Option("ssl-cert-password-file", _file, None, "FILE", "File with the password of the private key."),
    Option(
        "ssl-ca-file",
        _file,
        None,
        "FILE",
        "Trusted CA certificates in PEM format. Default: the system's list for servers, none for clients.",
    ),
    Option("ssl-crl-file", _file, None, "FILE", "Certificate revocation lists (CRL) of these CAs, in PEM format."),
)
"""The options of every program that uses TLS."""


def _files(value: str) -> tuple[Path, ...]:
    """Several, with commas between them."""
    return tuple(_file(part.strip()) for part in value.split(","))


SERVER = (
    Option(
        "ssl-port",
        number(0, 65_535),
        DEFAULT_TLS_PORT,
        "PORT",
        "TCP port to listen on for TLS, with --ssl-certificate. 0: any free port.",
    ),
    Option(
        "ssl-sni-certificates",
        _files,
        None,
        "FILE,...",
        "More certificates, each in one file with its key. The broker picks the one for the host name that a client asks for "
        "(SNI).",
    ),
    Option(
        "ssl-require-client-authentication",
        yes_no,
        False,
        "yes|no",
        "Require a certificate from every client over TLS. Needs --ssl-ca-file.",
    ),
    Option("require-encryption", yes_no, False, "yes|no", "Listen on --ssl-port only, not on --port."),
)
"""Additional options of a broker."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Which files there are; None for those that are not."""

    certificate: Path | None = None
    key: Path | None = None
    password: Path | None = None
    authorities: Path | None = None
    revoked: Path | None = None
    further: tuple[Path, ...] = ()
    """Files of further certificates with their keys. A server uses the one with the host name that a client requests."""

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> TlsFiles:
        """The files of these values by field name, as `broker.options.gather` gives them. SettingsError: one lacks another."""
        certificate, key, password, authorities, revoked = (values.get(option.field) for option in FILES)
        if certificate is None and (key is not None or password is not None):
            raise SettingsError(
                f"{'--ssl-key' if key is not None else '--ssl-cert-password-file'} has no effect without --ssl-certificate"
            )
        if revoked is not None and authorities is None:
            raise SettingsError("--ssl-crl-file needs the authorities whose lists these are: give --ssl-ca-file")
        further: tuple[Path, ...] = values.get("ssl_sni_certificates") or ()
        if further and certificate is None:
            raise SettingsError("--ssl-sni-certificates are further ones: give --ssl-certificate for who asks for no name")
        return cls(certificate, key, password, authorities, revoked, further)

    @property
    def private(self) -> tuple[tuple[Path, str], ...]:
        """Those with a secret, and what is secret in them (`broker.secret_files`)."""
        key = self.key or self.certificate
        keys = ((path, "its key is") for path in (key, *self.further) if path is not None)
        return (*keys, *(((self.password, "its password is"),) if self.password is not None else ()))

    @property
    def all(self) -> tuple[Path, ...]:
        """Those that there are."""
        named = (self.certificate, self.key, self.password, self.authorities, self.revoked)
        return (*(path for path in named if path is not None), *self.further)


NO_TLS = TlsFiles()
"""No file at all: over TLS, a server is known by the system's authorities."""
