"""The process that keeps Spark, and the summaries that ask it: over real sockets, with and without Spark behind them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from cli.lag import keep
from cli.lag.qpid_lag import main
from spark_analytics import archive, requests, session
from spark_analytics.errors import Refused, WrongUsage
from spark_analytics.jobs.summarise import Report, Request, summarise
from tests.spark_analytics.conftest import COMPARED, START_MS

PATIENCE_S = 120.0
Said = Callable[[str], None]
PYTHON = [sys.executable, "-P", "-c"]
SAME_CODE = {"PYTHONPATH": str(Path(keep.__file__).parents[2])}
"""For a process with the code of this one. It would take that of the folder in which it starts, which is another program."""


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for this user's running programs."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "understudy"


def run(*arguments: str) -> Result:
    """The command, in this process."""
    return CliRunner().invoke(main, arguments)


def _of_input(question: keep.Question, said: Said) -> Report:
    said("reading")
    return {"input": question["request"]["path"]}


def _nothing() -> None:
    pass


@contextmanager
def serving(make: keep.Make = _of_input, cancel: Callable[[], None] = _nothing, mine: Any = None) -> Iterator[Path]:
    """What keeps Spark, in a thread and without Spark unless `make` has it; and its address."""
    with keep.alone() as listening:
        listening.listen()

        def serve() -> None:
            with suppress(OSError):  # the end: see below
                keep.serve(listening, keep.program(None) if mine is None else mine, make, cancel)

        thread = Thread(target=serve)
        thread.start()
        try:
            yield keep.address()
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def ask(path: str = ".") -> Report | None:
    """The answer to a request."""
    return keep.ask(Request(path, now_ms=START_MS), None)


def connected(path: Path) -> socket.socket:
    """A client that says what the test has it say."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(PATIENCE_S)
    client.connect(str(path))
    return client


def question_of(request: Request) -> bytes:
    """What a client sends."""
    place = [os.stat(request.path).st_dev, os.stat(request.path).st_ino]
    asked = {"path": request.path, "now_ms": request.now_ms, "nbytes": request.nbytes, "files": request.files}
    words = {"program": keep.program(None), "cwd": os.getcwd(), "place": place, "request": asked}
    return json.dumps(words).encode() + b"\n"


def has_ended(client: socket.socket) -> bool:
    """Whether the other side ends the connection without a word, as it does at the end of its patience."""
    with suppress(ConnectionError):
        return client.recv(1) == b""
    return True


def test_a_report_comes_from_the_process_that_is_kept_and_without_one_there_is_none() -> None:
    assert ask() is None
    with serving():
        assert ask() == {"input": "."}
        assert ask("/") == {"input": "/"}
    assert ask() is None


def test_each_word_of_a_request_arrives() -> None:
    of_times: dict[str, Any] = {"since_ms": START_MS, "until_ms": START_MS + 7, "window_ms": 6, "compare_before_ms": 5}
    of_input: dict[str, Any] = {"nbytes": 4, "files": 3, "unfinished": 2, "unreadable": 1, "cluster": "c", "max_rows": 8}
    request = Request(".", START_MS + 9, objective_ms=250.0, target=0.9, compare_ms=(10, 11), **of_times, **of_input)
    with serving(lambda question, _: dict(question["request"])):
        told = keep.ask(request, None)
    assert told is not None
    assert told == asdict(request) | {"compare_ms": [10, 11]}
    assert [name for name, value in told.items() if value == asdict(Request(".", START_MS))[name]] == [
        "path",
        "windows_to",
        "kafka",
    ]


@pytest.mark.parametrize("kind", [Refused, WrongUsage])
def test_what_is_refused_there_is_refused_here_in_the_same_words(kind: type[Refused]) -> None:
    def refuses(_: keep.Question, __: Said) -> Report:
        raise kind("do this")

    with serving(refuses):
        for _ in range(2):
            with pytest.raises(Refused, match="do this") as refused:
                ask()
            assert (type(refused.value), str(refused.value)) == (kind, "do this")


