"""Coordinates, their gradients, and the ratios against the symmetry itself: its moves applied to gradients of ones."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.stats import truncnorm
from torch import Tensor, nn

from warp_unlearning.bounds.channel_ratios import (
    Coordinates,
    GraphRatios,
    choose_coordinates,
    gradient_rows,
    graph_ratios,
    scale_moment,
)
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.models.networks import build_model
from warp_unlearning.symmetry.rescaling import ChangeOfBasis, Law, draw_scales


def network() -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(norm=nn.BatchNorm1d(3), one=nn.Linear(3, 4), act=nn.ReLU(), two=nn.Linear(4, 2, bias=False))
    )


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 8, 1), nn.Conv2d(8, 12, 3, padding=1, groups=4)
        self.last = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.second(self.first(x).relu()).relu()
        logits: Tensor = self.last(hidden.mean((2, 3)))
        return logits


class Tied(nn.Module):
    """A residual connection ties what enters a layer to what leaves it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        logits: Tensor = self.last(hidden + self.inner(hidden))
        return logits


def built(name: str) -> nn.Module:
    if name in ("Grouped", "Tied"):
        return {"Grouped": Grouped, "Tied": Tied}[name]()
    if name == "mlp":
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    return build_model("small_resnet", generator=torch.Generator().manual_seed(0), classes=4, in_channels=1, width=4)


def choose(model: nn.Module, parameters: Any = "all", count: int = 10**6, seed: int = 0) -> Coordinates:
    generator = torch.Generator().manual_seed(seed)
    return choose_coordinates(model, parameters=parameters, count=count, generator=generator)


def ratios_of(model: nn.Module, chosen: Coordinates, **options: Any) -> GraphRatios:
    return graph_ratios(model, chosen, **({"through_norm": True, "seen": "teleported"} | options))


def covector_logs(model: nn.Module, chosen: Coordinates, move: Any) -> np.ndarray:
    ones = {name: torch.ones_like(p, dtype=torch.float64) for name, p in model.named_parameters()}
    parts = [move.covector(name, ones[name]).flatten()[p] for name, p in chosen.positions.items()]
    return np.log(torch.cat(parts).numpy())


def test_all_coordinates_are_drawn_once_and_equally_often() -> None:
    seen: dict[str, torch.Tensor] = {n: torch.zeros(p.numel()) for n, p in network().named_parameters()}
    for seed in range(400):
        found = choose(network(), count=10, seed=seed)
        assert (len(found), found.available) == (10, 3 + 3 + 12 + 4 + 8)
        for name, positions in found.positions.items():
            assert len(positions.unique()) == len(positions)
            seen[name][positions] += 1
    share = torch.cat(list(seen.values())) / 400
    assert float((share - 1 / 3).abs().max()) < 4.5 * (2 / 9 / 400) ** 0.5


def test_the_first_layer_named_parameters_and_labels() -> None:
    """The first layer is the first with a matrix."""
    assert {n: len(p) for n, p in choose(network(), "first").positions.items()} == {"one.weight": 12, "one.bias": 4}
    found = choose(network(), ["two.weight", "one.bias"])
    assert list(found.positions) == ["one.bias", "two.weight"]
    labels = ["one.bias[0]", "one.bias[3]", "two.weight[0, 0]", "two.weight[1, 1]"]
    assert [found.label(i) for i in (0, 3, 4, 9)] == labels
    with pytest.raises(IndexError):
        found.label(12)
    single = choose(network(), "two.weight", 3)
    assert (len(single), single.available) == (3, 8)


def test_frozen_parameters_and_bad_names_have_no_gradient_to_look_at() -> None:
    model = network()
    model.one.requires_grad_(False)  # type: ignore[operator]
    assert list(choose(model).positions) == ["norm.weight", "norm.bias", "two.weight"]
    for network_of, parameters, message in (
        (model, "one.weight", r"no trainable parameter 'one\.weight'"),
        (network(), "frist", "no trainable parameter 'frist'; did you mean 'first'"),
        (network(), [], "parameters is empty"),
        (network().requires_grad_(False), "all", "no trainable parameter; there is no gradient"),
    ):
        with pytest.raises(InputError, match=message):
            choose(network_of, parameters)


