"""`make arbiters`: what users see of each arbiter in each fault, on real brokers, daemons and control planes (`__main__`)."""
