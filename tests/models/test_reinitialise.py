from __future__ import annotations

import pytest
import torch
from torch import nn

from warp_unlearning.errors import InputError
from warp_unlearning.models.fresh import reinitialise
from warp_unlearning.models.networks import MLP, ResNet18, SmallResNet


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _spoil(model: nn.Module, value: float = 12345.0) -> None:
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(value)


MODULES = {
    "resnet18": lambda: ResNet18(width=2),
    "small_resnet": lambda: SmallResNet(width=2),
    "mlp": lambda: MLP(inputs=3, classes=2, hidden=(4,)),
    "linear": lambda: nn.Linear(3, 2),
    "attention": lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True),
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2, 8),
    "lstm": lambda: nn.LSTM(3, 2),
    "norms": lambda: nn.Sequential(nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.BatchNorm1d(3, affine=False)),
    "embedding": lambda: nn.Sequential(nn.Embedding(5, 3, padding_idx=0), nn.PReLU()),
}


@pytest.mark.parametrize("name", MODULES)
def test_no_value_of_the_old_model_is_left(name: str) -> None:
    model = MODULES[name]()
    _spoil(model)
    reinitialise(model, generator=_seeded())
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert not (tensor == 12345).any(), key
        assert torch.isfinite(tensor).all(), key


@pytest.mark.parametrize("name", MODULES)
def test_the_result_depends_on_the_generator_alone(name: str) -> None:
    first, second = MODULES[name](), MODULES[name]()
    _spoil(second)
    torch.rand(3)
    reinitialise(first, generator=_seeded(5))
    torch.rand(4)
    reinitialise(second, generator=_seeded(5))
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


def test_other_seeds_and_later_draws_differ() -> None:
    layer, generator = nn.Linear(3, 2), _seeded(0)
    drawn = []
    for stream in (_seeded(1), generator, generator):
        reinitialise(layer, generator=stream)
        drawn.append(layer.weight.detach().clone())
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


def test_the_global_random_state_is_left() -> None:
    model = SmallResNet(width=2)
    before = torch.random.get_rng_state()
    reinitialise(model, generator=_seeded())
    assert torch.equal(before, torch.random.get_rng_state())


def test_running_statistics_and_scales_start_over() -> None:
    model = SmallResNet(width=2)
    _spoil(model, 3.0)
    reinitialise(model, generator=_seeded())
    assert torch.equal(model.bn1.weight, torch.ones(2))
    assert torch.equal(model.bn1.bias, torch.zeros(2))
    assert torch.equal(model.bn1.running_mean, torch.zeros(2))
    assert torch.equal(model.bn1.running_var, torch.ones(2))
    assert model.bn1.num_batches_tracked == 0


def test_the_models_own_initialisation_has_the_last_word() -> None:
    model = ResNet18(width=32)
    reinitialise(model, generator=_seeded())
    # A plain convolution would start at 1 / sqrt(3 * fan_in), less than half of this.
    assert model.layer4[1].conv2.weight.std().item() == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.02)


def test_objects_flags_and_modes_stay() -> None:
    model = SmallResNet(width=2).eval()
    model.fc.weight.requires_grad_(False)
    model.bn1.train()
    before = list(model.parameters())
    reinitialise(model, generator=_seeded())
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert not model.fc.weight.requires_grad
    assert model.fc.bias.requires_grad
    assert model.bn1.training
    assert not model.training


def test_tied_weights_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    _spoil(model)
    reinitialise(model, generator=_seeded())
    assert model[1].weight is model[0].weight
    assert not (model[0].weight == 12345).any()


def test_values_keep_the_type_of_the_model() -> None:
    layer = nn.Linear(3, 2).bfloat16()
    reinitialise(layer, generator=_seeded())
    assert layer.weight.dtype == torch.bfloat16


class _Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


class _Forgetful(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.extra = nn.Parameter(torch.ones(2))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            nn.Sequential(nn.Linear(2, 2), _Scale()),
            r"parameter 1\.scale of a _Scale .*define `reset_parameters` in _Scale",
        ),
        (_Forgetful(), "parameter extra of a _Forgetful"),
        (nn.ParameterList([nn.Parameter(torch.ones(1))]), "parameter 0 of a ParameterList"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), r"parametrizations\.weight\.original0"),
    ],
)
def test_a_parameter_that_nothing_resets_is_refused(model: nn.Module, message: str) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(InputError, match=message):
        reinitialise(model, generator=_seeded())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_parent_may_reset_what_its_children_hold() -> None:
    class Owner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterList([nn.Parameter(torch.zeros(2))])

        def reset_parameters(self) -> None:
            nn.init.ones_(self.scales[0])

    owner = Owner()
    reinitialise(owner, generator=_seeded())
    assert torch.equal(owner.scales[0], torch.ones(2))


def test_a_lazy_module_is_refused() -> None:
    with pytest.raises(InputError, match=r"weight has no known shape yet; run one batch"):
        reinitialise(nn.LazyLinear(2), generator=_seeded())


def test_a_module_that_cannot_be_copied_is_refused() -> None:
    layer = nn.Linear(2, 2)
    layer.kept = layer.weight * 2
    with pytest.raises(InputError, match="Linear cannot be copied"):
        reinitialise(layer, generator=_seeded())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_model_on_cuda_gets_the_weights_of_the_cpu() -> None:
    host, device = SmallResNet(), SmallResNet().cuda()
    before = torch.cuda.get_rng_state()
    reinitialise(host, generator=_seeded(2))
    reinitialise(device, generator=_seeded(2))
    assert torch.equal(before, torch.cuda.get_rng_state())
    for name, tensor in device.state_dict().items():
        assert tensor.is_cuda
        assert torch.equal(tensor.cpu(), host.state_dict()[name])
