"""`python -m tests.pacemaker [ROUND ...]`: all rounds, or these, on a real Pacemaker cluster. 2 where that cannot be had.

At the end there is the table of `make arbiters`, with a row for each round."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from cli.verify.run import RunError
from tests.arbiters.outcome import HEAD, row
from tests.bench.meter import machine
from tests.pacemaker import tester
from tests.pacemaker.nodes import Nodes
from tests.pacemaker.rounds import FAULTS, ROUNDS, Account, run
from tests.system.means import NotHere
from tests.system.namespaces import on_client

_TESTER = "ocf-tester"


def main(words: list[str]) -> int:
    """Exit code 1 when a round has failed, whose nodes' logs are kept."""
    parser = argparse.ArgumentParser(prog="tests.pacemaker", description=__doc__)
    parser.add_argument("rounds", nargs="*", metavar="ROUND", help=f"Of {_TESTER}, {', '.join(ROUNDS)}. Default: all.")
    names = [_TESTER, *ROUNDS]
    wanted = parser.parse_args(words).rounds or names
    unknown = set(wanted) - set(names)
    if unknown:
        parser.error(f"there is no round {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    folder = Path(tempfile.mkdtemp(prefix="understudy-pacemaker-"))
    try:
        if _TESTER in wanted:
            print(f"{_TESTER}: {tester.check(folder / _TESTER)}", flush=True)
            wanted.remove(_TESTER)
            if not wanted:
                return 0
        nodes = Nodes(folder)
    except NotHere as reason:
        print(f"tests.pacemaker: this needs {reason}", file=sys.stderr)
        return 2
    except AssertionError as error:
        print(f"{_TESTER}: FAILED: {error}", flush=True)
        return 1
    rows = []
    with nodes, on_client(nodes.lan):
        print(f"a cluster of three is up, its primary on {nodes.stable()}; logs in {folder}", flush=True)
        account = Account(nodes)
        for name in wanted:
            try:
                took_s, outcome = run(nodes, account, name, ROUNDS[name])
            except (AssertionError, OSError, RunError) as error:
                print(f"{name}: FAILED: {error}", flush=True)
                return 1
            print(f"{name}: well again after {took_s:.1f} s, {account.accepted} messages accepted, none lost", flush=True)
            rows.append(row("pacemaker", FAULTS[name], [outcome]))
    print("the machine:", machine(folder))
    print("\n".join([HEAD, *rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
