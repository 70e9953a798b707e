"""Alerts of queues that fill up, as listeners to events, operators and the log see them."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.logger import capturedLogs

from broker.sessions import alerts
from broker.sessions.events import EXCHANGE
from tests.broker.clients import Bench, Client, bench

PREFIX = "agent.ind.event.org_apache_qpid_broker."


def listener(b: Bench) -> tuple[Client, Any]:
    client = b.client()
    assert client.request("CREATE", "exchange", EXCHANGE, {"exchangeType": "topic", "replicate": "all"})[0] == 201
    return client, client.receiver(f"{EXCHANGE}/{PREFIX}#")


def events(client: Client, link: Any) -> list[tuple[str, int]]:
    """What each event is about: up or down, and the number of messages."""
    found = []
    for _, message in client.received[link.name]:
        (event,) = message.body
        assert message.subject.startswith(PREFIX + event["_schema_id"]["_class_name"])
        assert event["_values"]["qName"] == "q"
        found.append((event["_schema_id"]["_class_name"].removeprefix("queueThresholdCrossed"), event["_values"]["msgDepth"]))
    return found


def shown(client: Client) -> list[str]:
    (item,) = client.request("QUERY", "queue", "q")[2]["items"]
    return list(item["alerts"])


def test_an_alert_is_raised_once_until_the_queue_holds_less_and_events_say_so() -> None:
    with bench() as b, capturedLogs() as lines:
        b.queue("q", arguments={"qpid.alert_count_up": 4, "qpid.alert_count_down": 2, "qpid.alert_size": 1 << 20})
        client, link = listener(b)
        sender = client.sender("q")
        for number in range(6):
            client.send(sender, number)
        b.pass_time(1)
        assert (events(client, link), shown(client)) == ([("Upward", 4)], ["count"])
        consumer = client.receiver("q", credit=3)
        b.pass_time(1)
        assert (events(client, link), shown(client)) == ([("Upward", 4)], ["count"]), "it holds 3, and that is not below 2"
        consumer.flow(2)
        b.pass_time(2)
        assert (events(client, link), shown(client)) == ([("Upward", 4), ("Downward", 1)], [])
        client.send(sender, *range(3))
        assert events(client, link)[2:] == [("Upward", 4)]
        client.request("DELETE", "queue", "q")
        b.pass_time(1)
        said = [
            event["line"] for event in lines if "alert threshold" in str(event.get("line")) or "below" in str(event.get("line"))
        ]
        assert said[0].endswith("at or above its alert threshold of 4 messages")
        assert said[1].endswith("below its threshold of 2 messages")


def test_an_alert_that_is_not_over_is_told_again_after_its_gap_and_by_a_new_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a failover makes an alert be forgotten that nobody has heard of."""
    monkeypatch.setattr(alerts, "MOST", 1)
    with bench(clustered=True) as b:
        b.upgraded()
        for name in ("q", "calm", "also calm"):
            b.queue(name, replicate="all", arguments={"qpid.alert_count_up": 1, "qpid.alert_repeat_gap": 10})
        client, link = listener(b)
        client.send(client.sender("q"), "x")
        b.pass_time(9)
        assert events(client, link) == [("Upward", 1)]
        b.pass_time(2)
        assert events(client, link) == [("Upward", 1)] * 2
        b.lead.become("ready", "other:1")
        b.settle()
        b.pass_time(20)
        b.lead.become("active")
        client = b.client()
        link = client.receiver(f"{EXCHANGE}/#")
        b.pass_time(1)
        assert shown(client) == ["count"]
        b.pass_time(10)
        assert events(client, link) == [("Upward", 1)]
        assert client.request("UPDATE", "queue", "q", {"arguments": {"qpid.alert_count_up": 0}})[0] == 200
        b.pass_time(20)
        assert (events(client, link), shown(client)) == ([("Upward", 1)], [])


def test_a_threshold_that_is_set_on_a_queue_that_holds_more_is_reached_at_once() -> None:
    """Breaks when only messages that come raise an alert: the producers of a full queue may send none."""
    with bench() as b:
        b.queue("q")
        client, link = listener(b)
        client.send(client.sender("q"), *range(5))

        def update(**arguments: int | None) -> None:
            asked = {f"qpid.alert_{name}": value for name, value in arguments.items()}
            assert client.request("UPDATE", "queue", "q", {"arguments": asked})[0] == 200
            b.settle()

        update(count_up=6)
        assert (events(client, link), shown(client)) == ([], [])
        update(count_up=5, repeat_gap=10)
        assert (events(client, link), shown(client)) == ([("Upward", 5)], ["count"])
        update(count_down=5)
        assert events(client, link) == [("Upward", 5)], "it is raised already"
        b.pass_time(11)
        assert events(client, link) == [("Upward", 5)] * 2
        update(count_up=20, count_down=10)
        assert (events(client, link), shown(client)) == ([("Upward", 5)] * 2 + [("Downward", 5)], [])
        update(count_up=None, count_down=None, repeat_gap=None)
        assert shown(client) == []


@pytest.mark.parametrize("gap_s", [0, 5])
def test_an_alert_ends_with_its_threshold_while_the_other_one_stays_and_messages_go_on_expiring(gap_s: int) -> None:
    """Breaks when an alert that has no threshold any more is repeated: then nothing that is due by time happens any more."""
    with bench() as b:
        b.queue("q", arguments={"qpid.alert_count_up": 1, "qpid.alert_size_up": 1 << 20, "qpid.alert_repeat_gap": gap_s})
        b.queue("brief", arguments={"x-message-ttl": 8000})
        client, link = listener(b)
        client.send(client.sender("q"), "x")
        client.send(client.sender("brief"), "x")
        b.pass_time(1)
        assert (events(client, link), shown(client)) == ([("Upward", 1)], ["count"])
        assert client.request("UPDATE", "queue", "q", {"arguments": {"qpid.alert_count_up": 0}})[0] == 200
        assert shown(client) == []
        b.pass_time(20)
        assert (events(client, link), b.depth("brief")) == ([("Upward", 1)], 0)
        client.send(client.sender("q"), bytes(1 << 20))
        b.pass_time(1)
        assert (events(client, link)[1:], shown(client)) == ([("Upward", 2)], ["size"])


def test_an_event_is_put_on_no_queue_that_is_full() -> None:
    with bench() as b:
        b.queue("q", arguments={"qpid.alert_count_up": 1})
        b.queue("events", arguments={"qpid.max_size": 10})
        client, _ = listener(b)
        client.request("CREATE", "binding", "", {"exchange": EXCHANGE, "queue": "events", "key": "#"})
        client.send(client.sender("q"), "x")
        assert (b.depth("q"), b.depth("events"), shown(client)) == (1, 0, ["count"])
