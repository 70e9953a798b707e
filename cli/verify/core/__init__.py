"""What is counted, without clients, clocks or files: `tally.py` sets of numbers, `checker.py` what became of the messages,
`measures.py` gaps and latencies, `bodies.py` what a message is called and holds."""
