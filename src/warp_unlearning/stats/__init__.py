"""Statistics on plain numbers and arrays; knows nothing of torch."""
