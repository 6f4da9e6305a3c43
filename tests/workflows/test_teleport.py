from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.defense.certificate import Drift
from warp_unlearning.defense.teleporter import teleport
from warp_unlearning.errors import DataError, InputError, WarpWarning
from warp_unlearning.models.weights import model_digest, read_weights, save_weights
from warp_unlearning.runs.directory import open_run
from warp_unlearning.symmetry.change_of_basis import ChangeOfBasis
from warp_unlearning.symmetry.compose import Compose
from warp_unlearning.symmetry.null_space import NullSpace
from warp_unlearning.symmetry.permutation import Permutation
from warp_unlearning.workflows import teleport as module
from warp_unlearning.workflows.source import load_source
from warp_unlearning.workflows.teleport import TeleportRequest, choose_examples, judge, teleport_run
from warp_unlearning.workflows.unlearn import UnlearnRequest, unlearn_run

Train = Callable[..., Path]


class Branching(nn.Module):
    """A network that torch.fx cannot trace."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.last(hidden.relu() if hidden.sum() > 0 else hidden.relu() * 1.0)


class Curved(nn.Module):
    """A network no channel of which can be rescaled."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = torch.tanh(self.first(x))
        logits: Tensor = self.last(hidden)
        return logits


def move(source: Path, out: Path, *symmetries: str, settings: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    return teleport_run(TeleportRequest(source, out, symmetries, settings, **more)).certificate


def state(path: Path) -> dict[str, Tensor]:
    return read_weights(path / "model.safetensors" if path.is_dir() else path).state


def logits(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.eval()(x)
    return found


@pytest.fixture
def unlearned(trained: Path, tmp_path: Path) -> Path:
    overrides = ("forget.label=2", "method.options.epochs=1")
    unlearn_run(UnlearnRequest(trained, tmp_path / "unlearned", overrides=overrides))
    return tmp_path / "unlearned"


@pytest.mark.parametrize("names", [["change_of_basis"], ["permutation"], ["permutation", "change_of_basis"]])
def test_an_exact_symmetry_moves_the_weights_and_keeps_every_logit(
    trained: Path, tmp_path: Path, names: list[str]
) -> None:
    found = move(trained, tmp_path / "run", *names)
    before, after = load_source(trained), load_source(tmp_path / "run")
    x = torch.cat([before.data.train.x, before.data.test.x])
    old, new = logits(before.model, x), logits(after.model, x)
    assert float((new - old).abs().max() / old.abs().max()) < 1e-6
    assert found["verdict"]["holds"]
    assert found["verdict"]["bound"] == 1e-4
    assert found["verdict"]["measured"] <= 1e-6
    ways = [(p - q).double() for p, q in zip(state(trained).values(), state(tmp_path / "run").values(), strict=True)]
    moved = sum(float(way.square().sum()) for way in ways) ** 0.5
    norm = sum(float(p.double().square().sum()) for p in state(trained).values()) ** 0.5
    assert moved / norm > 0.3
    assert found["relative_move"] == pytest.approx(moved / norm, rel=1e-3)


def test_the_result_has_the_keys_types_and_header_of_the_source(trained: Path, tmp_path: Path) -> None:
    move(trained, tmp_path / "run", "change_of_basis")
    before, after = (read_weights(p / "model.safetensors") for p in (trained, tmp_path / "run"))
    assert {n: (t.shape, t.dtype) for n, t in before.state.items()} == {
        n: (t.shape, t.dtype) for n, t in after.state.items()
    }
    assert before.header == after.header


def test_the_run_is_whole_and_for_its_owner_alone(trained: Path, tmp_path: Path) -> None:
    found = move(trained, tmp_path / "run", "change_of_basis")
    run = open_run(tmp_path / "run")
    assert run.kind == "teleport"
    files = {p.name: p for p in (tmp_path / "run").iterdir()}
    assert set(files) == {"config.yaml", "manifest.json", "model.safetensors", "certificate.json"}
    assert {p.stat().st_mode & 0o777 for p in files.values()} == {0o600}
    assert found == json.loads(files["certificate.json"].read_text())
    assert found["from_model"] == model_digest(state(trained))
    assert found["to_model"] == model_digest(state(tmp_path / "run"))
    assert found["schema_version"] == 1
    assert run.config()["resolved"]["symmetries"][0]["options"]["spread"] == 0.8


def test_a_null_space_move_is_judged_by_the_retain_loss(trained: Path, tmp_path: Path) -> None:
    settings = ("forget.label=2", "energy=0.8")
    found = move(trained, tmp_path / "run", "null_space", settings=settings)
    drifts = [found[k]["loss_after"] - found[k]["loss_before"] for k in ("retain", "held_out")]
    assert found["verdict"]["measured"] == pytest.approx(max(map(abs, drifts)), rel=1e-6)
    assert found["verdict"]["bound"] == 0.01
    assert found["verdict"]["measured"] > 0
    assert found["energy_before"] is not None
    assert found["energy_after"] < found["energy_before"]
    strict = move(trained, tmp_path / "strict", "null_space", settings=settings, tolerance=0.0)
    assert not strict["verdict"]["holds"]
    assert (tmp_path / "strict" / "model.safetensors").is_file()
    both = move(trained, tmp_path / "both", "permutation", "null_space", settings=settings)
    assert both["verdict"]["bound"] == 0.01


def seen(change: float = 0.0, logit: float = 0.0) -> Drift:
    return Drift(10, logit, 2.0, 0.0, 1.0, 1.0 + change)


@pytest.mark.parametrize(
    ("retain", "held_out", "symmetry", "measured", "holds"),
    [
        (seen(change=0.005), seen(change=-0.009), NullSpace(), 0.009, True),
        (seen(change=0.005), seen(change=0.02), NullSpace(), 0.02, False),
        (seen(change=-0.02), seen(change=0.005), NullSpace(), 0.02, False),
        (seen(change=0.02), None, Compose(Permutation(), NullSpace()), 0.02, False),
        (seen(change=0.005, logit=1.0), None, Compose(Permutation(), NullSpace()), 0.005, True),
        (seen(logit=1e-4, change=5), seen(logit=1.9e-4), Permutation(), 9.5e-5, True),
        (seen(logit=1e-4), seen(logit=2.1e-4), Permutation(), 1.05e-4, False),
        (seen(logit=float("nan")), seen(), ChangeOfBasis(), float("nan"), False),
    ],
)
def test_the_worst_of_both_sets_decides(
    trained: Path, retain: Drift, held_out: Drift | None, symmetry: Any, measured: float, holds: bool
) -> None:
    model = load_source(trained).model
    _, certificate = teleport(model, Permutation(), retain=(torch.randn(9, 6), torch.arange(9) % 3))
    verdict = judge(replace(certificate, retain=retain, held_out=held_out), symmetry, model, 0.01)
    assert verdict.holds is holds
    assert verdict.measured == pytest.approx(measured, nan_ok=True)


def test_a_function_that_was_not_kept_does_not_hold(trained: Path, tmp_path: Path) -> None:
    far = ("energy=0.05", "step_size=5", "aim=random")
    found = move(trained, tmp_path / "run", "null_space", settings=far)
    assert not found["verdict"]["holds"]
    assert found["verdict"]["measured"] > 0.01


def test_weights_in_double_precision_stay_so_and_are_held_to_more(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "double.safetensors"
    generator = torch.Generator().manual_seed(0)
    exact = {n: t.double() + 1e-9 * torch.randn(t.shape, generator=generator) for n, t in state(trained).items()}
    save_weights(file, exact, header=read_weights(trained / "model.safetensors").header)
    config = ("model.name=mlp", "data.name=npz", f'data.path="{load_source(trained).config.data.path}"')
    found = move(file, tmp_path / "run", "change_of_basis", settings=config)
    assert found["verdict"]["holds"]
    assert found["verdict"]["bound"] == 1e-10
    after = state(tmp_path / "run")
    assert {t.dtype for t in after.values()} == {torch.float64}
    source = load_source(trained)
    model, x = source.model.double(), source.data.test.x.double()
    model.load_state_dict(exact)
    old = logits(model, x)
    model.load_state_dict(after)
    assert float((logits(model, x) - old).abs().max() / old.abs().max()) < 1e-12


def test_half_weights_give_a_result_in_full_precision_and_a_note(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "half.safetensors"
    half = {n: t.half() for n, t in state(trained).items()}
    save_weights(file, half)
    config = ("model.name=mlp", "data.name=npz", f'data.path="{load_source(trained).config.data.path}"')
    outcome = teleport_run(TeleportRequest(file, tmp_path / "run", ["change_of_basis"], config))
    note = "the weights are torch.float16 and the result is torch.float32: rounding it would change the function"
    assert note in outcome.notes
    source = load_source(trained)
    source.model.load_state_dict(half)
    old = logits(source.model, source.data.test.x)
    source.model.load_state_dict(state(tmp_path / "run"))
    assert float((logits(source.model, source.data.test.x) - old).abs().max() / old.abs().max()) < 1e-5


def test_names_of_a_wrapped_model_are_kept(trained: Path, tmp_path: Path) -> None:
    torch.save({f"module.{n}": t for n, t in state(trained).items()}, tmp_path / "w.pt")
    config = ("model.name=mlp", "data.name=npz", f'data.path="{load_source(trained).config.data.path}"')
    move(tmp_path / "w.pt", tmp_path / "run", "change_of_basis", settings=config)
    assert list(state(tmp_path / "run")) == sorted(f"module.{n}" for n in state(trained))


def test_the_move_comes_from_entropy_unless_an_experiment_fixes_it(trained: Path, tmp_path: Path) -> None:
    found = [move(trained, tmp_path / str(i), "change_of_basis") for i in range(2)]
    fixed = [move(trained, tmp_path / f"s{i}", "change_of_basis", seed=4) for i in range(2)]
    assert len({f["to_model"] for f in (*found, *fixed)}) == 3
    assert [f["experiment_only"] for f in (*found, *fixed)] == [False, False, True, True]


def test_nothing_that_the_move_was_drawn_from_is_written(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = 6_172_839_455_061_728_394
    monkeypatch.setattr(secrets, "randbits", lambda count: secret)
    move(trained, tmp_path / "run", "change_of_basis")
    for file in (tmp_path / "run").iterdir():
        assert str(secret).encode() not in file.read_bytes()
        assert secret.to_bytes(8, "little") not in file.read_bytes()


def test_a_complete_run_is_not_done_again_and_another_is_refused(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = move(trained, tmp_path / "run", "change_of_basis")
    monkeypatch.setattr(module, "teleport", None)
    assert move(trained, tmp_path / "run", "change_of_basis") == found
    for change in ({"settings": ("spread=0.5",)}, {"seed": 1}, {"tolerance": 0.1}, {"settings": ("forget.label=1",)}):
        with pytest.raises(InputError, match="holds a run with another configuration"):
            move(trained, tmp_path / "run", "change_of_basis", **change)
    with pytest.raises(InputError, match=r"resolved\.symmetries"):
        move(trained, tmp_path / "run", "permutation")


def test_indices_that_changed_are_another_request(trained: Path, tmp_path: Path) -> None:
    given = (f'forget.rows="{tmp_path}/i.npy"',)
    np.save(tmp_path / "i.npy", np.array([5, 3]))
    move(trained, tmp_path / "run", "change_of_basis", settings=given)
    np.save(tmp_path / "i.npy", np.array([5, 4]))
    with pytest.raises(InputError, match=r"resolved\.forget"):
        move(trained, tmp_path / "run", "change_of_basis", settings=given)


def test_a_run_stopped_while_it_writes_is_whole_after_the_next_start(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.replace
    for stop_at in range(1, 4):
        calls = 0

        def stop(*paths: Any, stop_at: int = stop_at) -> None:
            nonlocal calls
            if calls == stop_at:
                raise KeyboardInterrupt
            calls += 1
            rename(*paths)

        out = tmp_path / str(stop_at)
        monkeypatch.setattr(os, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            move(trained, out, "change_of_basis")
        monkeypatch.setattr(os, "replace", rename)
        found = move(trained, out, "change_of_basis")
        open_run(out)
        assert found["to_model"] == model_digest(state(out))


def test_a_moved_model_can_be_gone_on_from(trained: Path, unlearned: Path, tmp_path: Path) -> None:
    move(trained, tmp_path / "run", "change_of_basis")
    before, after = load_source(trained), load_source(tmp_path / "run")
    assert before.known is not None
    assert after.known is not None
    assert after.known.tolist() == before.known.tolist()
    assert after.validation.tolist() == before.validation.tolist()
    overrides = ("forget.label=1", "method.options.epochs=1")
    unlearn_run(UnlearnRequest(tmp_path / "run", tmp_path / "next", overrides=overrides))
    move(unlearned, tmp_path / "moved", "change_of_basis")
    assert load_source(tmp_path / "moved").known is None
    with pytest.raises(InputError, match="give the run directory of `warp unlearn`"):
        unlearn_run(UnlearnRequest(tmp_path / "moved", tmp_path / "last", overrides=overrides))


def test_what_is_forgotten_is_what_is_asked_or_what_was_forgotten_before(
    trained: Path, unlearned: Path, tmp_path: Path
) -> None:
    source = load_source(trained)
    assert source.known is not None
    y = source.data.train.y.numpy()
    retain, forget, notes = choose_examples(source)
    assert (retain.tolist(), forget.tolist(), notes) == (source.known.tolist(), [], ())
    retain, forget, _ = choose_examples(load_source(trained, overrides=["forget.label=1"]))
    # What was held for validation was never learned.
    assert forget.tolist() == [i for i in source.known.tolist() if y[i] == 1]
    assert retain.tolist() == [i for i in source.known.tolist() if y[i] != 1]
    np.save(tmp_path / "i.npy", np.array([5, 3]))
    retain, forget, _ = choose_examples(load_source(trained, overrides=[f'forget.rows="{tmp_path}/i.npy"']))
    assert forget.tolist() == [3, 5]
    assert not {3, 5} & {*retain.tolist()}
    before = load_source(unlearned)
    assert before.known is not None
    retain, forget, notes = choose_examples(before)
    assert forget.tolist() == [i for i in source.known.tolist() if y[i] == 2]
    assert retain.tolist() == before.known.tolist()
    assert notes == (f"the examples to forget are the {len(forget)} that this model was asked to forget",)
    source = load_source(
        unlearned / "model.safetensors",
        overrides=["model.name=mlp", "data.name=npz", f'data.path="{before.config.data.path}"'],
    )
    retain, forget, notes = choose_examples(source)
    assert len(forget) == 0
    assert len(retain) == 108
    assert "cannot be told from its file" in notes[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("forget.fraction=0.1",), r"forget\.fraction cannot be used here; give --forget or --forget-class"),
        (("forget.label=1", "forget.rows=x.npy"), r"forget\.label and forget\.rows cannot be used here"),
        (("forget.label=7",), "no training example has label 7; the labels are 0, 1, 2"),
        (("spread=2",), "spread is 2: .* zero or negative"),
        (("defense.nmae=x",), "defense has no key 'nmae'; did you mean 'name'"),
        (("device=gpu",), "the device 'gpu' cannot be used"),
    ],
)
def test_what_cannot_be_done_is_refused_and_leaves_nothing(
    trained: Path, tmp_path: Path, given: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        move(trained, tmp_path / "run", "change_of_basis", settings=given)
    assert not (tmp_path / "run").exists()


def test_nothing_left_to_keep_is_refused(trained: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "i.npy", np.arange(120))
    with pytest.raises(DataError, match="every training example is to be forgotten; leave some to keep"):
        move(trained, tmp_path / "run", "null_space", settings=(f'forget.rows="{tmp_path}/i.npy"',))


@pytest.mark.parametrize("tolerance", [-0.1, float("nan")])
def test_a_tolerance_that_bounds_nothing_is_refused(trained: Path, tmp_path: Path, tolerance: float) -> None:
    with pytest.raises(InputError, match=r"the tolerance is .*; it must be at least 0"):
        move(trained, tmp_path / "run", "null_space", tolerance=tolerance)


def own(tmp_path: Path, model: nn.Module, trained: Path) -> tuple[Path, tuple[str, ...]]:
    save_weights(tmp_path / "own.safetensors", model)
    path = load_source(trained).config.data.path
    return tmp_path / "own.safetensors", ("model.name=custom", "data.name=npz", f'data.path="{path}"')


def test_a_network_that_cannot_be_traced_is_named_and_leaves_no_folder(trained: Path, tmp_path: Path) -> None:
    file, config = own(tmp_path, Branching(), trained)
    request = TeleportRequest(file, tmp_path / "run", ["change_of_basis"], config)
    with pytest.raises(InputError, match=r"Branching cannot be traced by torch\.fx .*symmetry that needs no trace"):
        teleport_run(request, builder=Branching)
    assert not (tmp_path / "run").exists()
    request = TeleportRequest(file, tmp_path / "run", ["null_space"], (*config, "aim=random", "energy=0.8"))
    assert teleport_run(request, builder=Branching).certificate["verdict"]["holds"]


def test_a_network_whose_channels_are_pinned_stays_bit_identical_and_says_why(trained: Path, tmp_path: Path) -> None:
    file, config = own(tmp_path, Curved(), trained)
    with pytest.warns(WarpWarning, match="ChangeOfBasis does little on this network"):
        outcome = teleport_run(TeleportRequest(file, tmp_path / "run", ["change_of_basis"], config), builder=Curved)
    assert "nothing moved: the result is bit-identical" in outcome.notes
    assert outcome.certificate["verdict"]["holds"]
    assert outcome.certificate["from_model"] == outcome.certificate["to_model"] == model_digest(state(file))
    assert "tanh" in str(outcome.certificate["pinned"])


def test_a_value_that_is_not_finite_in_the_data_is_named(trained: Path, tmp_path: Path) -> None:
    arrays = dict(np.load(str(load_source(trained).config.data.path)))
    arrays["x"][7, 1] = np.nan
    np.savez(tmp_path / "nan.npz", **arrays)
    torch.save(state(trained), tmp_path / "w.pt")
    config = ("model.name=mlp", "data.name=npz", f'data.path="{tmp_path / "nan.npz"}"')
    with pytest.raises(DataError, match="row 7 of x is not finite"):
        move(tmp_path / "w.pt", tmp_path / "run", "change_of_basis", settings=config)
    assert not (tmp_path / "run").exists()
