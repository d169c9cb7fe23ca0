"""Tensors between processes: who has them is asked, over TCP, and nothing is pickled."""
