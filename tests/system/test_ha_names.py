"""The subjects of Apache Qpid's HA tests, by their names, on one cluster of real brokers (docs/reference/ha-names.md).

Life of the cluster: the third broker is killed. Each story creates its objects on the first broker. The third starts again
and fetches what it missed. The first is killed with clients attached, and the third is promoted. Each story then checks the
result there, in its own test. A story is a generator: the part before `yield AWAY` runs while the third broker is away, the
part before `yield KILLED` before the kill, and the rest gets the new primary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from proton import Message
from proton.handlers import TransactionHandler
from proton.reactor import Copy
from proton.utils import BlockingConnection, LinkDetached

from tests.system.harness import BrokerProcess, Cluster, ask, ask_all, cluster, eventually
from tests.system.test_levels import text, texts
from tests.system.traffic import send, take

ROOT = Path(__file__).parent.parent.parent
ROWS = re.findall(r"^\| ([a-z ,/-]+) \| .*? \| (`[^|]*`) \|$", (ROOT / "docs/reference/ha-names.md").read_text(), re.M)
NAMES = """replication; sync; failover; backup failover; lvq; ring; reject; priority; priority fairshare; priority ring;
    backup acquired; replicate default; replicate binding; exclusive; auto-delete exclusive; auth; alternate exchange;
    priority reroute; delete missing response; auto-delete failover; expired; missed recreate; queue hold;
    expected backup timeout; join ready cluster; stalled backup; store recovery; catch-up store; tx commit; tx rollback;
    tx failure; tx join-leave; tx block; max queues; long failover send-receive"""
AWAY, KILLED = "the third broker is away", "the first is about to be killed"
QUEUES = 150
Story = Generator[str, BrokerProcess, None]
STORIES: dict[str, Callable[[BrokerProcess], Story]] = {}


def story(tell: Callable[[BrokerProcess], Story]) -> Callable[[BrokerProcess], Story]:
    """One of them."""
    STORIES[tell.__name__] = tell
    return tell


# ---- clients


def bodies(messages: list[bytes]) -> list[Any]:
    """Of encoded messages."""
    found = []
    for data in messages:
        message = Message()
        message.decode(data)
        found.append(message.body)
    return found


def seen(broker: BrokerProcess, queue: str) -> list[Any]:
    """The bodies of all that is on a queue, which stays there."""
    count = broker.queue(queue)["messages"]
    return bodies(take(broker.address, queue, count, Copy())) if count else []


def put(broker: BrokerProcess, queue: str, *messages: bytes) -> None:
    """On a new queue or an old one; all are accepted."""
    assert send(broker.address, queue, messages) == len(messages)


def connect(broker: BrokerProcess) -> Any:
    """A connection that nobody closes unless its story says so."""
    return BlockingConnection(broker.address, timeout=60)


class Transaction(TransactionHandler):
    """A transaction on a connection of its own, which takes the oldest message from `queue` and puts one there."""

    transaction: Any = None

    def __init__(self, broker: BrokerProcess, queue: str) -> None:
        super().__init__()
        self.said = ""
        self.connection = connect(broker)
        self.connection.container.declare_transaction(self.connection.conn, handler=self)
        self.connection.wait(lambda: bool(self.said))
        receiver: Any = self.connection.create_receiver(queue, credit=0)
        receiver.receive()
        self.transaction.accept(receiver.fetcher.unsettled[0])
        sent = self.transaction.send(self.connection.create_sender(queue).link, Message(body="put by the transaction"))
        self.connection.wait(lambda: sent.remote_state == TRANSACTIONAL)

    def end(self, *, commit: bool) -> str:
        """Discharge it: committed, aborted."""
        self.said = ""
        (self.transaction.commit if commit else self.transaction.abort)()
        self.connection.wait(lambda: bool(self.said))
        self.connection.close()
        return self.said

    def on_transaction_declared(self, event: Any) -> None:
        self.transaction, self.said = event.transaction, "declared"

    def on_transaction_committed(self, event: Any) -> None:
        self.said = "committed"

    def on_transaction_aborted(self, event: Any) -> None:
        self.said = "aborted"


TRANSACTIONAL: Any = 0x34


# ---- kinds of queues


@story
def a_last_value_queue_has_the_newest_of_each_key(first: BrokerProcess) -> Story:
    first.create("queue", "lvq", arguments={"qpid.last_value_queue_key": "k"})
    put(first, "lvq", *(text(f"{key}{n}", properties={"k": key}) for n in range(3) for key in "ab"))
    new = yield KILLED
    assert seen(new, "lvq") == ["a2", "b2"]
    put(new, "lvq", text("a3", properties={"k": "a"}))
    assert seen(new, "lvq") == ["b2", "a3"]


@story
def a_ring_has_the_newest_and_goes_on_turning(first: BrokerProcess) -> Story:
    first.create("queue", "ring", arguments={"qpid.policy_type": "ring", "qpid.max_count": 3})
    put(first, "ring", *texts(*"abcde"))
    new = yield KILLED
    assert seen(new, "ring") == list("cde")
    put(new, "ring", *texts("f"))
    assert seen(new, "ring") == list("def")


PRIORITIES = (1, 9, 5, 9, 0, 5)


def by_priority() -> list[bytes]:
    """Messages that are named by their priority and their number."""
    return [text(f"{priority}-{number}", priority=priority) for number, priority in enumerate(PRIORITIES)]


@story
def a_priority_queue_gives_out_the_highest_first(first: BrokerProcess) -> Story:
    first.create("queue", "priority", arguments={"qpid.priorities": 10})
    put(first, "priority", *by_priority())
    new = yield KILLED
    assert bodies(take(new.address, "priority", len(PRIORITIES))) == ["9-1", "9-3", "5-2", "5-5", "1-0", "0-4"]


@story
def a_priority_queue_with_shares_lets_every_level_have_its_turn(first: BrokerProcess) -> Story:
    first.create("queue", "fairshare", arguments={"qpid.priorities": 10, "qpid.fairshare": 1})
    put(first, "fairshare", *by_priority())
    new = yield KILLED
    assert bodies(take(new.address, "fairshare", len(PRIORITIES))) == ["9-1", "5-2", "1-0", "0-4", "9-3", "5-5"]


@story
def a_ring_with_priorities_keeps_the_highest(first: BrokerProcess) -> Story:
    arguments = {"qpid.policy_type": "ring", "qpid.max_count": 3, "qpid.priorities": 10}
    first.create("queue", "priority-ring", arguments=arguments)
    put(first, "priority-ring", *by_priority())
    new = yield KILLED
    assert seen(new, "priority-ring") == ["9-1", "9-3", "5-5"]
    put(new, "priority-ring", text("0-6", priority=0), text("7-7", priority=7))
    assert seen(new, "priority-ring") == ["9-1", "9-3", "7-7"]


# ---- where messages go that nobody accepts


@story
def a_rejected_message_goes_to_the_alternate_exchange_before_and_after(first: BrokerProcess) -> Story:
    first.create("exchange", "refuse", exchangeType="fanout")
    first.create("queue", "dead")
    first.create("binding", "", exchange="refuse", queue="dead", key="")
    first.create("queue", "judged", alternateExchange="refuse")
    put(first, "judged", *texts("a", "b"))
    reject(first, "judged", 1)
    new = yield KILLED
    assert (seen(new, "judged"), seen(new, "dead")) == (["b"], ["a"])
    assert new.queue("judged")["alternateExchange"] == "refuse"
    reject(new, "judged", 1)
    assert (seen(new, "judged"), seen(new, "dead")) == ([], ["a", "b"])


@story
def dead_letters_of_a_priority_queue_take_their_places_and_never_its_own(first: BrokerProcess) -> Story:
    """The alternate exchange leads to the queue itself, too."""
    first.create("exchange", "again", exchangeType="fanout")
    levels = {"qpid.priorities": 10}
    for name, attributes in (("rerouted", {"alternateExchange": "again"}), ("rerouted-to", {})):
        first.create("queue", name, arguments=levels, **attributes)
        first.create("binding", "", exchange="again", queue=name, key="")
    put(first, "rerouted", *by_priority())
    reject(first, "rerouted", 1)
    new = yield KILLED
    put(new, "rerouted-to", text("0-6", priority=0))
    reject(new, "rerouted", 1)
    assert seen(new, "rerouted") == ["5-2", "5-5", "1-0", "0-4"]
    assert seen(new, "rerouted-to") == ["9-1", "9-3", "0-6"]


def reject(broker: BrokerProcess, queue: str, count: int) -> None:
    """Reject the first messages of a queue, and wait until they have left it."""
    before = broker.queue(queue)["messages"]
    client = connect(broker)
    receiver = client.create_receiver(queue, credit=count)
    for _ in range(count):
        receiver.receive()
        receiver.reject()
    client.close()
    eventually(lambda: broker.queue(queue)["messages"], lambda left: left == before - count, "the rejection")


# ---- queues that are somebody's


@story
def what_a_consumer_had_acquired_comes_again_in_its_place(first: BrokerProcess) -> Story:
    """A consumer has messages while the third broker comes, and when the first is killed: nobody has acquired them any more."""
    first.create("queue", "acquired")
    put(first, "acquired", *texts(*"abcd"))
    client = connect(first)
    receiver = client.create_receiver("acquired", credit=2)
    assert [receiver.receive().body for _ in range(2)] == ["a", "b"]
    yield AWAY
    receiver.accept()
    client.create_sender("acquired")  # the client sends its outcome when it next does something
    eventually(lambda: first.queue("acquired")["messages"], lambda left: left == 3, "the end of what was accepted")
    new = yield KILLED
    left = bodies(take(new.address, "acquired", 3))
    assert left == ["b", "c", "d"]


@story
def an_exclusive_queue_is_free_for_its_next_consumer_and_for_no_other(first: BrokerProcess) -> Story:
    first.create("queue", "exclusive", exclusive=True)
    put(first, "exclusive", *texts("a"))
    holder = connect(first).create_receiver("exclusive", credit=0)
    new = yield KILLED
    client = connect(new)
    del holder
    assert client.create_receiver("exclusive", credit=1).receive().body == "a"
    with pytest.raises(LinkDetached, match="exclusive"):
        connect(new).create_receiver("exclusive", credit=1)
    client.close()


@story
def an_exclusive_auto_delete_queue_goes_with_its_consumer_on_the_next_primary_too(first: BrokerProcess) -> Story:
    for name in ("gone", "own"):
        first.create("queue", f"auto-{name}", exclusive=True, autoDelete=True)
    put(first, "auto-own", *texts("a"))
    gone = connect(first)
    gone.create_receiver("auto-gone", credit=0)
    own = connect(first).create_receiver("auto-own", credit=0)
    gone.close()
    eventually(lambda: names(first), lambda found: "auto-gone" not in found, "the end of the queue")
    new = yield KILLED
    del own
    assert "auto-gone" not in names(new)
    client = connect(new)
    assert client.create_receiver("auto-own", credit=1).receive().body == "a"
    client.close()
    eventually(lambda: names(new), lambda found: "auto-own" not in found, "the end of the queue")


@story
def an_auto_delete_queue_whose_time_is_over_goes_after_the_failover(first: BrokerProcess) -> Story:
    first.create("queue", "auto-timed", arguments={"qpid.auto_delete_timeout": 1})
    holder = connect(first).create_receiver("auto-timed", credit=0)
    new = yield KILLED
    del holder
    eventually(lambda: names(new), lambda found: "auto-timed" not in found, "the end of the queue")


def names(broker: BrokerProcess) -> set[str]:
    """Of its queues."""
    return {str(item["name"]) for item in ask(broker.address, "QUERY", "queue")["items"]}


# ---- time, numbers, backups


@story
def what_has_expired_is_gone_and_holds_nothing_up(first: BrokerProcess) -> Story:
    first.create("queue", "expired")
    put(first, "expired", text("short", ttl=0.1), text("long", ttl=3600.0), text("shorter", ttl=0.05), text("no end"))
    new = yield KILLED
    eventually(lambda: new.queue("expired")["messages"], lambda left: left == 2, "the end of what has expired")
    assert seen(new, "expired") == ["long", "no end"]


@story
def many_queues_are_there_with_their_messages(first: BrokerProcess) -> Story:
    ask_all(first.address, *(("CREATE", "queue", f"many-{number}", {}) for number in range(QUEUES)))
    put(first, "", *(text(f"{number}", address=f"many-{number}") for number in range(QUEUES)))
    new = yield KILLED
    there = {item["name"]: item["messages"] for item in ask(new.address, "QUERY", "queue")["items"]}
    assert [there[f"many-{number}"] for number in range(QUEUES)] == [1] * QUEUES


@story
def the_backup_that_is_left_follows_the_new_primary(first: BrokerProcess) -> Story:
    first.create("queue", "followed")
    put(first, "followed", *texts("a"))
    new = yield KILLED
    put(new, "followed", *texts("b"))
    members = new.status()["members"]
    (backup,) = (each["address"] for each in members if each["connected"] and each["address"] != new.address)
    count = eventually(lambda: ask(backup, "QUERY", "queue", "followed")["items"][0]["messages"], lambda n: n == 2, "both there")
    assert count == 2


# ---- transactions


@story
def a_transaction_that_was_committed_is_there_whole(first: BrokerProcess) -> Story:
    first.create("queue", "committed")
    put(first, "committed", *texts("a", "b"))
    assert Transaction(first, "committed").end(commit=True) == "committed"
    new = yield KILLED
    assert seen(new, "committed") == ["b", "put by the transaction"]


@story
def a_transaction_that_was_rolled_back_has_left_nothing(first: BrokerProcess) -> Story:
    first.create("queue", "aborted")
    put(first, "aborted", *texts("a", "b"))
    assert Transaction(first, "aborted").end(commit=False) == "aborted"
    new = yield KILLED
    assert seen(new, "aborted") == ["a", "b"]


@story
def a_transaction_whose_primary_is_killed_has_left_nothing(first: BrokerProcess) -> Story:
    first.create("queue", "cut-short")
    put(first, "cut-short", *texts("a", "b"))
    transaction = Transaction(first, "cut-short")
    new = yield KILLED
    del transaction
    assert seen(new, "cut-short") == ["a", "b"]


@story
def a_transaction_during_which_a_broker_joins_is_there_whole(first: BrokerProcess) -> Story:
    """It is declared while one broker is away, and committed when that has come."""
    first.create("queue", "joined")
    put(first, "joined", *texts("a", "b"))
    transaction = Transaction(first, "joined")
    yield AWAY
    assert transaction.end(commit=True) == "committed"
    new = yield KILLED
    assert seen(new, "joined") == ["b", "put by the transaction"]


@story
def transactions_that_are_open_together_hold_up_nobody(first: BrokerProcess) -> Story:
    """Ten are open on one queue while others are served; they end in another order than they began."""
    first.create("queue", "together")
    put(first, "together", *texts(*"0123456789"))
    together = [Transaction(first, "together") for _ in range(10)]
    put(first, "together", *texts("meanwhile"))
    assert [each.end(commit=bool(number % 2)) for number, each in reversed(list(enumerate(together)))].count("committed") == 5
    new = yield KILLED
    assert seen(new, "together") == ["0", "2", "4", "6", "8", "meanwhile", *["put by the transaction"] * 5]


# ---- the cluster, and the page


@dataclass
class Told:
    """The stories up to the kill, and who is primary after it."""

    stories: dict[str, Story]
    new: BrokerProcess


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    with cluster(tmp_path_factory.mktemp("names"), 3, "--ha-replicate", "all") as brokers:
        yield tell(brokers)


def tell(brokers: Cluster) -> Told:
    """See the module."""
    first, _, third = brokers.brokers
    third.kill()
    stories = {name: begin(first) for name, begin in STORIES.items()}
    away = [each for each in stories.values() if next(each) == AWAY]
    third.start()
    third.wait_for("ready")
    assert [next(each) for each in away] == [KILLED] * len(away)
    brokers.level(third)
    first.kill()
    brokers.promote(third)
    return Told(stories, third)


@pytest.mark.parametrize("name", STORIES)
def test_after_the_primary_was_killed(told: Told, name: str) -> None:
    with pytest.raises(StopIteration):
        told.stories[name].send(told.new)


def test_the_page_has_every_name_and_each_row_names_tests_that_are_there() -> None:
    assert {each for names, _ in ROWS for each in re.split(", ", names)} == {" ".join(each.split()) for each in NAMES.split(";")}
    named = [(file, name) for _, tests in ROWS for file, name in re.findall(r"`(tests/[\w/.]+)::(\w+)`", tests)]
    assert len(named) >= len(ROWS)
    assert [each for each in named if f"def {each[1]}(" not in (ROOT / each[0]).read_text()] == []
    assert set(STORIES) <= {name for _, name in named}