def test_another_version_another_master_and_what_is_not_for_it_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(mine=["0.0.1"]):
        assert ask() is None
    with serving():
        assert keep.ask(Request(".", now_ms=START_MS), "local[7]") is None
        assert keep.ask(Request(".", now_ms=START_MS, windows_to="windows"), None) is None
        assert keep.ask(Request(".", now_ms=START_MS, cluster="c" * keep.MAX_REQUEST), None) is None
        assert ask("nowhere") is None
        monkeypatch.setenv(session.SUBMITTED, "1")
        assert ask() is None


def test_a_process_without_the_clients_groups_is_not_asked_because_it_may_not_read_the_same_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = keep.program(None)
    groups = os.getgroups()
    with serving(mine=kept):
        monkeypatch.setattr(os, "getgroups", lambda: [*groups, 4242])
        assert ask() is None
        monkeypatch.setattr(os, "getgroups", lambda: groups[::-1])
        assert ask() == {"input": "."}
        monkeypatch.setattr(os, "getegid", lambda: 4242)
        assert ask() is None


def test_a_second_client_does_not_wait_for_its_turn() -> None:
    begun, ending, first = Event(), Event(), []

    def waits(question: keep.Question, said: Said) -> Report:
        begun.set()
        assert ending.wait(PATIENCE_S)
        return _of_input(question, said)

    with serving(waits):
        client = Thread(target=lambda: first.append(ask()))
        client.start()
        assert begun.wait(PATIENCE_S)
        assert ask() is None
        ending.set()
        client.join()
        assert first == [{"input": "."}]
        assert ask() == {"input": "."}


def test_a_client_that_sends_nothing_or_too_much_or_no_request_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "PATIENCE_S", 0.2)
    with serving() as path:
        for sent in (b"", b"{", b"{}"):
            with connected(path) as client:
                client.sendall(sent)
                assert has_ended(client), sent
        for sent in (b"[]\n", b"3\n", b"no\n", b"[" * (keep.MAX_REQUEST - 1) + b"\n", b'"' + b"x" * keep.MAX_REQUEST + b'"\n'):
            with connected(path) as client:
                client.sendall(sent)
                client.settimeout(PATIENCE_S)
                said = b""
                with suppress(ConnectionError):
                    said = client.recv(1000)
                assert said in (b"", b'{"other":true}\n'), sent[:10]
        assert ask() == {"input": "."}


def test_what_is_done_for_a_client_that_has_gone_is_cancelled_and_the_next_one_is_served() -> None:
    cancelled, begun, ended = Event(), Event(), Event()

    def until_cancelled(question: keep.Question, said: Said) -> Report:
        if begun.is_set():
            return _of_input(question, said)
        begun.set()
        try:
            assert cancelled.wait(PATIENCE_S)
            raise RuntimeError("Spark says that its job was cancelled")
        finally:
            ended.set()

    with serving(until_cancelled, cancelled.set) as path:
        with connected(path) as client:
            client.sendall(question_of(Request(".", now_ms=START_MS)))
            assert begun.wait(PATIENCE_S)
        assert ended.wait(PATIENCE_S)
        assert ask() == {"input": "."}


def test_if_spark_fails_the_process_ends_and_the_client_goes_its_own_way() -> None:
    with keep.alone() as listening:
        listening.listen()

        def fails(_: keep.Question, __: Said) -> Report:
            raise RuntimeError("out of memory")

        found: list[Report | None] = []
        client = Thread(target=lambda: found.append(ask()))
        client.start()
        with pytest.raises(RuntimeError, match="out of memory"):
            keep.serve(listening, keep.program(None), fails, _nothing)
        client.join()
        assert found == [None]


def test_who_asks_while_it_warms_up_is_answered_and_the_round_that_was_cut_is_made_later() -> None:
    """The first round ends when Spark's job is cancelled, the second one at its next step; then there are two whole ones."""
    begun, cancelled, ended, rounds = [Event(), Event()], Event(), Event(), list[str]()

    def warm(said: Said) -> None:
        number = len(rounds)
        rounds.append("cut")
        if number == 0:
            begun[0].set()
            assert cancelled.wait(PATIENCE_S)
            raise RuntimeError("Spark says that its job was cancelled")
        if number == 1:
            begun[1].set()
            while not ended.wait(0.001):
                said("adding up samples")
        rounds[number] = "whole"

    with keep.alone() as listening:
        listening.listen()
        listening.settimeout(0.05)
        about = {"warm": warm, "rounds": 2}
        thread = Thread(target=keep.serve, args=(listening, keep.program(None), _of_input, cancelled.set), kwargs=about)
        thread.start()
        for each in begun:
            assert each.wait(PATIENCE_S)
            assert ask() == {"input": "."}
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "it waits for its time without a request"
    assert rounds == ["cut", "cut", "whole", "whole"]


