"""Studies of reconstruction: their parts against the same by hand, and from the plan to the table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from warp_unlearning.attacks.reconstruction.reconstruct import reconstruct
from warp_unlearning.data.preprocess import load_data
from warp_unlearning.errors import InputError
from warp_unlearning.report.paper_tables import render
from warp_unlearning.runs.drain import Engine
from warp_unlearning.runs.local import run_local
from warp_unlearning.runs.store import Store
from warp_unlearning.studies.planned import Planned
from warp_unlearning.studies.reconstruction_images import Pictures, pictures_of
from warp_unlearning.studies.reconstruction_models import (
    ImageArm,
    chosen_targets,
    forgotten_models,
    threats_of,
    trained_model,
    trained_prior,
)
from warp_unlearning.studies.reconstruction_plan import ImageCell, plan_images
from warp_unlearning.studies.reconstruction_rows import ImageAttack, attack_row
from warp_unlearning.studies.reconstruction_settings import ReconstructionSettings, reconstruction_settings
from warp_unlearning.studies.reconstruction_study import plan_adaptive, plan_reconstruction
from warp_unlearning.studies.study import Asked

TINY = ReconstructionSettings(
    {"name": "digits"},
    learned=300,
    epochs=2,
    targets=3,
    iterations=3,
    decoys=80,
    probes=60,
    prior_epochs=1,
    prior_width=4,
    seed=20,
)


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    return pictures_of(load_data("digits"), TINY)


@pytest.fixture(scope="module")
def model(pictures: Pictures) -> nn.Module:
    return trained_model(pictures, TINY)


def done(planned: Planned, store: Store, engine: Engine) -> dict[str, Any]:
    outcome = engine(planned.to_do(store), planned.work, store)
    assert outcome.complete, outcome.failed
    results = planned.results(store)
    json.dumps(results, allow_nan=False)
    return results


@pytest.mark.long
def test_reconstruction_from_plan_to_table(tmp_path: Path, pictures: Pictures, model: nn.Module) -> None:
    store, arms, attacks = Store(tmp_path / "store"), ("none", "warp"), ("inversion", "generative", "canonical")
    planned = plan_reconstruction(Asked(), "small", arms=arms, attacks=attacks, settings=TINY)
    assert len(planned.results(store)["missing"]) == 6
    assert [job.key.kind for job in planned.to_do(store)].count("image-prior") == 1
    results = done(planned, store, partial(run_local, workers=1))
    assert results["missing"] == []
    assert [(row["arm"], row["attack"]) for row in results["rows"]] == [(arm, a) for arm in arms for a in attacks]
    # Jobs in another process, with weights from the store, give what is found here.
    targets = chosen_targets(model, pictures, TINY)
    prior = trained_prior(pictures, TINY)
    pairs = {arm: threats_of(model, pictures, targets, ImageArm(arm), TINY, generator=prior) for arm in arms}
    for row in results["rows"]:
        threats = pairs[row["arm"]]
        search = TINY.search(row["attack"])
        found = reconstruct(threats, attack=row["attack"], search=search, seed=TINY.seed).images[:, 0]
        errors = (found - pictures.learned.images[targets]).square().mean((1, 2, 3)).double()
        assert row["psnr"] == pytest.approx((-10 * errors.log10()).tolist(), rel=1e-4)
        assert row["scores"]["per_image"]["psnr"] == row["psnr"]
        assert len(row["blind"]["class mean"]["per_image"]["psnr"]) == 3
    shown = render(results).markdown
    assert "| canonical |" in shown
    assert "failed" not in shown
    assert all(job.key.kind == "image-row" for job in planned.to_do(store))


def test_the_adaptive_study_from_plan_to_table(tmp_path: Path, serial: Engine) -> None:
    planned = plan_adaptive(Asked(), "small", spreads=(0.1, 0.8), sigmas=(0.0, 0.4), settings=TINY)
    results = done(planned, Store(tmp_path / "store"), serial)
    assert [(row["spread"], row["attack"], row.get("sigma")) for row in results["rows"]] == [
        (spread, attack, sigma)
        for spread in (0.1, 0.8)
        for attack, sigma in (("adaptive", 0.0), ("adaptive", 0.4), ("inversion", None), ("canonical", None))
    ]
    undone = [row["psnr"] for row in results["rows"] if row["attack"] == "canonical"]
    assert undone[0] == pytest.approx(undone[1], abs=0.05)
    plain = [row["psnr"] for row in results["rows"] if row["attack"] == "inversion"]
    assert plain[0] != pytest.approx(plain[1], abs=0.05)
    assert "| 0.8 |" in render(results).markdown


def test_images_are_parted_and_none_is_in_two_parts(pictures: Pictures) -> None:
    parts = (pictures.learned, pictures.decoys, pictures.probes, pictures.rest)
    assert [len(part) for part in parts] == [300, 80, 60, 1797 - 440]
    every = torch.cat([part.images for part in parts])
    data = load_data("digits")
    whole = torch.cat([data.train.x, data.test.x]) * data.std[0] + data.mean[0]
    np.testing.assert_allclose(every.sum(0), whole.sum(0), rtol=1e-4, atol=1e-3)
    assert (every - 0.5).abs().max() < 0.5 + 1e-5
    with pytest.raises(InputError, match="ask for fewer"):
        pictures_of(data, replace(TINY, learned=1400, probes=400))


@pytest.mark.parametrize("ascent", [0.5, 0.8])
def test_a_model_that_forgot_has_taken_one_step(pictures: Pictures, model: nn.Module, ascent: float) -> None:
    settings = replace(TINY, ascent=ascent)
    targets = chosen_targets(model, pictures, settings)
    models = forgotten_models(model, pictures, targets, ImageArm("none"), settings)
    kept = [i for i in range(300) if i not in set(targets.tolist())]
    for i, target in enumerate(targets.tolist()):
        expected = deepcopy(model)
        for part, factor in ((kept[5 * i : 5 * i + 5], ascent - 1), ([target], ascent)):
            examples = pictures.examples(pictures.learned[torch.tensor(part)])
            gradients = torch.autograd.grad(F.cross_entropy(model(examples.x), examples.y), list(model.parameters()))
            with torch.no_grad():
                for p, g in zip(expected.parameters(), gradients, strict=True):
                    p.add_(settings.rate * factor * g)
        for p, q in zip(models[i].parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)


def test_targets_of_the_largest_loss(pictures: Pictures, model: nn.Module) -> None:
    chosen = chosen_targets(model, pictures, replace(TINY, large_loss=True))
    examples = pictures.examples(pictures.learned)
    with torch.no_grad():
        losses = [float(F.cross_entropy(model(x[None]), y[None])) for x, y in zip(examples.x, examples.y, strict=True)]
    assert chosen.tolist() == np.argsort(losses)[::-1][:3].tolist()
    threats = threats_of(model, pictures, chosen, ImageArm("none"), TINY)
    truth = pictures.learned.images[chosen]
    row = attack_row(threats, ImageAttack("inversion"), truth, pictures, replace(TINY, large_loss=True))
    assert row["beyond"]["identification"] is None


def test_an_attack_that_cannot_be_made_is_a_row(pictures: Pictures, model: nn.Module) -> None:
    targets = chosen_targets(model, pictures, TINY)
    threats = threats_of(model, pictures, targets, ImageArm("none"), TINY)
    row = attack_row(threats, ImageAttack("generative"), pictures.learned.images[targets], pictures, TINY)
    assert row["attack"] == "generative"
    assert row["failed"].startswith("InputError: ")
    results = {"schema_version": 1, "kind": "study", "study": "reconstruction", "rows": [row | {"arm": "none"}]}
    assert "| generative | failed |" in render(results).markdown


def test_every_setting_is_in_a_key() -> None:
    data = load_data("digits")
    attacks = ("inversion", "generative", "joint")

    def digests(settings: ReconstructionSettings) -> list[str]:
        cells = [ImageCell(ImageArm("cob"), ImageAttack(name), {"arm": "cob"}) for name in attacks]
        return [job.key.digest for job in plan_images(settings, data, cells).jobs]

    others: dict[str, Any] = {"network": "mlp", "network_options": {"width": 8}, "device": "cuda", "ascent": 0.7}
    usual = replace(TINY, iterations=100)
    for name in {item.name for item in fields(ReconstructionSettings)} - {"data"}:
        value: Any = others.get(name, getattr(usual, name))
        changed: dict[str, Any] = {
            name: value if name in others else not value if isinstance(value, bool) else 2 * value
        }
        assert set(digests(replace(usual, **changed))) != set(digests(usual)), name
    assert set(digests(replace(usual, prior_epochs=9))) & set(digests(usual)), "a row needs only what it uses"


def test_arms_and_attacks_are_in_a_key_and_none_is_there_twice() -> None:
    def rows(attacks: Sequence[str] = ("inversion",), **options: Any) -> set[str]:
        asked = Asked(defense_options={"cob": options})
        planned = plan_reconstruction(asked, "small", arms=("cob",), attacks=attacks, settings=TINY)
        return {job.key.digest for job in planned.to_do(EMPTY) if job.key.kind == "image-row"}

    class Nothing:
        def has(self, key: Any) -> bool:
            return False

    EMPTY: Any = Nothing()
    assert rows() != rows(spread=0.3)
    assert rows() != rows(("canonical",))
    with pytest.raises(InputError, match="leave one of them out"):
        rows(("inversion", "inversion"))


def test_wrong_names_and_numbers_are_refused_when_planned() -> None:
    for arms, attacks, says in (
        (("warpp",), ("inversion",), "unknown defence 'warpp'"),
        (("none",), ("inversionn",), "inversion"),
        (("none",), ("generative@cannonical",), "no reading 'cannonical'"),
    ):
        with pytest.raises(InputError, match=says):
            plan_reconstruction(Asked(), "small", arms=arms, attacks=attacks)
    with pytest.raises(InputError, match="no size 'smal'"):
        plan_reconstruction(Asked(), "smal")
    with pytest.raises(InputError, match="give 1 to 50"):
        replace(TINY, targets=51)
    with pytest.raises(InputError, match="ascent"):
        replace(TINY, ascent=0.0)


def test_sizes_follow_what_is_asked() -> None:
    found = reconstruction_settings(Asked(seed=3, device="cpu", data_path=Path("x"), epochs=7), "paper")
    assert (found.network, found.data, found.seed, found.epochs) == (
        "resnet18",
        {"name": "cifar10", "path": Path("x")},
        3,
        7,
    )
    assert reconstruction_settings(Asked(), "small").targets >= 30
    searches = {name: found.search(name).iterations for name in ("inversion", "joint", "generative@filter")}
    assert searches == {"inversion": 600, "joint": 180, "generative@filter": 120}
    assert (found.search("differencing").tv, found.search("differencing").signed) == (0.0, False)
