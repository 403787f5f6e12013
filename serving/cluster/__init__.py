"""Placement and supervision of the processes of one model on several machines."""
