"""qpid-drain: moves all queues of one broker (the source) to another one (the target), each message once.

Start with `drain`, which has the life of a drain. `plan` compares the two sides and lists what does not fit; `sides` keeps a
connection to each side over failovers; `move` moves the messages of one queue, and `in_flight` has those that are between the two
sides; `call_off` cancels a drain. A broker in this process can also be a side (`inside`): one on the store of a stopped broker
(`orphan`), or one that drains itself (`on_sigterm`).
The brokers' part is in `broker/sessions/departure.py` and `origins.py`. Reasons: docs/adr/0037, 0043 and 0044.
"""
