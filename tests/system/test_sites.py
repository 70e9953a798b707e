"""Two sites as processes: one follows, they exchange their roles, and one takes over when the other is lost."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from broker.disk.store import Store
from tests.cli.running import run
from tests.system.harness import BrokerProcess, Cluster, eventually, free_ports
from tests.system.traffic import send, take

FIRST, SECOND = ([b"\x00\x53\x75\xa0\x05%s%04d" % (kind, number) for number in range(100)] for kind in (b"f", b"s"))


def test_a_second_site_follows_changes_places_and_takes_over_by_force_when_the_other_is_lost(tmp_path: Path) -> None:
    """Breaks when a switch loses a message or needs a restart, when a takeover loses what the site had, or when brokers of the
    old site mix with the new cluster."""
    brokers = Cluster(tmp_path, 2, ["--ha-replicate", "all"])
    (port,) = free_ports(1)
    x = BrokerProcess(
        tmp_path / "x",
        port,
        ["--ha-cluster", "yes", "--ha-brokers-url", f"{brokers.url},127.0.0.1:{port}", "--ha-replicate", "all"],
    )
    a, b = brokers.brokers
    with closing(brokers):
        brokers.start()
        brokers.promote(a)
        a.create("queue", "jobs")
        assert send(a.address, "jobs", FIRST) == len(FIRST)
        brokers.brokers.append(x)
        x.start()
        x.wait_for("joining")
        for words in (["add-broker", "--learner", "--site", "west", x.address], ["tag", a.address, "--site", "east"]):
            ran = run("qpid-ha", *words, "-b", a.address)
            assert ran.status == 0, ran.err
        brokers.level(x)
        assert a.status()["membership"]["standby"] == [x.address]
        (line,) = (line for line in run("qpid-ha", "list", "-b", a.address).out.splitlines() if x.address in line)
        assert line.split()[1:3] == ["learner", "ready"], line
        assert line.split()[5:] == ["0", "site=west"], line
        ran = run("qpid-ha", "switch-site", "west", "--force", "-b", b.address)
        assert (ran.status, ran.out) == (0, f"{x.address} of site west is the primary; the other sites follow\n"), ran.err
        assert x.status()["membership"]["voters"] == [x.address]
        assert send(x.address, "jobs", SECOND) == len(SECOND)
        brokers.level(a)
        x.kill()
        a.wait_for("joining")
        refused = run("qpid-ha", "takeover", "-b", a.address)
        assert (refused.status, "nothing was done: with --force" in refused.err, f"given up: {x.address}" in refused.err) == (
            1,
            True,
            True,
        )
        ran = run("qpid-ha", "takeover", "--force", "-b", a.address)
        assert (ran.status, f"{a.address} is active in epoch" in ran.out, "begun after batch" in ran.out) == (0, True, True), (
            ran.err
        )
        assert take(a.address, "jobs", len(FIRST) + len(SECOND)) == [*FIRST, *SECOND]
        was = a.status()["clusterId"]
        a.kill()
        a.start()
        brokers.promote(a)
        assert a.status()["clusterId"] == was
        b.kill()
        cut_short = Store.open(b.store)
        cut_short.change_cluster("a-takeover-that-was-cut-short")
        cut_short.close()
        b.start()
        b.wait_for("joining")
        ran = run("qpid-ha", "takeover", "--force", "-b", b.address)
        assert ran.status == 0, ran.err
        x.start()
        brokers.promote(x)  # it is alone in its own cluster, which a person has to know
        eventually(
            lambda: [each.get("refused", "") for each in x.status()["members"] if each["address"] == a.address],
            lambda why: any("belongs to cluster" in each for each in why),
            "the old site's broker saying why it does not talk to the new cluster",
        )
        assert x.status()["clusterId"] != was
        assert "clusters_left" in (a.store / "store.json").read_text()
        for broker in brokers.brokers:
            broker.check_log()
