"""Runs in float64 end with the weights that they had in earlier versions."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch

# Some of these runs are so short that nothing moves, which the verdict says.
pytestmark = pytest.mark.filterwarnings("ignore:the unlearning by")
_spec = spec_from_file_location("goldens", Path(__file__).parent / "goldens" / "make.py")
assert _spec is not None
assert _spec.loader is not None
goldens = module_from_spec(_spec)
_spec.loader.exec_module(goldens)


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    with np.load(goldens.FILE) as file:
        return dict(file)


@pytest.mark.parametrize("case", goldens.CASES)
def test_final_weights_are_those_of_earlier_versions(case: str, stored: dict[str, np.ndarray]) -> None:
    found = goldens.final_weights(case)
    expected = {name.removeprefix(f"{case}/"): value for name, value in stored.items() if name.startswith(f"{case}/")}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        there = torch.from_numpy(value)
        bound = 1e-10 * there.abs().max().item()
        torch.testing.assert_close(
            found[name], there, rtol=0, atol=bound, msg=lambda text, name=name: f"{name}: {text}"
        )
