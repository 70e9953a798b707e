"""qpid-drain: what is on a broker that leaves goes to another, once each.

`plan` compares the two and says what will not fit; `sides` keeps a connection to each of them, over failovers; `move` moves the
messages of one queue; `drain` is the life of it all; `call_off` gives back what has not moved. Start reading at `drain`. A broker
of this process is a side, too (`inside`): on a store whose broker does not run (`orphan`), or the one that drains itself
(`on_sigterm`). The brokers' part is in `broker/sessions/departure.py` and `origins.py`, and why it is so in docs/adr/0037, 0043
and 0044.
"""
