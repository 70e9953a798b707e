"""qpid-lag: replication lag over any span, summarised on Spark.

A thin shell: it reads options, looks at the folder before anything is started, and prints. Spark is imported only when a
summary is made, so that `--help` is instant. Exit codes: 0 done, 1 refused (the line says why and what to do), 2 usage.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

_HEAVY_BYTES = 200 << 20
_MASTER = "local[2]"


def _refuse(text: str) -> NoReturn:
    click.echo(f"qpid-lag: {text}", err=True)
    raise SystemExit(1)


def _progress(done: list[str]) -> Callable[[str], None]:
    """Say what goes on, on a terminal only, on one line that the end wipes out."""

    def show(text: str) -> None:
        done.append(text)
        if sys.stderr.isatty():
            click.echo(f"\r\033[K{text} ...", err=True, nl=False)

    return show


def _wipe() -> None:
    if sys.stderr.isatty():
        click.echo("\r\033[K", err=True, nl=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Replication lag over any span: summaries by Spark, for terminals and browsers."""


@main.command()
@click.option(
    "--input", "path", required=True, metavar="DIR", help="Folder of telemetry, or a URL that Spark can read (s3a://...)."
)
@click.option("--output", metavar="PAGE.html", type=click.Path(dir_okay=False), help="Write a page that needs nothing else.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="What to print.")
@click.option(
    "--objective-ms",
    type=click.FloatRange(min=0),
    default=1000.0,
    show_default=True,
    help="A lag above this is over the objective.",
)
@click.option("--window", metavar="10s|1m|1h", help="Length of a window.  [default: by the span]")
@click.option("--since", metavar="TIME", help="From here on: 2026-01-02T15:04:05Z, or 15m ago.")
@click.option("--until", metavar="TIME", help="Up to here; `now` makes silence last until now.")
@click.option("--cluster", metavar="NAME", help="Which cluster, when the folder holds several.")
@click.option("--master", metavar="URL", default=_MASTER, show_default=True, help="Spark master.")
def summarise(
    path: str,
    output: str | None,
    form: str,
    objective_ms: float,
    window: str | None,
    since: str | None,
    until: str | None,
    cluster: str | None,
    master: str,
) -> None:
    """Summarise replication lag: per backup, queue and window, with failovers, silence and bad lines."""
    from spark_analytics.errors import Refused

    try:
        page = _writable(output)
        report = _report(path, objective_ms, window, since, until, cluster, master)
        if page is not None:
            _write_page(page, report)
    except Refused as refused:
        _wipe()
        _refuse(str(refused))
    _wipe()
    if form == "json":
        click.echo(json.dumps(report, allow_nan=False))
        return
    from spark_analytics.dashboard import text

    click.echo(text.render(report), nl=False)
    if page is not None:
        click.echo(f"page: {page.resolve()}")


def _report(
    path: str,
    objective_ms: float,
    window: str | None,
    since: str | None,
    until: str | None,
    cluster: str | None,
    master: str,
) -> dict[str, Any]:
    from spark_analytics import session, sources
    from spark_analytics.jobs import spans
    from spark_analytics.jobs.summarise import Request, summarise

    now_ms = int(time.time() * 1000)
    folder = None if sources.is_remote(path) else sources.inspect(path)
    request = Request(
        path=path,
        now_ms=now_ms,
        objective_ms=objective_ms,
        window_ms=spans.parse_length(window) if window else None,
        since_ms=spans.parse_moment(since, now_ms) if since else None,
        until_ms=spans.parse_moment(until, now_ms) if until else None,
        cluster=cluster,
        nbytes=folder.nbytes if folder else None,
        files=folder.files if folder else None,
        unfinished=folder.unfinished if folder else 0,
    )
    show = _progress([])
    show("starting Spark")
    heavy = folder is None or folder.nbytes > _HEAVY_BYTES
    spark = session.start(master, heavy=heavy)
    try:
        return summarise(spark, request, show)
    finally:
        spark.stop()


def _writable(output: str | None) -> Path | None:
    """The page's path, if it can be written: better known before the work than after."""
    from spark_analytics.errors import Refused

    if output is None:
        return None
    page = Path(output)
    if not page.resolve().parent.is_dir():
        raise Refused(f"cannot write {output}: there is no folder {page.resolve().parent}; make it first")
    return page


def _write_page(page: Path, report: dict[str, Any]) -> None:
    """Written aside and renamed, so that a browser never sees half of it."""
    from spark_analytics.dashboard.page import render
    from spark_analytics.errors import Refused

    aside = page.with_name(f".{page.name}.part")
    try:
        aside.write_text(render(report), encoding="utf-8")
        aside.replace(page)
    except OSError as error:
        raise Refused(f"cannot write {page}: {error.strerror}; choose another --output") from None


@main.command("demo-data")
@click.option(
    "--output",
    "directory",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Folder to write to; new or empty.",
)
@click.option("--seconds", type=click.IntRange(min=120), default=600, show_default=True, help="How long a story.")
@click.option("--queues", type=click.IntRange(min=1, max=5000), default=8, show_default=True, help="How many replicated queues.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed gives the same telemetry.")
@click.option("--start", metavar="TIME", help="When it begins.  [default: so that it ends now]")
def demo_data(directory: str, seconds: int, queues: int, seed: int, start: str | None) -> None:
    """Write telemetry with known answers, and print them."""
    from spark_analytics import demo_data as story
    from spark_analytics.errors import Refused
    from spark_analytics.jobs.spans import parse_moment

    now_ms = int(time.time() * 1000)
    folder = Path(directory)
    if folder.is_dir() and any(folder.iterdir()):
        _refuse(f"{directory} is not empty: choose a new folder")
    try:
        start_ms = parse_moment(start, now_ms) if start else (now_ms // 1000 - seconds) * 1000
        answers = story.write(folder, story.Shape(start_ms // 1000 * 1000, seconds, queues, seed))
    except Refused as refused:
        _refuse(str(refused))
    except OSError as error:
        _refuse(f"cannot write to {directory}: {error.strerror}")
    for line in story.describe(answers):
        click.echo(line)


@main.command()
def prepare() -> None:
    """Make later summaries start faster: keep Spark's loaded classes in an archive in the user's cache folder."""
    from spark_analytics import archive
    from spark_analytics.errors import Refused

    try:
        made = archive.make()
    except Refused as refused:
        _refuse(str(refused))
    click.echo(f"class archive: {made}")


if __name__ == "__main__":
    main()
