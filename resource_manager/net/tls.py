"""The TLS settings of connections to an external store: the trusted CAs, and the own certificate.

Life: it is made with the paths of files. `read` is called once at the start, so that errors in them are reported then.
It is called for each connection, and reads the files again each time, because they may have been replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.internet import ssl

_END = b"-----END CERTIFICATE-----"


class Tls:
    """The TLS settings of connections. The files are read for each connection, because they may have been replaced."""

    def __init__(self, authorities: Path | None, certificate: Path | None, key: Path | None) -> None:
        if key is not None and certificate is None:
            raise ValueError("key has no effect without certificate")
        self._authorities, self._certificate, self._key = authorities, certificate, key

    @property
    def files(self) -> list[Path]:
        """The files that are configured."""
        return [path for path in (self._authorities, self._certificate, self._key) if path is not None]

    def read(self) -> dict[str, Any]:
        """The trusted CAs and the own certificate. ValueError says which file cannot be read."""
        found: dict[str, Any] = {}
        if self._authorities is not None:
            trusted = self._certificates(self._authorities)
            if not trusted:
                raise ValueError(f"{self._authorities}: there is no certificate in PEM form")
            found["trustRoot"] = ssl.trustRootFromCertificates(trusted)
        if self._certificate is not None:
            content = self._content(self._certificate) + (b"\n" + self._content(self._key) if self._key is not None else b"")
            found["clientCertificate"] = self._load(self._certificate, ssl.PrivateCertificate.loadPEM, content)
            between = [one.original for one in self._certificates(self._certificate)[1:]]
            found["extraCertificateOptions"] = {"extraCertChain": between}
        return found

    def _certificates(self, path: Path) -> list[Any]:
        """All certificates in the file."""
        blocks = self._content(path).split(_END)[:-1]
        return [self._load(path, ssl.Certificate.loadPEM, block + _END + b"\n") for block in blocks]

    def __call__(self, host: str) -> Any:
        """A maker of connections to that host. The host's certificate must name it."""
        return ssl.optionsForClientTLS(host, **self.read())

    @staticmethod
    def _content(path: Path) -> bytes:
        try:
            return path.expanduser().read_bytes()
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from None

    @staticmethod
    def _load(path: Path, load: Callable[[bytes], Any], content: bytes) -> Any:
        try:
            return load(content)
        except Exception:  # OpenSSL raises different exceptions for different faults
            raise ValueError(f"{path}: there is no certificate (and key) in PEM form that can be read") from None
