"""One AMQP 1.0 broker. Clients' requests become batches of a log, and the state of the queues is the result of applying the log.

Start with `service.py`, which has the life of a broker and the owner of each state, and then `sessions/`, which messages pass
through. The path of an incoming message: `sessions/connection.py` → `amqp/engine.py` → `sessions/producer.py` → its terminus →
`sessions/ledger.py` → a `commit_log.CommitLog`. The path of an outgoing message, after its commit: the ledger → `core/state.py`
→ `sessions/queue_terminus.py` → the engine.

`core/` is pure: batches, the content of queues, unsettled deliveries of links. `amqp/` drives proton's C engine, and is the only
folder that calls C. `disk/` is the store. `net/` has the sockets. `administration.py` answers management requests. `client.py`
is the management client of all our tools.

This package does not know how a cluster works. A broker gets a log, which may be local or replicated. A connection that is not a
client's is handed to the owner of its role (`sessions/admission.py`), and a request about the cluster to the owner of its type
(`administration.py`). `ha` registers itself for both.
"""
