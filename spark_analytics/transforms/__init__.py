"""DataFrame in, DataFrame out: one topic a file, the same functions for batch and stream.

Read in this order: `parse` (text to typed lines, bad ones named), `lines` (who wrote when, events, rosters), `lag` (samples to
the state of lag), `expected` (who should have said something, and when), `windows` (percentiles, silence, status), `quality`;
and `failovers`, which works on a few events as plain values.
"""
