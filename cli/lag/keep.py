"""`qpid-lag keep`: a process that keeps Spark running, and makes the reports that `qpid-lag summarise` of the same user asks for.

A short summary spends most of its time on the start of Java, and on the first plans of a Java that has compiled nothing yet.
So the process makes reports that nobody needs, to warm up: one before it listens, the others while nobody asks.

Only a request, steps of progress and a report travel, as lines of JSON, over a socket in a folder that only its user can enter.
Each side checks the other's user. Options, printing, pages and exit codes stay in `summarise`. Requests are answered one at a
time. A client starts its own Spark if it is not answered within a second, if it is another version than the kept process or has
other groups, and if its answer does not come; so a summary never fails because of this process. A report is the same with and
without it: the process works in the client's folder meanwhile, because a report and its errors name the input as it was given; at
other times in the root folder, because the one where it was started may be removed. When a client goes away, its job is
cancelled. An error of the client's files is left to the client. If Spark fails, or its temporary folder is removed, the process
ends.

Of warming up, this holds:

- A client does not wait for it. While a round is made, another thread takes the next client, and answers it with a first step
  at once, so that it does not go away. Spark's jobs for the round are cancelled, and it ends before the next job or step.
- A round and a request are never made at the same time, because both set how Spark makes plans (`jobs/inputs.py`).
- A round counts when it is whole. One that was cut is made again when nobody asks, from the beginning, with new files.
- The time without a request counts from the last request, or from the last round if that is later.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

import click

from cli.lag.shell import Command, master, progress, refuse, version, wipe
from cli.ranges import FloatRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_analytics.errors import Refused
    from spark_analytics.jobs.summarise import Report, Request

TURN_S: Final = 1.0
"""How long a client waits until its request is taken."""
PATIENCE_S: Final = 5.0
"""How long a client may take to send its request, and to read the answer."""
STEP_S: Final = 300.0
"""How long a client waits for the next step."""
MAX_REQUEST: Final = 64 << 10
MAX_ANSWER: Final = 64 << 20
_LOOK_S: Final = 0.1
WARM_S: Final = 1200
"""The length of the story that is summarised first: so many lines that Spark compiles its plans (see `jobs/inputs.py`)."""
WARM_TIMES: Final = 8
"""With the one before the process listens."""
_START_MS: Final = 1_767_600_000_000
_ASKING: Final = "asking the Spark that is kept"
Question = dict[str, Any]
Said = Callable[[str], None]
Make = Callable[[Question, Said], "Report"]
Warm = Callable[[Said], None]


class Gone(Exception):
    """The client has gone away, or has sent no request."""


class Cut(Exception):
    """Somebody asks, so a round of warming up is not needed now."""


class Elsewhere(Exception):
    """This process does not see the same files as the client, or cannot read them."""


class Broken(Exception):
    """This process can make no report any more."""


# ---- what both sides know


def address() -> Path:
    """The socket: in the user's folder for running programs, or else in the user's cache folder."""
    from spark_analytics import archive

    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return (Path(runtime, "understudy") if runtime else archive.folder() / "keep") / "lag.sock"


def is_private(folder: Path) -> bool:
    """Whether it is a folder of this user, which nobody else can enter. OSError."""
    about = folder.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not stat.S_IMODE(about.st_mode) & 0o077


def is_own(peer: socket.socket) -> bool:
    """Whether the process at the other end is of the same user."""
    credentials = struct.Struct("3i")
    _, uid, _ = credentials.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size))
    return bool(uid == os.geteuid())


def program(master: str | None) -> list[Any]:
    """What makes a report: this code, Spark, Java, the master, and the groups of the process, because Spark skips files that it
    may not read. Refused when there is no suitable Java."""
    import pyspark

    from spark_analytics import session

    package = Path(session.__file__).parent
    files = [*package.rglob("*.py"), *Path(__file__).parent.glob("*.py")]
    changed = max((file.stat().st_mtime_ns for file in files), default=0)
    groups = sorted({os.getegid(), *os.getgroups()})
    return [version(), str(package), changed, pyspark.__version__, session.java_version(), master or session.MASTER, groups]


def _line(words: dict[str, Any]) -> bytes:
    return json.dumps(words, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _place(path: str) -> list[int]:
    """What tells a file or folder from all others. OSError."""
    from spark_analytics.locations import here

    about = here(path).stat()
    return [about.st_dev, about.st_ino]


# ---- the client


def ask(request: Request, master: str | None) -> Report | None:
    """The report of the kept process; None if it cannot be had from there. Refused as it was refused there."""
    from spark_analytics import session
    from spark_analytics.errors import Refused, WrongUsage

    if request.kafka is not None or request.windows_to is not None or session.SUBMITTED in os.environ:
        return None
    try:
        if not is_private(address().parent):
            return None
        with socket.socket(socket.AF_UNIX) as kept:
            kept.settimeout(TURN_S)
            kept.connect(str(address()))
            asked = {"cwd": os.getcwd(), "place": _place(request.path), "request": asdict(request)}
            question = _line({"program": program(master)} | asked)
            if not is_own(kept) or len(question) > MAX_REQUEST:
                return None
            kept.sendall(question)
            answer = _answer_of(kept)
    except (OSError, ValueError):
        return None
    if "refused" in answer:
        raise (WrongUsage if answer["usage"] else Refused)(answer["refused"])
    return answer.get("report")


def _answer_of(kept: socket.socket) -> dict[str, Any]:
    """The answer after all steps. OSError, or ValueError if it is not whole."""
    with kept.makefile("rb") as lines:
        while True:
            answer: dict[str, Any] = json.loads(lines.readline(MAX_ANSWER))
            if "progress" not in answer:
                return answer
            progress(answer["progress"])
            kept.settimeout(STEP_S)


# ---- the process


def serve(
    listening: socket.socket,
    mine: list[Any],
    make: Make,
    cancel: Callable[[], None],
    *,
    warm: Warm | None = None,
    rounds: int = 0,
) -> None:
    """Answer requests of the program `mine` one at a time, until none has come for as long as the socket's timeout.

    `make` makes a report. `cancel` is called in another thread, again and again until `make` ends, when the client has gone.
    While nobody asks, `warm` is called until it has ended `rounds` times; when somebody asks, it is cancelled in the same way,
    and its next step raises `Cut`.
    """
    while True:
        try:
            client = None
            while warm is not None and rounds and client is None:
                client, ended = _warmed(listening, warm, cancel)
                rounds -= ended
            client = client or listening.accept()[0]
        except TimeoutError:
            return
        with client, suppress(Gone):
            _answer(client, mine, make, cancel)


def _warmed(listening: socket.socket, warm: Warm, cancel: Callable[[], None]) -> tuple[socket.socket | None, bool]:
    """The client that has come while a round was made, if one has; and whether the round has ended."""
    taken: list[socket.socket] = []

    def cut() -> None:
        if not taken:
            client, _ = listening.accept()
            taken.append(client)
            client.settimeout(PATIENCE_S)
            with suppress(Gone):
                if is_own(client):
                    _say(client, progress=_ASKING)
        cancel()

    with _watched(listening, cut) as asked:

        def said(_: str) -> None:
            if asked.is_set():
                raise Cut

        try:
            warm(said)
            ended = True
        except Exception:
            if not asked.is_set():
                raise
            ended = False
    return (taken[0] if taken else None), ended


def _answer(client: socket.socket, mine: list[Any], make: Make, cancel: Callable[[], None]) -> None:
    from spark_analytics.errors import Refused, WrongUsage

    question = _question(client)
    if question.get("program") != mine:
        _say(client, other=True)
        return
    _say(client, progress=_ASKING)
    with _watched(client, cancel) as gone:
        try:
            _say(client, report=make(question, lambda text: _say(client, progress=text)))
        except Refused as refused:
            _say(client, refused=str(refused), usage=isinstance(refused, WrongUsage))
        except Elsewhere:
            _say(client, other=True)
        except Exception:
            if not gone.is_set():
                raise


def _question(client: socket.socket) -> Question:
    """The request. Gone if none comes in time, or it is too long, or by another user."""
    ends_s, text = time.monotonic() + PATIENCE_S, b""
    try:
        while is_own(client) and not text.endswith(b"\n"):
            client.settimeout(max(0.001, ends_s - time.monotonic()))
            text += client.recv(MAX_REQUEST - len(text)) or b"\n"  # a line that is cut is no JSON
        client.settimeout(PATIENCE_S)
        return dict(json.loads(text))
    except (OSError, ValueError, TypeError, RecursionError):
        raise Gone from None


def _say(client: socket.socket, **words: Any) -> None:
    line = _line(words)
    try:
        client.sendall(line)
    except OSError:
        raise Gone from None


@contextmanager
def _watched(watched: socket.socket, cancel: Callable[[], None]) -> Iterator[Event]:
    """Cancel while the context lasts, from when there is something to read; then the event is set. A client that has asked says
    nothing more: this is its end. Where one listens, it is the next client."""
    readable, ended = Event(), Event()

    def watch() -> None:
        while not ended.is_set() and not select.select([watched], [], [], _LOOK_S)[0]:
            pass
        while not ended.is_set():
            readable.set()
            cancel()
            ended.wait(_LOOK_S)

    watching = Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield readable
    finally:
        ended.set()
        watching.join()


def reports(spark: SparkSession) -> Make:
    """A function that makes the requested reports in this session."""
    from spark_analytics.jobs.summarise import Request, summarise

    temporary = Path(spark.sparkContext._temp_dir)

    def make(question: Question, said: Said) -> Report:
        asked = Request(**question["request"])
        if not temporary.is_dir():
            raise Broken(f"Spark's temporary folder {temporary} has been removed: start `qpid-lag keep` again")
        try:
            with chdir(question["cwd"]):
                if _place(asked.path) != question["place"]:
                    raise Elsewhere
                return summarise(spark, asked, said)
        except ConnectionError:  # of Java
            raise
        except OSError:
            raise Elsewhere from None

    return make


def warming(spark: SparkSession) -> Warm:
    """A function that makes a report that nobody needs, so that Java has loaded and compiled what the next one uses."""
    from spark_analytics import demo_data
    from spark_analytics.jobs.summarise import summarise
    from spark_analytics.requests import request_of

    def warm(said: Said) -> None:
        with tempfile.TemporaryDirectory(prefix="qpid-lag-") as folder:
            demo_data.write(folder, demo_data.Shape(_START_MS, seconds=WARM_S))
            asked = request_of({"path": folder, "objective_ms": None, "target": 0.99}, _START_MS + 2 * WARM_S * 1000)
            summarise(spark, asked, said)

    return warm


@contextmanager
def alone() -> Iterator[socket.socket]:
    """The socket, bound, for the only process of this user that keeps Spark. No client connects before it listens. Refused if
    there is another such process, or no folder for the socket.
    """
    from spark_analytics.errors import Refused

    path = address().absolute()
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        private = is_private(folder)
        lock = (folder / "lag.lock").open("w") if private else None
    except OSError as error:
        raise _unusable(folder, error) from None
    if lock is None:
        raise Refused(f"{folder} is not a folder that only this user can enter: give it the mode 0700, or remove it")
    with lock, socket.socket(socket.AF_UNIX) as listening:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"`qpid-lag keep` runs already for this user, in {folder}: end that one first") from None
        try:
            path.unlink(missing_ok=True)  # of a process that was killed
            listening.bind(str(path))
        except OSError as error:
            raise _unusable(folder, error) from None
        try:
            yield listening
        finally:
            path.unlink(missing_ok=True)


def _unusable(folder: Path, error: OSError) -> Refused:
    from spark_analytics.errors import Refused

    return Refused(f"cannot use {folder}: {error.strerror or error}; set XDG_RUNTIME_DIR to a folder of yours")


@click.command(cls=Command)
@click.option(
    "--idle",
    "idle_min",
    type=FloatRange(min=0, max=100_000),
    default=60,
    show_default=True,
    metavar="MINUTES",
    help="End after this time without a request; 0: never.",
)
@master
def keep(idle_min: float, master: str | None) -> None:
    """Keep Spark running, so that `summarise` of the same user is fast. Ctrl-C or SIGTERM ends it."""
    from spark_analytics import session
    from spark_analytics.errors import Refused

    try:
        if session.SUBMITTED in os.environ:
            raise Refused("spark-submit ends its Spark with the program: start `qpid-lag keep` without spark-submit")
        with alone() as listening:
            _run(listening, idle_min * 60 or None, master)
    except Refused as refused:
        refuse(refused)
    except Broken as broken:
        refuse(str(broken))


def _run(listening: socket.socket, idle_s: float | None, master: str | None) -> None:
    from spark_analytics import session

    mine = program(master)  # before all that this code loads later
    os.chdir("/")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    progress("starting Spark")
    spark = session.start(master, app="qpid-lag keep", stays=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark has installed one of its own
    with session.ends(spark):
        progress("making a summary to warm up")
        warm = warming(spark)
        warm(lambda _: None)
        listening.listen()
        listening.settimeout(idle_s)
        wipe()
        click.echo(f"ready: summaries use this Spark, by {listening.getsockname()}")
        with suppress(KeyboardInterrupt):
            serve(listening, mine, reports(spark), lambda: session.cancel(spark), warm=warm, rounds=WARM_TIMES - 1)
