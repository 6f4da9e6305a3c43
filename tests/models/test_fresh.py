from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

from warp_unlearning.errors import InputError
from warp_unlearning.models.fresh import fresh, reinitialise
from warp_unlearning.models.networks import MLP, ResNet18, SmallResNet
from warp_unlearning.models.own import as_network, unwrap


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spoil(model: nn.Module, value: float = 12345.0) -> None:
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(value)


def equal(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().items(), second.state_dict().items(), strict=True)
    return all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in pairs)


def vit() -> nn.Module:
    config = ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=4, patch_size=2
    )
    return ViTForImageClassification(config)


MODULES: dict[str, Callable[[], nn.Module]] = {
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
def test_the_result_depends_on_the_generator_alone_and_keeps_no_old_value(name: str) -> None:
    first, second = MODULES[name](), MODULES[name]()
    spoil(second)
    before = torch.random.get_rng_state()
    reinitialise(first, generator=seeded(5))
    reinitialise(second, generator=seeded(5))
    assert torch.equal(before, torch.random.get_rng_state())
    assert equal(first, second)
    assert not any((tensor == 12345).any() or not tensor.isfinite().all() for tensor in second.state_dict().values())


def test_statistics_start_over_and_the_models_own_initialisation_has_the_last_word() -> None:
    model = ResNet18(width=32)
    spoil(model, 3.0)
    reinitialise(model, generator=seeded())
    norm = model.bn1
    assert [t.unique().tolist() for t in (norm.weight, norm.bias, norm.running_mean, norm.running_var)] == [
        *([1.0], [0.0], [0.0], [1.0])
    ]
    assert norm.num_batches_tracked == 0
    # A plain convolution would start at 1 / sqrt(3 * fan_in), less than half of this.
    assert model.layer4[1].conv2.weight.std().item() == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.02)


def test_objects_flags_types_modes_and_ties_stay() -> None:
    model = nn.Sequential(SmallResNet(width=2), nn.Linear(3, 3), nn.Linear(3, 3)).eval().double()
    model[2].weight = model[1].weight
    model[0].fc.weight.requires_grad_(False)
    model[0].bn1.train()
    before = list(model.parameters())
    spoil(model)
    reinitialise(model, generator=seeded())
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert model[2].weight is model[1].weight
    assert not model[0].fc.weight.requires_grad
    assert model[0].fc.bias.requires_grad
    assert (model.training, model[0].bn1.training) == (False, True)
    assert {p.dtype for p in model.parameters()} == {torch.float64}


MODEL = nn.Linear(2, 2)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


class Forgetful(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.extra = nn.Parameter(torch.ones(2))


class Owner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.zeros(2))])

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scales[0])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            nn.Sequential(nn.Linear(2, 2), Scale()),
            r"parameter 1\.scale of a Scale .*define `reset_parameters` in Scale",
        ),
        (Forgetful(), "parameter extra of a Forgetful starts; give `untrained`"),
        (nn.ParameterList([nn.Parameter(torch.ones(1))]), "parameter 0 of a ParameterList"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), r"parametrizations\.weight\.original0"),
    ],
)
def test_a_parameter_that_nothing_resets_is_refused(model: nn.Module, message: str) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(InputError, match=message):
        reinitialise(model, generator=seeded())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    owner = Owner()
    reinitialise(owner, generator=seeded())
    assert torch.equal(owner.scales[0], torch.ones(2))


def test_what_cannot_be_copied_is_refused() -> None:
    with pytest.raises(InputError, match=r"weight has no known shape yet; run one batch"):
        reinitialise(nn.LazyLinear(2), generator=seeded())
    layer = nn.Linear(2, 2)
    layer.kept = layer.weight * 2
    with pytest.raises(InputError, match="Linear cannot be copied"):
        fresh(layer, generator=seeded())


@pytest.mark.parametrize("wrap", [unwrap, as_network])
def test_a_vision_transformer_starts_afresh_from_its_factory(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = wrap(vit()).eval()
    with pytest.raises(InputError, match=r"nothing says how the parameter vit.* starts; give `untrained`"):
        fresh(model, generator=seeded())
    before = torch.random.get_rng_state()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first, again, other = (fresh(model, generator=seeded(i), untrained=vit) for i in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert equal(first, again)
    assert not equal(first, other)
    assert type(first) is type(model)
    assert not first.training
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_an_untrained_network_is_taken_as_it_is_in_the_type_of_the_model() -> None:
    model, untrained = SmallResNet(width=2).double(), SmallResNet(width=2)
    found = fresh(model, generator=seeded(), untrained=untrained)
    assert {p.dtype for p in found.parameters()} == {torch.float64}
    assert equal(found, untrained.double())
    assert equal(fresh(model, generator=seeded(3)), fresh(untrained, generator=seeded(3)))


@pytest.mark.parametrize(
    ("untrained", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2)), 'the untrained network is unlike the model: .*Missing.*"weight", "bias"'),
        (nn.Linear(3, 2), r"size mismatch for weight: .*2, 3.*2, 2.* Build it as the model was built"),
        (nn.Linear(2, 2, bias=False), 'unlike the model: .*Missing.*"bias"'),
        (MODEL, "has the weights of the model itself"),
        (lambda: 3, "`untrained` returned a int; make it return"),
        (lambda: [].pop(), "`untrained` failed to build a model: IndexError: pop from empty list"),
        (lambda size: nn.Linear(2, size), "`untrained` failed to build a model: TypeError"),
    ],
)
def test_an_untrained_network_of_another_kind_is_refused(untrained: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fresh(MODEL, generator=seeded(), untrained=untrained)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_model_on_cuda_gets_the_weights_of_the_cpu() -> None:
    host, device = SmallResNet(), SmallResNet().cuda()
    before = torch.cuda.get_rng_state()
    reinitialise(host, generator=seeded(2))
    reinitialise(device, generator=seeded(2))
    assert torch.equal(before, torch.cuda.get_rng_state())
    assert all(torch.equal(t.cpu(), host.state_dict()[name]) for name, t in device.state_dict().items())
