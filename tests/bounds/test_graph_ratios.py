"""The ratios against the symmetry itself: its moves applied to gradients of ones."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from warp_unlearning.bounds.coordinates import Coordinates, choose_coordinates
from warp_unlearning.bounds.graph_ratios import GraphRatios, graph_ratios
from warp_unlearning.errors import InputError
from warp_unlearning.models.networks import build_model
from warp_unlearning.symmetry import rescaling
from warp_unlearning.symmetry.rescaling import ChangeOfBasis, Law, draw_scales


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
    generator = torch.Generator().manual_seed(0)
    if name in ("Grouped", "Tied"):
        return {"Grouped": Grouped, "Tied": Tied}[name]()
    if name == "mlp":
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    return build_model("small_resnet", generator=generator, classes=4, in_channels=1, width=4)


def all_of(model: nn.Module, count: int = 10**6) -> Coordinates:
    return choose_coordinates(model, parameters="all", count=count, generator=torch.Generator().manual_seed(0))


def covector_factors(model: nn.Module, chosen: Coordinates, move: Any) -> np.ndarray:
    ones = {name: torch.ones_like(p, dtype=torch.float64) for name, p in model.named_parameters()}
    parts = [move.covector(name, ones[name]).flatten()[p] for name, p in chosen.positions.items()]
    return torch.cat(parts).numpy()


@pytest.mark.parametrize("name", ["mlp", "small_resnet", "Grouped", "Tied"])
@pytest.mark.parametrize("through_norm", [True, False])
def test_ratios_are_those_by_which_a_move_rescales_gradients(
    name: str, through_norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One factor a channel, the same for the symmetry as for the ratios, and a different one for each channel."""
    model = built(name)
    chosen = all_of(model)
    ratios = graph_ratios(model, chosen, through_norm=through_norm, seen="teleported")
    moves = []
    free = ChangeOfBasis(through_norm=through_norm).report(model).free
    assert ratios.channels == free > 4
    # A basis of moves: the k-th rescales the k-th free channel alone. The order of channels is the symmetry's own.
    for k in range(free):

        def one(law: Law, count: int, *, spread: float, generator: torch.Generator, k: int = k) -> Tensor:
            scales = torch.ones(count, dtype=torch.float64)
            scales[k] = np.e
            return scales

        monkeypatch.setattr(rescaling, "draw_scales", one)
        move = ChangeOfBasis(through_norm=through_norm).move(model, generator=torch.Generator())
        moves.append(np.log(covector_factors(model, chosen, move)))
    expected = np.stack(moves, axis=1)
    found = ratios.powers.toarray()
    key = [tuple(column) for column in expected.T.round(9) + 0.0]
    assert sorted(key) == sorted(tuple(column) for column in found.T + 0.0)


def test_draws_have_the_law_of_the_symmetrys_moves() -> None:
    model = built("mlp")
    chosen = all_of(model)
    ratios = graph_ratios(model, chosen, through_norm=True, seen="teleported")
    mine = ratios.log_squares("uniform", 0.6, draws=3000, generator=torch.Generator().manual_seed(1))
    generator, symmetry = torch.Generator().manual_seed(2), ChangeOfBasis(law="uniform", spread=0.6)
    theirs = np.stack(
        [2 * np.log(covector_factors(model, chosen, symmetry.move(model, generator=generator))) for _ in range(400)]
    )
    assert mine.shape == (3000, len(chosen))
    assert mine.mean(0) == pytest.approx(theirs.mean(0), abs=0.25)
    assert mine.std(0) == pytest.approx(theirs.std(0), rel=0.2)
    assert np.corrcoef(mine[:, :30].T) == pytest.approx(np.corrcoef(theirs[:, :30].T), abs=0.3)


@pytest.mark.parametrize(("law", "spread"), [("uniform", 0.5), ("lognormal", 0.3), ("truncated_normal", 0.3)])
def test_energies_are_the_means_of_the_draws(law: Law, spread: float) -> None:
    model = built("mlp")
    ratios = graph_ratios(model, all_of(model, 40), through_norm=True, seen="teleported")
    drawn = np.exp(ratios.log_squares(law, spread, draws=40_000, generator=torch.Generator().manual_seed(0)))
    error = drawn.std(0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(0) - np.exp(ratios.log_energies(law, spread))) < 5 * error + 1e-12).all()


