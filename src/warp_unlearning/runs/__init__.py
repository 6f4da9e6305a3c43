"""Run directories on disk, and work spread over the cores of this machine."""
