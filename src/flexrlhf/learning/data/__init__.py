"""Prompts, preferences, supervised examples, and the experience made from them."""
