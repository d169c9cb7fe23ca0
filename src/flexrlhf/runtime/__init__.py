"""Processes and machines: the only room that joins planning and learning."""
