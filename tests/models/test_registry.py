from __future__ import annotations

import pytest
import torch

from warp_unlearning.errors import InputError
from warp_unlearning.models.networks import (
    MLP,
    MODELS,
    ResNet18,
    SmallConv,
    SmallResNet,
    build_model,
    model_options,
    suggest_options,
)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_name_builds_its_class_with_the_options() -> None:
    assert dict(MODELS) == {
        "mlp": MLP,
        "resnet18": ResNet18,
        "small_conv": SmallConv,
        "small_resnet": SmallResNet,
    }
    model = build_model("resnet18", width=2, classes=3, stem="imagenet", in_channels=1)
    assert isinstance(model, ResNet18)
    assert model.conv1.weight.shape == (2, 1, 7, 7)
    assert model.fc.weight.shape == (3, 16)
    assert isinstance(build_model("small_resnet"), SmallResNet)
    assert isinstance(build_model("mlp", inputs=2, classes=2, hidden=[3]), MLP)


def test_a_plain_convolutional_network_knows_the_size_of_its_images() -> None:
    options = suggest_options("small_conv", (3, 10, 10), 4)
    assert build_model("small_conv", **options)(torch.zeros(2, 3, 10, 10)).shape == (2, 4)
    with pytest.raises(InputError, match="square images"):
        suggest_options("small_conv", (3, 10, 8), 4)


@pytest.mark.parametrize("options", [{"name": "small_resnet"}, {"name": "mlp", "inputs": 4, "classes": 2}])
def test_a_seeded_build_repeats_and_leaves_the_global_state(options: dict[str, object]) -> None:
    before = torch.random.get_rng_state()
    first = build_model(**options, generator=_seeded(3)).state_dict()  # type: ignore[arg-type]
    again = build_model(**options, generator=_seeded(3)).state_dict()  # type: ignore[arg-type]
    other = build_model(**options, generator=_seeded(4)).state_dict()  # type: ignore[arg-type]
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(not torch.equal(first[n], other[n]) for n in first if n.endswith("weight") and first[n].ndim > 1)


def test_one_generator_gives_different_models_in_turn() -> None:
    generator = _seeded(0)
    first = build_model("small_resnet", generator=generator).state_dict()["fc.weight"]
    assert not torch.equal(first, build_model("small_resnet", generator=generator).state_dict()["fc.weight"])


def test_options_list_their_defaults_and_none_where_needed() -> None:
    assert model_options("resnet18") == {"classes": 10, "stem": "cifar", "width": 64, "in_channels": 3}
    assert model_options("mlp") == {"inputs": None, "classes": None, "hidden": (256, 256)}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet", {}, "no model is called 'resnet'; did you mean 'resnet18'"),
        ("resnet18", {"clases": 3}, "resnet18 has no option 'clases'; did you mean 'classes'"),
        ("mlp", {"classes": 3}, "mlp needs the option 'inputs'"),
        ("mlp", {"classes": 3, "inputs": "4"}, "inputs is '4'"),
        ("small_resnet", {"width": -1}, "width is -1"),
        ("resnet18", {"stem": 3}, "stem is 3; Known: cifar, imagenet"),
        ("resnet18", {"stem": ["cifar"]}, "stem is"),
    ],
)
def test_unusable_requests_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_model(name, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("mlp", (2, 3, 4)), ("mlp", (5,)), ("small_resnet", (2, 8, 8)), ("resnet18", (1, 8, 8))],
)
def test_suggested_options_build_a_model_that_takes_the_example(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(name, **suggest_options(name, shape, 7))  # type: ignore[arg-type]
    assert model.eval()(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("small_resnet", (64,), 2, r"has shape \(64,\)"),
        ("resnet18", (8, 8), 2, "reshape them or use the model 'mlp'"),
        ("mlp", (3, 0), 2, r"shape\[1\] is 0"),
        ("mlp", (3,), 0, "classes is 0"),
        ("mpl", (3,), 2, "did you mean 'mlp'"),
    ],
)
def test_examples_that_do_not_fit_are_refused(name: str, shape: tuple[int, ...], classes: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        suggest_options(name, shape, classes)
