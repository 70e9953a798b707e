"""The broker, the resource manager, and the commands that administer a cluster: one file each, named as the program."""
