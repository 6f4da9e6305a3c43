from __future__ import annotations

import json
import os
import secrets
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from warp_unlearning.workflows.defense import choose_defense, forget_energy
from warp_unlearning.workflows.source import load_source
from warp_unlearning.workflows.unlearn import UnlearnRequest, unlearn_run

from warp_unlearning.config import DefenseConfig
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.split_folder import load_split
from warp_unlearning.defense.warp import Warp
from warp_unlearning.errors import InputError
from warp_unlearning.models.weights import model_digest, read_weights
from warp_unlearning.runs.directory import open_run
from warp_unlearning.workflows import unlearn as module

Train = Callable[..., Path]
WARP = ("forget.label=2", "method.options.epochs=2", "defense.name=warp")
SEEDED = (*WARP, "defense.seed=3")


class Stopped(BaseException):
    """Stands for a process that ends here, whatever it was doing."""


def forget(source: Path, out: Path, *overrides: str) -> Path:
    unlearn_run(UnlearnRequest(source, out, overrides=overrides))
    return out


def digest(run: Path) -> str:
    return model_digest(read_weights(run / "model.safetensors").state)


def read(run: Path, name: str) -> Any:
    return json.loads((run / name).read_text())


@pytest.fixture(scope="module")
def defended(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return forget(trained, tmp_path_factory.mktemp("defended") / "run", *SEEDED)


def test_a_configuration_without_a_name_has_no_defence() -> None:
    assert choose_defense(DefenseConfig()) is None
    made: Any = choose_defense(DefenseConfig(name="warp", options={"every": 4, "energy": 0.9}))
    assert isinstance(made, Warp)
    assert (made.every, made.symmetry.energy) == (4, 0.9)
    for given in ({"options": {"energy": 0.9}}, {"seed": 1}):
        with pytest.raises(InputError, match=r"defense\.\w+ is set, but no defence; name one with --defense"):
            choose_defense(DefenseConfig(**given))


def energy_by_a_loop(model: nn.Module, examples: TensorExamples) -> float:
    """One backward pass an example."""
    total = 0.0
    for x, y in zip(examples.x, examples.y, strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), list(model.parameters()))
        total += sum(float(g.double().square().sum()) for g in gradients)
    return total / len(examples.y)


def test_the_forget_energy_is_a_mean_over_all_batches_in_eval_mode() -> None:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))
    examples = TensorExamples(torch.randn(11, 4, generator=generator), torch.arange(11) % 3)
    model.train()
    found = forget_energy(model, examples, batch_size=4)
    assert model.training
    assert found == pytest.approx(energy_by_a_loop(model.eval(), examples), rel=1e-5)


def test_an_energy_that_cannot_be_measured_is_none() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    assert forget_energy(frozen, TensorExamples(torch.ones(1, 2), torch.zeros(1, dtype=torch.long))) is None


