from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from tests.gradients.single import assert_exact, drawn, examples
from tests.networks import Calls
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.errors import InputError
from warp_unlearning.gradients.energy import (
    cross_entropy,
    energy_by_rules,
    gradient_energy,
    parameters_without_rules,
)
from warp_unlearning.models.networks import SmallResNet


def small_network() -> nn.Module:
    return drawn(lambda: SmallResNet(classes=3, width=4))


def test_residual_network() -> None:
    model, (x, y) = small_network(), examples(3, 1, 8, 8)
    assert parameters_without_rules(model, x, y, loss=cross_entropy) == []
    assert_exact(model, x, y)


def test_more_examples_than_a_cpu_takes_at_once() -> None:
    assert_exact(
        drawn(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))), *examples(70, 1, 4, 4)
    )


def test_energies_by_rules_alone_are_the_energies() -> None:
    """As a GPU captures them."""
    model, (x, y) = small_network(), examples(3, 1, 8, 8)
    found, expected = energy_by_rules(model, x, y, loss=cross_entropy), gradient_energy(model, x, y)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    slopes = (torch.autograd.grad(e.sum(), list(model.parameters())) for e in (found, expected))
    torch.testing.assert_close(*slopes, rtol=1e-9, atol=1e-12)


def test_one_linear_layer_by_hand() -> None:
    model = nn.Linear(2, 2).double()
    x, y = torch.tensor([[1.0, 2.0], [0.0, 3.0]], dtype=torch.float64), torch.tensor([0, 1])
    error = model(x).softmax(1) - F.one_hot(y, 2)
    expected = error.square().sum(1) * (x.square().sum(1) + 1)
    torch.testing.assert_close(gradient_energy(model, x, y), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("batch", [1, 3])
def test_layers_that_do_not_have_the_batch_first(batch: int) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.first(x.transpose(0, 1)).sin().transpose(0, 1)
        rows = self.second(h.reshape(-1, 4)).reshape(len(x), -1, 4)
        return self.third(rows.cumsum(1).sin()).mean(1)

    model = drawn(
        lambda: Calls(forward, first=nn.Linear(2, 4), second=nn.Linear(4, 4), third=nn.Linear(4, 3, bias=False))
    )
    # As many positions as examples: the shape alone does not show which axis is the batch. What the first call finds
    # is kept for the second.
    for seed in (0, 1):
        assert_exact(model, *examples(batch, 3, 2, seed=seed))
    x, y = examples(3, 3, 2)
    known = parameters_without_rules(model, x, y, loss=cross_entropy)
    assert known == ["first.weight", "first.bias", "second.weight", "second.bias"]


def test_attention_falls_back() -> None:
    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        return Calls(lambda m, x: m.out(m.layer(x).mean(1)), layer=layer, out=nn.Linear(4, 3))

    assert_exact(drawn(build), *examples(2, 3, 4))


def test_unknown_layer_that_normalises() -> None:
    parameters = {name: nn.Parameter(torch.ones(4)) for name in ("scale", "shift")}
    own = Calls(lambda m, x: F.layer_norm(x, (4,), m.scale, m.shift).sin(), **parameters)
    model = drawn(lambda: nn.Sequential(nn.Linear(3, 4), own, nn.LayerNorm(4), nn.Linear(4, 3)))
    assert_exact(model, *examples(3, 3))


def test_hooks_of_the_user_are_part_of_the_function() -> None:
    model = drawn(lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)))
    model[0].register_forward_hook(lambda layer, args, output: output.sin() * 3)
    model[0].register_forward_pre_hook(lambda layer, args: (args[0] * 2,))
    assert_exact(model, *examples(3, 3))


def test_in_place_operations_on_outputs() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x))
        h += self.short(x)
        h = self.relu(h)
        # The block below adds relu(h), because the activation writes over h.
        h = h - 0.1
        h = h + self.conv2(self.relu(h))
        tokens = self.linear(h.flatten(2).mT)
        tokens.mul_(tokens.detach().cos())
        return self.out(tokens).mean(1)

    def build() -> nn.Module:
        return Calls(
            forward,
            conv=nn.Conv2d(2, 4, 3, padding=1, bias=False),
            norm=nn.BatchNorm2d(4),
            short=nn.Conv2d(2, 4, 1),
            conv2=nn.Conv2d(4, 4, 3, padding=1),
            relu=nn.ReLU(inplace=True),
            linear=nn.Linear(4, 4),
            out=nn.Linear(4, 3),
        )

    assert_exact(drawn(build), *examples(3, 2, 4, 4))


