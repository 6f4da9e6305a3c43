"""The whole call, against loops over what it is made of."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.bounds import reconstruction_floor as module
from warp_unlearning.bounds.entropy_floor import entropy_floor
from warp_unlearning.bounds.floor_report import ReconstructionFloor
from warp_unlearning.bounds.gradient_fit import GradientFit
from warp_unlearning.bounds.log_normal import log_normal_psi
from warp_unlearning.bounds.reconstruction_floor import reconstruction_floor
from warp_unlearning.data.files import to_json
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.models.weights import model_digest


def network(*, tanh: bool = False) -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    curve = nn.Tanh if tanh else nn.ReLU
    model = nn.Sequential(nn.Linear(6, 8), curve(), nn.Linear(8, 7), curve(), nn.Linear(7, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.6 * torch.randn(p.shape, generator=generator))
    return model


def examples(count: int = 200, seed: int = 1) -> tuple[Tensor, Tensor]:
    y = torch.arange(count) % 3
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed)) + 2 * torch.eye(3, 6)[y]
    return x, y


def floor(**options: Any) -> ReconstructionFloor:
    return reconstruction_floor(network(), data=examples(), **({"draws": 400, "coordinates": 60} | options))


@pytest.fixture(scope="module")
def usual() -> ReconstructionFloor:
    return floor()


def test_quadrature_and_monte_carlo_agree(usual: ReconstructionFloor) -> None:
    assert [row.spread for row in usual.rows] == [0.1, 0.2, 0.4, 0.8]
    for row in usual.rows:
        for sampled, exact in (
            (row.gain, row.quadrature_gain),
            (row.matched_gain, row.matched_quadrature_gain),
        ):
            assert exact is not None
            assert sampled.value == pytest.approx(exact, abs=4 * sampled.standard_error)
            assert sampled.standard_error > 0
            assert sampled.draws == 400


def test_the_gain_is_the_mean_over_draws_of_the_sum_over_components_and_coordinates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By loops, with a fit and ratios that are known; d = 6 input numbers, whatever the number of coordinates."""
    weights, snr = np.array([0.25, 0.75]), np.array([[1.0, 3.0, 0.0, 0.5], [0.2, 8.0, 2.0, 1.0]])
    monkeypatch.setattr(module, "fit_gradients", lambda *a, **k: GradientFit(weights, snr, 0, ()))
    found = floor(coordinates=4, spread=0.5, entropy=7.0, draws=50)
    ratios = {}
    original = module.graph_ratios

    def spy(*args: Any, **options: Any) -> Any:
        ratios["found"] = original(*args, **options)
        return ratios["found"]

    monkeypatch.setattr(module, "graph_ratios", spy)
    assert asdict(floor(coordinates=4, spread=0.5, entropy=7.0, draws=50)) == asdict(found)
    generator = module.Streams(0, "bounds").generator("factors")
    squares = np.exp(ratios["found"].log_squares("lognormal", 0.5, draws=50, generator=generator))
    energy = np.exp(ratios["found"].log_energies("lognormal", 0.5))
    drawn = matched = 0.0
    for r in squares:
        for i in range(2):
            for j in range(4):
                drawn += weights[i] * np.log((1 + snr[i, j]) / (1 + snr[i, j] * r[j])) / 50 / 6
                matched += weights[i] * np.log((1 + snr[i, j]) / (1 + snr[i, j] * r[j] / energy[j])) / 50 / 6
    (row,) = found.rows
    each = [(weights @ np.log((1 + snr) / (1 + snr * r)).sum(1)) / 6 for r in squares]
    assert row.gain.standard_error == pytest.approx(np.std(each, ddof=1) / 50**0.5, rel=1e-9)
    assert row.gain.value == pytest.approx(drawn, rel=1e-9)
    assert row.matched_gain.value == pytest.approx(matched, rel=1e-9)
    assert found.snr == (0.0, 1.0, 8.0)
    told = sum(w * (-np.log(w) + 0.5 * np.log1p(a).sum()) for w, a in zip(weights, snr, strict=True))
    assert found.information == pytest.approx(told, rel=1e-12)
    assert found.relative_floor == pytest.approx(np.exp(-told / 3), rel=1e-12)
    assert row.information == pytest.approx(told - 0.5 * 6 * drawn, rel=1e-9)
    assert found.floor == pytest.approx(entropy_floor(7.0 - told, dimensions=6), rel=1e-12)
    assert row.floor is not None
    assert found.floor is not None
    assert row.floor / found.floor == pytest.approx(row.factor, rel=1e-9)
    mean, deviation = ratios["found"].log_moments(0.5)
    exact = 0.0
    for i in range(2):
        for j in range(4):
            level = snr[i, j] * np.exp(mean[j] + 0.5 * deviation[j] ** 2)
            psi = float(log_normal_psi(level, deviation[j]).values) if deviation[j] else np.log1p(level)
            exact += weights[i] * (np.log1p(snr[i, j]) - psi) / 6
    assert row.quadrature_gain == pytest.approx(exact, rel=1e-9)


