"""A cluster that uses only TLS, with its own authority."""

from __future__ import annotations

import contextlib
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography import x509
from proton import SSLDomain, symbol
from proton.utils import BlockingConnection

from tests.certificates import CLIENT, authority
from tests.system.harness import Cluster, free_ports

HOST = "localhost"
"""Proton looks for the host of a URL among the names of a certificate alone, and not among its addresses."""


class Secured(Cluster):
    """Brokers whose links are over TLS, and the files of their authority and of a client. `ports` are those of TLS; by its other
    port, in the clear, each is asked by the tests what they want to know."""

    def __init__(self, folder: Path, size: int, options: list[str]) -> None:
        super().__init__(folder, size, [])
        self.folder = folder
        self.ports = free_ports(size)
        self.url = "amqps:" + ",".join(f"{HOST}:{port}" for port in self.ports)
        self.ca = authority().write(folder)
        self.client = authority().issue("app", purposes=CLIENT).write(folder, "client")
        for position, port in enumerate(self.ports):
            self.certify(position)
            broker = self.brokers[position]
            broker.url = f"amqps://{HOST}:{port}"
            broker.options = ["--ha-cluster", "yes", "--ha-brokers-url", self.url, "--ssl-port", str(port)]
            broker.options += ["--ssl-certificate", str(folder / f"broker{position}.pem"), "--ssl-ca-file", str(self.ca)]
            broker.options += ["--ssl-key", str(folder / f"broker{position}.key"), *options]

    def certify(self, position: int) -> None:
        """A new certificate for that broker, bound to its address."""
        address = f"amqps://{HOST}:{self.ports[position]}"
        authority().issue(f"broker{position}", HOST, address).write(self.folder, f"broker{position}")

    def domain(self) -> SSLDomain:
        """A client's side of TLS for proton."""
        certificate, key = self.client
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(str(self.ca))
        domain.set_credentials(str(certificate), str(key), None)
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
        return domain

    def connect(self, position: int, properties: dict[str, Any] | None = None) -> BlockingConnection:
        """A client's connection to that broker."""
        said = {symbol(name): value for name, value in (properties or {}).items()}
        return BlockingConnection(self.brokers[position].url, timeout=30, ssl_domain=self.domain(), properties=said)

    def serial(self, position: int) -> int:
        """Which certificate a handshake is shown now."""
        shown = ssl.get_server_certificate((HOST, self.ports[position]), timeout=30)
        return x509.load_pem_x509_certificate(shown.encode()).serial_number


@contextlib.contextmanager
def secured(folder: Path, size: int = 3, *options: str) -> Iterator[Secured]:
    """Brokers that have been started, of which none has been promoted."""
    folder.mkdir(exist_ok=True)
    brokers = Secured(folder, size, list(options))
    try:
        brokers.start()
        yield brokers
        for broker in brokers.brokers:
            broker.check_log()
    except BaseException:
        for broker in brokers.brokers:
            print(f"--- {broker.address}\n{broker.log()[-3000:]}", file=sys.stderr)
        raise
    finally:
        brokers.close()
