"""Settings for every test process."""

import os

import pytest
import torch
from hypothesis import settings

# Test processes run side by side, one a core; more threads would fight over the cores.
torch.set_num_threads(1)

# A deadline measures the machine; and in CI the same examples are drawn each time.
settings.register_profile("project", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("project")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first, so that no process is left with one of them at the end."""
    items.sort(key=lambda item: "test_documents" not in item.nodeid)
