from __future__ import annotations

from torch import nn

from warp_unlearning.gradients.modules import modules_by_path


def test_paths_are_those_of_torch() -> None:
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Sequential(nn.ReLU(), shared), nn.ModuleDict({"a": nn.Sequential(nn.Tanh())}))
    model.register_module("nothing", None)
    found = modules_by_path(model)
    assert list(found.items()) == list(model.named_modules())
