"""The fit and the whole call, against loops over its parts."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.bounds.channel_ratios import choose_coordinates, gradient_rows, graph_ratios
from warp_unlearning.bounds.floor import fit_gradients, reconstruction_floor
from warp_unlearning.bounds.information import entropy_floor, log_normal_gain
from warp_unlearning.bounds.report import ReconstructionFloor
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.files import to_json
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.models.weights import model_digest
from warp_unlearning.randomness import Streams


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


def test_one_component_and_one_set_have_the_batch_as_their_ratio() -> None:
    """At any scale of the gradients: the fit does not know their units."""
    rows = np.random.default_rng(0).normal(size=(300, 4)) * np.array([1e-5, 1.0, 3.0, 1e-3])
    fit = fit_gradients(rows, rows, components=1, batch=5, seed=0)
    assert fit.weights == pytest.approx([1.0])
    assert fit.snr == pytest.approx(np.full((1, 4), 5.0), rel=1e-4)
    assert fit.silent == 0


def test_two_clusters_are_found_with_their_weights_and_variances() -> None:
    generator = np.random.default_rng(1)
    many, few = generator.normal([0.0, 0.0], [1.0, 0.5], (3000, 2)), generator.normal([9.0, 9.0], [2.0, 0.1], (1000, 2))
    retained = generator.normal(0.0, [3.0, 0.2], (50_000, 2))
    fit = fit_gradients(np.concatenate([many, few]), retained, components=2, batch=4, seed=0)
    order = np.argsort(fit.weights)
    assert fit.weights[order] == pytest.approx([0.25, 0.75], abs=0.01)
    noise = np.array([9.0, 0.04]) / 4
    assert fit.snr[order] == pytest.approx(np.array([[4.0, 0.01], [1.0, 0.25]]) / noise, rel=0.1)
    assert fit.notes == ()


def test_silent_coordinates_hold_nothing_and_tiny_noise_has_a_floor() -> None:
    generator = np.random.default_rng(2)
    rows, retained = generator.normal(size=(200, 3)), generator.normal(size=(200, 3))
    rows[:, 1], retained[:, 2] = 0.25, 0.0
    fit = fit_gradients(rows, retained, components=1, batch=5, seed=0)
    assert (fit.silent, float(fit.snr[0, 1])) == (1, 0.0)
    level = 1e-12 * (retained.var(0) / 5).mean()
    assert float(fit.snr[0, 2]) == pytest.approx(rows[:, 2].var() / level, rel=1e-4)
    with pytest.raises(DataError, match="there is no noise to compare with"):
        fit_gradients(rows, np.ones((5, 3)), components=1, batch=5, seed=0)
    with pytest.raises(DataError, match="choose other parameters"):
        fit_gradients(np.ones((10, 3)), retained, components=1, batch=5, seed=0)


def test_a_fit_that_does_not_settle_is_noted_without_a_warning() -> None:
    rows = np.repeat(np.random.default_rng(3).normal(size=(2, 3)), 10, axis=0)
    fit = fit_gradients(rows, rows, components=4, batch=5, seed=0)
    (note,) = fit.notes
    assert note.startswith("the fit of the mixture did not settle: ")
    assert fit.weights.sum() == pytest.approx(1.0)


def test_quadrature_and_monte_carlo_agree(usual: ReconstructionFloor) -> None:
    assert [row.spread for row in usual.rows] == [0.1, 0.2, 0.4, 0.8]
    for row in usual.rows:
        pairs = (row.gain, row.quadrature_gain), (row.matched_gain, row.matched_quadrature_gain)
        for sampled, exact in pairs:
            assert exact is not None
            assert sampled.value == pytest.approx(exact, abs=4 * sampled.standard_error)
            assert sampled.standard_error > 0
            assert sampled.draws == 400


def test_the_gain_is_the_mean_over_draws_of_the_sum_over_components_and_coordinates() -> None:
    """By loops over the fit and the ratios; d = 6 input numbers, whatever the number of coordinates."""
    found = floor(coordinates=9, components=2, spread=0.5, entropy=7.0, draws=50)
    streams, model = Streams(0, "bounds"), network().eval()
    chosen = choose_coordinates(model, parameters="all", count=9, generator=streams.generator("coordinates"))
    rows = gradient_rows(model, TensorExamples(*examples()), chosen, what="data")
    fit = fit_gradients(rows, rows, components=2, batch=5, seed=streams.number("mixture"))
    ratios = graph_ratios(model, chosen, through_norm=True, seen="teleported")
    squares = np.exp(ratios.log_squares("lognormal", 0.5, draws=50, generator=streams.generator("factors")))
    energy, moments = np.exp(ratios.log_energies("lognormal", 0.5)), ratios.log_moments(0.5)
    assert moments is not None
    drawn, matched, exact = np.zeros(50), 0.0, 0.0
    for weight, snr in zip(fit.weights, fit.snr, strict=True):
        for j, a in enumerate(snr):
            for k, r in enumerate(squares):
                drawn[k] += weight * np.log((1 + a) / (1 + a * r[j])) / 6
                matched += weight * np.log((1 + a) / (1 + a * r[j] / energy[j])) / 50 / 6
            level, s = a * np.exp(moments[0][j] + 0.5 * moments[1][j] ** 2), float(moments[1][j])
            psi = np.log1p(level) - (float(log_normal_gain(level, s)) if s else 0)
            exact += weight * (np.log1p(a) - psi) / 6
    (row,) = found.rows
    assert row.gain.value == pytest.approx(drawn.mean(), rel=1e-9)
    assert row.gain.standard_error == pytest.approx(np.std(drawn, ddof=1) / 50**0.5, rel=1e-9)
    assert row.matched_gain.value == pytest.approx(matched, rel=1e-9)
    assert row.quadrature_gain == pytest.approx(exact, rel=1e-9)
    nats = sum(w * (-np.log(w) + 0.5 * np.log1p(a).sum()) for w, a in zip(fit.weights, fit.snr, strict=True))
    assert found.information == pytest.approx(nats, rel=1e-12)
    assert found.relative_floor == pytest.approx(np.exp(-nats / 3), rel=1e-12)
    assert found.floor == pytest.approx(entropy_floor(7.0 - nats, dimensions=6), rel=1e-12)
    assert row.information == pytest.approx(nats - 0.5 * 6 * drawn.mean(), rel=1e-9)
    assert row.floor == pytest.approx(found.floor * row.factor, rel=1e-9)
    below = [sum(w * (a < q).mean() for w, a in zip(fit.weights, fit.snr, strict=True)) for q in found.snr]
    reached = [sum(w * (a <= q).mean() for w, a in zip(fit.weights, fit.snr, strict=True)) for q in found.snr]
    assert all(low < q <= high + 1e-12 for low, q, high in zip(below, (0.05, 0.5, 0.95), reached, strict=True))


def test_matched_gains_grow_with_the_spread_and_as_drawn_the_floor_falls(usual: ReconstructionFloor) -> None:
    gains = [row.matched_quadrature_gain or 0.0 for row in usual.rows]
    assert gains == sorted(gains)
    assert gains[0] > 0
    row = usual.rows[-1]
    assert row.factor < 1 < row.matched_factor
    assert (row.energy.least, row.energy.largest) == pytest.approx((1.0, np.exp(4 * 0.64)))
    assert row.energy.outside > 0.5
    assert any(note.startswith("as drawn the floor is lower with teleportation") for note in usual.notes)
    assert usual.rows[0].energy.outside == 0.0
    assert usual.rows[1].energy.largest == pytest.approx(np.exp(4 * 0.04))
    assert usual.rows[1].energy.outside == row.energy.outside


def test_a_fall_within_the_error_of_the_draws_is_not_called_one() -> None:
    found = floor(spread=0.001, seed=100)
    assert abs(found.rows[0].gain.value) < 2 * found.rows[0].gain.standard_error
    assert not any("lower with teleportation" in note for note in found.notes)


def test_a_conjugated_step_of_half_the_spread_has_the_same_random_part(usual: ReconstructionFloor) -> None:
    twice = floor(seen="conjugated", spread=(0.1, 0.2, 0.4))
    for conjugated, teleported in zip(twice.rows, usual.rows[1:], strict=True):
        assert conjugated.matched_quadrature_gain == pytest.approx(teleported.matched_quadrature_gain, rel=1e-9)
        assert conjugated.energy.largest == pytest.approx(teleported.energy.largest, rel=1e-9)


def test_other_laws_have_no_quadrature_and_few_of_many_examples_are_used() -> None:
    found = floor(law="uniform", spread=0.5, examples=50)
    (row,) = found.rows
    assert (found.law, found.examples) == ("uniform", 50)
    assert row.quadrature_gain is row.matched_quadrature_gain is None
    assert row.matched_gain.value > 4 * row.matched_gain.standard_error


def test_energy_is_kept_out_of_free_channels_alone() -> None:
    found = floor(parameters="4.weight", require_energy=True)
    assert all(row.energy.outside == 0 for row in found.rows)
    assert all(row.gain.value == pytest.approx(row.matched_gain.value, rel=1e-9) for row in found.rows)
    assert found.rows[-1].factor > 1
    assert not any("lower with teleportation" in note for note in found.notes)
    message = r"E\[r²\] is 2\.71828 for 0\.weight\[\d, \d\] under law 'lognormal' with spread 0\.5, not 1"
    with pytest.raises(InputError, match=message):
        floor(parameters="0.weight", spread=0.5, require_energy=True)
    with pytest.raises(InputError, match=r"under law 'uniform'"):
        floor(parameters="4.weight", spread=0.5, law="uniform", require_energy=True)


def test_the_noise_is_that_of_the_retained_examples() -> None:
    x, y = examples(300, seed=2)
    same, louder = floor(components=1), floor(components=1, retain=(4 * x, y))
    assert same.snr[1] == pytest.approx(5.0, rel=1e-4)
    assert louder.information < same.information
    assert floor(components=1, batch=20).snr[1] == pytest.approx(20.0, rel=1e-4)


def test_the_seed_decides_and_the_model_and_torchs_generator_stay_as_they_were() -> None:
    model, state = network().train(), torch.get_rng_state()
    before = model_digest(model)
    one, same, other = (
        reconstruction_floor(model, data=examples(), coordinates=20, draws=10, seed=seed) for seed in (0, 0, 1)
    )
    assert asdict(one) == asdict(same)
    assert one.rows != other.rows
    assert (model_digest(model), model.training) == (before, True)
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_notes_name_what_is_missing() -> None:
    found = reconstruction_floor(network(tanh=True), data=examples(), coordinates=30, draws=10, spread=0.5)
    assert (found.channels, found.rescaled) == (0, 0)
    assert found.rows[0].factor == found.rows[0].matched_factor == 1.0
    (note,) = found.notes
    assert "no free channel rescales these coordinates" in note
    model = network()
    with torch.no_grad():
        model[0].bias[0] = -100.0
    found = reconstruction_floor(model, data=examples(), parameters="first", coordinates=999, draws=10)
    assert (found.coordinates, found.silent) == (56, 7)
    assert any("56 coordinates to choose from, fewer than the 999" in note for note in found.notes)
    assert any("7 coordinates have the same gradient" in note for note in found.notes)


def test_words_and_plain_data(usual: ReconstructionFloor) -> None:
    assert json.loads(json.dumps(asdict(usual))) == to_json(asdict(usual))
    assert usual.rows[0].factor == pytest.approx(np.exp(usual.rows[0].gain.value))
    text = "\n".join(usual.lines())
    for words in (
        "a floor inside the model's assumptions",
        "60 of 143 gradient coordinates",
        "spread 0.8; as drawn ",
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
        ({"law": "log_normal"}, "law is 'log_normal'; did you mean 'lognormal'"),
        ({"draws": 1}, "draws is 1; give a whole number of at least 2"),
        ({"coordinates": 2.5}, "coordinates is 2.5"),
        ({"components": 0}, "components is 0"),
        ({"components": 5000}, "there are 200 examples for 5000 components and 200 for the noise"),
        ({"batch": True}, "batch is True; give a whole number of at least 1"),
        ({"retain": examples(1)}, "and 1 for the noise"),
        ({"retain": (torch.zeros(4, 5), torch.zeros(4).long())}, "cannot take an example of the retain set"),
        ({"parameters": "5.weight"}, r"no trainable parameter '5\.weight'; did you mean"),
        ({"seen": "both"}, "seen is 'both'; give 'teleported' or 'conjugated'"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((DataError, InputError), match=message):
        floor(**options)


def test_a_ratio_beyond_the_range_of_floats_is_refused() -> None:
    model = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    x, y = examples()
    with pytest.raises(InputError, match=r"at spread 3 is too large .* only 1 input numbers; give fewer coordinates"):
        reconstruction_floor(model, data=(x[:, :1], y), spread=(0.1, 3.0), coordinates=2000, draws=20)


def test_bad_data_are_named() -> None:
    x, y = examples()
    with pytest.raises(DataError, match="the data set is empty"):
        reconstruction_floor(network(), data=(x[:0], y[:0]))
    x[3, 0] = float("nan")
    with pytest.raises(DataError, match="not finite at row 3"):
        reconstruction_floor(network(), data=(x, y))
