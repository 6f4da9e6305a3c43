from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from warp_unlearning.attacks.reconstruction import audit
from warp_unlearning.attacks.reconstruction.attacks import default_attacks, find_attack
from warp_unlearning.attacks.reconstruction.audit import Attacked, gather_images, in_columns, unit_images
from warp_unlearning.attacks.reconstruction.judge import in_order, ordered_by_labels
from warp_unlearning.attacks.reconstruction.threat import KnownUnlearning, Schedule, schedule_of
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.preprocess import ImageData
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.methods import make_method
from warp_unlearning.unlearning.driver import unlearn
from warp_unlearning.unlearning.record import describe

IMAGES = torch.randint(2, (90, 1, 4, 4), generator=torch.Generator().manual_seed(20)).float(), torch.arange(90) % 3
EVERYTHING = np.arange(60)
NGP = describe(make_method("ngp"))["options"]


def settings(**changed: Any) -> dict[str, Any]:
    return {**NGP, "momentum": 0.0, "epochs": 1, "batch_size": 2000, **changed}


def images_of(x: torch.Tensor, y: torch.Tensor, *, train: int = 60) -> ImageData:
    """Images with values 0 and 1 standing for −1 and 1, of which the first `train` were learned from."""
    learned, unseen = (TensorExamples(2 * x[part] - 1, y[part]) for part in (slice(train), slice(train, None)))
    return ImageData("toy", learned, unseen, tuple("abc"), (0.5,), (0.5,), "")


@pytest.fixture
def toy() -> ImageData:
    """Sixty different images of three classes, and ten test images a class."""
    return images_of(*IMAGES)


# Steps


@pytest.mark.parametrize("alpha", [0.5, 0.9])
def test_a_schedule_of_one_step_is_the_step_that_was_taken(alpha: float) -> None:
    generator = torch.Generator().manual_seed(21)
    x, y = torch.randn(40, 5, generator=generator, dtype=torch.float64), torch.arange(40) % 3
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    method = make_method("ngp", alpha=alpha, epochs=1, batch_size=2000, lr=0.03)
    after = unlearn(model, forget=(x[:2], y[:2]), retain=(x[2:], y[2:]), method=method).model
    schedule, notes = schedule_of("ngp", describe(method)["options"], retained=38, forgotten=2)
    assert schedule is not None
    assert (schedule.steps, notes) == (1, ())
    forget, retain = (
        torch.autograd.grad(cross_entropy(model(x[part]), y[part]), list(model.parameters()))
        for part in (slice(0, 2), slice(2, 40))
    )
    for p, q, f, r in zip(model.parameters(), after.parameters(), forget, retain, strict=True):
        step = schedule.rates[0] * (schedule.ascent * f - alpha * r)
        assert torch.allclose(q, p + step, atol=1e-12)


def test_several_plain_steps_have_the_rates_they_were_taken_with() -> None:
    found, notes = schedule_of("ngp", settings(epochs=2, batch_size=40, lr=0.1, alpha=0.25), retained=100, forgotten=1)
    rates = [0.1 * 0.5 * (1 + np.cos(np.pi * i / 6)) for i in range(6)]
    assert found is not None
    assert (found.steps, found.ascent) == (6, 0.75)
    assert found.rates == pytest.approx(rates, rel=1e-12)
    assert notes == ()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"momentum": 0.9, "epochs": 2}, "momentum"),
        ({"anchor": 0.1, "epochs": 2}, "anchor"),
        ({"weight_decay": 0.1}, "weight_decay"),
        ({"max_norm": 1.0}, "max_norm"),
        ({"saturate": True}, "saturate"),
        ({"alpha": 1.0}, "never looks at the forgotten"),
    ],
)
def test_steps_that_are_not_plain_have_no_schedule(changed: dict[str, Any], says: str) -> None:
    found, notes = schedule_of("ngp", settings(**changed), retained=100, forgotten=1)
    assert found is None
    assert says in notes[0]


def test_momentum_and_anchor_do_nothing_in_one_step() -> None:
    assert schedule_of("ngp", settings(momentum=0.9, anchor=0.1), retained=100, forgotten=1)[0] is not None


