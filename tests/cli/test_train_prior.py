from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from warp_unlearning.cli.subject import load_run
from warp_unlearning.cli.train import CHECKPOINT
from warp_unlearning.cli.train_prior import resolve_prior, train_prior_run
from warp_unlearning.data.preprocess import load_data, pixels_of
from warp_unlearning.data.sources import load_table
from warp_unlearning.errors import DataError, DivergedError, InputError
from warp_unlearning.models.generator import load_prior, saw
from warp_unlearning.models.weights import model_digest, read_weights
from warp_unlearning.report.schema import TrainedPrior
from warp_unlearning.runs.directory import open_run
from warp_unlearning.training.update import Update

Warp = Callable[..., Any]
SMALL = ("--threads", "1", "--epochs", "1", "-o", "generator.width=2", "-o", "generator.latent=4", "--device", "cpu")
COPIES = {7: 3, 41: 40}


class Stopped(BaseException):
    """Stands for a process that ends here, whatever it was doing."""


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images of 8 by 8 of 3 classes, some of them copies of others, and 12 more for tests."""
    x = np.random.default_rng(0).integers(0, 256, (72, 8, 8), dtype=np.uint8)
    for copy, original in COPIES.items():
        x[copy] = x[original]
    path, y = tmp_path_factory.mktemp("squares") / "squares.npz", np.arange(72) % 3
    np.savez(path, x=x[:60], y=y[:60], x_test=x[60:], y_test=y[60:])
    return path


@pytest.fixture(scope="module")
def few(squares: Path) -> tuple[str, ...]:
    return (
        f'data.path="{squares}"',
        "generator.latent=3",
        "generator.width=2",
        "training.epochs=3",
        "training.batch_size=20",
        "device=cpu",
    )


def attempt(out: Path, *overrides: str, file: Path | None = None, **more: Any) -> TrainedPrior:
    return train_prior_run(resolve_prior(file, list(overrides)), out, **more)


@pytest.fixture(scope="module")
def squares_prior(few: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prior")
    np.save(folder / "a.npy", np.array([3, 10]))
    np.save(folder / "b.npy", np.array([41, 12]))
    attempt(folder / "run", *few, f"exclude=[{folder / 'a.npy'}, {folder / 'b.npy'}]")
    return folder / "run"


def learned(run: Path, squares: Path) -> list[int]:
    """The rows of the squares that a prior has learned from, as its weight file tells."""
    data = load_data("npz", path=squares)
    return saw(load_prior(run)[1], pixels_of(data).images(data.train.x)).tolist()


def digest(run: Path) -> str:
    return model_digest(read_weights(run / "prior.safetensors").state)


@pytest.fixture(scope="module")
def prior(warp: Warp, unlearned: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("prior")
    np.save(folder / "a: 1.npy", np.array([0, 5]))
    answer = warp("train-prior", "--out", folder / "run", "--for", unlearned, "--exclude", folder / "a: 1.npy", *SMALL)
    return folder / "run", answer


def test_a_user_sees_progress_and_the_result(prior: tuple[Path, Any]) -> None:
    out, answer = prior
    assert answer.code == 0
    assert answer.err.startswith("train-prior: epoch 1, update ")
    counts = json.loads((out / "results.json").read_text())["counts"]
    lines = answer.out.splitlines()
    assert lines[0].endswith(f"parameters on {counts['train']:,} images; {counts['excluded']} left out")
    assert lines[1].startswith("images learned from: PSNR ")
    assert lines[2].startswith("images held out: PSNR ")
    assert lines[3:] == [f"the generator is {out / 'prior.safetensors'}", f"written to {out}"]


def test_nothing_that_was_forgotten_was_seen(prior: tuple[Path, Any], unlearned: Path) -> None:
    _, header = load_prior(prior[0])
    forgotten = np.append(load_run(unlearned).forgotten, [0, 5])
    data = load_data("digits")
    images = pixels_of(data).images(data.train.x)
    assert saw(header, images[torch.from_numpy(forgotten)]).tolist() == []
    assert len(saw(header, images)) == json.loads((prior[0] / "results.json").read_text())["counts"]["train"] > 1000


def test_json_is_the_results_and_the_same_command_again_does_nothing(
    warp: Warp, prior: tuple[Path, Any], unlearned: Path
) -> None:
    out = prior[0]
    again = ("--for", unlearned, "--exclude", out.parent / "a: 1.npy", *SMALL, "--json")
    answer = warp("train-prior", "--out", out, *again)
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out) == json.loads((out / "results.json").read_text())


def test_a_prior_that_left_nothing_out_says_so(warp: Warp, tmp_path: Path) -> None:
    answer = warp("train-prior", "--out", tmp_path / "run", "--conditional", "--seed", "4", *SMALL)
    assert answer.code == 0
    assert "nothing was left out: no image of the training part can be attacked with this prior" in answer.out
    generator, header = load_prior(tmp_path / "run")
    assert generator.classes == 10
    assert header["seed"] == 4


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--data", "digit"], ["digit"]),
        (["-o", "training.epoch=1"], ["training has no key 'epoch'", "did you mean 'epochs'?"]),
        (["--for", "/none"], ["there is no run directory /none"]),
        (["--exclude", "/none.npy"], ["there is no file /none.npy; give row numbers"]),
        (["--device", "gpu"], ["the device 'gpu' cannot be used"]),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(
    warp: Warp, tmp_path: Path, args: list[str], parts: list[str]
) -> None:
    answer = warp("train-prior", "--out", tmp_path / "run", "--threads", "1", *args)
    assert (answer.code, answer.out) == (2, "")
    (line,) = answer.err.splitlines()
    assert line.startswith("error: ")
    assert all(part in line for part in parts)
    assert not (tmp_path / "run").exists()


def test_what_is_attacked_and_its_copies_are_not_learned_from(squares_prior: Path, squares: Path) -> None:
    seen, counts = learned(squares_prior, squares), open_run(squares_prior).results(TrainedPrior).counts
    assert counts == {"train": 49, "held_out": 5, "excluded": 6}
    assert len(seen) == 49
    assert not set(seen) & {3, 7, 10, 12, 40, 41}


def test_the_weight_file_says_what_was_learned_from(squares_prior: Path, squares: Path) -> None:
    generator, header = load_prior(squares_prior)
    assert (header["data"], header["data_digest"]) == ("npz", load_data("npz", path=squares).digest)
    assert header["seed"] == 0
    assert generator.image_shape == (1, 8, 8)


def test_a_run_is_complete_and_for_its_owner_alone(squares_prior: Path) -> None:
    files = {p.name for p in squares_prior.iterdir()}
    assert files == {"config.yaml", "manifest.json", "results.json", "prior.safetensors"}
    assert all((squares_prior / name).stat().st_mode & 0o777 == 0o600 for name in files)
    assert open_run(squares_prior).kind == "prior"


def test_scores_are_those_of_the_mean_image(squares_prior: Path, squares: Path) -> None:
    results, known = open_run(squares_prior).results(TrainedPrior), learned(squares_prior, squares)
    data = load_data("npz", path=squares)
    images = pixels_of(data).images(data.train.x).double().numpy()
    held = [i for i in range(60) if i not in {*known, 3, 7, 10, 12, 40, 41}]
    mean = images[known].mean(0)
    for name, rows in (("train", known), ("held_out", held)):
        each = [-10 * np.log10(np.mean((images[i] - mean) ** 2)) for i in rows]
        assert results.psnr[name]["mean_image"] == pytest.approx(np.mean(each), abs=1e-4)
    assert results.parameters == sum(p.numel() for p in load_prior(squares_prior)[0].parameters())


def test_the_seed_and_the_images_decide(
    squares_prior: Path, few: tuple[str, ...], tmp_path: Path, squares: Path
) -> None:
    torch.manual_seed(99)
    for name, more in (("same", []), ("seed", ["seed=1"]), ("less", ["exclude=[]"])):
        attempt(tmp_path / name, *more, file=squares_prior / "config.yaml")
    assert digest(tmp_path / "same") == digest(squares_prior)
    assert len({digest(tmp_path / name) for name in ("same", "seed", "less")}) == 3


@pytest.mark.parametrize("updates", [2, 3, 5, 8])
def test_a_run_stopped_anywhere_goes_on_to_the_same_weights(squares_prior: Path, tmp_path: Path, updates: int) -> None:
    def stop(update: Update) -> None:
        if update.step == updates:
            raise Stopped

    file = squares_prior / "config.yaml"
    with pytest.raises(Stopped):
        attempt(tmp_path / "run", file=file, seconds=0.0, watch=stop)
    seen: list[int] = []
    attempt(tmp_path / "run", file=file, seconds=0.0, watch=lambda update: seen.append(update.step))
    assert seen[0] == (updates - 1) // 3 * 3 + 1
    assert digest(tmp_path / "run") == digest(squares_prior)
    assert not (tmp_path / "run" / CHECKPOINT).exists()


def test_a_run_for_an_unlearning_leaves_out_all_that_it_forgot(
    warp: Warp, few: tuple[str, ...], squares: Path, tmp_path: Path
) -> None:
    data = ("--data", squares, "--model", "mlp", "--epochs", "1", "--validation", "0.2")
    warp("train", "--out", tmp_path / "before", *data).ok()
    known = load_run(tmp_path / "before").known
    wanted = [i for i in (3, 30, 50, 51) if i in known]
    np.save(tmp_path / "first.npy", np.array(wanted[:1]))
    np.save(tmp_path / "second.npy", np.array(wanted[1:]))
    for before, after, file in (("before", "once", "first.npy"), ("once", "twice", "second.npy")):
        asked = ("--forget", tmp_path / file, "--method", "finetune", "-o", "method.options.epochs=1")
        warp("unlearn", tmp_path / before, *asked, "--out", tmp_path / after).judged()
    mine = [s for s in few if not s.startswith("data.")]
    found = attempt(tmp_path / "run", *mine, f'for_run="{tmp_path / "twice"}"')
    gone = {*wanted, *(copy for copy, original in COPIES.items() if original in wanted)}
    assert found.counts["excluded"] == len(gone)
    assert not gone & set(learned(tmp_path / "run", squares))
    with pytest.raises(DataError, match=r"is about other data than are learned from.*leave out the data options"):
        attempt(tmp_path / "digits", f'for_run="{tmp_path / "twice"}"', "data.name=digits", "data.path=null")
    with pytest.raises(InputError, match=r"is a run of kind 'train', which forgot nothing; give one of `warp unlearn`"):
        attempt(tmp_path / "other", *mine, f'for_run="{tmp_path / "before"}"')


@pytest.mark.parametrize(("side", "options"), [(8, (32, 16)), (32, (128, 64))])
def test_sizes_follow_the_images_and_labels_are_used_where_asked(
    tmp_path: Path, side: int, options: tuple[int, int]
) -> None:
    x = np.random.default_rng(0).integers(0, 256, (8, side, side), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(8) % 2)
    more = ("training.epochs=1", "generator.conditional=true", "held_out=0", "device=cpu")
    found = attempt(tmp_path / "run", f'data.path="{tmp_path / "x.npz"}"', *more)
    made = load_prior(tmp_path / "run")[0].options
    assert made == {"shape": [1, side, side], "latent": options[0], "width": options[1], "classes": 2}
    assert set(found.psnr) == {"train"}


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
def test_settings_that_cannot_be(few: tuple[str, ...], tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        attempt(tmp_path / "run", *few, *overrides)
    assert not (tmp_path / "run").exists()


def test_positions_that_are_not_there(few: tuple[str, ...], tmp_path: Path) -> None:
    np.save(tmp_path / "far.npy", np.array([60]))
    with pytest.raises(DataError, match="1 of 1 are no row numbers, first 60; training rows are numbered 0 to 59"):
        attempt(tmp_path / "run", *few, f"exclude=[{tmp_path / 'far.npy'}]")
    with pytest.raises(DataError, match=r"there is no file .*none\.npy; give row numbers"):
        attempt(tmp_path / "run", *few, f"exclude=[{tmp_path / 'none.npy'}]")


def test_data_that_are_no_images(tmp_path: Path, points: Path) -> None:
    with pytest.raises(InputError, match=r"shape \(4,\); images are \(channels, height, width\)"):
        attempt(tmp_path / "run", f'data.path="{points}"')
    np.savez(
        tmp_path / "wide.npz", x=np.linspace(-2, 3, 30 * 64).reshape(30, 8, 8).astype(np.float32), y=np.arange(30) % 3
    )
    with pytest.raises(DataError, match=r"values from -2 to \d.* and images lie in \[0, 1\]; save them as 8-bit"):
        attempt(tmp_path / "run", f'data.path="{tmp_path / "wide.npz"}"')


def test_images_without_a_test_part_held_out_or_to_be_scaled(squares: Path, tmp_path: Path) -> None:
    """What is held out as unseen is not learned from, and numbers up to 255 are images where the scale is said."""
    with np.load(squares) as arrays:
        np.savez(tmp_path / "whole.npz", x=arrays["x"].astype(np.float32), y=arrays["y"])
    quick = ("training.epochs=1", "generator.width=2", "generator.latent=3", "held_out=0")
    data = (f'data.path="{tmp_path / "whole.npz"}"', "data.scale=255", *quick)
    assert attempt(tmp_path / "all", *data).counts == {"train": 60, "held_out": 0, "excluded": 0}
    assert attempt(tmp_path / "some", *data, "data.holdout=0.25").counts["train"] == 45
    unseen = load_table("npz", tmp_path / "whole.npz", holdout=0.25).unseen
    own = set(learned(tmp_path / "some", squares)) - {*COPIES, *COPIES.values()}
    assert not own & set(unseen.tolist())
    with pytest.raises(DataError, match="lie in"):
        attempt(tmp_path / "none", *data[:1], *quick)


def test_a_run_that_diverged_keeps_its_last_weights_and_may_be_tried_again(
    few: tuple[str, ...], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(
        DivergedError, match=r"Lower the learning rate \(training.lr=1e\+30\).*written to .*diverged\.safetensors"
    ):
        attempt(out, *few, "training.lr=1e30")
    kept = read_weights(out / "diverged.safetensors").state
    assert any(name.startswith("generator.") for name in kept)
    attempt(out, *few, "training.lr=0.01")
    assert not (out / "diverged.safetensors").exists()
    assert (out / "prior.safetensors").exists()
