"""Settings for every test process."""

import os
from contextlib import nullcontext

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


class Redone:
    """Stands for a graph where there is no GPU: does the work again and leaves what comes out where the first outcome
    lies, which holds nothing before.
    """

    def __init__(self, make, *, pool=None) -> None:  # type: ignore[no-untyped-def]
        self._make, self.pool, self.replays = make, pool or object(), 0
        self.output = make()
        for tensor in _tensors(self.output):
            tensor.fill_(torch.nan if tensor.is_floating_point() else -1)

    def replay(self):  # type: ignore[no-untyped-def]
        """What the work comes to now."""
        self.replays += 1
        for old, new in zip(_tensors(self.output), _tensors(self._make()), strict=True):
            old.copy_(new)
        return self.output


def _tensors(output) -> list[torch.Tensor]:  # type: ignore[no-untyped-def]
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, tuple):
        return list(output)
    return [output.energies, *output.gradients.values(), *output.loss_gradients.values()]


@pytest.fixture
def redone(monkeypatch: pytest.MonkeyPatch) -> list[Redone]:
    """Energies are captured on any device; the stand-ins for their graphs, one after the other."""
    from warp_unlearning.gradients import captured_energy

    made: list[Redone] = []

    def graph(make, *, pool=None) -> Redone:  # type: ignore[no-untyped-def]
        made.append(Redone(make, pool=pool))
        return made[-1]

    monkeypatch.setattr(captured_energy, "CudaGraph", graph)
    monkeypatch.setattr(captured_energy, "stream_ahead", lambda device: nullcontext())
    monkeypatch.setattr(captured_energy, "graphs_are_there", lambda device: True)
    return made
