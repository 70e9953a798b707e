"""Members are added, removed and replaced under load, by one command each and without a restart; members are also restarted
in turn."""

from __future__ import annotations

from pathlib import Path

from tests.cli.running import run
from tests.system.harness import BrokerProcess, Cluster, cluster, eventually, free_ports, spawn
from tests.system.terms import active, go_on, resource_manager, traffic


def joining(brokers: Cluster, folder: Path) -> BrokerProcess:
    """A broker with an empty store that knows the others, and is no member yet."""
    (port,) = free_ports(1)
    new = BrokerProcess(folder, port, ["--ha-cluster", "yes", "--ha-brokers-url", f"{brokers.url},127.0.0.1:{port}"])
    brokers.brokers.append(new)
    new.start()
    new.wait_for("joining")
    return new


def test_a_cluster_grows_to_five_shrinks_and_replaces_a_dead_broker_under_load(tmp_path: Path) -> None:
    """The daemon began with three addresses, of which none is left in the end, and still promotes. Breaks when anything needs a
    restart after a change of the members, when a change costs a message, or when a primary that is removed hands nothing over."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers, resource_manager(tmp_path, brokers):
        first, second, third = brokers.brokers
        ports = free_ports(3)
        everyone = ",".join([brokers.url, *(f"127.0.0.1:{port}" for port in ports)])
        own = ["--ha-cluster", "yes", "--ha-brokers-url", everyone, "--ha-replicate", "all"]
        new = [BrokerProcess(tmp_path / f"new{port}", port, own) for port in ports]
        brokers.brokers += new
        with traffic(brokers, rate=200, before=50, after=50) as flow:
            for broker in new:
                broker.start()
                broker.wait_for("joining")
            assert run("qpid-ha", "add-broker", new[0].address, new[1].address, "-b", second.address).status == 0
            assert second.status()["membership"]["voters"] == sorted([*brokers.addresses[:3], new[0].address, new[1].address])
            go_on(flow, 50)
            ran = run("qpid-ha", "remove-broker", first.address, second.address, "-b", third.address)
            assert ran.status == 0, ran.err
            for broker in (first, second):
                broker.wait_for("removed")
            go_on(flow, 50)
            third.kill()
            eventually(lambda: active(brokers), bool, "a primary without the dead broker")
            ran = run("qpid-ha", "replace-broker", third.address, new[2].address, "-b", new[0].address)
            assert ran.status == 0, ran.err
            assert new[0].status()["membership"]["voters"] == sorted(broker.address for broker in new)
            primary = active(brokers)
            assert primary is not None
            primary.kill()
            eventually(lambda: active(brokers), lambda found: found not in (None, primary), "a primary that the daemon has made")
            go_on(flow, 50)
            primary.start()
            for broker in new:
                broker.wait_for("ready", "active")


def test_a_broker_of_a_cluster_of_two_is_replaced(tmp_path: Path) -> None:
    """Breaks when the old one stays, because two voters would be left."""
    with cluster(tmp_path, 2) as brokers:
        old = next(broker for broker in brokers.brokers if broker is not brokers.primary())
        new = joining(brokers, tmp_path / "new")
        primary = brokers.primary()
        ran = run("qpid-ha", "replace-broker", old.address, new.address, "-b", primary.address)
        assert ran.status == 0, ran.err
        assert primary.status()["membership"]["voters"] == sorted([primary.address, new.address])


def test_the_replacement_of_the_primary_of_two_is_finished_that_was_interrupted_when_the_new_one_had_its_vote(
    tmp_path: Path,
) -> None:
    """Breaks when the second run leaves three voting members, and names nothing that the operator can do."""
    with cluster(tmp_path, 2) as brokers:
        old, other = brokers.brokers
        new = joining(brokers, tmp_path / "new")
        assert run("qpid-ha", "add-broker", new.address, "-b", other.address).status == 0
        words = ("qpid-ha", "replace-broker", old.address, new.address, "-b", other.address)
        ran = run(*words)
        how = f"{new.address} had a vote already: if an earlier run was interrupted, give --force to finish it"
        assert (ran.status, how in ran.err) == (1, True), ran.err
        assert run(*words, "--force").status == 0
        old.wait_for("removed")
        assert brokers.primary().status()["membership"]["voters"] == sorted([other.address, new.address])
        assert run(*words).status == 0, "there is nothing left to do"


def test_all_brokers_are_restarted_in_turn_and_none_is_stopped_that_is_needed(tmp_path: Path) -> None:
    """Breaks when a restart costs an accepted message, when the next broker goes before the last is back, or when a stop leaves
    no majority."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers:
        by_port = {str(broker.port): broker for broker in brokers.brokers}
        asked = tmp_path / "asked"
        asked.mkdir()
        was, order = brokers.primary(), list[str]()
        with traffic(brokers, rate=200, before=50, after=50) as flow:
            words = ["rolling-restart", "-b", brokers.brokers[1].address, "--command"]
            idle = run("qpid-ha", *words, "true", "--wait", "0.5")
            said = "runs as before and was not restarted after 0.5 s; the other brokers are not restarted"
            assert (idle.status, said in idle.err) == (1, True), idle.err
            words.append(f"touch {asked}/{{port}}")
            rolling = spawn(tmp_path / "rolling.log", "qpid-ha", *words)
            while len(order) < 3:
                port = eventually(lambda: {path.name for path in asked.iterdir()} - set(order), bool, "a restart").pop()
                order.append(port)
                by_port[port].stop()
                by_port[port].start()
            assert rolling.wait() == 0, (tmp_path / "rolling.log").read_text()
            go_on(flow, 50)
        assert order[-1] == str(was.port), "the primary goes last"
        primary = brokers.primary()
        backup = next(broker for broker in brokers.brokers if broker is not primary)
        assert run("qpid-ha", "stop", "-b", backup.address).status == 0
        eventually(lambda: backup.running, lambda runs: not runs, "the end of a broker that was told to stop")
        ran = eventually(lambda: run("qpid-ha", "stop", "-b", primary.address), lambda ran: ran.status != 0, "a refusal")
        assert (ran.status, "only 1 of 3 voting members are there" in ran.err) == (1, True)