def test_the_run_holds_its_certificates_and_a_summary_of_them(trained: Path, defended: Path) -> None:
    teleports, about = read(defended, "teleports.json"), read(defended, "summary.json")["defense"]
    assert teleports["schema_version"] == 1
    scales = [t["scale"] for t in teleports["teleports"]]
    assert len(scales) == about["teleports"] == 2
    assert about["taken_back"] == sum(s == 0 for s in scales)
    assert about["largest_relative_move"] == max(t["relative_move"] for t in teleports["teleports"]) > 0
    drifts = [t["retain"]["loss_after"] - t["retain"]["loss_before"] for t in teleports["teleports"]]
    assert about["largest_retain_drift"] == pytest.approx(max(drifts))
    assert {t["symmetry"] for t in teleports["teleports"]} == {"NullSpace"}
    assert (defended / "teleports.json").stat().st_mode & 0o777 == 0o600
    source, split = load_source(trained), load_split(defended / "split")
    examples = source.data.train.select(torch.from_numpy(split.forget))
    for name, model in (("original", source.model), ("unlearned", load_source(defended).model)):
        assert about["forget_energy"][name] == pytest.approx(energy_by_a_loop(model.eval(), examples), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("energy=0.3", "step_size=9", "aim=random", "every=1", "tolerance=0"), "teleports were taken back"),
        (("every=1000",), "it was never time for a teleport"),
    ],
)
def test_a_defence_that_moved_nothing_says_so(
    trained: Path, tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    overrides = (*SEEDED, *(f"defense.options.{option}" for option in options))
    outcome = unlearn_run(UnlearnRequest(trained, tmp_path / "run", overrides=overrides))
    about, teleports = outcome.summary["defense"], read(tmp_path / "run", "teleports.json")["teleports"]
    assert about["taken_back"] == about["teleports"] == len(teleports) == sum(t["scale"] == 0 for t in teleports)
    assert about["largest_relative_move"] == 0
    assert any(note.startswith("the defence moved nothing: ") and told in note for note in outcome.notes)
    (deletion,) = read(tmp_path / "run", "record.json")["deletions"]
    back = f"{len(teleports)} of {len(teleports)} teleports were taken back"
    assert (back if teleports else "no teleport was made") in deletion["verdicts"]["defense"]
    assert deletion["verdicts"]["accuracy"] == outcome.summary["accuracy"]


def test_the_record_names_the_defence_and_its_settings(trained: Path, defended: Path, tmp_path: Path) -> None:
    (deletion,) = read(defended, "record.json")["deletions"]
    assert deletion["defense"]["name"] == "warp"
    assert deletion["defense"]["options"]["symmetry"]["name"] == "NullSpace"
    assert open_run(defended).config()["resolved"]["defense"] == deletion["defense"]
    assert deletion["experiment_only"] is True
    assert read(defended, "summary.json")["defense"]["experiment_only"] is True
    run = forget(trained, tmp_path / "run", *WARP, "defense.options.energy=0.9")
    (deletion,) = read(run, "record.json")["deletions"]
    assert deletion["defense"]["options"]["symmetry"]["options"]["energy"] == 0.9
    assert deletion["experiment_only"] is False
    assert read(run, "summary.json")["defense"]["experiment_only"] is False


def test_without_a_defence_nothing_is_said_of_one(trained: Path, tmp_path: Path) -> None:
    run = forget(trained, tmp_path / "run", "forget.label=2", "method.options.epochs=1")
    assert read(run, "summary.json")["defense"] is None
    assert read(run, "record.json")["deletions"][0]["defense"] is None
    assert not (run / "teleports.json").exists()


def test_a_seed_makes_the_same_weights_and_entropy_makes_others(trained: Path, defended: Path, tmp_path: Path) -> None:
    again = forget(trained, tmp_path / "again", *SEEDED)
    first, second = (forget(trained, tmp_path / name, *WARP) for name in ("first", "second"))
    assert digest(again) == digest(defended)
    assert len({digest(defended), digest(first), digest(second)}) == 3


@pytest.mark.parametrize("defense", ["warp", "cob", "conjugate"])
def test_nothing_that_the_defence_drew_from_is_written(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defense: str
) -> None:
    """Neither the secret in any writing, nor a digest of it."""
    secret, drawn = bytes(range(100, 132)), []

    def token(count: int) -> bytes:
        drawn.append(count)
        return secret

    monkeypatch.setattr(secrets, "token_bytes", token)
    run = forget(trained, tmp_path / "run", *WARP[:2], f"defense.name={defense}")
    assert drawn == [32]
    known = [secret, secret[::-1], sha256(secret).digest()]
    written = [*known, *(each.hex().encode() for each in known), *(b64encode(each)[:42] for each in known)]
    written += [str(int.from_bytes(secret, order)).encode() for order in ("big", "little")]
    for file in (p for p in run.rglob("*") if p.is_file()):
        content = file.read_bytes()
        assert not any(each in content or each.upper() in content for each in written), file


def test_a_complete_run_is_not_done_again(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = forget(trained, tmp_path / "run", *WARP)
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.rglob("*") if p.is_file()}
    monkeypatch.setattr(module, "unlearn", None)
    outcome = unlearn_run(UnlearnRequest(trained, run, overrides=WARP))
    assert outcome.summary == read(run, "summary.json")
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("defense.name=null",), r"defense\.name: 'warp' there, None now"),
        (("defense.options.energy=0.9",), "energy"),
        (("defense.seed=1",), r"defense\.seed: None there, 1 now"),
    ],
)
def test_another_defence_is_another_request(
    trained: Path, tmp_path: Path, change: tuple[str, ...], message: str
) -> None:
    run = forget(trained, tmp_path / "run", *WARP)
    with pytest.raises(InputError, match=f"another configuration .*{message}"):
        forget(trained, run, *WARP, *change)


