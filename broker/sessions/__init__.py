"""What happens between a client's connection and a log: sessions, what their links end at, and what waits for a commit.

Start with `termini.py` (which terminus an attach is for) and `queue_terminus.py` (the one that matters most). From below:
`turn.py` (what is done once at the end of a turn), `inflow.py` (bytes that are not committed yet), `ledger.py` (one log: what
waits to be written and to be committed), `logs.py` (all ledgers, the nodes, whether this broker serves), `principal.py` (for
whom), `guard.py` (what the rules let it do), `audit.py`, `quota.py` (what is told of that, and counted), `attach.py` (what hangs
on a link), `producer.py` and `consumer.py` (a sending and a receiving link of a client); then a module for each kind of terminus:
`queue_terminus.py` with `queues.py` over it, `exchanges.py`, `mailboxes.py`, `management.py`, `relay.py`, with `room.py` and
`routing.py` under them; then `connection.py` (socket and engine), `client.py` (a client's session) and `admission.py` (who is
connected).

A message's way in: `Connection` → `ClientSession` → `Producer.take` → `Target.receive` → `Ledger.enqueue` → the log. Its way out,
once committed: `Ledger.on_committed` → `Queues.fed` → `QueueTerminus.dispatch` → `Subscription.deliver` → the engine. What comes
back: `Subscription.outcomes` → `Ledger.dequeue` → the log. Nothing here holds a pointer of the engine's: deliveries are integers.
"""
