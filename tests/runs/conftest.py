"""Worker processes find the work of these tests by name: a spawned process is given the path of this one."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
