"""Certificates for tests: an authority, and what it signs. Keys are of P-256, which are quickly made.

`authority()` is the one of the session; a test that needs another one makes an `Authority`. Everything is written as PEM files to
a folder of the test's own, for files are what programs are told.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

CLIENT = (ExtendedKeyUsageOID.CLIENT_AUTH,)
BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Issued:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def write(self, folder: Path, name: str, password: bytes | None = None) -> tuple[Path, Path]:
        """The files of both, `NAME.pem` and `NAME.key`."""
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        cipher = BestAvailableEncryption(password) if password is not None else NoEncryption()
        key.write_bytes(self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, cipher))
        key.chmod(0o600)
        return certificate, key


class Authority:
    """Who signs."""

    def __init__(self, name: str = "The tests' authority", days: tuple[float, float] = (-1, 30)) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name(self.name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + days[0] * _DAY)
            .not_valid_after(now + days[1] * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def issue(
        self,
        common_name: str,
        *names: str,
        purposes: tuple[ObjectIdentifier, ...] | None = BOTH,
        days: tuple[float, float] = (-1, 20),
    ) -> Issued:
        """A certificate for these names: addresses, URIs (with ://), mail addresses (with @) and hosts. `days`: from now."""
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(
                x509.Name(
                    [
                        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Understudy"),
                        x509.NameAttribute(NameOID.COMMON_NAME, common_name),
                    ]
                )
            )
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + days[0] * _DAY)
            .not_valid_after(now + days[1] * _DAY)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_general_name, names))), critical=False)
        if purposes is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        return Issued(builder.sign(self.key, hashes.SHA256()), key)

    def write(self, folder: Path, name: str = "ca") -> Path:
        """The file of its own certificate."""
        path = folder / f"{name}.pem"
        path.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        return path

    def revoke(self, folder: Path, *issued: Issued, days: float = 20) -> Path:
        """The file of a list of the revoked."""
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.name)
        builder = builder.last_update(now - 2 * _DAY).next_update(now + days * _DAY)
        for one in issued:
            entry = x509.RevokedCertificateBuilder().serial_number(one.certificate.serial_number)
            builder = builder.add_revoked_certificate(entry.revocation_date(now - _DAY).build())
        path = folder / "revoked.pem"
        path.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return path


@functools.cache
def authority() -> Authority:
    """The one of this session."""
    return Authority()


def _general_name(name: str) -> Any:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    if "@" in name:
        return x509.RFC822Name(name)
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