def test_a_client_that_asks_while_it_warms_up_and_goes_away_is_no_loss() -> None:
    begun, ended, rounds = Event(), Event(), list[str]()

    def warm(said: Said) -> None:
        rounds.append("begun")
        begun.set()
        while len(rounds) == 1 and not ended.wait(0.001):
            said("reading")

    with keep.alone() as listening:
        listening.listen()
        listening.settimeout(0.05)
        about = {"warm": warm, "rounds": 1}
        thread = Thread(target=keep.serve, args=(listening, [], _of_input, _nothing), kwargs=about)
        thread.start()
        assert begun.wait(PATIENCE_S)
        connected(keep.address()).close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert rounds == ["begun", "begun"]


def test_if_spark_fails_while_it_warms_up_the_process_ends() -> None:
    def fails(_: Said) -> None:
        raise RuntimeError("out of memory")

    with keep.alone() as listening:
        listening.listen()
        with pytest.raises(RuntimeError, match="out of memory"):
            keep.serve(listening, [], _of_input, _nothing, warm=fails, rounds=1)


def test_after_its_time_without_a_request_it_ends() -> None:
    with keep.alone() as listening:
        listening.listen()
        listening.settimeout(0.05)
        keep.serve(listening, [], _of_input, _nothing)
    assert not keep.address().exists()


