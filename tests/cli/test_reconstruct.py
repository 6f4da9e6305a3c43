from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from warp_unlearning.cli.subject import load_run
from warp_unlearning.data.preprocess import load_data, pixels_of
from warp_unlearning.models.weights import read_weights, save_weights
from warp_unlearning.report.schema import Reconstruction
from warp_unlearning.runs.directory import RunDirectory

Warp = Callable[..., Any]
# One plain step, half of it up the loss of what is forgotten.
STEP = ("--method", "ngp", "-o", "method.options={epochs: 1, batch_size: 2000, alpha: 0.5}")
FEW = ("--iterations", "4", "--restarts", "1", "--probes", "120")


def refused(answer: Any, *parts: str) -> None:
    """One line on the error stream with all the parts, nothing on the other."""
    assert (answer.code, answer.out) == (2, ""), answer
    (line,) = answer.err.splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


def load_results(out: Path) -> Reconstruction:
    return RunDirectory(out, "reconstruction").results(Reconstruction)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rebuilt")


@pytest.fixture(scope="module")
def forget(folder: Path, trained: Path) -> Callable[..., Path]:
    """A file of some of the positions that the model learned from, by their number."""
    known = load_run(trained).known

    def write(*rows: int) -> Path:
        path = folder / f"forget{'-'.join(map(str, rows))}.npy"
        np.save(path, known[list(rows)])
        return path

    return write


@pytest.fixture(scope="module")
def made(warp: Warp, folder: Path, trained: Path, forget: Callable[..., Path]) -> dict[str, Path]:
    """Two requests without a defence, one of them also with a change of basis, and one of two examples."""
    asked: dict[str, tuple[Path, tuple[str, ...]]] = {
        "plain": (forget(10), ()),
        "second": (forget(11), ()),
        "hidden": (forget(10), ("--defense", "cob")),
        "two": (forget(20, 21), ()),
    }
    for name, (file, more) in asked.items():
        answer = warp("unlearn", trained, "--forget", file, *STEP, *more, "--out", folder / name)
        assert answer.code in (0, 1, 3), answer.err
    return {name: folder / name for name in asked}


@pytest.fixture(scope="module")
def rebuilt(warp: Warp, folder: Path, trained: Path, made: dict[str, Path]) -> tuple[Path, Any]:
    out = folder / "run"
    answer = warp(
        "reconstruct", trained, made["plain"], made["second"], made["hidden"], "--out", out, "--iterations", "30",
        "--restarts", "1", "--probes", "120",
    )  # fmt: skip
    return out, answer


def test_a_user_sees_every_attack_beside_blind_ones_and_what_the_attacker_holds(rebuilt: tuple[Path, Any]) -> None:
    out, answer = rebuilt
    found = json.loads((out / "results.json").read_text())
    plain, hidden = found["models"]
    assert [plain["name"], hidden["name"]] == ["ngp", "ngp + cob"]
    assert [attack["name"] for attack in plain["attacks"]] == ["inversion"]
    assert {attack["name"] for attack in hidden["attacks"]} | {*hidden["not_tried"]} == {
        "inversion", "canonical", "canonical+span", "canonical+filter", "adaptive",
    }  # fmt: skip
    lines = answer.out.splitlines()
    assert lines[0].startswith("ngp: 2 of 2 images")
    for model in (plain, hidden):
        for attack in model["attacks"]:
            psnr = attack["scores"]["summary"]["psnr"]
            row = next(line for line in lines if line.split()[:2] == [attack["name"], f"{psnr['value']:.2f}"])
            assert f"{attack['blind']['class mean']['summary']['psnr']['value']:.2f}" in row
            assert f"{attack['name']} on {model['name']}: " in answer.err
    assert set(plain["threat"]) <= set(lines)
    assert any(line.startswith("ngp + cob: ") and "expects the defence cob" in line for line in lines)
    assert any("1 step of 0.01" in line for line in lines)
    assert lines[-2:] == ["images of what was forgotten are in images.npz and grid.png", f"written to {out}"]


