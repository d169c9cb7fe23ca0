"""Engines that write answers."""
