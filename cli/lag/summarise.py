"""`qpid-lag summarise`: one report, as a table, as JSON, or as a page."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.lag.shell import Command, bar, kafka_of, progress, put, reads, refuse, summarises, wipe, writable

if TYPE_CHECKING:
    from spark_analytics.sources import Kafka


@click.command(cls=Command)
@reads
@click.option(
    "--output",
    metavar="PAGE.html",
    type=click.Path(dir_okay=False),
    help="Write a self-contained HTML page to a file or URL.",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format.")
@summarises
@click.option("--compare-since", metavar="TIME", help="Begin of another span to compare with.")
@click.option("--compare-until", metavar="TIME", help="End of that span.")
@click.option("--windows-to", metavar="DIR", help="Write every window of every queue to this folder, as Parquet.")
def summarise(kafka: str | None, topic: str | None, output: str | None, form: str, **asked: Any) -> None:
    """Summarise replication lag by backup, queue and window, with failovers, silence and malformed lines.

    The input is a folder of telemetry, or the folder that `qpid-lag stream` writes.
    """
    from spark_analytics.dashboard.page import render as rendered
    from spark_analytics.errors import Refused
    from spark_analytics.locations import is_remote

    topics = kafka_of(asked["path"], kafka, topic)
    if (asked["compare_since"] is None) != (asked["compare_until"] is None):
        raise click.UsageError("--compare-since and --compare-until go together")
    if asked["compare"] and asked["compare_since"]:
        raise click.UsageError("give one of --compare and --compare-since")
    try:
        url = output if output is not None and is_remote(output) else None
        page = writable(output) if output is not None and url is None else None
        report = _report(asked, topics, url)
        if page is not None:
            put(page, rendered(report).encode())
    except Refused as refused:
        refuse(refused)
    wipe()
    if form == "json":
        click.echo(json.dumps(report, allow_nan=False))
        return
    from spark_analytics.dashboard import text

    form_of = text.terminal(os.environ, columns=shutil.get_terminal_size().columns, is_terminal=sys.stdout.isatty())
    click.echo(text.render(report, **form_of), nl=False)
    if output is not None:
        click.echo(f"page: {url or Path(output).resolve()}")


def _report(asked: dict[str, Any], topics: Kafka | None, url: str | None) -> dict[str, Any]:
    """The report, by the Spark that is kept if it can make it. Its page is written to the URL while Spark runs, because Spark
    writes it."""
    from cli.lag import keep
    from spark_analytics import locations, session
    from spark_analytics.dashboard.page import render as rendered
    from spark_analytics.jobs.summarise import summarise
    from spark_analytics.requests import request_of, work_of

    request = request_of(asked, int(time.time() * 1000), topics)
    work = work_of(request)
    if work == "short" and url is None and (kept := keep.ask(request, asked["master"])) is not None:
        return kept
    progress("starting Spark")
    spark = session.start(asked["master"], work=work)
    with session.ends(spark):
        if url is not None:
            locations.writable(spark, url)
        with bar(spark):
            report = summarise(spark, request, progress)
        if url is not None:
            locations.put(spark, url, rendered(report).encode())
        return report
