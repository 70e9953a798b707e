"""All brokers stop one after the other and start in every order: the one with the newest store becomes primary, whenever it
starts.

The broker that stopped first has the oldest store. Two of three may elect a primary, so the daemon need not wait for the
third. The messages accepted last are on the two brokers that stopped last, and any two brokers include one of these.
"""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

from cli.verify.run import Run
from tests.system.harness import BrokerProcess, Cluster, Refused, ask, cluster, eventually
from tests.system.terms import Manager, active, check_one_primary_an_epoch, go_on, healthy, resource_manager, terms, traffic

ORDERS = list(itertools.permutations(("newest", "middle", "oldest")))
ALONE_S = 0.2


def go_down(brokers: Cluster, run: Run) -> dict[str, BrokerProcess]:
    """Kill all brokers while messages flow; the brokers by the age of their stores.

    The newest has, most likely, batches that nobody else has: they were not accepted, and may be kept or lost.
    """
    newest = healthy(brokers)
    oldest, middle = (broker for broker in brokers.brokers if broker is not newest)
    oldest.kill()
    ended = newest.status()["lastIndex"]
    go_on(run, 100)
    newest.wait_until("commitIndex", lambda index: index > ended, "accepting what the oldest cannot have")
    middle.kill()
    run.pause(ALONE_S)
    newest.kill()
    return {"newest": newest, "middle": middle, "oldest": oldest}


def come_up(brokers: Cluster, order: list[BrokerProcess]) -> BrokerProcess:
    """Start the brokers one after the other, each when those before have done what they can; who is primary of the first two."""
    first, second, third = order
    for broker in (first, second):
        if not broker.running:
            broker.start()
            broker.wait_for("joining", "catchup", "ready", "recovering", "active")
    primary = eventually(lambda: active(brokers), bool, "a primary of two")
    assert primary is not None
    third.start()
    healthy(brokers)
    return primary


def refusal(broker: BrokerProcess) -> str:
    """Why this broker could not be promoted; "" when it was."""
    try:
        ask(broker.address, "PROMOTE", "ha", body={"reason": "an operator's error", "insist": False})
    except Refused as error:
        return str(error)
    return ""


def check_votes(manager: Manager, oldest: BrokerProcess, middle: BrokerProcess) -> None:
    """The daemon does not ask the oldest. Whoever does, while it stands still, asks in vain: the other one has a vote too."""
    manager.signal(signal.SIGSTOP)
    oldest.start()
    middle.start()
    eventually(lambda: refusal(oldest), lambda text: "its log is newer" in text or not text, "a refusal because of the log")
    assert "active" not in (oldest.state(), middle.state())
    manager.signal(signal.SIGCONT)


def test_after_an_outage_of_all_the_newest_store_wins_in_whatever_order_they_come_up(tmp_path: Path) -> None:
    """Breaks when whoever is there first, or whoever is asked, is promoted though its store is older, when it cannot be unseated,
    or when the last one to come brings back what the others have given up."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers, resource_manager(tmp_path, brokers) as manager:
        with traffic(brokers, rate=400, before=100, after=100) as run:
            for order in ORDERS:
                ages = go_down(brokers, run)
                if order == ("oldest", "middle", "newest"):
                    check_votes(manager, ages["oldest"], ages["middle"])
                primary = come_up(brokers, [ages[age] for age in order])
                assert primary is not ages["oldest"], f"the oldest store won, of {order[:2]}"
                told = [item["gap_ms"] for item in ask(primary.address, "QUERY", "history")["items"][1:]]
                assert min(told) > 0, "an outage has a figure, also when nobody is left who saw its beginning"
                go_on(run, 100)
        assert len(terms(healthy(brokers))) > len(ORDERS)
        check_one_primary_an_epoch(brokers)


def test_the_oldest_store_alone_with_a_blank_one_does_not_lead(tmp_path: Path) -> None:
    """The two that had accepted everything are gone, one of them for good: its disk was replaced by an empty one.

    Breaks when a new store's vote counts: then two brokers who know nothing of what was accepted make one of them the primary.
    """
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers, resource_manager(tmp_path, brokers) as manager:
        with traffic(brokers, rate=400, before=100, after=100) as run:
            known = len(terms(healthy(brokers)))
            ages = go_down(brokers, run)
            ages["middle"].wipe()
            ages["oldest"].start()
            ages["middle"].start()
            refusal = f"{ages['oldest'].address}: refused"
            eventually(manager.log, lambda log: refusal in log, "the oldest store asking in vain")
            assert active(brokers) is None
            ages["newest"].start()
            later = eventually(lambda: terms(healthy(brokers))[known:], bool, "the record of the term")
            assert later[0][1] == ages["newest"].address
        check_one_primary_an_epoch(brokers)
