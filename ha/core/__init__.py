"""The consensus core: Raft's rules with promotion by request, as a pure state machine.

Events go in (`Replica.step`, `tick`, `promote`, `propose`, `stored`, ...), effects come out (`effects.py`), and the edge
executes them in the given order. There are no clocks, files, sockets or message bytes here: an entry of the log is an index, an
epoch and sizes.

Start with `replica.py` (passes each event to the owner of the state that it changes), then `backup.py` and `primary.py` (the two
roles), then `candidacy.py` (the promotion of a member) and `election.py` (who gets a vote, and the reason for a refusal).
`messages.py` has the messages between members. `witness.py` is a voter without a log, `lineage.py` a new cluster begun by force.

The paper is "In Search of an Understandable Consensus Algorithm" (extended version, Ongaro and Ousterhout, 2014); comments cite
its sections with a paragraph sign, as in §5.4.2. "Dissertation" is Ongaro's "Consensus: Bridging Theory and Practice" (2014).
"""