def test_a_run_stopped_at_any_write_is_whole_after_the_next_start(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second start draws another move, so every file must be of the second."""
    rename = os.replace
    for stop_at in (1, 2, 7, 8, 9, 10, 11):
        calls = 0

        def stop(*paths: Any, stop_at: int = stop_at) -> None:
            nonlocal calls
            if calls == stop_at:
                raise Stopped
            calls += 1
            rename(*paths)

        out = tmp_path / str(stop_at)
        monkeypatch.setattr(os, "replace", stop)
        with pytest.raises(Stopped):
            forget(trained, out, *WARP)
        monkeypatch.setattr(os, "replace", rename)
        assert not (out / "manifest.json").exists()
        forget(trained, out, *WARP)
        open_run(out)
        (deletion,) = read(out, "record.json")["deletions"]
        assert digest(out) == deletion["unlearned"] == read(out, "summary.json")["unlearned_model"]
        last = read(out, "teleports.json")["teleports"][-1]
        # The last teleport comes after the last update and looks at all that is forgotten: it ends at the result.
        energy = read(out, "summary.json")["defense"]["forget_energy"]["unlearned"]
        assert last["energy_after"] == pytest.approx(energy, rel=1e-5)


def test_a_second_request_takes_no_defence_from_the_first(trained: Path, defended: Path, tmp_path: Path) -> None:
    second = forget(defended, tmp_path / "second", "forget.fraction=0.1", "method.options.epochs=1")
    first, then = read(second, "record.json")["deletions"]
    assert first["defense"]["name"] == "warp"
    assert then["defense"] is None
    assert open_run(second).config()["defense"]["name"] is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("defense.name=wrap",), "unknown defence 'wrap'; did you mean 'warp'"),
        (("defense.name=warp", "defense.options.enrgy=1"), "warp has no option 'enrgy'; did you mean 'energy'"),
        (("defense.name=warp", "defense.options.energy=1.5"), "energy to protect is 1.5"),
        (("defense.name=warp", "defense.options.energy=abc"), "energy is 'abc'; it must be a number"),
        (("defense.name=cob", "defense.options.spread=1"), "zero or negative"),
        (("defense.name=warp", "defense.options.symmetry.steps=x"), "steps is 'x'; it must be a whole number"),
        (("defense.options.energy=0.9",), r"defense\.options is set, but no defence"),
        (("defense.seed=3",), r"defense\.seed is set, but no defence"),
        (("defense.name=warp", "defense.seed=-1"), r"defense\.seed is -1: .*greater than or equal to 0"),
        (("defense.name=3",), r"defense\.name is 3: .*string"),
        (("defence.name=warp",), "no key 'defence'; did you mean 'defense'"),
    ],
)
def test_a_defence_that_cannot_be_made_is_refused_before_anything_is_written(
    trained: Path, tmp_path: Path, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        forget(trained, tmp_path / "run", "forget.label=2", *overrides)
    assert not (tmp_path / "run").exists()
