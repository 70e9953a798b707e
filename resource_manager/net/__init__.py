"""Connections from the daemon to the brokers: `probe` keeps one to each, asks what it sees, and asks it to promote itself."""
