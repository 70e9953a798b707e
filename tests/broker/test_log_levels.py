"""The lines of a log file."""

from __future__ import annotations

from proton import Condition
from twisted.logger import Logger, LogLevel, capturedLogs, eventAsText

from broker.log_levels import text_of
from tests.broker.clients import bench

_log = Logger()
FORGED = "bye\n2026-11-28 04:10:00.000 info audit: root@QPID from 10.0.0.1:5: delete queue name=q: 204 deleted\x1b[2J\u2028"


def test_what_a_client_says_begins_no_line_and_controls_no_terminal() -> None:
    """Breaks when the reason for which a client closes its connection is written as it is: it would forge the audit log."""
    with bench() as b, capturedLogs() as events:
        client = b.client()
        client.connection.condition = Condition("app:over", FORGED)
        client.connection.close()
        client.pump()
        (told,) = [each for each in events if "app:over" in eventAsText(each)]
    assert text_of(told).endswith(f"ended: app:over: {FORGED.encode('unicode_escape').decode()}")
    assert text_of(told).isprintable()


def test_the_traceback_of_a_failure_is_below_its_text_and_no_line_of_it_begins_an_event() -> None:
    with capturedLogs() as events:
        try:
            raise ValueError(FORGED)
        except ValueError:
            _log.failure("{who} has failed", who="a\rb", level=LogLevel.error)
    first, *traceback = text_of(events[0]).split("\n")
    assert first == "a\\rb has failed"
    assert traceback[0].startswith("\tTraceback")
    assert all(line[:1] == "\t" and line[1:].isprintable() for line in traceback)
