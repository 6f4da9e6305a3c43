"""Attackers who hold the original model and the unlearned one; one attack a file."""
