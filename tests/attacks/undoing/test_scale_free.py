from __future__ import annotations

import torch

from warp_unlearning.attacks.undoing import difference
from warp_unlearning.attacks.undoing.kernels import directions
from warp_unlearning.attacks.undoing.probe_gradients import ProbeGradients
from warp_unlearning.attacks.undoing.scale_free import ScaleFree


def test_scales_of_channels_do_not_show(kit) -> None:
    model = kit.residual(inner="grouped")
    held = kit.held(model)
    gradient = kit.gradient(model, *kit.points(1, seed=5))
    undo = ScaleFree().prepared(held)
    plain = difference(model, undo(kit.stepped(model, gradient, 1.0).state_dict()))
    step = kit.conjugated(model, gradient, spread=1.0)
    assert kit.cosine(step, gradient) < 0.6
    moved = difference(model, undo(kit.stepped(model, step, 1.0).state_dict()))
    for name, value in plain.items():
        torch.testing.assert_close(moved[name], value, rtol=1e-6, atol=1e-9)


def test_kernels_keep_directions_and_get_lengths_of_probe_gradients(kit) -> None:
    model = kit.residual()
    held = kit.held(model)
    step = {n: kit.normal(*p.shape) for n, p in model.named_parameters()}
    found = difference(model, ScaleFree().prepared(held)(kit.stepped(model, step, 0.3).state_dict()))
    assert abs(kit.norm(found) - 0.3) < 1e-9
    lengths = ProbeGradients(held).lengths_near(step)
    scale = 0.3 / kit.norm(lengths)
    for name, value in step.items():
        expected = directions(value, value.dim()) * scale * lengths[name][(..., *[None] * (value.dim() - 2))]
        torch.testing.assert_close(found[name], expected, rtol=1e-6, atol=1e-9)
