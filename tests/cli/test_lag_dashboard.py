"""The dashboard's server on loopback: what it hands out, to whom it does not, and what becomes of the page when Spark fails.

The child that makes reports is a real process here, only not with Spark in it: a few lines of Python that answer as it does.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from click.testing import CliRunner
from twisted.internet import reactor as the_reactor
from twisted.internet.defer import DeferredList
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from cli.lag import web
from cli.lag.qpid_lag import main
from cli.lag.supervisor import Supervisor
from cli.lag.web import Board, Site, bounded
from tests.spark_analytics import reports
from tests.spark_analytics.browsing import Browser

reactor: Any = the_reactor
Answer = tuple[int, dict[str, str], bytes]


@asynccontextmanager
async def serving(board: Board, **more: Any) -> AsyncIterator[int]:
    """The board on a port of its own."""
    door: Any = bounded(Site(board, reactor, **more))
    port = reactor.listenTCP(0, door, interface="127.0.0.1")
    try:
        yield port.getHost().port
    finally:
        await port.stopListening()
        for connection in list(door.protocols):
            connection.transport.abortConnection()


def ask(port: int, path: str = "/", *, method: str = "GET", host: str | None = None, **headers: str) -> Answer:
    """One request, from another thread."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        given = {"Host": host or f"127.0.0.1:{port}"} | {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=given, body=b"x" * 4000 if method == "POST" else None)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for it."""
    for _ in range(2000):
        if is_so():
            return
        await deferLater(reactor, 0.01, lambda: None)
    raise AssertionError("it did not come to that within 20 s")


# ---- what is handed out


def test_the_metrics_say_how_long_a_report_lasts() -> None:
    """Breaks when an alert takes a dashboard that makes a report every ten minutes for one that makes none."""
    board = Board(600.0)
    board.report(reports.made())
    assert b'understudy_lag_refresh_seconds{cluster="demo"} 600\n' in board.metrics()


@pytest_twisted.ensureDeferred
async def test_the_page_comes_under_its_policy_and_only_once_as_long_as_nothing_changes() -> None:
    board = Board()
    board.report(reports.made())
    async with serving(board) as port:
        status, headers, body = await deferToThread(ask, port)
        assert status == 200
        assert "connect-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert b'data-live="/report"' in body
        again = await deferToThread(ask, port, If_None_Match=headers["etag"])
        assert again[0] == 304
        assert again[2] == b""
        head = await deferToThread(ask, port, method="HEAD")
        assert (head[0], head[2], head[1]["etag"]) == (200, b"", headers["etag"])
        board.trouble("Spark fell over")
        changed = await deferToThread(ask, port, If_None_Match=headers["etag"])
        assert changed[0] == 200
        assert b"Spark fell over" in changed[2]


@pytest_twisted.ensureDeferred
async def test_two_viewers_wait_for_the_next_report_and_both_get_it() -> None:
    board = Board()
    board.report(reports.made())
    async with serving(board) as port:
        waiting = [deferToThread(ask, port, f"/report?after={board.tag}") for _ in range(2)]
        await until(lambda: board.waiting == 2)
        board.report(reports.made(seed=2))
        answers = await DeferredList(waiting, fireOnOneErrback=True)
        for _, (status, _, body) in answers:
            assert status == 200
            assert json.loads(body)["report"]["cluster"] == "demo"
        assert board.waiting == 0


@pytest_twisted.ensureDeferred
async def test_trouble_is_told_without_the_report_that_a_viewer_has_already() -> None:
    board = Board()
    board.report(reports.made())
    async with serving(board) as port:
        before = board.tag
        board.trouble("no space")
        _, _, body = await deferToThread(ask, port, f"/report?after={before}")
        assert json.loads(body) == {"tag": board.tag, "problem": "no space", "doing": "", "report": None}
        _, _, body = await deferToThread(ask, port, "/report?after=of-another-run")
        assert json.loads(body)["report"]["cluster"] == "demo"


@pytest_twisted.ensureDeferred
async def test_a_viewer_who_waits_in_vain_or_goes_away_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "HOLD_S", 0.05)
    board = Board()
    async with serving(board) as port:
        assert (await deferToThread(ask, port, f"/report?after={board.tag}"))[0] == 304
        monkeypatch.setattr(web, "HOLD_S", 3600.0)
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", f"/report?after={board.tag}")
        await until(lambda: board.waiting == 1)
        connection.close()
        await until(lambda: board.waiting == 0)
        monkeypatch.setattr(web, "MAX_WAITING", 0)
        status, headers, _ = await deferToThread(ask, port, f"/report?after={board.tag}")
        assert (status, headers["retry-after"]) == (503, "5")


