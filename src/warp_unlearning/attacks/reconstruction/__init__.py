"""Attackers who rebuild the forgotten images from what the two models differ by; one attack a file."""
