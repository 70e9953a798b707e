"""Decisions without I/O: how sure we are of each broker (`detector`), whom to promote (`promotion`), whose turn it is
(`arbiter`)."""
