"""What a message says under a name: the key of a last value queue, the group of a queue of groups. Read by the primary alone.

It is an application property of that name, as a text. Where the message has none, `JMSXGroupID` stands for the group-id of its
properties, as in JMS, and `qpid.subject` for its subject, as Qpid's clients have it. A message that says nothing, or something
that cannot be read, has the key "": all of those have the same.

Source: qpidd's amqp/Message.cpp (getPropertyAsString): numbers and booleans count as their texts.
"""

from __future__ import annotations

from broker.core import message

GROUP_ID, SUBJECT = "JMSXGroupID", "qpid.subject"


def key_of(data: bytes, name: str) -> str:
    """What a message says under this name, as a text; "" when that is nothing."""
    try:
        value = message.application_properties(data).get(name)
        if value is None and name == GROUP_ID:
            value = message.group_id(data)
        elif value is None and name == SUBJECT:
            value = message.subject(data)
    except message.BadMessage:
        return ""
    return "" if value is None else str(value)
