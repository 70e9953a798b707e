"""Between a client's connection and a log: sessions, the termini of their links, and the deliveries that wait for a commit.

Start with `termini.py` (finds the terminus for an attach) and `queue_terminus.py` (the most important terminus). From below:
`turn.py` (work at the end of a turn), `inflow.py` (uncommitted bytes), `ledger.py` (one log: what waits to be written and
committed), `coming.py` (incomplete large messages), `logs.py` (all ledgers, the nodes, whether this broker serves),
`principal.py` (the user), `guard.py` (the user's rights), `audit.py` and `quota.py` (audit log and quotas), `attach.py` (the
state of a link), `producer.py` and `consumer.py` (a client's sending and receiving links); then one module for each kind of
terminus: `queue_terminus.py` (with `returns.py`, what consumers give back, and `queue_bodies.py`, the bodies that are not in
memory) with `queues.py` above it, `exchanges.py`, `mailboxes.py`, `management.py`, `relay.py`, with `room.py` and `routing.py`
below them; then `connection.py` (socket and engine), `client.py` (a client's session) and
`admission.py` (all connections).

The path of an incoming message: `Connection` → `ClientSession` → `Producer.take` → `Target.receive` → `Ledger.enqueue` → the
log. The path of an outgoing message, after its commit: `Ledger.on_committed` → `Queues.fed` → `QueueTerminus.dispatch` →
`Subscription.deliver` → the engine. The path of its outcome: `Subscription.outcomes` → `Ledger.dequeue` → the log. Nothing here
has a pointer of the engine: deliveries are integers.
"""
