"""`make arbiters`: every arbiter in every fault, on real brokers, several rounds of each.

Of each fault it is said how long clients waited: while the primary had to serve on (the longest time without an accept), or until
another one accepted (the failover, and in it the time until a daemon said that the primary had failed). A promise that is not
kept ends the run with 1: a message lost or altered, two primaries in one epoch, a healthy primary that was moved, one that was
not replaced. A wait above 250 ms while the primary serves is said, and does not: machines are busy with other things at times.

Options: `--arbiter NAME`, `--fault WORDS` (those that contain them), `--rounds N`, `--brokers N`, `--quick` (short faults),
`--control` (before each fault as long a time without one, and the longest wait in it: what the machine makes of it). It needs
root, for network namespaces, and what the arbiters stand on. Brokers, daemons and clients have their defaults, but clients give
up a broker that is silent for 1 s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.arbiters import faults
from tests.arbiters.arena import Times, arena, faketime
from tests.arbiters.outcome import HEAD, row
from tests.arbiters.systems import SYSTEMS
from tests.bench.meter import machine
from tests.system.means import NotHere

LONGEST_WAIT_S = 0.25
QUICK = Times(control_plane=3.0, freeze=3.0, short=2.0)


def main() -> int:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(
        prog="make arbiters", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arbiter", action="append", choices=list(SYSTEMS), help="only this one; may be given again")
    parser.add_argument("--fault", default="", metavar="WORDS", help="only faults whose names contain this")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each is done (3)")
    parser.add_argument("--brokers", type=int, default=3, metavar="N", help="of how many brokers the cluster is (3)")
    parser.add_argument("--quick", action="store_true", help="faults that last some seconds, and not up to a minute")
    parser.add_argument("--control", action="store_true", help="as long a time without a fault before each")
    options = parser.parse_args()
    times = replace(QUICK if options.quick else Times(), control=options.control)
    kept = True
    with tempfile.TemporaryDirectory(prefix="understudy-arbiters-") as folder:
        print("the machine:", machine(Path(folder)), flush=True)
        print(HEAD, flush=True)
        for name in options.arbiter or SYSTEMS:
            try:
                kept &= _table(Path(folder) / name, name, options, times)
            except NotHere as reason:
                print(f"not tried: {name}: it needs {reason}", file=sys.stderr)
                kept = False
    return 0 if kept else 1


def _table(folder: Path, name: str, options: argparse.Namespace, times: Times) -> bool:
    """The rows of one arbiter; whether all promises were kept."""
    kept = True
    with arena(folder, name, times, options.brokers) as place:
        for fault, do in faults.of(SYSTEMS[name]).items():
            if options.fault not in fault:
                continue
            if do is faults.set_the_daemons_clocks and faketime() is None:
                print(f"not tried: {fault}: it needs faketime (Debian: apt install faketime)", file=sys.stderr)
                continue
            began_s = time.monotonic()
            outcomes = [place.play(do) for _ in range(options.rounds)]
            print(row(name, fault, outcomes), flush=True)
            print(f"{fault}: {time.monotonic() - began_s:.0f} s", file=sys.stderr)
            for number, outcome in enumerate(outcomes, 1):
                for text in outcome.broken:
                    kept = False
                    print(f"BROKEN: {name}: {fault}, round {number}: {text}", file=sys.stderr, flush=True)
                if outcome.wait_s is not None and outcome.wait_s > LONGEST_WAIT_S:
                    print(f"missed: {name}: {fault}, round {number}: {outcome.wait_s:.2f} s without an accept", file=sys.stderr)
    return kept


if __name__ == "__main__":
    sys.exit(main())
