"""Floors, from information theory, under the error of whoever reconstructs an input from gradients."""
