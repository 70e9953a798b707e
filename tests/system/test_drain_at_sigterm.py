"""A broker with the option to drain at SIGTERM, as a whole process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import proton
import pytest

from tests.system.harness import BrokerProcess, ask, cluster, eventually, free_ports, standalone
from tests.system.tcp_proxy import tcp_proxy
from tests.system.traffic import send, take

pytestmark = pytest.mark.system
MESSAGES = 300


def message(number: int) -> bytes:
    made: Any = proton.Message(body=f"{number}/" + "x" * 3000, id=number)
    return bytes(made.encode())


SENT = [message(number) for number in range(MESSAGES)]


def fill(broker: BrokerProcess) -> None:
    broker.create("queue", "orders")
    assert send(broker.address, "orders", SENT) == MESSAGES


def test_blocking_sigterm_is_the_broker_s_own_whatever_its_rules_and_it_shuts_down_when_it_is_empty(tmp_path: Path) -> None:
    """Blocking SIGTERM: it is the broker's own signal, and needs no program that masks it."""
    with standalone(tmp_path / "new") as new, standalone(tmp_path / "old", "--drain-to", new.address) as old:
        fill(old)
        old.stop()
        (old.store / "rules").write_text("acl deny all all\n")
        old.options += ["--acl-file", "rules"]
        old.start()
        eventually(old.log, lambda text: text.count("Listening on") == 2, "the broker listening")
        assert old.stop() == 0, old.log()
        assert take(new.address, "orders", MESSAGES) == SENT
        assert f"{MESSAGES} messages moved; this broker is empty, and was released" in old.log()
        old.options.clear()
        old.start()
        old.wait_for("standalone")
        assert ask(old.address, "QUERY", "drain")["items"][0]["released"]


STOPS_WHEN_IT_LISTENS = """
import builtins, os, signal
from cli.commands.qpidd import main
say = builtins.print
def told(text, **options):
    say(text, **options)
    if text.startswith("Listening on"):
        os.kill(os.getpid(), signal.SIGTERM)
builtins.print = told
main()
"""


def test_a_broker_can_be_told_to_stop_as_soon_as_it_says_that_it_listens(tmp_path: Path) -> None:
    words = ["--port", "0", "--data-dir", str(tmp_path / "store")]
    call = [sys.executable, "-c", STOPS_WHEN_IT_LISTENS, *words]
    told = subprocess.run(call, capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, "stopping" in told.stderr) == (0, True), told.stderr


def test_without_a_deadline_a_drain_at_sigterm_waits_for_a_target_that_is_away(tmp_path: Path) -> None:
    with standalone(tmp_path / "new") as new, tcp_proxy(new.address) as between:
        with standalone(tmp_path / "old", "--drain-to", between.address) as old:
            fill(old)
            between.cut()
            old.signal(signal.SIGTERM)
            eventually(old.log, lambda text: "cannot be reached" in text and "trying again" in text, "the drain waiting")
            between.mend()
            assert old.process is not None
            assert old.process.wait() == 0, old.log()
            assert f"{MESSAGES} messages moved; this broker is empty, and was released" in old.log()
        assert take(new.address, "orders", MESSAGES) == SENT


def connecting_to(port: int) -> int:
    """How many connections to this port of loopback have sent a SYN, and got no answer."""
    lines = Path("/proc/net/tcp").read_text().splitlines()
    return sum(fields[2].endswith(f":{port:04X}") and fields[3] == "02" for fields in map(str.split, lines))


def test_sigint_while_a_drain_connects_does_not_end_a_broker_that_has_messages_with_0(tmp_path: Path) -> None:
    with ExitStack() as stack:
        target = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = target.getsockname()[1]
        for _ in range(4):  # these fill its queue of connections, so later ones get no answer
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        full = eventually(lambda: connecting_to(port), bool, "a full queue")
        old = stack.enter_context(standalone(tmp_path / "old", "--drain-to", f"127.0.0.1:{port}"))
        fill(old)
        old.signal(signal.SIGTERM)
        eventually(lambda: connecting_to(port), lambda count: count > full, "the drain connecting")
        old.signal(signal.SIGINT)
        assert old.process is not None
        assert old.process.wait() == 75, old.log()
        assert f"{MESSAGES} messages" in old.log()
        assert "are left in" in old.log()


def test_a_drain_at_sigterm_ends_by_its_deadline_or_a_second_signal_keeps_the_store_and_goes_on_later(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    with cluster(tmp_path / "old", 1, "--drain-to", f"127.0.0.1:{port}", "--drain-deadline", "0.5") as alone:
        old = alone.brokers[0]
        fill(old)
        assert old.stop() == 75, old.log()
        assert "cannot be reached" in old.log()
        assert f"{MESSAGES} messages" in old.log()
        assert "are left in" in old.log()
        new = BrokerProcess(tmp_path / "new", port, [])
        new.start()
        try:
            new.wait_for("standalone")
            old.options[-1] = "600"
            old.start()
            alone.promote(old)
            new.freeze()
            old.signal(signal.SIGTERM)
            eventually(old.log, lambda text: text.count("draining to") == 2, "the second drain")
            assert old.stop() == 75, "it did not wait for its deadline"
            new.signal(signal.SIGCONT)
            old.start()
            alone.promote(old)
            assert old.stop() == 0, old.log()
            assert take(new.address, "orders", MESSAGES) == SENT
        finally:
            new.signal(signal.SIGCONT)
            new.kill()
        new.check_log()
