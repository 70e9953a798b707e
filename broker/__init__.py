"""One broker: AMQP 1.0 in, a log of batches, queues that are what the applied log says.

Start with `service.py`, which has the life of a broker and says who owns what, and then `sessions/`, where messages pass. A
message's way in is `sessions/connection.py` → `amqp/engine.py` → `sessions/producer.py` → its terminus → `sessions/ledger.py` → a
`commit_log.CommitLog`; its way out, once committed, is the ledger → `core/state.py` → `sessions/queue_terminus.py` → the engine
again.

`core/` is pure: what a batch is, what a queue holds, what a link has unsettled. `amqp/` drives proton's C engine, and nothing
else here calls C. `disk/` is the store. `net/` has what sockets need. `administration.py` answers management. `client.py` is
the management client that every tool of ours uses.

Nothing here knows how a cluster works. The log that a broker is given may be its own alone or shared by many. A connection that
is no client's is handed to whoever has registered its role (`sessions/admission.py`), and requests about a cluster to whoever
has registered their type (`administration.py`): `ha` does both.
"""
