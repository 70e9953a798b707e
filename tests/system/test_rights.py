"""The rights that the how-to pages name for the user of a tool are enough for what the page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from broker.core import users
from tests.cli.running import ROOT, run
from tests.system.harness import ask, eventually, standalone
from tests.system.test_drain import message
from tests.system.traffic import send

pytestmark = pytest.mark.system
KEYS = {mechanism: users.derive(mechanism, "pencil", b"salt" * 4) for mechanism in users.HASHES}


def words(page: str, begin: str, end: str) -> list[str]:
    """The plain words in code style between two texts of a page."""
    text = (ROOT / "docs/howto" / page).read_text()
    return re.findall(r"`([a-z]+)`", text[text.index(begin) :].partition(end)[0])


def guarded(folder: Path, rights: list[str]) -> Any:
    """A running broker at which ann has these rights only; tests ask it as anonymous."""
    folder.mkdir()
    (folder / "users").write_text(f"{users.line_of('ann', KEYS)}\n")
    rules = ["acl allow anonymous all", *(f"acl allow ann@QPID {right}" for right in rights), "acl deny all all"]
    (folder / "rules").write_text("".join(f"{line}\n" for line in rules))
    login = ("--users", str(folder / "users"), "--sasl-mechanisms", "SCRAM-SHA-512,SCRAM-SHA-256,ANONYMOUS")
    return standalone(folder, *login, "--acl-file", str(folder / "rules"))


def methods(kind: str, names: list[str]) -> list[str]:
    return [f"access method schemaclass={kind} name={name}" for name in names]


def test_the_rights_for_a_drain_are_enough_to_check_it_do_it_and_cancel_it(tmp_path: Path) -> None:
    at_source = words("scale-down.md", "- at the source `access method`", "- at the target")
    at_target = words("scale-down.md", "- at the target `access method`", "- at the source the rights")
    reads = ["access query", "access queue", "consume queue"]
    writes = ["access query", "create queue", "create exchange", "bind exchange", "publish exchange", "access exchange"]
    (tmp_path / "password").write_text("pencil\n")
    (tmp_path / "password").chmod(0o600)
    login = ("--password-file", tmp_path / "password")
    with (
        guarded(tmp_path / "old", [*reads, *methods("drain", at_source)]) as old,
        guarded(tmp_path / "new", [*writes, "access queue", *methods("drain", at_target)]) as new,
    ):
        old.create("queue", "orders")
        assert send(old.address, "orders", [message("orders", 0)]) == 1
        between = ("--from", f"ann@{old.address}", "--to", f"ann@{new.address}", *login)
        for more in ("--check", "--spread=0", "--cancel"):
            found = run("qpid-drain", *between, more)
            assert (found.status, found.err) == (0, ""), more


def test_the_rights_for_routes_are_enough_for_each_command(tmp_path: Path) -> None:
    _, *queries = words("routes.md", "In `east`, the user who manages", "`access method`")
    _, *names = words("routes.md", "In `east`, the user who manages", ".\n")[len(queries) + 1 :]
    (tmp_path / "password").write_text("pencil\n")
    (tmp_path / "password").chmod(0o600)
    rights = [*(f"access query schemaclass={name}" for name in queries), *methods("route", names)]
    with standalone(tmp_path / "west") as west, guarded(tmp_path / "east", rights) as east:
        west.create("queue", "out")
        east.create("queue", "in")
        at = f"ann@{east.address}"
        for command in (
            ("queue", "add", at, west.address, "in", "out"),
            ("route", "add", at, west.address, "amq.topic", "news.#"),
            ("route", "list", at),
            ("link", "list", at),
            ("route", "map", at),
            ("queue", "del", at, west.address, "in", "out"),
            ("route", "flush", at),
        ):
            found = run("qpid-route", *command, "--password-file", tmp_path / "password")
            assert (found.status, found.err) == (0, ""), command


def test_the_rights_for_a_dynamic_route_at_its_source_are_enough_to_follow_bindings_and_to_end(tmp_path: Path) -> None:
    of_all = words("routes.md", "If `west` has an ACL file, this user", "In `east`")
    more = words("routes.md", "If `west` has an ACL file, the user in", "To end it")
    assert (of_all, more) == (["west", "ha", "sequence", "find", "left"], ["west", "exchange", "binding"])
    text = " ".join((ROOT / "docs/howto/routes.md").read_text().split())
    asked = ["access queue", "consume queue", "create queue", "bind exchange", "delete queue", "unbind exchange"]
    assert [right for right in asked if f"`{right}`" not in text] == []
    queries = [f"access query schemaclass={kind}" for kind in ("ha", *more[1:])]
    (tmp_path / "password").write_text("ann pencil\n")
    with (
        guarded(tmp_path / "west", [*asked, *queries, *methods("sequence", of_all[3:])]) as west,
        standalone(tmp_path / "east", "--route-passwords", str(tmp_path / "password")) as east,
    ):
        between = (east.address, f"ann@{west.address}", "amq.topic")
        east.create("queue", "in")
        binding = {"exchange": "amq.topic", "queue": "in", "key": "k"}

        def bound() -> list[str]:
            return [item["key"] for item in ask(west.address, "QUERY", "binding", body={"exchange": "amq.topic"})["items"]]

        assert run("qpid-route", "dynamic", "add", *between).status == 0
        for operation, keys in (("CREATE", ["k"]), ("DELETE", [])):
            ask(east.address, operation, "binding", body=binding)
            eventually(bound, keys.__eq__, f"the bindings are {keys}")
        (item,) = ask(east.address, "QUERY", "route")["items"]
        assert (item["state"], item["lastError"]) == ("Operational", "")
        assert run("qpid-route", "dynamic", "del", *between).status == 0
        eventually(lambda: ask(east.address, "QUERY", "route")["items"], lambda items: items == [], "the end of the route")
