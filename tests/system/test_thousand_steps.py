"""A thousand kills, restarts and promotions while messages pass: no accepted message is lost, whatever happens to the
brokers.

The plan of steps is made beforehand from a seed. Only the brokers that are up decide which steps are possible next, so the
same seed gives the same thousand steps. The results of the steps (which promotion succeeds, which is refused) depend on
timing, and must not matter.

Between steps the test waits until a few more messages are accepted, or a short time. So steps happen during elections,
catching up and replaying, and during other steps. From time to time the cluster recovers and one broker loses its store.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from proton import ProtonException, Timeout
from proton.reactor import Copy

from cli.verify.run import Run, Workload
from tests.system.harness import Cluster, Refused, ask, cluster, eventually
from tests.system.traffic import accounted, take

SEED = 20_240_117
STEPS = 1000
MESSAGES_A_STEP = 8
RATE = 250
"""Messages a second: a step takes about thirty milliseconds, or `LONGEST_STEP_S` while nobody serves."""
LONGEST_STEP_S = 0.04
LONGEST_CALM_S = 4.0
MOST_ASKED_AT_ONCE = 6
Step = tuple[str, int]


def plan(seed: int, steps: int, size: int = 3) -> Iterator[Step]:
    """Steps as (what, broker). The words for what: `kill`; `kill unheeding` (whatever the others do just now); `start`;
    `promote`; `wipe`, which is to heal, kill, and delete the store.

    One broker at a time is down for the most part; one kill in ten takes a second broker too, and one in thirty all of
    them, to be restarted in any order. Promotions are asked of the dead and the starting too.
    """
    chance = random.Random(seed)
    up, wipes = set(range(size)), 0
    doomed: list[int] = []
    for made in range(steps):
        down = set(range(size)) - up
        if doomed:
            step = "kill unheeding", doomed.pop()
        elif not down and made > (wipes + 1) * steps / 6:
            step, wipes = ("wipe", chance.randrange(size)), wipes + 1
        elif chance.random() < 0.8:
            step = "promote", chance.randrange(size)
        elif down:
            step = "start", chance.choice(sorted(down))
        else:
            count = chance.choices((1, 2, size), (26, 3, 1))[0]
            doomed = chance.sample(sorted(up), count)
            step = chance.choices(("kill", "kill unheeding"), (4, 1))[0], doomed.pop()
        if step[0] == "start":
            up.add(step[1])
        elif step[0] != "promote":
            up.discard(step[1])
        yield step


def promote(address: str) -> str:
    """Ask a broker to become the primary; what came of it."""
    try:
        ask(address, "PROMOTE", "ha", body={"reason": "a step"}, timeout_s=30)
    except Refused as refusal:
        return f"refused {refusal.status}"
    except Timeout as error:
        return f"in limbo ({error})"
    except (ProtonException, OSError):
        return "cut off"
    return "won"


def wait_for_calm(brokers: Cluster) -> None:
    """Give every broker that runs a while to find its primary since it was started; no matter if there is none to find."""
    deadline = time.monotonic() + LONGEST_CALM_S
    while time.monotonic() < deadline and not all(broker.has_joined() for broker in brokers.brokers if broker.running):
        time.sleep(0.01)


def heal(brokers: Cluster) -> None:
    """Wait until one broker is active and the others are ready, asking for it if need be."""

    def states() -> list[str]:
        found = sorted(broker.state() for broker in brokers.brokers)
        if "active" not in found:
            for broker in brokers.brokers:
                promote(broker.address)
        return found

    for broker in brokers.brokers:
        if not broker.running:
            broker.start()
    eventually(states, lambda found: found == ["active", "ready", "ready"], "a healthy cluster", 90)


def test_a_thousand_kills_restarts_and_promotions_lose_no_accepted_message(tmp_path: Path) -> None:
    """Breaks when anything is accepted before a majority has it on disk, when a stale store can win, when a restart forgets
    what it had promised, or when a change of primary delivers twice or never what it took over."""
    began = time.monotonic()
    done: Counter[str] = Counter()
    promotions: list[Future[str]] = []
    forked = multiprocessing.get_context("forkserver")
    with (
        cluster(tmp_path, 3, "--ha-replicate", "all") as brokers,
        ProcessPoolExecutor(MOST_ASKED_AT_ONCE, mp_context=forked) as askers,
    ):
        brokers.primary().create("queue", "steps")
        with Run(Workload(brokers.addresses, ["steps"], rate=RATE)) as run:
            run.wait_for(accepted=100)
            for what, number in plan(SEED, STEPS):
                broker, before = brokers.brokers[number], run.accepted
                match what:
                    case "kill":
                        wait_for_calm(brokers)
                        broker.kill()
                    case "kill unheeding":
                        broker.kill()
                    case "start":
                        broker.start()
                    case "promote":
                        under_way = [each for each in promotions if not each.done()]
                        if len(under_way) == MOST_ASKED_AT_ONCE:
                            wait(under_way, return_when=FIRST_COMPLETED)
                        promotions.append(askers.submit(promote, broker.address))
                    case "wipe":
                        heal(brokers)
                        broker.kill()
                        broker.wipe()
                done[what] += 1
                run.reaches(accepted=before + MESSAGES_A_STEP, timeout_s=LONGEST_STEP_S)
            heal(brokers)
            report = accounted(run, brokers.primary)
        outcomes = Counter(promotion.result() for promotion in promotions)
        _check_alike(brokers)
    took_s = time.monotonic() - began
    print(f"\n{sum(done.values())} steps {dict(done)}, promotions {dict(outcomes)}: {report}; {took_s:.0f} s")
    assert sum(done.values()) == STEPS
    assert outcomes["won"] > 50, "too few promotions were won for this to have been a test"
    in_limbo = [outcome for outcome in outcomes if outcome.startswith("in limbo")]
    assert not in_limbo, "a promotion was neither won nor refused while its broker lived"
    assert report.accepted > 5 * STEPS, "too few messages went through for this to have been a test"


def _check_alike(brokers: Cluster) -> None:
    """Messages sent now are on all three brokers, at the same place of the log, and each gives out the same ones when
    it is the primary."""
    with Run(Workload(brokers.addresses, ["steps"], consumers=0, at_least=200)) as run:
        assert run.finish().accepted == 200

    def figures() -> set[tuple[int, int, int, int]]:
        found = set()
        for broker in brokers.brokers:
            status = broker.status()
            found.add((status["commitIndex"], status["lastIndex"], status["appliedIndex"], broker.queue("steps")["messages"]))
        return found

    alike = eventually(figures, lambda found: len(found) == 1, "the same state on all brokers")
    (commit_index, last_index, applied_index, depth) = next(iter(alike))
    assert depth == 200
    assert commit_index == last_index == applied_index
    given = []
    for broker in brokers.brokers:
        brokers.promote(broker)
        given.append(take(broker.address, "steps", depth, Copy()))
    assert len(given[0]) == depth
    assert given[0] == given[1] == given[2]
