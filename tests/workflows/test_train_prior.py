from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from warp_unlearning.cli.options import Options
from warp_unlearning.cli.subject import load_run
from warp_unlearning.cli.unlearn import unlearn_run
from warp_unlearning.data.preprocess import load_data, pixels_of
from warp_unlearning.data.sources import load_table
from warp_unlearning.data.table import VALIDATION
from warp_unlearning.errors import DataError, DivergedError, InputError
from warp_unlearning.models.generator import load_prior, saw
from warp_unlearning.models.weights import model_digest, read_weights
from warp_unlearning.runs.directory import open_run
from warp_unlearning.training.update import Update
from warp_unlearning.workflows import train_prior as module
from warp_unlearning.workflows.train_prior import CHECKPOINT, PriorRequest, train_prior_run

Train = Callable[..., Path]
COPIES = {7: 3, 41: 40}


class Stopped(BaseException):
    """Stands for a process that ends here, whatever it was doing."""


@pytest.fixture(scope="module")
def small(squares: Path) -> tuple[str, ...]:
    return (
        "data.name=npz",
        f'data.path="{squares}"',
        "generator.latent=3",
        "generator.width=2",
        "training.epochs=3",
        "training.batch_size=20",
        "device=cpu",
    )


@pytest.fixture(scope="module")
def prior(small: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prior")
    np.save(folder / "a.npy", np.array([3, 10]))
    np.save(folder / "b.npy", np.array([41, 12]))
    out = folder / "run"
    train_prior_run(PriorRequest(out, None, [*small, f"exclude=[{folder / 'a.npy'}, {folder / 'b.npy'}]"]))
    return out


def parts(run: Path) -> dict[str, list[int]]:
    return {name: np.load(run / f"{name}.npy").tolist() for name in ("train", "held_out", "excluded")}


def digest(run: Path) -> str:
    return model_digest(read_weights(run / "prior.safetensors").state)


def test_what_is_attacked_and_its_copies_are_not_learned_from(prior: Path) -> None:
    found = parts(prior)
    assert found["excluded"] == [3, 7, 10, 12, 40, 41]
    assert sorted(found["train"] + found["held_out"] + found["excluded"]) == list(range(60))
    assert len(found["held_out"]) == 5


def test_the_weight_file_says_what_was_learned_from(prior: Path, squares: Path) -> None:
    generator, header = load_prior(prior)
    data = load_data("npz", path=squares)
    images = pixels_of(data).images(data.train.x)
    assert (header["data"], header["data_digest"], header["seed"]) == ("npz", data.digest, 0)
    assert saw(header, images).tolist() == parts(prior)["train"]
    assert generator.image_shape == (1, 8, 8)


def test_a_run_is_complete_and_for_its_owner_alone(prior: Path) -> None:
    files = {p.name for p in prior.iterdir()}
    names = {"config.yaml", "manifest.json", "metrics.json", "prior.safetensors"}
    assert files == names | {"train.npy", "held_out.npy", "excluded.npy"}
    assert all((prior / name).stat().st_mode & 0o777 == 0o600 for name in files)
    assert open_run(prior).kind == "prior"


def test_metrics_are_those_of_the_mean_image_and_count_everything(prior: Path, squares: Path) -> None:
    metrics = json.loads((prior / "metrics.json").read_text())
    found = parts(prior)
    assert metrics["counts"] == {name: len(index) for name, index in found.items()}
    data = load_data("npz", path=squares)
    images = pixels_of(data).images(data.train.x).double().numpy()
    mean = images[found["train"]].mean(0)
    for name in ("train", "held_out"):
        each = [-10 * np.log10(np.mean((images[i] - mean) ** 2)) for i in found[name]]
        assert metrics["psnr"][name]["mean_image"] == pytest.approx(np.mean(each), abs=1e-4)
    assert metrics["parameters"] == sum(p.numel() for p in load_prior(prior)[0].parameters())


def test_a_complete_run_is_read_back(prior: Path, small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_train", None)
    exclude = f"exclude=[{prior.parent / 'a.npy'}, {prior.parent / 'b.npy'}]"
    metrics = train_prior_run(PriorRequest(prior, None, [*small, exclude]))
    assert metrics == json.loads((prior / "metrics.json").read_text())


def test_the_seed_and_the_images_decide(prior: Path, small: tuple[str, ...], tmp_path: Path) -> None:
    torch.manual_seed(99)
    for name, more in (("same", []), ("seed", ["seed=1"]), ("less", ["exclude=[]"])):
        train_prior_run(PriorRequest(tmp_path / name, prior / "config.yaml", more))
    assert digest(tmp_path / "same") == digest(prior)
    assert len({digest(tmp_path / name) for name in ("same", "seed", "less")}) == 3
    assert parts(tmp_path / "less")["excluded"] == []


@pytest.mark.parametrize("updates", [2, 3, 5, 8])
def test_a_run_stopped_anywhere_goes_on_to_the_same_weights(prior: Path, tmp_path: Path, updates: int) -> None:
    def stop(update: Update) -> None:
        if update.step == updates:
            raise Stopped

    request = PriorRequest(tmp_path / "run", prior / "config.yaml", checkpoint_seconds=0.0)
    with pytest.raises(Stopped):
        train_prior_run(request, watch=stop)
    seen: list[int] = []
    train_prior_run(request, watch=lambda update: seen.append(update.step))
    assert seen[0] == (updates - 1) // 3 * 3 + 1
    assert digest(tmp_path / "run") == digest(prior)
    assert not (tmp_path / "run" / CHECKPOINT).exists()


def test_a_run_for_an_unlearning_leaves_out_all_that_it_forgot(
    small: tuple[str, ...], train: Callable[..., Path], squares: Path, tmp_path: Path
) -> None:
    data = ("data.name=npz", f'data.path="{squares}"', "training.epochs=1", "validation=0.2")
    before = train(tmp_path / "trained", *data)
    once, twice = tmp_path / "once", tmp_path / "twice"
    held = load_run(before).parts.rows(VALIDATION)
    wanted = [i for i in (3, 30, 50, 51) if i not in held]
    np.save(tmp_path / "first.npy", np.array(wanted[:1]))
    np.save(tmp_path / "second.npy", np.array(wanted[1:]))
    gentle = Options(override=["method.name=finetune", "method.options.epochs=1"])
    unlearn_run(before, once, options=gentle, forget__rows=tmp_path / "first.npy")
    unlearn_run(once, twice, options=gentle, forget__rows=tmp_path / "second.npy")
    mine = [s for s in small if not s.startswith("data.")]
    train_prior_run(PriorRequest(tmp_path / "run", None, [*mine, f'for_run="{twice}"']))
    copies = [c for c, original in COPIES.items() if original in wanted]
    assert parts(tmp_path / "run")["excluded"] == sorted({*wanted, *copies})
    with pytest.raises(DataError, match=r"is about other data than are learned from.*leave out the data options"):
        attempt(tmp_path / "digits", f'for_run="{twice}"', "data.name=digits", "data.path=null")
    with pytest.raises(InputError, match=r"is a run of kind 'train', which forgot nothing; give one of `warp unlearn`"):
        train_prior_run(PriorRequest(tmp_path / "other", None, [*mine, f'for_run="{before}"']))


def test_sizes_follow_the_images_and_labels_are_used_where_asked(small: tuple[str, ...], tmp_path: Path) -> None:
    shorter = [s for s in small if not s.startswith("generator.")]
    more = ["training.epochs=1", "generator.conditional=true", "held_out=0"]
    metrics = train_prior_run(PriorRequest(tmp_path / "run", None, [*shorter, *more]))
    generator, _ = load_prior(tmp_path / "run")
    assert generator.options == {"shape": [1, 8, 8], "latent": 32, "width": 16, "classes": 3}
    assert set(metrics["psnr"]) == {"train"}


def test_larger_images_have_a_larger_generator() -> None:
    config = module.PriorConfig()
    data = load_data("digits")
    assert module._generator(config, data).options["latent"] == 32
    large = type(data)(
        "large",
        train=type(data.train)(torch.zeros(2, 3, 32, 32), torch.zeros(2).long()),
        test=data.test,
        classes=data.classes,
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
        digest="",
    )
    assert module._generator(config, large).options == {
        "shape": [3, 32, 32],
        "latent": 128,
        "width": 64,
        "classes": None,
    }


def attempt(out: Path, *overrides: str) -> dict[str, Any]:
    return train_prior_run(PriorRequest(out, None, overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.epoch=1"], "training has no key 'epoch'; did you mean 'epochs'"),
        (["generator.latnet=3"], "generator has no key 'latnet'; did you mean 'latent'"),
        (["exlude=[]"], "no key 'exlude'; did you mean 'exclude'"),
        (["training.noise=0"], "training.noise is 0"),
        (["held_out=1"], "held_out is 1"),
        (["held_out=0.99"], r"0 of 60 images are left out and 59 held out, which leaves 1 to learn from"),
        (["for_run=/none"], "there is no run directory /none"),
    ],
)
def test_settings_that_cannot_be(small: tuple[str, ...], tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        attempt(tmp_path / "run", *small, *overrides)
    assert not (tmp_path / "run").exists()


def test_positions_that_are_not_there(small: tuple[str, ...], tmp_path: Path) -> None:
    np.save(tmp_path / "far.npy", np.array([60]))
    with pytest.raises(DataError, match="1 of 1 are no row numbers, first 60; training rows are numbered 0 to 59"):
        attempt(tmp_path / "run", *small, f"exclude=[{tmp_path / 'far.npy'}]")
    with pytest.raises(DataError, match=r"there is no file .*none\.npy; give row numbers"):
        attempt(tmp_path / "run", *small, f"exclude=[{tmp_path / 'none.npy'}]")


def test_data_that_are_no_images(tmp_path: Path, blobs: Path) -> None:
    with pytest.raises(InputError, match=r"shape \(6,\); images are \(channels, height, width\)"):
        attempt(tmp_path / "run", "data.name=npz", f'data.path="{blobs}"')
    np.savez(
        tmp_path / "wide.npz", x=np.linspace(-2, 3, 30 * 64).reshape(30, 8, 8).astype(np.float32), y=np.arange(30) % 3
    )
    with pytest.raises(DataError, match=r"values from -2 to \d.* and images lie in \[0, 1\]; save them as 8-bit"):
        attempt(tmp_path / "run", "data.name=npz", f'data.path="{tmp_path / "wide.npz"}"')


def test_images_without_a_test_part_held_out_or_to_be_scaled(squares: Path, tmp_path: Path) -> None:
    """What is held out as unseen is not learned from, and numbers up to 255 are images where the scale is said."""
    with np.load(squares) as arrays:
        np.savez(tmp_path / "whole.npz", x=arrays["x"].astype(np.float32), y=arrays["y"])
    few = ("training.epochs=1", "generator.width=2", "generator.latent=3", "held_out=0")
    data = ("data.name=npz", f'data.path="{tmp_path / "whole.npz"}"', "data.scale=255", *few)
    assert attempt(tmp_path / "all", *data)["counts"] == {"train": 60, "held_out": 0, "excluded": 0}
    assert attempt(tmp_path / "some", *data, "data.holdout=0.25")["counts"]["train"] == 45
    unseen = load_table("npz", tmp_path / "whole.npz", holdout=0.25).unseen
    assert not set(parts(tmp_path / "some")["train"]) & set(unseen.tolist())
    with pytest.raises(DataError, match="lie in"):
        attempt(tmp_path / "none", *data[:2], *few)


def test_a_loss_that_is_not_finite_is_told(small: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"the loss of the prior is nan near update \d+; lower the learning rate"):
        attempt(tmp_path / "run", *small, "training.lr=1e30")


def test_a_run_that_diverged_keeps_its_last_weights_and_may_be_tried_again(
    small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = module._check

    def fail(recent: Any, lr: float, step: int) -> None:
        check([torch.tensor(float("inf"))] if step == 6 and lr == 0.1 else recent, lr, step)

    monkeypatch.setattr(module, "_check", fail)
    out = tmp_path / "run"
    with pytest.raises(DivergedError, match=r"is inf near update 6; .*written to .*diverged\.safetensors"):
        attempt(out, *small, "training.lr=0.1")
    kept = read_weights(out / "diverged.safetensors").state
    assert any(name.startswith("generator.") for name in kept)
    attempt(out, *small, "training.lr=0.01")
    assert not (out / "diverged.safetensors").exists()
    assert (out / "prior.safetensors").exists()
