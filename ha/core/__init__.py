"""The consensus core: Raft's rules with promotion by request, as a pure state machine.

Events go in (`Replica.step`, `tick`, `promote`, `propose`, `stored`, ...), effects come out (`effects.py`), and the edge carries
them out in the order given. There are no clocks, files, sockets or message bytes here: an entry of the log is an index, an epoch
and sizes.

Start reading at `replica.py` (each event goes to the owner of what it changes), then `backup.py` and `primary.py` (the two
roles), then `candidacy.py` (how a member is promoted) and `election.py` (who gets a vote and why not). `messages.py` is what
members say to each other. `witness.py` is a voter without a log, `lineage.py` a new beginning by force.

The paper is "In Search of an Understandable Consensus Algorithm" (extended version, Ongaro and Ousterhout, 2014): sections with a
paragraph sign alone, as in §5.4.2. "Dissertation" is Ongaro's "Consensus: Bridging Theory and Practice" (2014).
"""