def test_matched_gains_are_never_negative_and_grow_with_the_spread(usual: ReconstructionFloor) -> None:
    gains = [row.matched_quadrature_gain for row in usual.rows]
    assert all(g is not None and g > 0 for g in gains)
    assert gains == sorted(gains)  # type: ignore[type-var]


def test_as_drawn_the_floor_falls_and_that_is_said(usual: ReconstructionFloor) -> None:
    row = usual.rows[-1]
    assert row.factor < 1 < row.matched_factor
    assert row.energy.least == pytest.approx(1.0)
    assert row.energy.largest == pytest.approx(np.exp(4 * 0.64))
    assert row.energy.outside > 0.5
    assert any(note.startswith("as drawn the floor is lower with teleportation") for note in usual.notes)
    assert usual.rows[0].energy.outside == 0.0
    assert usual.rows[1].energy.largest == pytest.approx(np.exp(4 * 0.04))
    assert usual.rows[1].energy.outside == row.energy.outside


def test_a_fall_within_the_error_of_the_draws_is_not_called_one() -> None:
    found = floor(spread=0.001, seed=100)
    assert abs(found.rows[0].gain.value) < 2 * found.rows[0].gain.standard_error
    assert not any("lower with teleportation" in note for note in found.notes)


@pytest.mark.parametrize("law", ["uniform", "truncated_normal"])
def test_other_laws_have_no_quadrature_and_a_gain_once_matched(law: Any) -> None:
    found = floor(law=law, spread=0.5)
    (row,) = found.rows
    assert row.quadrature_gain is row.matched_quadrature_gain is None
    assert row.matched_gain.value > 4 * row.matched_gain.standard_error
    assert found.law == law


def test_a_conjugated_step_of_half_the_spread_has_the_same_random_part(usual: ReconstructionFloor) -> None:
    twice = floor(seen="conjugated", spread=(0.1, 0.2, 0.4))
    for conjugated, teleported in zip(twice.rows, usual.rows[1:], strict=True):
        assert conjugated.matched_quadrature_gain == pytest.approx(teleported.matched_quadrature_gain, rel=1e-9)
        assert conjugated.energy.largest == pytest.approx(teleported.energy.largest, rel=1e-9)


def test_what_leads_out_of_free_channels_keeps_its_energy_and_the_promise() -> None:
    found = floor(parameters="4.weight", require_energy=True)
    assert all(row.energy.outside == 0 for row in found.rows)
    assert all(row.gain.value == pytest.approx(row.matched_gain.value, rel=1e-9) for row in found.rows)
    assert found.rows[-1].factor > 1
    assert not any("lower with teleportation" in note for note in found.notes)


def test_ratios_that_do_not_keep_the_energy_are_refused_where_the_promise_is_asked_for() -> None:
    message = r"E\[r²\] is 2\.71828 for 0\.weight\[\d, \d\] under law 'lognormal' with spread 0\.5, not 1"
    with pytest.raises(InputError, match=message):
        floor(parameters="0.weight", spread=0.5, require_energy=True)
    with pytest.raises(InputError, match=r"under law 'uniform'"):
        floor(parameters="4.weight", spread=0.5, law="uniform", require_energy=True)


def test_the_noise_is_that_of_the_retained_examples() -> None:
    x, y = examples(300, seed=2)
    loud = (4 * x, y)
    same, louder = floor(components=1), floor(components=1, retain=loud)
    assert same.snr[1] == pytest.approx(5.0, rel=1e-4)
    assert louder.information < same.information
    assert floor(components=1, batch=20).snr[1] == pytest.approx(20.0, rel=1e-4)


def test_the_same_seed_gives_the_same_and_another_another() -> None:
    assert asdict(floor(spread=0.3)) == asdict(floor(spread=0.3))
    assert asdict(floor(spread=0.3, seed=1))["rows"] != asdict(floor(spread=0.3))["rows"]


