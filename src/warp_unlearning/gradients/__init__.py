"""Gradients of single examples."""