def test_the_verdict_is_the_worst_claim_and_the_exit_code(rebuilt: tuple[Path, Any]) -> None:
    out, answer = rebuilt
    results = load_results(out)
    assert [claim.name for claim in results.verdict.claims] == ["beyond prior"] * 2
    assert answer.code == results.verdict.exit
    assert results.verdict.sentence in answer.out.splitlines()
    for model, claim in zip(results.models, results.verdict.claims, strict=True):
        tests = [p for attack in model.attacks for p in attack.beyond.tests.values()]
        assert min(attack.adjusted_p for attack in model.attacks) == pytest.approx(min(1, len(tests) * min(tests)))
        shown = min(attack.adjusted_p for attack in model.attacks) < 0.05
        assert (claim.outcome == "does not hold") is shown
        assert claim.strongest in {attack.name for attack in model.attacks}


def test_the_numbers_are_those_of_the_images(rebuilt: tuple[Path, Any], trained: Path) -> None:
    out, _ = rebuilt
    found = json.loads((out / "results.json").read_text())
    assert (found["schema_version"], found["kind"], found["settings"]["seed"]) == (2, "reconstruction", 0)
    assert found["counts"] | {"decoys": 0} == {
        "images": 2, "models": 3, "forgotten together": 1, "probes": 120, "decoys": 0,
    }  # fmt: skip
    with np.load(out / "images.npz", allow_pickle=False) as arrays:
        images = {name: arrays[name] / 255 for name in arrays.files}
        assert all(arrays[name].dtype == np.uint8 for name in arrays.files)
    data = load_data("digits")
    positions = [target["position"] for target in found["targets"]]
    assert positions == load_run(trained).known[[10, 11]].tolist()
    truth = pixels_of(data).images(data.train.x[positions]).numpy()
    assert np.abs(images["truth"] - truth).max() < 1 / 255
    for model in found["models"]:
        assert model["rows"] == ([0, 1] if model["name"] == "ngp" else [0])
        for attack in model["attacks"]:
            shown = images[attack["array"]]
            errors = ((shown - truth[model["rows"]]) ** 2).mean((1, 2, 3))
            assert attack["scores"]["per_image"]["psnr"] == pytest.approx(-10 * np.log10(errors), abs=0.1)
            assert '"seed": 0' in json.dumps(attack["settings"])
            assert '"iterations": 30' in json.dumps(attack["settings"])
    mean = ((images["class-mean"] - truth) ** 2).mean((1, 2, 3))
    blind = found["models"][0]["attacks"][0]["blind"]["class mean"]["per_image"]["psnr"]
    assert blind == pytest.approx(-10 * np.log10(mean), abs=0.1)


def test_the_attack_on_the_plain_model_sees_what_was_forgotten(rebuilt: tuple[Path, Any]) -> None:
    found = json.loads((rebuilt[0] / "results.json").read_text())
    (inversion,) = found["models"][0]["attacks"]
    shares = inversion["beyond"]["identification"]["shares"]
    assert min(shares) > 0.9
    assert min(inversion["scores"]["per_image"]["psnr"]) > min(inversion["blind"]["prior alone"]["per_image"]["psnr"])


def test_every_file_is_its_owners_alone(rebuilt: tuple[Path, Any]) -> None:
    out, _ = rebuilt
    names = {"config.yaml", "manifest.json", "results.json", "images.npz", "grid.png"}
    assert names <= {path.name for path in out.iterdir()}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in out.iterdir())
    with Image.open(out / "grid.png") as picture:
        width, height = picture.size
    assert width > 6 * 96
    assert height > 2 * 96


def test_the_same_command_again_does_nothing_and_another_is_refused(
    warp: Warp, rebuilt: tuple[Path, Any], trained: Path, made: dict[str, Path]
) -> None:
    out, _ = rebuilt
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    asked = ("reconstruct", trained, made["plain"], made["second"], made["hidden"], "--out", out)
    asked += ("--restarts", "1", "--probes", "120")
    again = warp(*asked, "--iterations", "30", "--json")
    assert (again.code, again.err) == (rebuilt[1].code, "")
    assert json.loads(again.out) == json.loads((out / "results.json").read_text())
    refused(warp(*asked, "--iterations", "31"), "another configuration", "iterations: 30 there, 31 now")
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