# ---- to whom not


@pytest_twisted.ensureDeferred
async def test_a_name_that_somebody_made_to_point_here_gets_nothing() -> None:
    board = Board()
    board.report(reports.made())
    async with serving(board, names=frozenset({"lag.example"})) as port:
        for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example", "[evil]"):
            for path in ("/", "/report", "/x"):
                status, _, body = await deferToThread(ask, port, path, host=host)
                assert (status, b"demo" in body) == (421, False), host
        for host in ("localhost", f"LOCALHOST:{port}", "127.0.0.1", "[::1]:80", "192.0.2.7", "lag.example"):
            assert (await deferToThread(ask, port, host=host))[0] == 200, host


@pytest_twisted.ensureDeferred
async def test_there_is_one_page_to_look_at_and_nothing_to_send() -> None:
    async with serving(Board()) as port:
        for path in ("/x", "/../etc/passwd", "//", "/report/x", "/%2e%2e/", "/favicon.ico"):
            assert (await deferToThread(ask, port, path))[0] == 404, path
        assert (await deferToThread(ask, port, method="DELETE"))[0] == 405
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            await deferToThread(ask, port, method="POST")
        assert (await deferToThread(ask, port))[0] == 200


# ---- Spark, and its failing

REPORTS = Path(__file__).parents[2]


def child(script: str) -> tuple[str, ...]:
    """A process that answers each request as the script says; `n` counts them, `report` is a report."""
    head = f"""
import json, os, sys
sys.path.insert(0, {str(REPORTS)!r})
from tests.spark_analytics import reports
report = reports.made(queues=2)
def say(**words): print(json.dumps(words), flush=True)
for n, line in enumerate(sys.stdin):
"""
    return sys.executable, "-c", head + "\n".join("    " + line for line in script.splitlines())


@asynccontextmanager
async def keeping(board: Board, script: str) -> AsyncIterator[Supervisor]:
    """A supervisor with such a child."""
    supervisor = Supervisor(reactor, board, {"path": "x"}, refresh_s=0.01, command=child(script))
    supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop()


@pytest_twisted.ensureDeferred
async def test_a_refusal_is_shown_and_asked_again() -> None:
    board = Board()
    async with keeping(board, 'say(refused="no telemetry yet") if n == 0 else say(report=report)'):
        await until(lambda: board.problem == "no telemetry yet")
        await until(lambda: b'"cluster":"demo"' in board.page())
        assert board.problem == ""


@pytest_twisted.ensureDeferred
async def test_whoever_waits_for_the_first_report_sees_how_far_it_is() -> None:
    board = Board()
    async with keeping(board, 'say(progress="adding up")'):
        await until(lambda: b'"doing":"adding up"' in board.page())
        assert json.loads(board.news(""))["doing"] == "adding up"


@pytest_twisted.ensureDeferred
async def test_a_child_that_the_telemetry_has_outgrown_is_replaced_at_once_and_nothing_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("cli.lag.supervisor.RESTART_S", 3600.0)
    board, first = Board(), tmp_path / "first"
    script = f"""
if os.path.exists({str(first)!r}):
    say(report=report | {{"cluster": "the second child's"}})
else:
    open({str(first)!r}, "w").close()
    say(report=report)
    say(outgrown=True)
    break
"""
    problems: list[str] = []
    monkeypatch.setattr(board, "trouble", problems.append)
    async with keeping(board, script.strip()):
        await until(lambda: b"the second child's" in board.page())
    assert problems == []


@pytest_twisted.ensureDeferred
async def test_a_child_that_dies_is_replaced_and_the_last_report_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.lag.supervisor.RESTART_S", 0.05)
    board = Board()
    async with keeping(board, "say(report=report) if n == 0 else os.kill(os.getpid(), 9)"):
        await until(lambda: "signal 9" in board.problem)
        assert b'"cluster":"demo"' in board.page()
        await until(lambda: board.problem == "")


@pytest_twisted.ensureDeferred
async def test_spark_failing_in_the_middle_is_said_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.lag.supervisor.RESTART_S", 0.05)
    board = Board()
    script = 'say(progress="reading"); say(failed="Spark failed: out of memory") if n else say(report=report)\nif n: break'
    async with keeping(board, script):
        await until(lambda: board.problem.startswith("Spark failed: out of memory"))
        assert b'"cluster":"demo"' in board.page()


@pytest_twisted.ensureDeferred
async def test_nonsense_from_the_child_breaks_no_page() -> None:
    board = Board()
    async with keeping(board, 'print("NaN is not a report {", flush=True)'):
        await until(lambda: "could not be shown" in board.problem)
        assert board.page()


