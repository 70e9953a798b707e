"""The daemon that notices a failed primary and asks a backup to take over. Start at `service.py`; what it decides is in
`core`."""
