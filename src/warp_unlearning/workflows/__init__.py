"""The work of each command: from a configuration to a complete run directory."""
