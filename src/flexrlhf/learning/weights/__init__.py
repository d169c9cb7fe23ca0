"""Versions of a role's weights: published where they are, pulled by whoever needs them."""
