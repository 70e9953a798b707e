"""qpid-lag: replication lag over any span, summarised on Spark.

A thin shell, a module for each command that needs Spark: they read options, look at the folder before anything is started, and
print. Spark is imported only when there is work for it, so that `--help` is instant. Exit codes: 0 done, 1 refused (the line says
why and what to do), 2 usage.
"""

from __future__ import annotations

import click

from cli._lag_dashboard import dashboard
from cli._lag_demo import demo_data
from cli._lag_shell import refuse
from cli._lag_stream import stream
from cli._lag_summarise import summarise


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Replication lag over any span: summaries by Spark, for terminals and browsers."""


main.add_command(dashboard)
main.add_command(demo_data)
main.add_command(stream)
main.add_command(summarise)


@main.command()
def prepare() -> None:
    """Make later summaries start faster: keep Spark's loaded classes in an archive in the user's cache folder."""
    from spark_analytics import archive
    from spark_analytics.errors import Refused

    try:
        made = archive.make()
    except Refused as refused:
        refuse(str(refused))
    click.echo(f"class archive: {made}")


if __name__ == "__main__":
    main()