def test_the_model_and_torchs_generator_stay_as_they_were() -> None:
    model = network().train()
    before, state = model_digest(model), torch.get_rng_state()
    reconstruction_floor(model, data=examples(), coordinates=20, draws=10)
    assert model_digest(model) == before
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_few_of_many_examples_are_used() -> None:
    assert floor(examples=50).examples == 50
    assert floor().examples == 200
    assert floor(examples=50).information != floor(examples=60).information


def test_a_network_without_free_channels_is_left_as_it_is() -> None:
    found = reconstruction_floor(network(tanh=True), data=examples(), coordinates=30, draws=10, spread=0.5)
    assert (found.channels, found.rescaled) == (0, 0)
    assert found.rows[0].factor == found.rows[0].matched_factor == 1.0
    assert len(found.notes) == 1
    assert any("no free channel meets these coordinates" in note for note in found.notes)


def test_fewer_coordinates_than_asked_for_and_silent_ones_are_noted() -> None:
    model = network()
    with torch.no_grad():
        model[0].bias[0] = -100.0
    found = reconstruction_floor(model, data=examples(), parameters="first", coordinates=999, draws=10)
    assert found.coordinates == 56
    assert found.silent == 7
    assert any("56 coordinates to choose from, fewer than the 999" in note for note in found.notes)
    assert any("7 coordinates have the same gradient" in note for note in found.notes)


def test_words_and_plain_data(usual: ReconstructionFloor) -> None:
    found = usual.as_json()
    assert json.loads(json.dumps(found)) == to_json(found)
    assert (found["schema_version"], found["kind"], found["dimensions"]) == (1, "bounds", 6)
    assert found["rows"][0]["factor"] == pytest.approx(np.exp(usual.rows[0].gain.value))
    text = "\n".join(usual.lines())
    for words in (
        "a floor inside the model's assumptions",
        "not a guarantee",
        "relative only",
        "lets the attacker know τ, so its gain is not secrecy of τ",
        "E[r²] = 1 cannot hold for every coordinate of a real network (ratios multiply to 1 along every path)",
        "the assumption's violation is printed",
        "60 of 143 gradient coordinates",
        "spread 0.8: floor ratio",
        "note: as drawn the floor is lower",
    ):
        assert words in text
    assert "mean squared error of" not in text
    assert "a mean squared error of" in "\n".join(floor(entropy=3.0).lines())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spread": 0}, "spread is 0; give a number above 0"),
        ({"spread": (0.1, -0.2)}, r"spread is -0\.2"),
        ({"spread": ()}, "no spread was given"),
        ({"spread": 1.5, "law": "uniform"}, "zero or negative"),
        ({"law": "log_normal"}, "law is 'log_normal'; did you mean 'lognormal'"),
        ({"draws": 1}, "draws is 1"),
        ({"examples": 1}, "examples is 1"),
        ({"coordinates": 0}, "coordinates is 0"),
        ({"components": 0}, "components is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"entropy": float("inf")}, "the entropy is inf"),
        ({"parameters": "5.weight"}, r"no trainable parameter '5\.weight'; did you mean"),
        ({"seen": "both"}, "seen is 'both'"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        floor(**options)


def test_bad_data_are_named() -> None:
    x, y = examples()
    with pytest.raises(DataError, match="the data set is empty"):
        reconstruction_floor(network(), data=(x[:0], y[:0]))
    with pytest.raises(DataError, match="5 examples for 3 components"):
        reconstruction_floor(network(), data=(x[:5], y[:5]))
    x[3, 0] = float("nan")
    with pytest.raises(DataError, match="not finite at row 3"):
        reconstruction_floor(network(), data=(x, y))
    with pytest.raises(DataError, match="the model cannot take an example of the retain set"):
        reconstruction_floor(network(), data=examples(), retain=(torch.zeros(4, 5), torch.zeros(4, dtype=torch.long)))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"components": 5000}, "there are 200 examples for 5000 components and 200 for the noise"),
        ({"components": 0}, "components is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"components": 2, "retain": examples(1)}, "and 1 for the noise"),
    ],
)
def test_what_cannot_be_fitted_is_refused_before_any_gradient(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], message: str
) -> None:
    def never(*given: object, **options: object) -> None:
        raise AssertionError("a gradient was taken")

    monkeypatch.setattr(module, "gradient_rows", never)
    with pytest.raises((DataError, InputError), match=message):
        floor(**asked)
