"""DataFrame in, DataFrame out: one topic in each file, the same functions for batch and stream.

Read in this order: `parse` (text to typed lines; names malformed ones), `lines` (senders and times, events, rosters), `lag`
(samples to the state of lag), `expected` (which samples were expected when), `windows` (percentiles, silence, status),
`quality`; and `failovers`, which works on a few events as plain values.
"""
