"""`python -m resource_manager.conformance --arbiter NAME`: tests whether a plug-in fulfils the rules for arbiters.

Life: each rule is a sentence and a coroutine. The coroutine creates its own arbiters (for its own cluster), plays daemons that
need promotions, and raises `Broken` if something is wrong. Two rules check the calls of all rules: how long they took, and from
where the watcher was called. The rule about an unreachable external system is tested if `--break` and `--mend` give the commands
for it, and else reported as untried. `examine` is the kit itself; `main` prints the results.

Invariants: no result depends on the speed of the plug-in, as long as it needs less than `wait_s` for anything; a broken rule
does not prevent the test of the others. Exit code 0: every tested rule holds; 1: a rule is broken; 2: nothing could be tested.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

import click

from broker.options import SettingsError
from resource_manager import arbiters
from resource_manager.arbiters.options import pairs
from resource_manager.core.arbiter import NEVER, ArbiterSettings, Guarantee, Health, Published

AT_ONCE_S = 0.25
"""A call that takes longer than this in more than half of the cases waits for something."""
_POLL_S = 0.02
_UNKNOWN = "no-such-option"
_TURNS = 2
"""This many turns may follow each other while one is checked: a turn may be lost and won again."""


class Broken(Exception):
    """A rule is broken. The text says how."""


class Untried(Exception):
    """A rule cannot be tested. The text says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a rule: `verdict` is "holds", "broken" or "untried"; `why` is "" if it holds."""

    sentence: str
    verdict: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """The tested plug-in. `cut` and `mend` disconnect its external system and connect it again, or raise Untried; None if
    there is no way.

    `wait_s`: time to wait for an expected event. `still_s`: time to watch for an unwanted event.
    """

    name: str
    options: Mapping[str, str]
    cluster: str = "conformance"
    cut: Callable[[], None] | None = None
    mend: Callable[[], None] | None = None
    wait_s: float = 30.0
    still_s: float = 1.0


class Daemon:
    """Calls one arbiter as a daemon does, and records its errors."""

    def __init__(self, bench: Bench, arbiter: Any) -> None:
        self._bench = bench
        self._arbiter = arbiter
        self._inside = ""
        self.calls = 0
        self.closed = False
        self.late = 0

    def call(self, name: str, *arguments: Any) -> Any:
        """Make one call. Broken if it raises an exception."""
        seconds = self._bench.reactor.seconds
        self._inside, began_s = name, seconds()
        try:
            result = getattr(self._arbiter, name)(*arguments)
        except Exception as error:
            raise Broken(f"{name} raised {type(error).__name__}: {error}") from error
        finally:
            self._inside = ""
            self._bench.took[name].append(seconds() - began_s)
        return result

    def told(self) -> None:
        """The watcher."""
        self.calls += 1
        if self._inside:
            self._bench.entered.add(self._inside)
        if self.closed:
            self.late += 1

    def start(self) -> None:
        """Begin."""
        self.call("watch", self.told)

    @property
    def guarantee(self) -> Guarantee:
        """Its guarantee. Broken if it is not one."""
        found = getattr(self._arbiter, "guarantee", None)
        if not isinstance(found, Guarantee):
            raise Broken(f"its guarantee is {found!r}, and not a Guarantee")
        return found

    @property
    def health(self) -> Health:
        """Its health. Broken if it is not one."""
        found = self.call("health")
        if not isinstance(found, Health):
            raise Broken(f"its health is {found!r}, and not a Health")
        return found

    def acts_at(self) -> float:
        """When it may act, for a promotion that has just become necessary."""
        now_s = self._bench.reactor.seconds()
        found = self.call("acts_at", now_s, now_s)
        if not isinstance(found, int | float) or found != found:  # noqa: PLR0124 - a NaN is not a time
            raise Broken(f"acts_at answers {found!r}, and not a time")
        return float(found)

    def has_turn(self) -> bool:
        """Whether it may act now."""
        return bool(self.acts_at() <= self._bench.reactor.seconds())

    async def close(self) -> None:
        """Close it."""
        self.closed = True
        done = self.call("close")
        if isinstance(done, Awaitable):
            await done


class Bench:
    """Makes arbiters for the rules, and keeps the records of their calls."""

    def __init__(self, reactor: Any, subject: Subject) -> None:
        self.reactor = reactor
        self.subject = subject
        self.took: dict[str, list[float]] = defaultdict(list)
        self.entered: set[str] = set()
        self._clusters = 0

    def settings(self, **more: str) -> ArbiterSettings:
        """Settings for a cluster that no rule has used."""
        self._clusters += 1
        return ArbiterSettings(f"{self.subject.cluster}-{self._clusters}", {**self.subject.options, **more})

    @asynccontextmanager
    async def daemons(self, count: int, *, reach: bool = True) -> AsyncIterator[list[Daemon]]:
        """Makes this many daemons of one cluster, which have reached their external system."""
        settings = self.settings()
        there = [
            Daemon(self, arbiters.make(self.subject.name, settings, self.reactor, f"daemon-{number}")) for number in range(count)
        ]
        try:
            for daemon in there:
                daemon.start()
            for daemon in there:
                if reach:
                    await self.until(lambda daemon=daemon: daemon.health.reachable, "is not reachable")  # type: ignore[misc]
            yield there
        finally:
            for daemon in there:
                if not daemon.closed:
                    with suppress(Broken):
                        await daemon.close()

    async def until(self, condition: Callable[[], bool], otherwise: str) -> None:
        """Wait until the condition holds. Broken if it does not hold in time."""
        until_s = self.reactor.seconds() + self.subject.wait_s
        while not condition():
            if self.reactor.seconds() >= until_s:
                raise Broken(f"it {otherwise} within {self.subject.wait_s:g} s")
            await self.passes(_POLL_S)

    async def watches(self, check: Callable[[], None]) -> None:
        """Check repeatedly for a while."""
        until_s = self.reactor.seconds() + self.subject.still_s
        while self.reactor.seconds() < until_s:
            check()
            await self.passes(_POLL_S)

    async def passes(self, delay_s: float) -> None:
        """Let time pass."""
        from twisted.internet.task import deferLater

        await deferLater(self.reactor, delay_s, lambda: None)


# ---- the rules, in the order in which they are tried

Rule = Callable[[Bench], Awaitable[None]]


async def _names(bench: Bench) -> None:
    async with bench.daemons(1) as [daemon]:
        assert daemon.guarantee in Guarantee
        if daemon.health.reason:
            raise Broken(f"it is reachable, but gives a reason why it is not: {daemon.health.reason!r}")


async def _refuses(bench: Bench) -> None:
    try:
        arbiters.make(bench.subject.name, bench.settings(**{_UNKNOWN: "x"}), bench.reactor, "daemon-0")
    except SettingsError as error:
        if _UNKNOWN not in str(error):
            raise Broken(f"it does not name the option in {str(error)!r}") from None
    else:
        raise Broken(f"it accepts an option named {_UNKNOWN!r}")


async def _alone(bench: Bench) -> None:
    async with bench.daemons(1) as [daemon]:
        await bench.until(daemon.has_turn, "gets no turn although it is alone,")


async def _stays(bench: Bench) -> None:
    async with bench.daemons(1) as [daemon]:
        await bench.until(daemon.has_turn, "has no turn")
        since_s = bench.reactor.seconds()
        moments = {float(daemon.call("acts_at", since_s, since_s))}

        def check() -> None:
            moments.add(float(daemon.call("acts_at", since_s, bench.reactor.seconds())))

        await bench.watches(check)
        if len(moments - {NEVER}) > _TURNS:
            raise Broken(f"acts_at answered {len(moments)} moments in {bench.subject.still_s:g} s")


async def _one_at_a_time(bench: Bench) -> None:
    async with bench.daemons(2) as two:
        for daemon in two:
            daemon.call("hears_of", ["daemon-0", "daemon-1"])
        if two[0].guarantee is Guarantee.STAGGERED:
            now_s = bench.reactor.seconds()
            if two[0].call("acts_at", now_s, now_s) == two[1].call("acts_at", now_s, now_s):
                raise Broken("two daemons that know each other have their turns at the same time")
            return

        def check() -> None:
            if [daemon.has_turn() for daemon in two] == [True, True]:
                raise Broken("two daemons have their turn at the same time")

        await bench.until(lambda: [daemon.has_turn() for daemon in two] != [False, False], "gives neither daemon its turn")
        await bench.watches(check)


async def _hands_over(bench: Bench, leave: Callable[[Daemon], Awaitable[None]]) -> None:
    async with bench.daemons(2) as two:
        if two[0].guarantee is not Guarantee.LEASED:
            raise Untried("it promises no leases")
        await bench.until(two[0].has_turn, "does not give the first daemon its turn")
        if two[1].has_turn():
            raise Broken("two daemons have their turn at the same time")
        calls = two[1].calls
        await leave(two[0])
        await bench.until(lambda: two[1].calls > calls, "does not call the watcher of the daemon that waits")
        await bench.until(two[1].has_turn, "does not give the next daemon its turn")


async def _rests(bench: Bench) -> None:
    async def leave(daemon: Daemon) -> None:
        daemon.call("rest")

    await _hands_over(bench, leave)


async def _closes(bench: Bench) -> None:
    await _hands_over(bench, lambda daemon: daemon.close())


async def _any_order(bench: Bench) -> None:
    async with bench.daemons(1, reach=False) as [daemon]:
        for _ in range(3):
            daemon.call("rest")
            daemon.call("publish", Published("host:5672", 3))
            daemon.call("publish", Published("", 2))
            daemon.call("hears_of", [])
            daemon.call("hears_of", ["daemon-0", "daemon-9"])
            daemon.acts_at()
        await bench.until(lambda: daemon.health.reachable, "is not reachable")
        daemon.call("publish", Published("host:5672", 3))
        await bench.passes(_POLL_S)


async def _answers_move_on(bench: Bench) -> None:
    async with bench.daemons(1) as [daemon]:
        first_s = daemon.health.answered_s
        if first_s is None:
            raise Untried("it has no external system")
        if first_s > bench.reactor.seconds():
            raise Broken("the time of its last good answer is in the future")
        await bench.until(lambda: (daemon.health.answered_s or 0.0) > first_s, "does not report a newer good answer")


async def _ends(bench: Bench) -> None:
    before = set(bench.reactor.getDelayedCalls())
    async with bench.daemons(1) as [daemon]:
        await bench.until(daemon.has_turn, "has no turn")
        await daemon.close()
        await bench.until(lambda: before.issuperset(bench.reactor.getDelayedCalls()), "does not end all its timers")
        await bench.passes(bench.subject.still_s)
        if daemon.late:
            raise Broken("the watcher was called after close")


async def _away(bench: Bench) -> None:
    subject = bench.subject
    if subject.cut is None or subject.mend is None:
        raise Untried("give --break and --mend, which disconnect its external system and connect it again")
    async with bench.daemons(1) as [daemon]:
        await bench.until(daemon.has_turn, "has no turn")
        subject.cut()
        try:
            await bench.until(lambda: not daemon.health.reachable, "says that it is reachable although it is disconnected,")
            if not daemon.health.reason:
                raise Broken("it gives no reason why it is not reachable")
            answered_s = daemon.health.answered_s

            def check() -> None:
                if daemon.health.answered_s != answered_s:
                    raise Broken("the time of its last good answer increases while it is disconnected")

            await bench.watches(check)
            if daemon.guarantee is Guarantee.LEASED:
                await bench.until(lambda: not daemon.has_turn(), "keeps its turn although it is disconnected,")
        except BaseException:
            with suppress(Untried):  # a broken rule is what counts
                subject.mend()
            raise
        subject.mend()
        await bench.until(lambda: daemon.health.reachable, "is not reachable again")
        await bench.until(daemon.has_turn, "has no turn again")


async def _at_once(bench: Bench) -> None:
    for name, took_s in bench.took.items():
        if median(took_s) > AT_ONCE_S:
            raise Broken(f"{name} takes {median(took_s):.2f} s")


async def _not_entered(bench: Bench) -> None:
    if bench.entered:
        raise Broken(f"it is called from within {', '.join(sorted(bench.entered))}")


RULES: tuple[tuple[str, Rule], ...] = (
    ("It names its guarantee, and its health while it is reachable.", _names),
    ("An option that it does not know is refused by its name.", _refuses),
    ("A daemon that is alone gets its turn.", _alone),
    ("The start time of a turn stays the same during the turn.", _stays),
    ("Of two daemons, one acts at a time.", _one_at_a_time),
    ("When no promotion is needed any more, the turn goes to the next daemon, and its watcher is called.", _rests),
    ("When a daemon closes, its turn goes to the next daemon, and its watcher is called.", _closes),
    ("Calls may come in any order, repeatedly, and before the external system is reached.", _any_order),
    ("While its external system is reachable, the time of its last good answer increases.", _answers_move_on),
    ("After close there is no timer and no call of the watcher.", _ends),
    ("When its external system is unreachable, it says so and its turn ends; later it is reachable again.", _away),
    ("Every call returns at once.", _at_once),
    ("The watcher is never called from within a call.", _not_entered),
)


async def examine(reactor: Any, subject: Subject, rules: Iterable[tuple[str, Rule]] = RULES) -> list[Outcome]:
    """Test these rules, in this order. SettingsError if there is no such arbiter, or its options are wrong."""
    bench, outcomes = Bench(reactor, subject), list[Outcome]()
    first = arbiters.make(subject.name, bench.settings(), reactor, "daemon-0")
    if isinstance(done := first.close(), Awaitable):
        await done
    for sentence, rule in rules:
        try:
            await rule(bench)
        except Broken as broken:
            outcomes.append(Outcome(sentence, "broken", str(broken)))
        except Untried as untried:
            outcomes.append(Outcome(sentence, "untried", str(untried)))
        else:
            outcomes.append(Outcome(sentence, "holds"))
    return outcomes


def _command(words: str | None) -> Callable[[], None] | None:
    if words is None:
        return None

    def run() -> None:
        try:
            subprocess.run(shlex.split(words), check=True, timeout=60)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise Untried(f"`{words}` failed: {str(error).rstrip('.')}") from None

    return run


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--arbiter", required=True, metavar="NAME", help="The plug-in to test.")
@click.option("--arbiter-option", multiple=True, metavar="KEY=VALUE", help="An option of the plug-in. May be repeated.")
@click.option(
    "--cluster-name", default="conformance", show_default=True, metavar="NAME", help="Prefix of the names of its clusters."
)
@click.option("--break", "cut", metavar="COMMAND", help="Command that disconnects its external system, without a shell.")
@click.option("--mend", metavar="COMMAND", help="Command that connects it again.")
@click.option("--wait", default=30.0, show_default=True, metavar="SECONDS", help="Time to wait for an expected event.")
@click.option("--still", default=1.0, show_default=True, metavar="SECONDS", help="Time to watch for an unwanted event.")
def command(
    arbiter: str, arbiter_option: tuple[str, ...], cluster_name: str, cut: str | None, mend: str | None, wait: float, still: float
) -> None:
    """Test a plug-in with each rule for arbiters, and print the results.

    The external system must be reachable and not in use: the clusters NAME-1, NAME-2 and so on are created in it.
    """
    from broker.net import reactor as monotonic

    try:
        options = pairs(shlex.join(arbiter_option))
    except ValueError as error:
        raise SettingsError(f"--arbiter-option: {error}") from None
    reactor: Any = monotonic.install()
    from twisted.internet.defer import ensureDeferred
    from twisted.python.failure import Failure

    subject = Subject(arbiter, options, cluster_name, _command(cut), _command(mend), wait, still)
    found: list[Any] = []

    def ended(result: Any) -> None:
        found.append(result)
        reactor.stop()

    reactor.callWhenRunning(lambda: ensureDeferred(examine(reactor, subject)).addBoth(ended))
    reactor.run()
    if not found:
        raise KeyboardInterrupt
    if isinstance(found[0], Failure):
        found[0].raiseException()
    for one in found[0]:
        print(f"{one.verdict:8}{one.sentence}{f' {one.why[0].upper()}{one.why[1:]}.' if one.why else ''}")
    sys.exit(any(one.verdict == "broken" for one in found[0]))


def main() -> None:
    """Run the command. Exit code 2 if nothing can be tested."""
    try:
        command.main(prog_name="python -m resource_manager.conformance", standalone_mode=False)
    except (click.UsageError, SettingsError) as error:
        text = error.format_message() if isinstance(error, click.UsageError) else str(error)
        print(f"conformance: {text}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)


if __name__ == "__main__":
    main()