def test_energies_of_a_log_normal_by_hand() -> None:
    """Into a free channel exp(4s²), between two exp(4s²), out of one 1; conjugated 4 log factors instead of 2."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    chosen = all_of(model)
    s = 0.4
    ratios = graph_ratios(model, chosen, through_norm=True, seen="teleported")
    by_name = np.split(ratios.log_energies("lognormal", s), np.cumsum([len(p) for p in chosen.positions.values()]))
    expected = [4 * s**2, 4 * s**2, 4 * s**2, 4 * s**2, 0.0, 0.0]
    for part, value in zip(by_name, expected, strict=False):
        assert part == pytest.approx(value, abs=1e-12)
    mean, deviation = ratios.log_moments(s)
    assert mean[0] == pytest.approx(2 * s**2)
    assert deviation[0] == pytest.approx(2 * s)
    inner = 6 + 3
    assert (mean[inner], deviation[inner]) == pytest.approx((0.0, 2 * s * np.sqrt(2)))
    assert mean + 0.5 * deviation**2 == pytest.approx(ratios.log_energies("lognormal", s), abs=1e-12)
    twice = graph_ratios(model, chosen, through_norm=True, seen="conjugated")
    assert (twice.powers.toarray() == 2 * ratios.powers.toarray()).all()
    assert twice.log_energies("lognormal", s)[-3] == pytest.approx(4 * s**2)


def test_along_a_path_the_ratios_multiply_to_one() -> None:
    """From an input to a logit of a plain network: no draw can make all of them small."""
    model = nn.Sequential(
        nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2)
    )
    chosen = all_of(model)
    ratios = graph_ratios(model, chosen, through_norm=True, seen="teleported")
    drawn = ratios.log_squares("uniform", 0.8, draws=5, generator=torch.Generator().manual_seed(0))
    at = {chosen.label(i): drawn[:, i] for i in range(len(chosen))}
    for i, j, k in ((0, 1, 0), (2, 3, 1), (1, 0, 1)):
        along = at[f"0.weight[{i}, 0]"] + at[f"2.weight[{j}, {i}]"] + at[f"4.weight[{k}, {j}]"]
        assert along == pytest.approx(0.0, abs=1e-12)
        assert np.abs(at[f"0.weight[{i}, 0]"]).min() > 0


def test_a_factor_that_a_running_variance_does_not_bear_is_one_in_draws_and_energies() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2, 2)).eval()
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_var is not None
    norm.running_var[0] = 1e-6
    chosen = choose_coordinates(model, parameters="0.weight", count=2, generator=torch.Generator())
    ratios = graph_ratios(model, chosen, through_norm=True, seen="teleported")
    least = (1e-5 / (1e-5 + 1e-6)) ** 0.5
    assert max(ratios.least) == pytest.approx(least, rel=1e-4)
    drawn = ratios.log_squares("uniform", 0.8, draws=20_000, generator=torch.Generator().manual_seed(0))
    held = (drawn == 0).mean(0)
    assert held[0] == pytest.approx((least - 0.2) / 1.6, abs=0.02)
    assert held[1] < 0.001
    error = np.exp(drawn).std(0) / np.sqrt(len(drawn))
    assert (np.abs(np.exp(drawn).mean(0) - np.exp(ratios.log_energies("uniform", 0.8))) < 5 * error).all()
    generator = torch.Generator().manual_seed(4)
    for _ in range(30):
        move = ChangeOfBasis(spread=0.8).move(model, generator=generator)
        assert covector_factors(model, chosen, move)[0] <= 1 / least + 1e-6


def test_a_weight_between_tied_channels_is_not_rescaled() -> None:
    model = Tied()
    chosen = choose_coordinates(model, parameters="inner.weight", count=25, generator=torch.Generator())
    ratios = graph_ratios(model, chosen, through_norm=True, seen="teleported")
    assert np.diff(ratios.powers.indptr).reshape(5, 5).tolist() == (2 - 2 * np.eye(5, dtype=int)).tolist()
    drawn = ratios.log_squares("uniform", 0.5, draws=2, generator=torch.Generator()).reshape(2, 5, 5)
    assert not np.diagonal(drawn, axis1=1, axis2=2).any()


def test_where_nothing_is_free_nothing_is_rescaled() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    ratios = graph_ratios(model, all_of(model), through_norm=True, seen="teleported")
    assert ratios.channels == 0
    drawn = ratios.log_squares("lognormal", 0.5, draws=3, generator=torch.Generator())
    assert drawn.shape == (3, 17)
    assert not drawn.any()
    assert not ratios.log_energies("lognormal", 0.5).any()


def test_what_is_seen_has_two_names() -> None:
    model = built("mlp")
    with pytest.raises(InputError, match="seen is 'moved'; give 'teleported' or 'conjugated'"):
        graph_ratios(model, all_of(model), through_norm=True, seen="moved")  # type: ignore[arg-type]


def test_draws_are_those_of_the_law() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    chosen = choose_coordinates(model, parameters="0.weight", count=1, generator=torch.Generator())
    ratios: GraphRatios = graph_ratios(model, chosen, through_norm=True, seen="teleported")
    found = ratios.log_squares("lognormal", 0.5, draws=9, generator=torch.Generator().manual_seed(3))[:, 0]
    scales = draw_scales("lognormal", 9, spread=0.5, generator=torch.Generator().manual_seed(3)).numpy()
    assert found == pytest.approx(-2 * np.log(scales), rel=1e-12)


def test_quadrature_is_left_to_laws_that_are_normal() -> None:
    powers = csr_array(np.array([[1.0, -1.0]]))
    free = GraphRatios(powers, np.zeros(2))
    held = GraphRatios(powers, np.array([0.0, 0.5]))
    assert free.never_held(0.8)
    assert not held.never_held(0.8)
    assert held.never_held(0.05)
    drawn = held.log_squares("lognormal", 0.8, draws=20_000, generator=torch.Generator().manual_seed(20))
    mean, deviation = held.log_moments(0.8)
    # What is held at 1 makes the logarithms other than the moments say.
    assert abs(drawn[:, 0].mean() - mean[0]) > 10 * deviation[0] / 20_000**0.5