def test_rows_are_the_gradients_of_single_examples() -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)
    model = nn.Sequential(*layers).double().eval()
    x, y = torch.randn(70, 1, 4, 4, dtype=torch.float64), torch.arange(70) % 4
    chosen = choose(model, count=30)
    rows = gradient_rows(model, TensorExamples(x, y), chosen, what="data")
    assert (rows.shape, rows.dtype) == ((70, 30), np.float64)
    for i in (0, 37, 69):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        parts = [model.get_parameter(n).grad.flatten()[p] for n, p in chosen.positions.items()]  # type: ignore[union-attr]
        assert rows[i] == pytest.approx(torch.cat(parts).numpy(), rel=1e-9, abs=1e-14)


def test_a_gradient_that_is_not_finite_is_named() -> None:
    model, x = nn.Linear(2, 2), torch.zeros(3, 2)
    x[2] = 3e38
    with torch.no_grad():
        model.weight.fill_(3e38)
    with pytest.raises(DataError, match="row 2 of the data set is not finite"):
        gradient_rows(model, TensorExamples(x, torch.zeros(3, dtype=torch.long)), choose(model), what="data")


@pytest.mark.parametrize("name", ["mlp", "small_resnet", "Grouped", "Tied"])
@pytest.mark.parametrize("through_norm", [True, False])
def test_ratios_are_those_by_which_moves_rescale_gradients(name: str, through_norm: bool) -> None:
    """As many random moves as channels, whose factors are known, give the powers of every channel."""
    model, law = built(name), ChangeOfBasis(law="lognormal", spread=0.1, through_norm=through_norm)
    chosen, free = choose(model), law.report(model).free
    logs, factors = [], []
    for seed in range(free):
        logs.append(covector_logs(model, chosen, law.move(model, generator=torch.Generator().manual_seed(seed))))
        scales = draw_scales("lognormal", free, spread=0.1, generator=torch.Generator().manual_seed(seed))
        factors.append(np.log(scales.numpy()))
    expected = np.linalg.solve(np.stack(factors), np.stack(logs))
    assert expected == pytest.approx(expected.round(), abs=1e-6)
    found = ratios_of(model, chosen, through_norm=through_norm)
    assert found.channels == free > 4
    # The order of channels is the symmetry's own.
    columns = (found.powers.toarray().T + 0.0).tolist()
    assert sorted(columns) == sorted((expected.round() + 0.0).tolist())
    squares = found.log_squares("uniform", 0.6, draws=3, generator=torch.Generator().manual_seed(0))
    scales = draw_scales("uniform", 3 * free, spread=0.6, generator=torch.Generator().manual_seed(0)).numpy()
    assert squares == pytest.approx(2 * np.log(scales).reshape(3, free) @ found.powers.toarray().T, abs=1e-12)


def test_energies_of_a_log_normal_by_hand() -> None:
    """Into a free channel exp(4s²), between two exp(4s²), out of one 1; conjugated 4 log factors instead of 2."""
    model, s = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), 0.4
    chosen = choose(model)
    once, twice = ratios_of(model, chosen), ratios_of(model, chosen, seen="conjugated")
    moments, energies = once.log_moments(s), once.log_energies("lognormal", s)
    assert moments is not None
    assert energies == pytest.approx(np.repeat([4 * s**2, 0.0], [6 + 3 + 9 + 3, 6 + 2]), abs=1e-12)
    assert moments[0] + 0.5 * moments[1] ** 2 == pytest.approx(energies, abs=1e-12)
    assert [(moments[0][i], moments[1][i]) for i in (0, 9)] == [
        pytest.approx((2 * s**2, 2 * s)),
        pytest.approx((0.0, 2 * s * np.sqrt(2))),
    ]
    assert (twice.powers.toarray() == 2 * once.powers.toarray()).all()
    assert twice.log_energies("lognormal", s)[-3] == pytest.approx(4 * s**2)