def test_a_batch_smaller_than_the_request_is_noted() -> None:
    assert "only some of the 5" in schedule_of("ngp", settings(batch_size=4), retained=4, forgotten=5)[1][0]


def test_other_methods_have_no_schedule() -> None:
    found, notes = schedule_of("scrub", {}, retained=100, forgotten=1)
    assert found is None
    assert "scrub" in notes[0]


# Attacks


@pytest.mark.parametrize(
    ("defense", "expected"),
    [
        ("none", {"inversion"}),
        ("cob", {"inversion", "canonical", "canonical+span", "canonical+filter"}),
        ("warp", {"inversion", "span", "filter", "canonical+span", "canonical+filter"}),
        (
            "conjugate",
            {"inversion", "scale-free", "conservation", "input-layer", "canonical+conservation", "joint"},
        ),
    ],
)
def test_the_attacks_that_know_the_defence_are_tried(defense: str, expected: set[str]) -> None:
    found = default_attacks(KnownUnlearning(defense=defense), prior=False)
    assert set(found) == expected
    assert found[0] == "inversion"


def test_a_known_step_adds_the_adaptive_attack_a_prior_the_generative_one_and_an_unknown_defence_all() -> None:
    known = KnownUnlearning(defense="cob", schedule=Schedule(steps=1, rate=0.1))
    assert default_attacks(known, prior=True)[-2:] == ("adaptive", "generative")
    unknown = default_attacks(KnownUnlearning(), prior=False)
    assert {"inversion", "span", "scale-free", "canonical+filter", "conservation", "joint"} < set(unknown)


def test_attacks_are_named_by_themselves_or_by_how_the_difference_is_read() -> None:
    assert (find_attack("filtered").after, find_attack("canonical+filter").after) == ("filtered", "canonical+filter")
    assert (find_attack("generative@filtered").name, find_attack("generative@filtered").after) == (
        "generative",
        "filtered",
    )
    with pytest.raises(InputError, match=r"no attack 'inversio'; did you mean 'inversion'"):
        find_attack("inversio")


# Order


def test_images_found_together_are_matched_by_label_and_then_by_error() -> None:
    truth = torch.tensor([0.0, 0.5, 1.0, 0.2]).reshape(1, 4, 1, 1, 1).expand(1, 4, 1, 2, 2)
    labels = torch.tensor([[0, 0, 1, 2]])
    found = truth[:, [1, 2, 0, 3]]
    assert in_order(found, None, truth, labels).equal(truth[0])
    # Told to be of class 0, the image that looks like the third is matched within its class all the same.
    same = in_order(found, torch.tensor([[0, 0, 1, 2]]), truth, labels)
    assert same[:, 0, 0, 0].tolist() == [0.5, 1.0, 0.0, pytest.approx(0.2)]


def test_images_of_different_requests_never_change_places() -> None:
    truth = torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1, 1).expand(2, 1, 1, 2, 2)
    assert in_order(truth.flip(0), None, truth, torch.zeros(2, 1, dtype=torch.long))[:, 0, 0, 0].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("found", "labels", "expected"),
    [
        ([[3], [4]], [[5], [4]], True),
        ([[2, 1]], [[1, 2]], True),
        ([[1, 1]], [[1, 1]], False),
        ([[1, 3]], [[1, 2]], False),
        ([[1, 2], [1, 3]], [[1, 2], [1, 2]], False),
    ],
)
def test_labels_decide_the_order_where_each_is_there_once(found: Any, labels: Any, expected: bool) -> None:
    assert ordered_by_labels(torch.tensor(found), torch.tensor(labels)) is expected


# Columns


def attacked(name: str, forget: list[int], **known: Any) -> Attacked:
    about = KnownUnlearning(**known)
    return Attacked(Path(name), nn.Identity(), np.array(forget), about, str(about.settings))


