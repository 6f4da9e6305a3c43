"""Moves of the weights that keep a network's function."""
