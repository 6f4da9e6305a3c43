"""Networks, and their weights in and out of files."""
