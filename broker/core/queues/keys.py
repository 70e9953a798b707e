"""A named value of a message: the key of a last value queue, or the group of a queue of groups. Only the primary reads it.

It is the application property of this name, as a text. If the message does not have it, `JMSXGroupID` means the group-id in its
properties, as in JMS, and `qpid.subject` its subject, as in Qpid's clients. A message without the value, or with one that cannot
be read, has the key "": all of these have the same key.

Source: qpidd's amqp/Message.cpp (getPropertyAsString): numbers and booleans count as their texts.
"""

from __future__ import annotations

from broker.core import message

GROUP_ID, SUBJECT = "JMSXGroupID", "qpid.subject"


def key_of(data: bytes, name: str) -> str:
    """The value of a message under this name, as a text; "" if it has none."""
    try:
        value = message.application_properties(data).get(name)
        if value is None and name == GROUP_ID:
            value = message.group_id(data)
        elif value is None and name == SUBJECT:
            value = message.subject(data)
    except message.BadMessage:
        return ""
    return "" if value is None else str(value)