def test_the_report_shows_images_only_where_asked(warp: Warp, rebuilt: tuple[Path, Any]) -> None:
    out, _ = rebuilt
    answer = warp("report", out)
    page = out / "results.html"
    assert (answer.code, answer.out) == (0, f"written to {page}\n")
    html = page.read_text()
    assert "<img" not in html
    assert "data:" not in html
    assert "were left out" in html
    answer = warp("report", out, "--images")
    page = out / "results-with-images.html"
    assert answer.out == f"written to {page}; it holds images of forgotten examples\n"
    assert page.stat().st_mode & 0o777 == 0o600
    html = page.read_text()
    assert "This page holds images of forgotten examples" in html
    found = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="image 1, original">', html)
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(found[0]))))
    with np.load(out / "images.npz") as arrays:
        assert np.array_equal(shown, arrays["truth"][0, 0])


def test_without_images_none_are_written(warp: Warp, tmp_path: Path, trained: Path, made: dict[str, Path]) -> None:
    out = tmp_path / "run"
    answer = warp("reconstruct", trained, made["plain"], "--no-images", "--out", out, *FEW).judged()
    assert answer.out.splitlines()[-1] == f"written to {out}"
    assert {path.name for path in out.iterdir()} == {"config.yaml", "manifest.json", "results.json"}
    refused(warp("report", out, "--images"), "did not keep its images")


def test_examples_forgotten_together_with_labels_to_infer(warp: Warp, trained: Path, made: dict[str, Path]) -> None:
    answer = warp("reconstruct", trained, made["two"], "--labels", "inferred", "--json", *FEW)
    found = json.loads(answer.out)
    (attack,) = found["models"][0]["attacks"]
    assert len(attack["scores"]["per_image"]["psnr"]) == 2
    assert np.shape(attack["labels"]) == (1, 2)
    assert set(attack["blind"]) == {"overall mean", "prior alone"}
    assert "labels were inferred from the last layer" in attack["notes"]
    assert any("statistics of the batch" in note for note in found["models"][0]["notes"])


def test_a_weight_file_tells_nothing_of_its_method(
    warp: Warp, trained: Path, made: dict[str, Path], forget: Callable[..., Path], tmp_path: Path
) -> None:
    file = tmp_path / "hidden.safetensors"
    file.write_bytes((made["hidden"] / "model.safetensors").read_bytes())
    asked = ("--forget", forget(10), "--attack", "inversion", "--attack", "canonical+span")
    answer = warp("reconstruct", trained, file, *asked, "--json", *FEW).judged()
    (model,) = json.loads(answer.out)["models"]
    assert (model["name"], model["method"], model["defense"]) == (file.name, None, None)
    assert [attack["after"] for attack in model["attacks"]] == ["naive", "canonical+span"]
    assert "an unknown method" in " ".join(model["threat"])
    refused(warp("reconstruct", trained, file), "nothing says which rows", "--forget FILE")


def test_two_of_one_class_are_not_compared_with_decoys(
    warp: Warp, folder: Path, trained: Path, forget: Callable[..., Path]
) -> None:
    labels = load_data("digits").train.y[load_run(trained).known].numpy()
    alike, apart = np.flatnonzero(labels == 3)[:2], [np.flatnonzero(labels == 3)[0], np.flatnonzero(labels == 4)[0]]
    for rows, compared in ((alike, False), (apart, True)):
        out = folder / f"class {compared}"
        assert warp("unlearn", trained, "--forget", forget(*rows), *STEP, "--out", out).code in (0, 1, 3)
        (attack,) = json.loads(warp("reconstruct", trained, out, "--json", *FEW).out)["models"][0]["attacks"]
        assert (attack["beyond"]["identification"] is not None) is compared
        assert any("the one it fits" in note for note in attack["notes"]) is not compared


@pytest.fixture(scope="module")
def prior(warp: Warp, folder: Path, made: dict[str, Path]) -> Path:
    out = folder / "prior"
    few = ("--epochs", "1", "-o", "generator.width=2", "-o", "generator.latent=4", "--device", "cpu")
    assert warp("train-prior", "--out", out, "--for", made["plain"], *few).code == 0
    return out


