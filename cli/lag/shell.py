"""The shared parts of the commands of qpid-lag: refusals in one line, progress on a terminal, options, the source of
telemetry, and files that are never visible incomplete.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from cli.output import note
from cli.ranges import FloatRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_analytics.errors import Refused
    from spark_analytics.sources import Kafka

_BAR = 30
_REDRAW_S = 0.3
_Command = TypeVar("_Command", bound=Callable[..., Any])
master = click.option("--master", metavar="URL", help="Spark master.  [default: spark-submit's, else local[2]]")


class Command(click.Command):
    """A command whose options refuse an empty text. As a folder it would mean the current one."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        for param in self.params:
            if ctx.params.get(param.name or "") == "":
                raise click.BadParameter("it is empty.", ctx, param)
        return super().invoke(ctx)


def refuse(why: str | Refused) -> NoReturn:
    """Print the reason in one line, and exit with 1, or with 2 if an option is wrong."""
    from spark_analytics.errors import WrongUsage

    wipe()
    note(f"qpid-lag: {' '.join(str(why).split())}")
    raise SystemExit(2 if isinstance(why, WrongUsage) else 1)


def version() -> str:
    """The installed version of the package."""
    try:
        return metadata.version("understudy")
    except metadata.PackageNotFoundError:
        return "of a checkout, not installed"


_doing = [""]


def progress(text: str) -> None:
    """Print the current step, only on a terminal, on one line that is removed at the end."""
    _doing[0] = text
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{text} ...", err=True, nl=False)


@contextmanager
def bar(spark: SparkSession) -> Iterator[None]:
    """While the context lasts, draw after the current step how much of Spark's running stages is done; only on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    tracker, ended = spark.sparkContext.statusTracker(), Event()

    def draw() -> None:
        while not ended.wait(_REDRAW_S):
            stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
            if stages:
                click.echo(f"\r\033[K{_doing[0]} {drawn(stages)}", err=True, nl=False)

    drawing = Thread(target=draw, daemon=True)
    drawing.start()
    try:
        yield
    finally:
        ended.set()
        drawing.join()
        wipe()


def drawn(stages: Iterable[Any]) -> str:
    """A bar for stages that have `numTasks` and `numCompletedTasks`."""
    stages = list(stages)
    return _gauge(sum(stage.numCompletedTasks for stage in stages) / max(1, sum(stage.numTasks for stage in stages)))


def _gauge(share: float) -> str:
    filled = int(share * _BAR)
    return f"[{'#' * filled}{'.' * (_BAR - filled)}] {share:4.0%}"


def gauge() -> Callable[[str, float], None]:
    """A function that takes the current step and the share that is done, and draws both; only on a terminal."""
    drawn_s = 0.0

    def draw(text: str, share: float) -> None:
        nonlocal drawn_s
        if sys.stderr.isatty() and time.monotonic() - drawn_s >= _REDRAW_S:
            drawn_s = time.monotonic()
            click.echo(f"\r\033[K{text} {_gauge(share)}", err=True, nl=False)

    return draw


def wipe() -> None:
    """Remove the progress line."""
    if sys.stderr.isatty():
        click.echo("\r\033[K", err=True, nl=False)


def _with(command: _Command, options: Sequence[Callable[[_Command], _Command]]) -> _Command:
    for option in reversed(options):
        command = option(command)
    return command


def reads(command: _Command) -> _Command:
    """The options for the source of telemetry."""
    options = [
        click.option("--input", "path", metavar="DIR", help="Folder of telemetry, or a URL that Spark can read (s3a://...)."),
        click.option("--kafka", metavar="SERVERS", help="Read from Kafka instead: host:port,..."),
        click.option("--topic", metavar="NAME", help="Kafka topic with lines of telemetry."),
        click.argument("words", nargs=-1, metavar="", expose_value=False, callback=_no_words),
    ]
    return _with(command, [*options, master])


def _no_words(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> None:
    """Refuse words without an option: most often one of them is the folder."""
    if words:
        raise click.UsageError(f"give the folder of telemetry as --input {words[0]}")


def summarises(command: _Command) -> _Command:
    """The options for the scope of the summary and for the comparison."""
    options = [
        click.option(
            "--objective-ms",
            type=FloatRange(min=0),
            help="Lag objective, in ms.  [default: 1000]",
        ),
        click.option(
            "--target",
            type=FloatRange(min=0, max=1, min_open=True, max_open=True),
            default=0.99,
            show_default=True,
            help="Target share of time within the objective.",
        ),
        click.option("--window", metavar="10s|1m|1h", help="Length of a window.  [default: depends on the span]"),
        click.option("--since", metavar="TIME", help="Begin of the span: 2026-01-02T15:04:05Z, or an age: 15m."),
        click.option("--until", metavar="TIME", help="End of the span. `now` counts silence up to now."),
        click.option("--compare", metavar="LENGTH", help="Compare with the span of this length before it: 1h, 1d, 7d."),
        click.option("--cluster", metavar="NAME", help="Cluster to summarise, if the input has several."),
    ]
    return _with(command, options)


def kafka_of(path: str | None, servers: str | None, topic: str | None) -> Kafka | None:
    """The source in Kafka; None if the source is a folder. A usage error unless exactly one of both is given."""
    from spark_analytics.sources import Kafka

    if (path is None) == (servers is None):
        raise click.UsageError("give one of --input and --kafka")
    if servers is None:
        if topic is not None:
            raise click.UsageError("--topic goes with --kafka")
        return None
    if topic is None:
        raise click.UsageError("--kafka needs a --topic")
    return Kafka(servers, topic)


def writable(name: str) -> Path:
    """The path, if it can be written. The check is before the work, not after it. Refused."""
    from spark_analytics.errors import Refused

    path = Path(name)
    if not path.resolve().parent.is_dir():
        raise Refused(f"cannot write {name}: there is no folder {path.resolve().parent}; create it first")
    return path


def put(path: Path, content: bytes) -> None:
    """Write under another name and rename, so that no reader sees an incomplete file. What is no file (a pipe, /dev/stdout) is
    written to, and never replaced. Refused."""
    from spark_analytics.errors import Refused

    aside = path.with_name(f".{path.name}.part")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        aside.write_bytes(content)
        aside.replace(path)
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}; choose another file") from None
