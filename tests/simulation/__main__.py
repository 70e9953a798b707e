"""`python -m tests.simulation`: runs whole simulated clusters from seeds, and prints the results.

    --seed N [--trace] [--keep 3,7,12] [--shrink]     one run, in detail
    --seeds A-B [-j JOBS]                             many, with a summary
    --minutes M [-j JOBS]                             random seeds, for this time (`make soak`)

A run that breaks a promise is printed: its seed, its plan, its last events, and the command that runs it again. The
exit status is 1 if any run breaks one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import count, islice, takewhile

from twisted.logger import ILogObserver, globalLogBeginner
from zope.interface import provider

from tests.simulation import plan as plans
from tests.simulation.shrink import ddmin, kind_of
from tests.simulation.world import Outcome, attempt

_LAST_EVENTS = 60
_PROGRESS_S = 5.0
_SEEDS = 1 << 40


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _one(options)
    if options.minutes is not None:
        first = secrets.randbelow(_SEEDS) if options.first is None else options.first
        return _many(count(first), options.jobs, time.monotonic() + 60 * options.minutes)
    first, last = options.seeds
    return _many(range(first, last + 1), options.jobs, None)


@provider(ILogObserver)
def _nowhere(event: object) -> None:
    """What production code logs is in the trace."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Simulate whole clusters from seeds.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="run this one")
    what.add_argument("--seeds", type=_range, metavar="A-B", help="run all of these")
    what.add_argument("--minutes", type=float, help="run seeds that nobody has chosen, for so long")
    parser.add_argument("--first", type=int, help="where --minutes begins, instead of anywhere")
    parser.add_argument("--keep", type=_numbers, metavar="N,N,...", help="only these items of the plan")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--shrink", action="store_true", help="leave out of the plan what the failure does not need")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="processes")
    return parser


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _one(options: argparse.Namespace) -> int:
    keep = options.keep
    outcome = attempt(options.seed, keep, print if options.trace else None)
    if options.shrink and outcome.violation:
        keep = _shrunk(outcome, options)
        outcome = attempt(options.seed, keep)
    print("\n".join(outcome.lines()))
    if outcome.violation:
        print("\n".join(report(outcome, keep)))
    return 1 if outcome.violation else 0


def _shrunk(outcome: Outcome, options: argparse.Namespace) -> list[int]:
    wanted = kind_of(outcome.violation)
    runs = count(1)

    def fails(items: Iterable[int]) -> bool:
        items = list(items)
        failed = kind_of(attempt(options.seed, items).violation) == wanted
        print(f"run {next(runs)}: {len(items)} items: {'fails still' if failed else 'fails not so'}", file=sys.stderr)
        return failed

    return ddmin(options.keep or list(plans.make(options.seed).items), fails)


def report(outcome: Outcome, keep: list[int] | None) -> list[str]:
    """Everything that somebody needs who is to find out why a run failed."""
    plan = plans.make(outcome.seed)
    if keep is not None:
        plan = plan.keeping(keep)
    kept = "" if keep is None else f" --keep {','.join(map(str, keep)) or ','}"
    return [
        f"  plan: {', '.join(plan.kinds)}; {'message' if plan.message_links else 'TCP'} links",
        *(f"    {line}" for line in plan.lines()),
        "  last events:",
        *(f"    {line}" for line in outcome.trace[-_LAST_EVENTS:]),
        f"  BROKEN: {outcome.violation}",
        f"  again: python -m tests.simulation --seed {outcome.seed}{kept} --trace",
    ]


def _outcomes(seeds: Iterable[int], jobs: int, deadline: float | None) -> Iterator[Outcome]:
    """The outcome of each, as they come."""
    within = takewhile(lambda seed: deadline is None or time.monotonic() < deadline, seeds)
    if jobs <= 1:
        yield from map(attempt, within)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        running = {pool.submit(attempt, seed) for seed in islice(within, 2 * jobs)}
        while running:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(attempt, seed) for seed in islice(within, len(ended))}
            yield from (each.result() for each in ended)


def _many(seeds: Iterable[int], jobs: int, deadline: float | None) -> int:
    began = said = time.monotonic()
    total: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    failed: dict[int, str] = {}
    events = 0
    simulated_s = 0.0
    n = 0
    for n, outcome in enumerate(_outcomes(seeds, jobs, deadline), 1):
        total.update(outcome.counts)
        faults.update(outcome.done)
        events += outcome.events
        simulated_s += outcome.simulated_s
        if outcome.violation:
            failed[outcome.seed] = outcome.violation.partition("\n")[0]
            print("\n".join([*outcome.lines(), *report(outcome, None)]), flush=True)
        if time.monotonic() - said > _PROGRESS_S:
            said = time.monotonic()
            rate = 60 * n / (said - began)
            print(f"{n} runs, {len(failed)} failed, {rate:.0f} a minute, at seed {outcome.seed}", file=sys.stderr, flush=True)
    minutes = (time.monotonic() - began) / 60
    print(f"{n} runs in {minutes:.1f} minutes, {n / max(minutes, 1e-9):.0f} a minute: {len(failed)} failed")
    print(f"  {simulated_s / 3600:.1f} hours simulated, {events} events")
    print("  messages: " + ", ".join(f"{name} {number}" for name, number in total.items()))
    print("  faults and operations: " + ", ".join(f"{name} {number}" for name, number in sorted(faults.items())))
    for seed, violation in sorted(failed.items()):
        print(f"  FAILED {seed}: {violation}")
    return 1 if failed else 0


if __name__ == "__main__":
    globalLogBeginner.beginLoggingTo([_nowhere], redirectStandardIO=False, discardBuffer=True)
    sys.exit(main())