def test_input_written_over_later_is_refused() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.a(x)
        g = self.norm(h)
        h.add_(g.detach())
        return g + h

    model = drawn(lambda: Calls(forward, a=nn.Linear(3, 3), norm=nn.LayerNorm(3)))
    with pytest.raises(InputError, match="input of norm is written over"):
        gradient_energy(model, *examples(2, 3))


def test_the_model_and_the_input_come_back_untouched() -> None:
    model = drawn(lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout()))
    model[3].train()
    model[3].p = 0.0
    model[1].bias.requires_grad_(False)
    x, y = examples(4, 3)
    before_x, state = x.clone(), {k: v.clone() for k, v in model.state_dict().items()}
    flags = [(type(m), m.training, sorted(vars(m))) for m in model.modules()]
    gradient_energy(model, x, y).sum().backward()
    assert torch.equal(x, before_x)
    assert flags == [(type(m), m.training, sorted(vars(m))) for m in model.modules()]
    assert model[0].inplace
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert [p.requires_grad for p in model.parameters()] == [True, False, True, True]
    assert model[1].bias.grad is None
    assert model[1].weight.grad is not None


@pytest.mark.parametrize("gate", [nn.Hardsigmoid(), nn.Hardsigmoid(inplace=True), Calls(lambda m, x: F.hardsigmoid(x))])
def test_a_hardsigmoid_is_a_clamp(gate: nn.Module) -> None:
    """Torch has no second derivative of it."""

    def network(gate: nn.Module) -> nn.Module:
        model = drawn(lambda: nn.Sequential(nn.Linear(6, 6), gate, nn.PReLU(), nn.Linear(6, 3)))
        model[0].weight.data *= 9
        return model

    model, clamped, (x, y) = network(gate), network(Calls(lambda m, x: (x / 6 + 0.5).clamp(0, 1))), examples(20, 6)
    assert 0.1 < float((model[0](x).abs() > 3).double().mean()) < 0.9
    assert_exact(clamped, x, y)
    energies = [gradient_energy(each, x, y) for each in (model, clamped)]
    torch.testing.assert_close(*energies, rtol=1e-12, atol=0)
    slopes = [
        torch.autograd.grad(e.sum(), list(m.parameters())) for e, m in zip(energies, (model, clamped), strict=True)
    ]
    torch.testing.assert_close(*slopes, rtol=1e-10, atol=1e-12)


def test_without_grad_mode_the_values_are_the_same() -> None:
    model = small_network()
    x, y = examples(3, 1, 8, 8)
    with torch.no_grad():
        energy = gradient_energy(model, x, y)
    assert not energy.requires_grad
    torch.testing.assert_close(energy, gradient_energy(model, x, y).detach(), rtol=1e-12, atol=0)


def test_memory_is_free_once_the_energies_are() -> None:
    outputs: list[weakref.ref[Tensor]] = []
    model = drawn(lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(27, 3)))
    model[0].register_forward_hook(lambda layer, args, output: outputs.append(weakref.ref(output)))
    gc.collect()
    gc.disable()
    try:
        energy = gradient_energy(model, *examples(2, 2, 5, 5))
        kept = outputs[0]() is not None
        del energy
        assert kept
        assert all(output() is None for output in outputs)
    finally:
        gc.enable()