def test_a_prior_adds_its_attack_and_may_have_seen_no_image_that_is_attacked(
    warp: Warp, trained: Path, made: dict[str, Path], prior: Path
) -> None:
    answer = warp("reconstruct", trained, made["plain"], "--prior", prior, "--json", *FEW).judged()
    found = json.loads(answer.out)
    assert [attack["name"] for attack in found["models"][0]["attacks"]] == ["inversion", "generative"]
    assert "has a generator of images" in " ".join(found["models"][0]["threat"])
    # What the prior held out is too little to decide about one image.
    assert found["counts"]["decoys"] >= 39
    assert "decoys are test images" in " ".join(found["notes"])
    answer = warp("reconstruct", trained, made["second"], "--prior", prior, *FEW)
    refused(answer, "has learned from 1 of the 1 attacked images", f"warp train-prior --for {made['second']}")


GENERATOR = """
import torch
from torch import nn

class Generator(nn.Module):
    latent, image_shape, classes = (3,), (1, 8, 8), None

    def __init__(self, side=8, top=1.0):
        super().__init__()
        self.image_shape = (1, side, side)
        self.stages = [nn.Sequential(nn.Linear(3, 4), nn.Tanh()),
                       nn.Sequential(nn.Linear(4, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8)))]
        self.layers = nn.ModuleList(self.stages)

def build(): return Generator()
def small(): return Generator(side=4)
def torn():
    made = Generator(); made.stages = made.stages[1:] + made.stages[:1]; return made
def number(): return 3
def bare():
    made = Generator(); made.latent = 16; return made
def broken(): raise ValueError("no weights here")
"""


