"""Whole jobs of the commands. Each takes a session and options, and returns plain values for the page and the terminal."""