def test_models_made_in_one_way_by_different_requests_are_one_column() -> None:
    plain: dict[str, Any] = {"method": "ngp", "settings": {"lr": 1}, "defense": "none"}
    hidden = {**plain, "defense": "cob"}
    found = in_columns(
        [
            attacked("a", [1], **plain),
            attacked("b", [2], **plain),
            attacked("c", [1], **hidden),
            attacked("d", [1], **plain),
            attacked("e", [3], **{**plain, "settings": {"lr": 2}}),
            attacked("f", [1]),
            attacked("g", [2]),
        ]
    )
    names = [(name, "".join(str(m.path) for m in members)) for name, members in found.items()]
    assert names == [("ngp", "ab"), ("ngp + cob", "c"), ("ngp (2)", "d"), ("ngp (3)", "e"), ("f", "f"), ("g", "g")]


# Images


def test_probes_and_decoys_are_neither_forgotten_nor_copies_nor_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit, "_ENOUGH", 10)
    raw = IMAGES[0].clone()
    raw[7] = raw[4]
    toy = images_of(raw, IMAGES[1])
    x = toy.train.x
    kept = np.setdiff1d(np.arange(60), [0, 4, 50])
    found = gather_images(toy, targets=np.array([0, 4]), known=kept, probes=20, seed=0)
    assert len(found.probes) == 20
    assert not set(found.probe_index) & {0, 4, 7, 50}
    assert not found.probes.x.equal(x[found.probe_index]), "in the order of the data"
    shown = {tuple(row) for row in found.probes.x.flatten(1).tolist()}
    assert shown == {tuple(row) for row in x[found.probe_index].flatten(1).tolist()}
    assert found.decoys is not None
    decoys, labels = found.decoys
    assert set(labels.tolist()) == {0, 1}
    forbidden = shown | {tuple(row) for row in x[[0, 4]].flatten(1).tolist()}
    assert not forbidden & {tuple(row) for row in found.pixels.inputs(decoys).flatten(1).tolist()}
    assert float(decoys.min()) == 0
    assert float(decoys.max()) == 1
    assert found.notes == ()


def test_the_seed_decides_the_probes(toy: ImageData) -> None:
    def probes(seed: int) -> Any:
        return gather_images(toy, targets=np.array([0]), known=EVERYTHING, probes=9, seed=seed).probe_index.tolist()

    assert probes(1) == probes(1) != probes(2)


def test_what_a_prior_has_seen_is_no_decoy(toy: ImageData) -> None:
    train = {tuple(row) for row in toy.train.x.flatten(1).tolist()}

    def seen(images: torch.Tensor) -> Any:
        rows = (images * 2 - 1).flatten(1).tolist()
        return np.array([i for i, row in enumerate(rows) if tuple(row) in train], dtype=np.int64)

    found = gather_images(toy, targets=np.array([0]), known=EVERYTHING, probes=10, seed=0, seen=seen)
    assert found.decoys is not None
    assert len(found.decoys[0]) == 10
    assert "test images" in found.notes[0]
    nothing = gather_images(
        toy, targets=np.array([0]), known=EVERYTHING, probes=10, seed=0, seen=lambda i: np.arange(len(i))
    )
    assert nothing.decoys is None
    assert "not measured" in nothing.notes[0]


def test_few_retained_examples_leave_half_of_them_as_probes(toy: ImageData) -> None:
    found = gather_images(toy, targets=np.array([0]), known=np.arange(21), probes=100, seed=0)
    assert len(found.probes) == 10
    assert found.notes[0] == "10 probes instead of 100: 20 examples were retained"
    with pytest.raises(InputError, match="leave none to probe with"):
        gather_images(toy, targets=np.array([0]), known=np.arange(2), probes=100, seed=0)


def test_values_that_no_image_has_are_refused(toy: ImageData) -> None:
    wild = images_of(3 * IMAGES[0] - 1, IMAGES[1])
    with pytest.raises(DataError, match=r"from -1 to 2 and images lie in \[0, 1\]"):
        gather_images(wild, targets=np.array([0]), known=EVERYTHING, probes=10, seed=0)
    pixels = gather_images(toy, targets=np.array([0]), known=EVERYTHING, probes=10, seed=0).pixels
    assert float(unit_images(pixels, torch.full((1, 1, 2, 2), 1.0005)).max()) == 1.0
