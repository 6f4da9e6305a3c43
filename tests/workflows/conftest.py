from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

Train = Callable[..., Path]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A command sets torch's threads for its process; tests share theirs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 points in 6 dimensions around 3 centres, 30 of them a test part."""
    generator = np.random.default_rng(0)
    y = np.arange(150) % 3
    x = (generator.normal(size=(150, 6)) + 2 * np.eye(3, 6)[y]).astype(np.float32)
    path = tmp_path_factory.mktemp("blobs") / "blobs.npz"
    np.savez(path, x=x[:120], y=y[:120], x_test=x[120:], y_test=y[120:])
    return path


@pytest.fixture(scope="session")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images of 8 by 8 of 3 classes, some of them copies of others, and 12 more for tests."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (72, 8, 8), dtype=np.uint8)
    for copy, original in ((7, 3), (41, 40)):
        x[copy] = x[original]
    path = tmp_path_factory.mktemp("squares") / "squares.npz"
    y = np.arange(72) % 3
    np.savez(path, x=x[:60], y=y[:60], x_test=x[60:], y_test=y[60:])
    return path


@pytest.fixture(scope="session")
def settings(blobs: Path) -> tuple[str, ...]:
    """A small network on the blobs, three epochs of four updates."""
    return (
        "data.name=npz",
        f'data.path="{blobs}"',
        "model.name=mlp",
        "training.epochs=3",
        "training.batch_size=32",
        "device=cpu",
        "validation=0.1",
    )


@pytest.fixture(scope="session")
def train(settings: tuple[str, ...]) -> Train:
    """Train into a folder, with more settings over the usual ones."""

    def run(out: Path, *more: str) -> Path:
        # A machine that only runs the tests on GPUs may lack what configurations need.
        from warp_unlearning.cli.train import train_run
        from warp_unlearning.config import resolve

        train_run(resolve(overrides=[*settings, *more]), out)
        return out

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, train: Train) -> Path:
    return train(tmp_path_factory.mktemp("trained") / "run")
