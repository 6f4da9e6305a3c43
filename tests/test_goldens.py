"""Runs in float64 end with the weights, and attacks give the scores, that they had in earlier versions."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

# Some of these runs are so short that nothing moves, which the verdict says.
pytestmark = pytest.mark.filterwarnings("ignore:the unlearning by", "ignore:NullSpace does little")


def _script(name: str) -> ModuleType:
    spec = spec_from_file_location(f"golden_{name}", Path(__file__).parent / "goldens" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


goldens, attacks = _script("make"), _script("pair_attacks")


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    with np.load(goldens.FILE) as file:
        return dict(file)


@pytest.mark.parametrize("case", goldens.CASES)
def test_weights_and_certificates_are_those_of_earlier_versions(case: str, stored: dict[str, np.ndarray]) -> None:
    found = goldens.final_state(case)
    expected = {name.removeprefix(f"{case}/"): value for name, value in stored.items() if name.startswith(f"{case}/")}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        there = torch.from_numpy(value)
        numbers = name == goldens.CERTIFICATES
        rtol, atol = (1e-10, 1e-10) if numbers else (0, 1e-10 * there.abs().max().item())
        torch.testing.assert_close(
            found[name], there, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("network", attacks.NETWORKS)
def test_scores_of_attacks_are_those_of_earlier_versions(network: str) -> None:
    found = attacks.scores(network)
    with np.load(attacks.FILE) as file:
        prefix = f"{network}/scores/"
        expected = {name.removeprefix(prefix): values for name, values in file.items() if name.startswith(prefix)}
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-9 * np.abs(values).max(), err_msg=name)
