from __future__ import annotations

import copy

import pytest
import torch

from warp_unlearning.attacks.undo import default_steps, make_pre_step, pre_steps
from warp_unlearning.attacks.undo.base import Held, NotApplicable, difference, undone_model
from warp_unlearning.defense.registry import defense_names
from warp_unlearning.errors import InputError
from warp_unlearning.symmetry.permutation import Permutation
from warp_unlearning.symmetry.rescaling import ChangeOfBasis

NAMES = list(pre_steps())


def test_steps_are_made_by_name() -> None:
    assert [make_pre_step(name).name for name in NAMES] == NAMES
    assert NAMES[0] == "naive"
    assert all(pre_steps().values())
    with pytest.raises(InputError, match="did you mean 'canonical'"):
        make_pre_step("cannonical")


def test_all_steps_are_tried_against_an_unknown_defence_and_none_against_no_defence() -> None:
    assert default_steps(None) == tuple(NAMES)
    assert default_steps("none") == ("naive",)
    with pytest.raises(InputError, match="there is no defence 'wrap'; did you mean 'warp'"):
        default_steps("wrap")


def test_every_defence_of_the_project_has_its_steps() -> None:
    strongest = dict.fromkeys(("warp", "fastwarp", "warp_guarded"), "filter")
    strongest |= {"cob": "canonical", "conjugate": "conservation"}
    assert set(strongest) == set(defense_names())
    for defense, step in strongest.items():
        steps = default_steps(defense)
        assert steps[0] == "naive"
        assert step in steps
        assert set(steps) < set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_step_gives_a_whole_state_and_changes_nothing(kit, name, dtype) -> None:
    model = kit.residual(inner="grouped").to(dtype).train()
    unlearned = kit.moved(model, ChangeOfBasis(spread=0.2))
    before = [{k: v.clone() for k, v in m.state_dict().items()} for m in (model, unlearned)]
    undone = make_pre_step(name).prepared(Held(model, kit.points(12)))(unlearned.state_dict())
    assert set(undone) == {k for k, v in model.state_dict().items() if v.is_floating_point()}
    assert all(v.dtype == torch.float64 and bool(v.isfinite().all()) for v in undone.values())
    assert bool(undone_model(model, undone).eval()(kit.points(3)[0].to(dtype)).isfinite().all())
    for m, kept in zip((model, unlearned), before, strict=True):
        assert m.training
        assert all(torch.equal(v, kept[k]) for k, v in m.state_dict().items())


def test_one_after_another_is_the_second_on_what_the_first_leaves(kit) -> None:
    model = kit.residual()
    gradient = kit.gradient(model, *kit.points(1, seed=4))
    unlearned = kit.moved(kit.stepped(model, gradient, 0.01), ChangeOfBasis()).state_dict()
    held = kit.held(model)
    both = make_pre_step("canonical+span").prepared(held)(unlearned)
    assert kit.cosine(difference(model, both), gradient) > 0.8
    alone, naive = (make_pre_step(name).prepared(held)(unlearned) for name in ("span", "naive"))
    assert kit.cosine(difference(model, alone), gradient) < 0.5
    assert all(torch.equal(value, unlearned[name]) for name, value in naive.items())


def test_a_transformer_says_which_steps_do_not_apply(kit) -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
    model = torch.nn.Sequential(layer, torch.nn.Flatten(), torch.nn.Linear(24, 3)).double()
    held = Held(model, kit.points(6, shape=(3, 8), classes=3))
    said = {}
    for name in NAMES:
        try:
            make_pre_step(name).prepared(held)
        except NotApplicable as reason:
            said[name] = str(reason)
    assert "conservation" in said
    assert "span" not in said
    assert all(said.values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_finds_what_a_processor_finds(kit, name) -> None:
    model = kit.residual(inner="grouped", flat=True)
    gradient = kit.gradient(model, *kit.points(1, seed=4))
    unlearned = kit.moved(kit.stepped(model, gradient, 0.01), ChangeOfBasis(), Permutation())
    here = make_pre_step(name).prepared(kit.held(model))(unlearned.state_dict())
    held = Held(copy.deepcopy(model).cuda(), kit.points(24))
    there = make_pre_step(name).prepared(held)(unlearned.state_dict())
    for key, value in here.items():
        assert there[key].is_cuda
        torch.testing.assert_close(there[key].cpu(), value, rtol=1e-6, atol=1e-8)
