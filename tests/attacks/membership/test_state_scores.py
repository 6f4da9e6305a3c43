from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.attacks.membership import spare_memory
from warp_unlearning.attacks.membership.gradient_difference import gradient_difference
from warp_unlearning.attacks.membership.gradient_rows import ComputedRows
from warp_unlearning.attacks.membership.original_gradients import OriginalGradients, original_side, prepare_original
from warp_unlearning.attacks.membership.state_scores import state_scores
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.models.fresh import reinitialise
from warp_unlearning.models.networks import SmallResNet


def pair(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 8, 8, generator=generator), torch.randint(0, 10, (count,), generator=generator)


@pytest.fixture(scope="module")
def original() -> nn.Module:
    model = SmallResNet(width=2).eval()
    reinitialise(model, generator=torch.Generator().manual_seed(20))
    return model


def changed(model: nn.Module, seed: int) -> nn.Module:
    copy, generator = deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in copy.parameters():
            p += 0.05 * torch.randn(p.shape, generator=generator)
    return copy


def side_of(model: nn.Module, batch_size: int | None = None) -> OriginalGradients:
    sets = {"candidates": pair(11, 1), "background": pair(16, 2)}
    return original_side(model, **sets, calibration=None, batch_size=batch_size)


OPTIONS = {"ridge": 1e-3, "relative_ridge": True}


@pytest.mark.parametrize("room", [0, spare_memory.CPU_HELD])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_states_together_score_as_each_alone(original, monkeypatch, room, batch_size) -> None:
    models = {str(seed): changed(original, seed) for seed in (21, 22, 23)}
    expected = {
        name: gradient_difference(
            original, model, candidates=pair(11, 1), background=pair(16, 2), relative_ridge=True
        ).statistic
        for name, model in models.items()
    }
    monkeypatch.setattr(spare_memory, "CPU_HELD", room)
    states = {name: model.state_dict() for name, model in models.items()} | {"same": original.state_dict()}
    shown: list[Tensor] = []
    side = side_of(original, batch_size)
    found = state_scores(side, states, **OPTIONS, watch=lambda rows: shown.append(rows.clone()))
    assert list(found) == list(states)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4)
    assert not found["same"].any()
    rows = ComputedRows(side.model, side.sets["candidates"], "candidates", "original").part(0, 11)
    torch.testing.assert_close(torch.cat(shown), rows)
    assert side.held == frozenset()


def test_gradients_at_the_original_are_taken_once(original, monkeypatch) -> None:
    taken: list[tuple[str, str]] = []
    computed = ComputedRows._part

    def noted(self, begin, end, others):
        taken.append((self.of, self.at))
        return computed(self, begin, end, others)

    monkeypatch.setattr(ComputedRows, "_part", noted)
    states = {str(seed): changed(original, seed).state_dict() for seed in (21, 22, 23)}
    state_scores(side_of(original), states, **OPTIONS)
    assert sorted(taken) == sorted(
        [(of, "original") for of in ("background", "candidates")]
        + 3 * [(of, "unlearned") for of in ("background", "candidates")]
    )


def test_gradients_that_are_held_are_not_taken_again(original, monkeypatch) -> None:
    held = prepare_original(original, candidates=pair(11, 1), background=pair(16, 2))
    states = {"a": changed(original, 21).state_dict()}
    expected = state_scores(side_of(original), states, **OPTIONS)
    np.testing.assert_allclose(state_scores(held, states, **OPTIONS)["a"], expected["a"], rtol=1e-4)


@pytest.mark.parametrize("of", ["background", "candidates"])
def test_gradients_that_are_not_finite_are_named(original, of) -> None:
    side = side_of(original, batch_size=3)
    state = {name: value.clone() for name, value in changed(original, 21).state_dict().items()}
    # Finite in all weights, so that one example alone overflows.
    side.sets[of].x[7] = 1e30
    state["fc.weight"] *= 1e30
    with pytest.raises(DataError, match=f"row 7 of the {of} set at the unlearned model is not finite"):
        state_scores(side, {"a": state}, **OPTIONS)


def test_nothing_to_compare(original) -> None:
    shown: list[int] = []
    assert state_scores(side_of(original, 4), {}, **OPTIONS, watch=lambda rows: shown.append(len(rows))) == {}
    assert shown == [4, 4, 3]
    with pytest.raises(InputError, match="ridge is 0"):
        state_scores(side_of(original), {}, ridge=0, relative_ridge=True)


def test_computed_rows_less_others(original) -> None:
    x, y = pair(5, 3)
    rows = ComputedRows(original, TensorExamples(x, y), "candidates", "original")
    others = torch.randn(3, rows.part(0, 1).shape[1], generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(rows.part_less(1, 4, others), rows.part(1, 4) - others)
