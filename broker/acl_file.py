"""The ACL file of a broker: read at the start, and again on request.

Life: `load` reads the file first of all, and a fault in it prevents the start. `attach_to` puts its rules in force when the
broker exists. `reload` (by SIGHUP, or by the management request `RELOAD`) reads it again and replaces the rules, or keeps the old
ones and says why.

Invariants: the rules in force come from one complete file without an error; a broker that was started without a file has no rules
as long as it runs. Each broker has its own file: nothing of it is replicated, and its checksum shows which brokers have the same.

Reference: docs/reference/acl.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from broker.core.acl import grammar
from broker.core.acl.grammar import BadAcl
from broker.core.acl.rules import Acl
from broker.core.nodes import Refused
from broker.service import Broker
from broker.sessions.principal import Principal

_log = Logger()
_MAX_WARNINGS = 20
"""Lines of the log about rules that are never used; `qpid-config acl-check` has all of them."""


class AclFile:
    """See the module. `path` None: there is no file. `wall` gives seconds since 1970. `quotas` are the limits of connections and
    queues for users without a quota in the file, 0 for none. Fulfils `broker.administration.Extension`."""

    def __init__(self, path: Path | None, wall: Callable[[], float], *, quotas: tuple[int, int] = (0, 0)) -> None:
        self.path = path
        self._acl: Acl | None = None
        self._enforce: Callable[[Acl], None] = lambda acl: None
        self._denied: Callable[[], int] = lambda: 0
        self._wall = wall
        self._quotas = quotas
        self._item: dict[str, Any] = {}

    def attach_to(self, broker: Broker) -> None:
        """Put the rules in force there, now and when they are read again, and answer for them."""
        self._enforce = broker.enforce
        self._denied = lambda: broker.guard.denied
        broker.administration.extensions["acl"] = self
        if self._acl is not None:
            broker.enforce(self._acl)

    def load(self) -> None:
        """Read the file, and put its rules in force. BadAcl gives the reason in one line when this is not possible; then the old
        rules stay."""
        if self.path is None:
            return
        try:
            with self.path.open("rb") as file:
                content = file.read(grammar.MAX_FILE + 1)
        except OSError as error:
            raise BadAcl(f"cannot read the ACL file {self.path}: {error.strerror or error}") from None
        connections, queues = self._quotas
        acl = grammar.read(content.decode(errors="replace"), str(self.path), connections_of_all=connections, queues_of_all=queues)
        self._item = {
            "file": str(self.path),
            "checksum": hashlib.sha256(content).hexdigest()[:16],
            "rules": len(acl.rules) + len(acl.hosts),
            "mode": "allow" if acl.mode.allowed else "deny",
            "unused": len(acl.warnings),
            "loaded": datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "refused": "",
        }
        _log.info("{text}", text=self._said())
        for line in acl.warnings[:_MAX_WARNINGS]:
            _log.warn("{line}", line=line)
        self._acl = acl
        self._enforce(acl)

    def _said(self) -> str:
        item = self._item
        rest = "allowed" if item["mode"] == "allow" else "denied"
        return f"{item['rules']} rules of {item['file']} are in force, the rest is {rest}; checksum {item['checksum']}"

    def reload(self) -> str:
        """`load`, if there is a file. Returns why the rules that were in force stay, "" when they do not."""
        try:
            self.load()
        except BadAcl as error:
            self._item["refused"] = str(error)
            _log.error("{error}; the old rules stay in force", error=str(error))
            return str(error)
        return ""

    # ---- broker.administration.Extension

    def items(self) -> list[dict[str, Any]]:
        """The one item of `QUERY acl`; none without a file."""
        return [self._item | {"denied": self._denied()}] if self._item else []

    def act(self, operation: str, body: dict[str, Any], principal: Principal) -> Deferred[tuple[int, str, dict[str, Any]]]:
        """`RELOAD`."""
        if operation != "RELOAD":
            raise Refused(501, f"this broker does not have the operation {operation!r} on 'acl'")
        if self.path is None:
            raise Refused(409, "this broker was started without --acl-file: it has no rules to reload")
        error = self.reload()
        if error:
            raise Refused(409, f"{error}; the old rules stay in force")
        return succeed((200, self._said(), self.items()[0]))