def test_one_that_is_killed_in_the_middle_is_no_loss_and_the_next_one_takes_its_place() -> None:
    code = (
        "import os, signal; from cli.lag import keep\n"
        "with keep.alone() as listening:\n"
        "    listening.listen(); print('ready', flush=True)\n"
        "    keep.serve(listening, keep.program(None), lambda *_: os.kill(os.getpid(), signal.SIGKILL), lambda: None)\n"
    )
    with subprocess.Popen([*PYTHON, code], stdout=subprocess.PIPE, text=True, env=os.environ | SAME_CODE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            assert ask() is None
            process.wait(PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    assert keep.address().is_socket()
    assert ask() is None
    with serving():
        assert ask() == {"input": "."}


def test_a_second_one_says_in_a_line_that_one_runs_already() -> None:
    with keep.alone():
        assert ask() is None, "it is not ready"
        second = run("keep")
    assert (second.exit_code, second.stdout, second.stderr.count("\n")) == (1, "", 1)
    assert second.stderr.startswith("qpid-lag: `qpid-lag keep` runs already for this user, in ")


def test_a_folder_that_others_may_enter_is_not_used(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving():
        runtime.chmod(0o750)
        assert ask() is None
    refused = run("keep")
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
    assert "is not a folder that only this user can enter" in refused.stderr
    runtime.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert "is not a folder that only this user can enter" in run("keep").stderr
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc")
    assert "set XDG_RUNTIME_DIR to a folder of yours" in run("keep").stderr


def test_a_path_that_is_too_long_for_a_socket_is_refused_before_spark_starts(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime / ("r" * 90)))
    assert ask() is None
    with pytest.raises(Refused, match=f"cannot use {keep.address().parent}: .* too long; set XDG_RUNTIME_DIR"), keep.alone():
        pass
    assert ask() is None


def test_the_process_at_the_other_end_must_be_of_the_same_user(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert keep.is_own(ours)
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        assert not keep.is_own(ours)


def test_without_a_folder_for_running_programs_the_cache_has_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    archive.folder().mkdir()  # as `prepare` makes it: others may enter it
    with serving() as path:
        assert path == tmp_path / "understudy" / "keep" / "lag.sock"
        assert ask() == {"input": "."}


# ---- with Spark


@pytest.fixture
def asked(story: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Request:
    """A request for the story, in words that are only right in its own folder."""
    monkeypatch.chdir(story[0].parent)
    return requests.request_of({"path": story[0].name, "objective_ms": None, "target": 0.99}, START_MS + 400_000)


def test_the_report_is_that_of_the_same_request_byte_for_byte(spark: SparkSession, asked: Request, compared: Report) -> None:
    span = replace(asked, **COMPARED)
    with serving(keep.reports(spark)):
        assert json.dumps(keep.ask(span, None)) == json.dumps(compared | {"input": asked.path})
        with pytest.raises(Refused) as there:
            keep.ask(replace(asked, cluster="nowhere"), None)
    with pytest.raises(Refused) as here:
        summarise(spark, replace(asked, cluster="nowhere"))
    assert str(there.value) == str(here.value)


def test_a_process_that_sees_other_files_makes_no_report(spark: SparkSession, asked: Request, tmp_path: Path) -> None:
    """As where each has a folder for temporary files of its own."""
    question = json.loads(question_of(asked))
    make = keep.reports(spark)
    for wrong in ({"place": [0, 0]}, {"cwd": str(tmp_path / "none")}):
        with pytest.raises(keep.Elsewhere):
            make(question | wrong, lambda _: None)


def test_a_folder_that_gives_an_error_is_left_to_its_client(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / ".a.part").mkdir()  # read like a file
    question = json.loads(question_of(Request(str(tmp_path), now_ms=START_MS)))
    with pytest.raises(keep.Elsewhere):
        keep.reports(spark)(question, lambda _: None)


def test_without_sparks_temporary_folder_it_ends_at_once(
    spark: SparkSession, asked: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the system has removed what nobody used for ten days: Spark would need the folder in the middle of a report."""
    monkeypatch.setattr(spark.sparkContext, "_temp_dir", str(tmp_path / "removed"))
    steps: list[str] = []
    with pytest.raises(keep.Broken, match="removed"):
        keep.reports(spark)(json.loads(question_of(asked)), steps.append)
    assert steps == []


def test_spark_does_not_keep_the_lists_of_files_of_former_reports(spark: SparkSession) -> None:
    java: Any = spark._jvm
    lists = java.org.apache.spark.sql.execution.datasources.FileStatusCache.getOrCreate(spark._jsparkSession)
    assert "NoopCache" in lists.toString()


def test_sparks_job_is_cancelled_for_a_client_that_has_gone_and_the_session_serves_on(
    spark: SparkSession, asked: Request
) -> None:
    make, ends, ended = keep.reports(spark), list[BaseException](), Event()

    def told(question: keep.Question, said: Said) -> Report:
        def said_once(text: str) -> None:
            if text == "reading":  # later steps would find out that nobody listens, without Spark's help
                said(text)

        try:
            return make(question, said_once)
        except BaseException as error:
            ends.append(error)
            raise
        finally:
            ended.set()

    with serving(told, lambda: session.cancel(spark)) as path:
        with connected(path) as client:
            client.sendall(question_of(asked))
            with client.makefile("rb") as lines:
                assert [json.loads(lines.readline())["progress"] for _ in range(2)][1] == "reading"
        assert ended.wait(PATIENCE_S)
        assert "cancel" in str(ends[0]).lower()
        with pytest.raises(Refused, match="no cluster nowhere in there, only demo"):  # Spark has read the lines
            keep.ask(replace(asked, cluster="nowhere"), None)


def test_the_command_makes_its_reports_by_the_process_that_is_kept_until_that_one_is_told_to_end(
    story: tuple[Path, dict[str, Any]], report: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also when the folder where it was started is removed, and while it warms up."""

    def starts(*_: Any, **__: Any) -> SparkSession:
        raise AssertionError("Spark is started")

    code = "from cli.lag import keep, qpid_lag; keep.WARM_S = 120; qpid_lag.main()"  # ready as quickly as it can
    command = [*PYTHON, code, "keep", "--idle", "5"]
    quickly = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}  # the optimising compiler is not worth it for two reports
    begun = tmp_path / "begun"
    begun.mkdir()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=begun, env=os.environ | SAME_CODE | quickly, **pipes) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == f"ready: summaries use this Spark, by {keep.address()}\n"
            begun.rmdir()
            with monkeypatch.context() as patched:
                patched.setattr(session, "start", starts)
                patched.setattr(time, "time", lambda: report["made_ms"] / 1000)
                done = run("summarise", "--input", str(story[0]), "--format", "json")
        finally:
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (0, ("", ""))
    assert not keep.address().exists()
    assert (done.exit_code, done.stderr, done.stdout) == (0, "", json.dumps(report) + "\n")
