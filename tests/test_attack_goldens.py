"""Attacks on two models and the bounds give the numbers that they gave in earlier versions."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch

_spec = spec_from_file_location("attacks", Path(__file__).parent / "goldens" / "attacks.py")
assert _spec is not None
assert _spec.loader is not None
goldens = module_from_spec(_spec)
_spec.loader.exec_module(goldens)


@pytest.mark.parametrize("case", goldens.CASES)
def test_numbers_are_those_of_earlier_versions(case: str) -> None:
    with np.load(goldens.FILE) as file:
        expected = {n.removeprefix(f"{case}/"): file[n] for n in file.files if n.startswith(f"{case}/")}
    found = goldens.found(case)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        there = torch.from_numpy(value)
        torch.testing.assert_close(
            found[name], there, rtol=1e-9, atol=1e-9 * float(there.abs().max()), msg=lambda text, n=name: f"{n}: {text}"
        )