# ---- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as running:
        yield running


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("wrong_s", [-600, 600], ids=["behind", "ahead"])
async def test_a_page_tells_ages_by_the_servers_clock_and_knows_how_often_a_report_is_made(
    browser: Browser, wrong_s: int
) -> None:
    """The clock of the machine that shows the page is ten minutes wrong."""
    board = Board(refresh_s=300)

    def made(ago_s: float) -> None:
        board.report(reports.made() | {"made_ms": round((time.time() - ago_s) * 1000), "cluster": f"{ago_s} s ago"})

    made(0)
    async with serving(board) as port:
        tab = await deferToThread(browser.open, f"http://127.0.0.1:{port}/")
        await deferToThread(tab.evaluate, f"(() => {{ const now = Date.now; Date.now = () => now() + {wrong_s * 1000}; }})()")
        for ago_s, word in ((240, "Can I lose the primary now?"), (460, "Silent")):
            await until(lambda: board.waiting == 1)
            made(ago_s)
            await deferToThread(tab.wait, f"document.querySelector('h1').innerText === '{ago_s} s ago'")
            assert await deferToThread(tab.text, ".verdict .word") == word, ago_s


@pytest_twisted.ensureDeferred
async def test_an_open_page_follows_and_nothing_that_somebody_did_is_lost(browser: Browser) -> None:
    board = Board()
    async with serving(board) as port:
        tab = await deferToThread(browser.open, f"http://127.0.0.1:{port}/")

        def waits() -> None:
            assert "first summary" in tab.text(".waiting")

        await deferToThread(waits)
        board.report(reports.made())

        def places() -> list[float]:
            found: list[float] = tab.evaluate("[scrollY, document.querySelector('#card-queues .scroll').scrollTop]")
            return found

        def does_things() -> list[float]:
            tab.wait("document.querySelector('.verdict')")
            tab.click("#card-queues tbody tr:nth-child(3) button")
            tab.focus("#card-queues tbody tr:nth-child(5) button")
            tab.evaluate("document.querySelector('#card-queues .scroll').scrollTop = 20")
            tab.evaluate("scrollTo(0, 700)")
            tab.evaluate("getSelection().selectAllChildren(document.querySelector('#card-lag h2'))")
            return places()

        left = await deferToThread(does_things)
        assert all(place > 0 for place in left)
        later = reports.made(seed=5)
        later["cluster"] = "renamed"
        board.report(later)

        def finds_them_as_they_were() -> None:
            tab.wait("document.querySelector('h1').innerText === 'renamed'")
            assert tab.text("#h-detail") == "mail.0"
            assert places() == left
            assert tab.text(":focus") == "orders.1"
            assert tab.evaluate("String(getSelection())") == "Lag over time"

        await deferToThread(finds_them_as_they_were)
        board.trouble("Spark failed: it was killed. Spark is started again.")

        def is_told() -> None:
            tab.wait("document.querySelector('.notice')")
            assert "it was killed" in tab.text(".notice")
            assert "figures are older" in tab.text(".notice")
            assert tab.text(".live") == "last summary failed"
            assert tab.count("#card-lag .line") == 3, "the last report stays"
            assert {url.split("?")[0] for url in browser.asked_for()} == {
                f"http://127.0.0.1:{port}{path}" for path in ("/", "/report")
            }
            assert browser.complaints() == []

        await deferToThread(is_told)

    def sees_that_nobody_answers() -> None:
        tab.wait("document.querySelector('.live').innerText === 'not connected'")
        tab.close()

    await deferToThread(sees_that_nobody_answers)


# ---- the command


def test_a_wrong_address_window_or_folder_is_one_line_before_anything_starts(tmp_path: Path) -> None:
    cases = {
        ("--listen", "somewhere"): "is not an IP address",
        ("--since", "yesterday"): "--since yesterday is not a time",
        ("--window", "7s"): "try 10s, 1m or 1h",
        ("--compare", "long"): "--compare",
        ("--output", str(tmp_path / "no" / "page.html")): "create it first",
        ("--input", str(tmp_path / "none")): "there is no folder",
    }
    for words, sentence in cases.items():
        result = CliRunner().invoke(main, ["dashboard", "--input", str(tmp_path), *words])
        assert result.exit_code == (1 if words[0] in ("--output", "--input") else 2), words
        assert sentence in result.stderr
        assert result.stderr.count("\n") == 1


def test_a_picture_without_chromium_is_refused_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(main, ["dashboard", "--input", str(tmp_path), "--png", str(tmp_path / "a.png")])
    assert result.exit_code == 1
    assert "apt-get install chromium" in result.stderr