def test_a_factor_that_a_running_variance_does_not_bear_is_one_in_draws_and_energies() -> None:
    norm = nn.BatchNorm2d(2)
    model = nn.Sequential(nn.Conv2d(1, 2, 1), norm, nn.ReLU(), nn.Flatten(), nn.Linear(2, 2)).eval()
    assert norm.running_var is not None
    norm.running_var[0] = 1e-6
    chosen = choose(model, "0.weight")
    ratios = ratios_of(model, chosen)
    least = (1e-5 / (1e-5 + 1e-6)) ** 0.5
    assert max(ratios.least) == pytest.approx(least, rel=1e-4)
    drawn = ratios.log_squares("uniform", 0.8, draws=20_000, generator=torch.Generator().manual_seed(0))
    kept = (drawn == 0).mean(0)
    assert kept[0] == pytest.approx((least - 0.2) / 1.6, abs=0.02)
    assert kept[1] < 0.001
    error = np.exp(drawn).std(0) / np.sqrt(len(drawn))
    assert (np.abs(np.exp(drawn).mean(0) - np.exp(ratios.log_energies("uniform", 0.8))) < 5 * error).all()
    generator = torch.Generator().manual_seed(4)
    for _ in range(30):
        move = ChangeOfBasis(spread=0.8).move(model, generator=generator)
        assert covector_logs(model, chosen, move)[0] <= np.log(1 / least + 1e-6)


def test_moments_are_given_only_where_the_law_is_normal() -> None:
    """A factor that is kept at 1 makes the logarithms other than normal."""
    kept = GraphRatios(csr_array(np.array([[1.0, -1.0]])), np.array([0.0, 0.5]))
    assert kept.log_moments(0.8) is None
    assert kept.log_moments(0.05) is not None


LAWS: tuple[tuple[Law, float], ...] = (("uniform", 0.6), ("lognormal", 0.4), ("truncated_normal", 0.5))


@pytest.mark.parametrize(("law", "spread"), LAWS)
@pytest.mark.parametrize("power", [2.0, -2.0, 4.0, -1.0])
@pytest.mark.parametrize("least", [0.0, 0.7, 1.1])
def test_moments_are_those_of_the_factors_that_are_drawn(law: Law, spread: float, power: float, least: float) -> None:
    scales = draw_scales(law, 400_000, spread=spread, generator=torch.Generator().manual_seed(3)).numpy()
    powers = np.where(scales > least, scales, 1.0) ** power
    error = powers.std() / np.sqrt(len(powers))
    assert scale_moment(law, spread, power=power, least=least) == pytest.approx(powers.mean(), abs=5 * error)
    assert error < 0.03 * powers.mean()


def test_moments_have_their_closed_forms() -> None:
    assert scale_moment("uniform", 0.6, power=2) == pytest.approx(1 + 0.36 / 3)
    assert scale_moment("uniform", 0.6, power=-2) == pytest.approx(1 / (1 - 0.36))
    assert scale_moment("lognormal", 0.4, power=2) == pytest.approx(1.0, rel=1e-12)
    assert scale_moment("lognormal", 0.4, power=-2) == pytest.approx(np.exp(4 * 0.16))
    for spread in (0.01, 0.5, 3.0):
        exact = truncnorm((0.05 - 1) / spread, np.inf, loc=1, scale=spread).moment(2)
        assert scale_moment("truncated_normal", spread, power=2) == pytest.approx(exact, rel=1e-6)


@given(st.sampled_from(["uniform", "lognormal", "truncated_normal"]), st.floats(0.01, 0.95))
def test_no_law_keeps_the_energy_between_free_channels(law: Law, spread: float) -> None:
    assert scale_moment(law, spread, power=2) * scale_moment(law, spread, power=-2) > 1
