"""Messages that are left on a queue when it is deleted, while the primary dies."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from proton import ProtonException

from tests.system.harness import Asker, Refused, ask, cluster, eventually
from tests.system.test_levels import texts
from tests.system.traffic import send, take

MANY = 20_000


def test_a_primary_that_is_killed_while_it_empties_a_queue_leaves_each_message_in_one_place(tmp_path: Path) -> None:
    """Breaks when a message is in both places or in none after a failover, or when the queue is gone before its messages."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers:
        first, second = brokers.brokers[:2]
        first.create("exchange", "dlx", exchangeType="fanout")
        first.create("queue", "dead")
        first.create("binding", "", exchange="dlx", queue="dead", key="")
        first.create("queue", "q", alternateExchange="dlx")
        sent = texts(*(str(each) for each in range(MANY)))
        assert send(first.address, "q", sent) == MANY

        def delete() -> None:
            with contextlib.suppress(ProtonException, Refused):
                answers.append(ask(first.address, "DELETE", "queue", "q", timeout_s=60))

        answers: list[object] = []
        asking = threading.Thread(target=delete)
        with contextlib.closing(Asker(first.address)) as asker:
            asking.start()
            eventually(lambda: asker.ask("QUERY", "queue", "dead", {})["items"][0]["messages"], bool, "the first message there")
            first.kill()
        asking.join(60)
        assert not answers
        brokers.promote(second)
        left, there = second.queue("q")["messages"], second.queue("dead")["messages"]
        assert min(left, there) > 0, "it was killed in the middle"
        assert left + there == MANY
        ask(second.address, "DELETE", "queue", "q", timeout_s=60)
        assert take(second.address, "dead", MANY) == sent
        assert second.queue("dead")["messages"] == 0
