"""The identities of the demo: an authority, a certificate for each broker, users with passwords, and the files with all of
them.

Life: all files are made in the demo's folder before a process starts, and are deleted with the folder. Each broker's
certificate is bound to its address, so it identifies exactly that member of the cluster. There is one user for each role: the
brokers among themselves, the resource manager, the clients, and the administrator.

Invariants: private keys, passwords and the users' keys are in files that only their owner can access (0600); no password is
on a command line, in a text, or in more than one file.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from broker import users_file
from broker.core import users

BROKERS, MANAGER, CLIENT, OPERATOR = "brokers", "manager", "client", "operator"
USERS = (BROKERS, MANAGER, CLIENT, OPERATOR)
_DAYS = timedelta(days=7)
"""The validity of the certificates: a cluster that was left running is only for trying things out."""
_BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class Credentials:
    """The files of a cluster of brokers at these addresses, `IP:port`, and of `others` that are outside the cluster."""

    def __init__(self, folder: Path, addresses: Sequence[str], others: Sequence[str] = ()) -> None:
        self._folder = folder / "credentials"
        self._folder.mkdir(mode=0o700)
        self.authority = self._folder / "ca.pem"
        self.users = self._folder / "users"
        self.passwords = {name: secrets.token_urlsafe(18) for name in USERS}
        self._issue([*addresses, *others])
        for name, password in self.passwords.items():
            write_private(self.password_file(name), f"{password}\n".encode())
            keys = {mechanism: users.derive(mechanism, password, secrets.token_bytes(16)) for mechanism in users.HASHES}
            users_file.change(self.users, partial(users.with_line, name=name, line=users.line_of(name, keys)))
        self.config = self._folder / "operator.conf"
        told = {
            "broker": f"amqps:{OPERATOR}@{','.join(addresses)}",
            "ssl-ca-file": self.authority,
            "password-file": self.password_file(OPERATOR),
        }
        self.config.write_text("".join(f"{key}={value}\n" for key, value in told.items()))

    def password_file(self, user: str) -> Path:
        """The file with that user's password."""
        return self._folder / f"{user}.password"

    def of_broker(self, number: int) -> list[str]:
        """The options of the broker of the first, second, ... address."""
        words = ["--ssl-certificate", self._certificate(number), "--ssl-key", self._key(number), "--ssl-ca-file", self.authority]
        words += ["--users", self.users, "--require-encryption", "yes"]
        words += ["--ha-username", BROKERS, "--ha-password-file", self.password_file(BROKERS)]
        return list(map(str, words))

    def of_manager(self) -> list[str]:
        """The options of the resource manager, besides its URL."""
        return ["--ssl-ca-file", str(self.authority), "--password-file", str(self.password_file(MANAGER))]

    def _certificate(self, number: int) -> Path:
        return self._folder / f"broker{number}.pem"

    def _key(self, number: int) -> Path:
        return self._folder / f"broker{number}.key"

    def _issue(self, addresses: Sequence[str]) -> None:
        """Make the authority, whose key is not stored, and the certificates that it signs."""
        authority_key, authority = ec.generate_private_key(ec.SECP256R1()), _name("The demo's authority")
        builder = _begun(authority, authority, authority_key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        signed = builder.sign(authority_key, hashes.SHA256())
        self.authority.write_bytes(signed.public_bytes(Encoding.PEM))
        for number, address in enumerate(addresses, 1):
            key = ec.generate_private_key(ec.SECP256R1())
            names = [
                x509.IPAddress(ipaddress.ip_address(address.rpartition(":")[0])),
                x509.UniformResourceIdentifier(f"amqps://{address}"),
            ]
            builder = _begun(_name(f"broker {number}"), authority, key.public_key())
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
            builder = builder.add_extension(x509.ExtendedKeyUsage(_BOTH), critical=False)
            certificate = builder.sign(authority_key, hashes.SHA256())
            self._certificate(number).write_bytes(certificate.public_bytes(Encoding.PEM))
            write_private(self._key(number), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _DAYS)
    )


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
