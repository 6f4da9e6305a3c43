from collections import OrderedDict

import pytest
import torch
from torch import nn

from warp_unlearning.bounds.coordinates import choose_coordinates
from warp_unlearning.errors import InputError


def network() -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(norm=nn.BatchNorm1d(3), one=nn.Linear(3, 4), act=nn.ReLU(), two=nn.Linear(4, 2, bias=False))
    )


def choose(model: nn.Module, parameters: object, count: int, seed: int = 0) -> object:
    generator = torch.Generator().manual_seed(seed)
    return choose_coordinates(model, parameters=parameters, count=count, generator=generator)  # type: ignore[arg-type]


def test_all_coordinates_are_drawn_once_and_equally_often() -> None:
    seen: dict[str, torch.Tensor] = {n: torch.zeros(p.numel()) for n, p in network().named_parameters()}
    for seed in range(400):
        found = choose_coordinates(network(), parameters="all", count=10, generator=torch.Generator().manual_seed(seed))
        assert len(found) == 10
        assert found.available == 3 + 3 + 12 + 4 + 8
        for name, positions in found.positions.items():
            assert len(positions.unique()) == len(positions)
            seen[name][positions] += 1
    share = torch.cat(list(seen.values())) / 400
    assert float((share - 1 / 3).abs().max()) < 4.5 * (2 / 9 / 400) ** 0.5


def test_the_first_layer_is_the_first_with_a_matrix() -> None:
    found = choose_coordinates(network(), parameters="first", count=99, generator=torch.Generator())
    assert {name: len(p) for name, p in found.positions.items()} == {"one.weight": 12, "one.bias": 4}


def test_named_parameters_and_labels() -> None:
    found = choose_coordinates(network(), parameters=["two.weight", "one.bias"], count=99, generator=torch.Generator())
    assert list(found.positions) == ["one.bias", "two.weight"]
    assert [found.label(i) for i in (0, 3, 4, 9)] == [
        "one.bias[0]",
        "one.bias[3]",
        "two.weight[0, 0]",
        "two.weight[1, 1]",
    ]
    with pytest.raises(IndexError):
        found.label(12)
    single = choose_coordinates(network(), parameters="two.weight", count=3, generator=torch.Generator())
    assert (len(single), single.available) == (3, 8)


def test_frozen_parameters_have_no_gradient_to_look_at() -> None:
    model = network()
    model.one.requires_grad_(False)  # type: ignore[operator]
    found = choose_coordinates(model, parameters="all", count=99, generator=torch.Generator())
    assert list(found.positions) == ["norm.weight", "norm.bias", "two.weight"]
    with pytest.raises(InputError, match=r"no trainable parameter 'one\.weight'"):
        choose(model, "one.weight", 3)
    with pytest.raises(InputError, match="no trainable parameter; there is no gradient"):
        choose(network().requires_grad_(False), "all", 3)


@pytest.mark.parametrize(
    ("parameters", "count", "message"),
    [
        ("frist", 3, "no trainable parameter 'frist'; did you mean 'first'"),
        ([], 3, "parameters is empty"),
        ("all", 0, "coordinates is 0"),
        ("all", 2.5, "coordinates is 2.5"),
    ],
)
def test_bad_choices_are_named(parameters: object, count: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose(network(), parameters, count)
