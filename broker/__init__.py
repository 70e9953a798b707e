"""One broker: AMQP 1.0 in, a log of batches, queues that are what the applied log says.

Start with `service.py`, which has the life of a broker and what happens between its parts. A message's way in is
`net/connection.py` → `amqp/engine.py` → `producers.py` → `ledger.py` → a `commit_log.CommitLog`; its way out, once committed,
is `ledger.py` → `core/state.py` → `consumers.py` → the engine again.

`core/` is pure: what a batch is, what a queue holds, who gets a message. `amqp/` drives proton's C engine. `disk/` is the
store. `net/` has the sockets. `client.py` is the management client that every tool of ours uses. Nothing here knows what a
cluster is: the log that a broker is given may be its own alone or shared by many (`ha`).
"""
