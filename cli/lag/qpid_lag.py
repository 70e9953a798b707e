"""qpid-lag: replication lag over any span, summarised on Spark.

It only dispatches: each command that needs Spark has its own module. These modules read options, check the folder before
anything starts, and print. Spark is imported only when it is needed, so that `--help` is fast. Exit codes: 0 done, 1 refused
(one line says why and what to do), 2 wrong usage.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from cli.lag.dashboard import dashboard
from cli.lag.demo_data import demo_data
from cli.lag.keep import keep
from cli.lag.shell import refuse, version, wipe
from cli.lag.stream import stream
from cli.lag.summarise import summarise
from cli.output import end_unwritten, open_streams
from cli.start import take_interrupts

_OF_SPARK: Final = frozenset({"pandas", "py4j", "pyarrow", "pyspark"})
_INTERRUPTED: Final = 130


class _Commands(click.Group):
    """The commands. A wrong call gets one line that says what to do."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run to the end of the process, as click does; but wrong usage gets one line."""
        open_streams()
        take_interrupts()
        try:
            status = super().main(*args, **extra | {"standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:  # the text of this error is the help
            click.echo(error.format_message())
            sys.exit(2)
        except click.UsageError as error:
            name = error.ctx.command_path if error.ctx else "qpid-lag"
            click.echo(f"qpid-lag: {error.format_message()} (see {name} --help)", err=True)
            sys.exit(2)
        except click.Abort:
            sys.exit(_INTERRUPTED)
        except OSError as error:
            end_unwritten("qpid-lag", error)
        sys.exit(status if isinstance(status, int) else 0)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of that name."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from broker.options import nearest  # only for an error: these imports take time

            names = self.list_commands(ctx)
            hint = nearest(args[0], names)
            click.echo(f"qpid-lag: there is no command {args[0]!r}: choose one of {', '.join(names)}{hint}", err=True)
            raise SystemExit(2)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. If the packages that Spark needs are missing, say how to get them. Ctrl-C ends it at any moment,
        with one line."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in _OF_SPARK:
                raise
            from broker.options import way_to_extra  # only for an error

            refuse(f"this needs Spark, and there is no {error.name} here: {way_to_extra('spark')}")
        except KeyboardInterrupt:
            wipe()
            click.echo("qpid-lag: interrupted", err=True)
            raise SystemExit(_INTERRUPTED) from None


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"qpid-lag {version()}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version and end.")
def main() -> None:
    """Replication lag over any span: summaries by Spark, for terminals and browsers."""


main.add_command(dashboard)
main.add_command(demo_data)
main.add_command(keep)
main.add_command(stream)
main.add_command(summarise)


@main.command()
def prepare() -> None:
    """Make later summaries start faster: keep Spark's loaded classes in an archive in the user's cache folder."""
    try:
        from spark_analytics import archive
        from spark_analytics.errors import Refused

        try:
            made = archive.make()
        except Refused as refused:
            refuse(refused)
    except KeyboardInterrupt:
        click.echo("qpid-lag: interrupted; no class archive was made, summaries work without it", err=True)
        raise SystemExit(_INTERRUPTED) from None
    click.echo(f"class archive: {made}")


if __name__ == "__main__":
    main()
