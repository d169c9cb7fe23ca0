"""Measures small pieces of the program on this machine, for plans that reckon with it."""
