"""The access to the API server of Kubernetes: from the options, and otherwise from a pod's environment and file system.

Invariants: the token is read again for each call, because its file is replaced during use. No text contains it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resource_manager.net.endpoints import endpoint
from resource_manager.net.tls import Tls

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Access:
    """The URL of the API server, without a path; the pod's namespace, "" if none was given; the credentials; the
    trusted CAs.
    """

    url: str
    namespace: str
    token: Callable[[], str]
    tls: Tls


def server(value: str) -> str:
    """An option's value: `https://host:port`. ValueError."""
    return endpoint(value, 443, "`kubectl proxy` on this host")


def object_name(value: str) -> str:
    """An option's value: the name of an object. ValueError."""
    if not _NAME.fullmatch(value) or len(value) > 253:
        raise ValueError(f"{value!r} is not the name of an object: small letters, digits, `-` and `.`")
    return value


def access(
    values: Mapping[str, Any], environ: Mapping[str, str], account: Path, give: str = "server=https://host:6443"
) -> Access:
    """The access by the options `server`, `namespace`, `token_file`, `ca_file`, `certificate` and `key`, each None if
    it was not given. ValueError says what is missing, or cannot be read. `give`: how to give a server.
    """
    if values["server"] is None:
        values = _in_cluster(values, environ, account, give)
    token_file: Path | None = values["token_file"]
    found = Access(
        values["server"],
        values["namespace"] or "",
        str if token_file is None else lambda: _token(token_file),
        Tls(values["ca_file"], values["certificate"], values["key"]),
    )
    found.token()  # raises at the start if the token cannot be read
    if found.url.startswith("https:"):
        found.tls.read()
    elif found.tls.files:
        raise ValueError(f"{found.tls.files[0]} has no effect: the server is not https")
    return found


def _in_cluster(values: Mapping[str, Any], environ: Mapping[str, str], account: Path, give: str) -> dict[str, Any]:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ValueError(f"this is not a pod (KUBERNETES_SERVICE_HOST is not set): give {give}")
    found: dict[str, Any] = {"server": server(f"https://{f'[{host}]' if ':' in host else host}:{port}")}
    if values["namespace"] is None:
        found["namespace"] = object_name(_content(account / "namespace"))
    if values["token_file"] is None and values["certificate"] is None:
        found |= {"token_file": account / "token"}
    if values["ca_file"] is None:
        found |= {"ca_file": account / "ca.crt"}
    return {**values, **found}


def _content(path: Path) -> str:
    try:
        return path.expanduser().read_text().strip()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: it is not text") from None


def _token(path: Path) -> str:
    token = _content(path)
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"{path}: there is no token of one line")
    return token
