"""Whether a queue has room, by its own limits. Messages that are proposed and not committed yet count too."""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.nodes import QueueNode, Unplaced


def check_places(queues: Iterable[QueueNode]) -> None:
    """Unplaced, when a message for all of these queues cannot go to one of them."""
    if any(queue.messages is None for queue in queues):
        raise Unplaced


def has_room(node: QueueNode, count: int, nbytes: int, largest: int = 0) -> bool:
    """Whether so many more messages stay within the queue's own limits, those under way counted too. `largest`: the bytes of the
    largest of them, if that is known."""
    messages = node.messages
    assert messages is not None, "a queue without a place for its messages is not attached to"
    if node.displacing is not None:
        return not node.displacing.fault(count, nbytes, largest)
    if node.max_bytes and messages.live_bytes + pending_bytes(node) + nbytes > node.max_bytes:
        return False
    return not (node.max_count and messages.depth + node.proposed - messages.enqueued + count > node.max_count)


def pending_bytes(node: QueueNode) -> int:
    """Bytes proposed for the queue that are not committed yet."""
    assert node.messages is not None
    return node.proposed_bytes - node.messages.enqueued_bytes


def is_crowded(node: QueueNode) -> bool:
    """Whether the queue holds so much that its producers must wait."""
    messages, flow = node.messages, node.flow
    if messages is None:
        return False
    return bool(
        (flow.stop_bytes and messages.live_bytes > flow.stop_bytes) or (flow.stop_count and messages.depth > flow.stop_count)
    )


def is_crowded_still(node: QueueNode) -> bool:
    """Whether waiting producers must continue to wait: the queue has not fallen below its lower threshold."""
    messages, flow = node.messages, node.flow
    if messages is None:
        return False
    return bool(
        (flow.resume_bytes and messages.live_bytes >= flow.resume_bytes)
        or (flow.resume_count and messages.depth >= flow.resume_count)
    )


def full_text(node: QueueNode, nbytes: int, count: int = 1, largest: int = 0) -> str:
    """Why a queue has no room for so many messages of `nbytes` in all, for people."""
    assert node.messages is not None
    messages = node.messages
    if node.displacing is not None:
        asked = f"a message of {nbytes} bytes" if count == 1 else f"{count} messages of {nbytes} bytes in all"
        return f"queue {node.name!r} does not take {asked}: {node.displacing.fault(count, nbytes, largest)}"
    held, held_bytes = messages.depth + node.proposed - messages.enqueued, messages.live_bytes + pending_bytes(node)
    limit = f"{node.max_bytes} bytes" if node.max_bytes and held_bytes + nbytes > node.max_bytes else f"{node.max_count} messages"
    asked = f"one of {nbytes} bytes" if count == 1 else f"{count} more of {nbytes} bytes in all"
    return f"queue {node.name!r} holds {held} messages, {held_bytes} bytes: {asked} would pass its limit of {limit}"