def test_another_loss() -> None:
    model = drawn(lambda: nn.Linear(3, 2))
    x, _ = examples(3, 3)
    y = torch.linspace(0, 1, 6, dtype=torch.float64).reshape(3, 2)
    assert_exact(model, x, y, loss=lambda output, target: (output - target).square().sum(1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m, x, y: (m.train(), x, y), r"batch norm 1 is in train mode.*model\.eval\(\)"),
        (lambda m, x, y: (m.half(), x.half(), y), r"0\.weight has type torch\.float16.*model\.float\(\)"),
        (lambda m, x, y: (m.requires_grad_(False), x, y), "no trainable parameter"),
        (lambda m, x, y: (m, x.index_fill(0, torch.tensor([1]), torch.nan), y), "NaN or infinite number in example 1"),
        (lambda m, x, y: (m, x.index_fill(0, torch.tensor([2]), torch.inf), y), "NaN or infinite number in example 2"),
        (lambda m, x, y: (m, x, y[:-1]), "a label for each"),
        (lambda m, x, y: (m, x[:0], y[:0]), "at least one example"),
        (lambda m, x, y: (nn.Sequential(m, nn.Dropout(0.5).train()), x, y), "dropout 1 is in train mode"),
        (lambda m, x, y: (nn.Sequential(m, nn.BatchNorm1d(3, track_running_stats=False).eval()), x, y), "GroupNorm"),
        (lambda m, x, y: (nn.Embedding(9, 3, max_norm=1.0), y, y), "max_norm 1.0"),
        (lambda m, x, y: (nn.Embedding(9, 3, scale_grad_by_freq=True), y, y), "scale_grad_by_freq"),
    ],
)
def test_bad_input(change: Any, message: str) -> None:
    model = drawn(lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    with pytest.raises(InputError, match=message):
        gradient_energy(*change(model, *examples(4, 3)))


def test_finite_numbers_whose_sum_is_not_are_taken() -> None:
    layer = nn.Linear(2, 2).requires_grad_(True)
    nn.init.zeros_(layer.weight)
    assert bool(gradient_energy(layer, torch.full((4, 2), 1e18), torch.zeros(4, dtype=torch.int64)).isfinite().all())


def test_bad_losses() -> None:
    model, (x, y) = drawn(lambda: nn.Linear(3, 3)), examples(4, 3)
    with pytest.raises(InputError, match=r"shape \(\) for 4 examples"):
        gradient_energy(model, x, y, loss=F.cross_entropy)
    with pytest.raises(InputError, match="depends on no trainable parameter"):
        gradient_energy(model, x, y, loss=lambda output, target: output.detach()[:, 0])
    with pytest.raises(InputError, match="loss of example 2 is nan"):
        gradient_energy(model, x, y, loss=lambda output, target: output[:, 0] / (torch.arange(4) != 2) * 0)


def test_inputs_and_labels_that_do_not_fit_the_network_are_refused() -> None:
    model, x, y = drawn(lambda: nn.Linear(4, 3)), torch.ones(5, 4), torch.tensor([0, 1, 2, 7, 0])
    with pytest.raises(
        InputError, match=r"x has type torch\.float64 and the weights torch\.float32; give both one type"
    ):
        gradient_energy(model.float(), x.double(), y.clamp(max=2))
    with pytest.raises(InputError, match=r"labels 0 to 7 do not fit an output of shape \(5, 3\)"):
        gradient_energy(model, x, y)
    with pytest.raises(InputError, match="on the device meta"):
        gradient_energy(model, x.to("meta"), y)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        gradient_energy(model, torch.ones(5, 3), y.clamp(max=2))


@pytest.mark.parametrize(
    "build",
    [
        lambda: Calls(lambda m, x: m.scale * (x - x.mean(0)), scale=nn.Parameter(torch.ones(3))),
        lambda: Calls(lambda m, x: m.a((x[:, None] - x).square()).sin().mean(1), a=nn.Linear(3, 3)),
    ],
)
def test_examples_that_mix_are_refused(build: Any) -> None:
    with pytest.raises(InputError, match="do not sum to the batch's"):
        gradient_energy(drawn(build), *examples(3, 3))


def test_what_vmap_cannot_do_is_named() -> None:
    scale = nn.Parameter(torch.ones(3))
    branching = Calls(lambda m, x: x * m.scale if float(x.sum()) < 1e9 else x, scale=scale)
    with pytest.raises(InputError, match=r"scale belong to no layer with a rule.*vmap"):
        gradient_energy(drawn(lambda: branching), *examples(3, 3))


def test_parameters_without_rules_are_named() -> None:
    model, (x, y) = drawn(lambda: nn.Sequential(nn.Linear(3, 3), nn.PReLU(), nn.Linear(3, 3))), examples(3, 3)
    assert parameters_without_rules(model, x, y, loss=cross_entropy) == ["1.weight"]


def test_a_model_is_not_kept_alive() -> None:
    model = drawn(lambda: nn.Linear(3, 3))
    gradient_energy(model, *examples(2, 3))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
