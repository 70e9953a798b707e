"""A broker's figures for Prometheus: they are true, whole, and come by the piece."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from broker.core import limits
from broker.metrics import QUEUES, SUMS, Metrics
from ha.metrics import families
from telemetry.exposition import Family
from tests.broker.clients import ADMIN, Bench, bench
from tests.broker.drain_bench import Taking
from tests.broker.scraped import promtool, read
from tests.ha.test_metrics import ACTIVE

ROOT = Path(__file__).parents[2]
OF_QUEUES = {"understudy_queues", "understudy_messages", "understudy_message_bytes", "understudy_consumers"}


def metrics(b: Bench, level: str = QUEUES, **further: Any) -> Metrics:
    return Metrics(b.broker, level, version="1", wall=lambda: 1000.0, free_bytes=lambda: 5 << 30, cpu_s=lambda: 2.5, **further)


def scraped(b: Bench, level: str = QUEUES, **further: Any) -> dict[str, dict[str, float]]:
    return read("".join(metrics(b, level, **further).text()))


def test_the_page_says_what_the_broker_has() -> None:
    with bench() as b:
        b.queue("q")
        before = scraped(b)
        client = b.client()
        sender = client.sender("q")
        for text in ("one", "two", "three"):
            client.send(sender, text)
        client.auto_accept = True
        client.receiver("q", credit=2)
        b.pass_time(1.0)  # outcomes are logged by the batch
        found = scraped(b, certificates=lambda: 5000.0)
        assert found["understudy_serves"] == {"": 1}
        assert found["understudy_build_info"] == {'version="1",broker_id="broker-1"': 1}
        assert found["process_start_time_seconds"] == {"": 1000}
        assert found["process_cpu_seconds_total"] == {"": 2.5}
        assert found["understudy_disk_free_bytes"] == {"": 5 << 30}
        assert found["understudy_disk_low"] == {"": 0}
        assert found["understudy_certificate_expiry_timestamp_seconds"] == {"": 5000}
        assert found["understudy_connections"] == {"": before["understudy_connections"][""] + 1}
        assert found["understudy_received_messages_total"] == {"": before["understudy_received_messages_total"][""] + 3}
        assert found["understudy_sent_messages_total"] == {"": before["understudy_sent_messages_total"][""] + 2}
        assert found["understudy_messages"] == {"": 1}
        assert found["understudy_queue_messages"] == {'queue="q"': 1}
        assert found["understudy_queue_consumers"] == {'queue="q"': 1}
        assert found["understudy_queue_enqueued_messages_total"] == {'queue="q"': 3}
        assert found["understudy_queue_dequeued_messages_total"] == {'queue="q"': 2}
        enqueued = found["understudy_queue_enqueued_bytes_total"]['queue="q"']
        dequeued = found["understudy_queue_dequeued_bytes_total"]['queue="q"']
        assert (
            found["understudy_queue_bytes"]
            == {'queue="q"': enqueued - dequeued}
            == {'queue="q"': found["understudy_message_bytes"][""]}
        )


def test_a_drain_is_seen_at_both_of_its_ends() -> None:
    with bench() as b:
        Taking(b)
        found = scraped(b)
        assert (found["understudy_drain_origins"], found["understudy_leaving"]) == ({"": 1}, {"": 0})
        assert b.client(ADMIN).request("LEAVE", "drain", "", {"to": ["there:5672"]})[0] == 200
        assert scraped(b)["understudy_leaving"] == {"": 1}


def test_what_is_not_known_has_no_sample_and_further_families_stand_on_the_page() -> None:
    with bench() as b:
        found = scraped(b, others=lambda: [Family("understudy_more", "More.", [('{a="b"}', 7)])])
        assert found["understudy_certificate_expiry_timestamp_seconds"] == {}
        assert found["understudy_more"] == {'a="b"': 7}


def test_messages_of_clients_that_have_gone_count_on() -> None:
    with bench() as b:
        b.queue("q")
        for _ in range(2):
            client = b.client()
            client.send(client.sender("q"), "one")
            client.receiver("q", credit=1)
            client.lose()
        found = scraped(b)
        assert found["understudy_connections"] == {"": 0}
        assert found["understudy_received_messages_total"] == {"": 3}, "its request counts, too"
        assert found["understudy_sent_messages_total"] == {"": 3}, "and its answer"


def test_names_of_queues_are_told_only_where_that_was_asked_for() -> None:
    with bench() as b:
        b.queue('secret "plans" \\')
        sums = scraped(b, SUMS)
        assert sums["understudy_queues"] == {"": 1}
        assert not any(name.startswith("understudy_queue_") for name in sums)
        assert scraped(b)["understudy_queue_messages"] == {'queue="secret \\"plans\\" \\\\"': 0}


def test_queues_with_series_have_a_bound_and_the_rest_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METRICS_QUEUES", 2)
    with bench() as b:
        for name in "abc":
            b.queue(name)
        found = scraped(b)
        assert found["understudy_queue_messages"].keys() == {'queue="a"', 'queue="b"'}
        assert found["understudy_queues"] == {"": 3}
        assert found["understudy_queues_left_out"] == {"": 1}
        monkeypatch.setattr(limits, "METRICS_QUEUES", 3)
        assert scraped(b)["understudy_queues_left_out"] == {"": 0}


def test_a_backup_tells_nothing_of_queues() -> None:
    with bench(clustered=True) as b:
        b.queue("q")
        assert scraped(b).keys() >= OF_QUEUES
        b.lead.become("ready", "other:5672")
        found = scraped(b)
        assert found["understudy_serves"] == {"": 0}
        assert not any("queue" in name for name in found)
        assert not OF_QUEUES & found.keys()


def test_the_page_may_be_left_at_every_queue_and_what_goes_meanwhile_does_no_harm() -> None:
    with bench() as b:
        for number in range(20):
            b.queue(f"q{number:02}")
        pieces = metrics(b).text()
        read_first = [next(pieces) for _ in range(25)]
        assert "understudy_queues" not in "".join(read_first)
        assert b.client().request("DELETE", "queue", "q19")[0] == 204
        found = read("".join([*read_first, *pieces]))
        assert len(found["understudy_queue_messages"]) in (19, 20)


def test_the_page_of_reference_names_what_there_is() -> None:
    with bench() as b:
        made = set(scraped(b, others=lambda: families(ACTIVE)))
    page = (ROOT / "docs/reference/metrics.md").read_text()
    assert set(re.findall(r"`((?:understudy|process)_\w+)`", page)) == made


def test_rules_and_board_speak_of_metrics_that_there_are_and_prometheus_finds_them_right() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    rules = (ROOT / "deploy/prometheus/broker.rules.yml").read_text()
    board = (ROOT / "deploy/grafana/broker.json").read_text()
    assert json.loads(board)["panels"]
    named = set(re.findall(r"(?:understudy|process)_\w+", rules + board))
    assert named <= set(re.findall(r"\w+", page))
    with bench() as b:
        promtool("check", "metrics", text="".join(metrics(b).text()))
    promtool("check", "rules", "broker.rules.yml")
    promtool("test", "rules", "broker.rules.test.yml")
    explained = (ROOT / "docs/howto/metrics.md").read_text()
    assert set(re.findall(r"alert: (\w+)", rules)) == set(re.findall(r"`([A-Z]\w+)`", explained))
