"""The broker, the resource manager and the administration commands: one file for each, named after the program."""
