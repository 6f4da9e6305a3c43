"""Settings for every test process."""

import os

import pytest
import torch
from hypothesis import settings
from torch.utils._python_dispatch import TorchDispatchMode

# Test processes run side by side, one a core; more threads would fight over the cores.
torch.set_num_threads(1)

# Kernels in Triton run on a CPU too, one operation at a time; Triton asks when a kernel is defined.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# A deadline measures the machine; and in CI the same examples are drawn each time.
settings.register_profile("project", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("project")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no process waits for another at the end."""
    items.sort(key=lambda item: item.path.name not in ("test_documents.py", "test_package.py"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Weights that a test lets torch draw are the same whichever tests came before it."""
    torch.manual_seed(0)


class Norms(TorchDispatchMode):
    """How many dimensions batch norm was given, each time."""

    def __init__(self) -> None:
        super().__init__()
        self.dimensions: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """What torch would do, and a note of it."""
        if "batch_norm" in str(func):
            self.dimensions.append(args[0].dim())
        return func(*args, **(kwargs or {}))


@pytest.fixture
def norms() -> Norms:
    """To be entered around calls of batch norm."""
    return Norms()