def test_a_generator_of_ones_own_is_a_prior_too(
    warp: Warp, trained: Path, made: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "own.py"
    file.write_text(GENERATOR)

    def ask(name: str, *more: object) -> Any:
        return warp("reconstruct", trained, made["plain"], "--prior", f"{file}:{name}", *more, *FEW)

    found = json.loads(ask("build", "--attack", "generative@filtered", "--json").judged().out)
    (attack,) = found["models"][0]["attacks"]
    assert (attack["name"], attack["after"]) == ("generative@filtered", "filtered")
    assert "prior" in found["digests"]
    refused(ask("small"), "draws images 1×4×4 and those looked for are 1×8×8")
    refused(ask("torn"), "cannot take latents", "must fit each other")
    refused(ask("number"), "returned a int", "nn.Module")
    refused(ask("bare"), "latent of the generator is 16, of type int; make it a tuple, such as (16,)")
    refused(ask("broken"), "no weights here")
    refused(ask("biuld"), "no generator 'biuld'", "'build'")
    refused(warp("reconstruct", trained, made["plain"], "--prior", tmp_path / "none", *FEW), "none")


def test_the_generator_in_the_document_is_a_prior(
    warp: Warp, trained: Path, made: dict[str, Path], tmp_path: Path
) -> None:
    document = (Path(__file__).parents[2] / "docs" / "reconstruction.md").read_text()
    (block,) = re.findall(r"^```python\n(# gen\.py\n.*?)^```", document, re.DOTALL | re.MULTILINE)
    (tmp_path / "gen.py").write_text(block)
    asked = ("--prior", f"{tmp_path / 'gen.py'}:build", "--attack", "generative", "--json")
    (model,) = warp("reconstruct", trained, made["plain"], *asked, *FEW).judged().json()["models"]
    assert [attack["name"] for attack in model["attacks"]] == ["generative"]


def test_what_is_forgotten_goes_with_its_copies(warp: Warp, tmp_path: Path) -> None:
    """A run and a file of the same request agree where a forgotten image was there twice."""
    x = np.random.default_rng(0).integers(0, 256, (90, 8, 8), dtype=np.uint8)
    x[7] = x[3]
    y = np.arange(90) % 3
    np.savez(tmp_path / "squares.npz", x=x[:60], y=y[:60], x_test=x[60:], y_test=y[60:])
    data = ("--data", tmp_path / "squares.npz", "--model", "mlp")
    warp("train", "--out", tmp_path / "before", "--epochs", "2", *data).ok()
    np.save(tmp_path / "f.npy", np.array([3]))
    warp("unlearn", tmp_path / "before", "--forget", tmp_path / "f.npy", *STEP, "--out", tmp_path / "after").judged()
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((tmp_path / "after" / "model.safetensors").read_bytes())
    asked = ("--forget", tmp_path / "f.npy")
    for after, file in ((tmp_path / "after", ()), (tmp_path / "after", asked), (alone, asked)):
        few = ("--attack", "inversion", "--json", "--iterations", "2", "--restarts", "1", "--probes", "9", *file)
        found = json.loads(warp("reconstruct", tmp_path / "before", after, *few).judged().out)
        assert [target["position"] for target in found["targets"]] == [3, 7]
    np.save(tmp_path / "f.npy", np.array([4]))
    answer = warp("reconstruct", tmp_path / "before", tmp_path / "after", "--forget", tmp_path / "f.npy")
    refused(answer, "names other rows than those that")


def test_a_model_after_may_be_called_anything(
    warp: Warp, trained: Path, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("original").symlink_to(made["plain"])
    found = warp("reconstruct", trained, "original", "--json", *FEW).judged()
    assert json.loads(found.out)["models"][0]["paths"] == ["original"]


def test_what_is_no_image_is_refused(warp: Warp, points: Path, tmp_path: Path) -> None:
    warp("train", "--out", tmp_path / "before", "--epochs", "1", "--data", points, "--model", "mlp").ok()
    np.save(tmp_path / "f.npy", np.array([3]))
    warp("unlearn", tmp_path / "before", "--forget", tmp_path / "f.npy", *STEP, "--out", tmp_path / "after").judged()
    refused(warp("reconstruct", tmp_path / "before", tmp_path / "after"), "images are (channels, height, width)")


def test_bad_requests_are_one_line_and_leave_no_folder(
    warp: Warp,
    tmp_path: Path,
    trained: Path,
    made: dict[str, Path],
    unlearned: Path,
    forget: Callable[..., Path],
    small: tuple[str, ...],
) -> None:
    out = tmp_path / "run"

    def ask(*args: object) -> Any:
        return warp("reconstruct", *args, "--out", out, *FEW)

    refused(ask(trained, trained), "identical", "no difference to attack")
    refused(ask(trained, made["plain"], made["two"]), "forgot 1 and 2 examples")
    refused(ask(trained, unlearned), "50 examples were forgotten together", "--most 50")
    refused(ask(made["second"], made["plain"], "--forget", forget(10)), "unlearned from another model")
    refused(ask(trained, made["plain"], "--attack", "inverson"), "no attack 'inverson'", "'inversion'")
    refused(ask(trained, made["plain"], "--attack", "generative@fitered"), "no way 'fitered'", "'filtered'")
    refused(ask(trained, made["plain"], "--labels", "none"), "labels are 'none'", "inferred")
    refused(ask(trained, made["plain"], "--attack", "generative"), "needs a generator", "train-prior")
    answer = warp("reconstruct", trained, made["plain"], "--attack", "filtered", "--probes", "20", "--out", out)
    refused(answer, "asks for 100 probes and there are 20")
    refused(ask(trained, tmp_path / "nothing"), "there is nothing at")

    other = tmp_path / "other"
    assert warp("train", "--out", other, *small, "-o", "model.options.width=5", "--epochs", "1").code == 0
    refused(ask(trained, other / "model.safetensors", "--forget", forget(10)), "one architecture")

    weights = read_weights(made["plain"] / "model.safetensors")
    name, value = next((n, v) for n, v in weights.state.items() if v.is_floating_point())
    damaged = tmp_path / "damaged.pt"
    import torch

    torch.save({**weights.state, name: torch.full_like(value, float("nan"))}, damaged)
    refused(ask(trained, damaged, "--forget", forget(10), "-o", "model.options.width=4"), "not finite")
    save_weights(tmp_path / "same.safetensors", read_weights(trained / "model.safetensors").state, header={})
    asked = ("--forget", forget(10), "-o", "model.options.width=4")
    refused(ask(trained, tmp_path / "same.safetensors", *asked), "identical")
    assert not out.exists()
