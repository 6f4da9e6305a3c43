from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from warp_unlearning.data.split_folder import load_split
from warp_unlearning.data.splits import Indices, RandomFraction, WholeClass
from warp_unlearning.errors import DataError, DivergedError, InputError
from warp_unlearning.methods.recipes import SMALL_DATA
from warp_unlearning.models.digest import model_digest
from warp_unlearning.models.weights import read_weights
from warp_unlearning.runs.directory import open_run
from warp_unlearning.unlearning.record import DeletionRecord, examples_digest
from warp_unlearning.workflows import unlearn as module
from warp_unlearning.workflows.source import load_source
from warp_unlearning.workflows.unlearn import UnlearnRequest, choose_method, choose_split, forget_rule, unlearn_run

Train = Callable[..., Path]
QUICK = ("method.options.epochs=1",)


class Stopped(BaseException):
    """Stands for a process that ends here, whatever it was doing."""


@pytest.fixture
def positions(tmp_path: Path, trained: Path) -> Path:
    """Eight examples that the model learned from, in no order."""
    path = tmp_path / "forget.npy"
    np.save(path, np.load(trained / "train.npy")[[40, 3, 9, 17, 80, 60, 55, 2]])
    return path


def forget(source: Path, out: Path, *overrides: str) -> Path:
    unlearn_run(UnlearnRequest(source, out, overrides=(*QUICK, *overrides)))
    return out


def digest(run: Path) -> str:
    return model_digest(read_weights(run / "model.safetensors").state)


def record(run: Path) -> list[dict[str, Any]]:
    data = json.loads((run / "record.json").read_text())
    assert data["schema_version"] == 2
    deletions: list[dict[str, Any]] = data["deletions"]
    return deletions


def test_a_result_holds_what_is_promised_for_its_owner_alone(trained: Path, positions: Path, tmp_path: Path) -> None:
    run = forget(trained, tmp_path / "run", f'forget.indices="{positions}"')
    files = {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()}
    split = {f"split/{name}" for name in ("forget.npy", "retain.npy", "validation.npy", "test.npy", "split.json")}
    others = {"config.yaml", "manifest.json", "model.safetensors", "record.json", "summary.json", "history.json"}
    assert files == split | others
    assert all((run / name).stat().st_mode & 0o777 == 0o600 for name in files)
    assert open_run(run).kind == "unlearn"


def test_the_split_forgets_what_was_asked_and_keeps_the_rest(trained: Path, positions: Path, tmp_path: Path) -> None:
    run = forget(trained, tmp_path / "run", f'forget.indices="{positions}"')
    source = load_source(trained)
    split = load_split(run / "split", train_count=120, test_count=30)
    assert split.forget.tolist() == sorted(np.load(positions).tolist())
    assert split.retain.tolist() == sorted({*source.known.tolist()} - {*split.forget.tolist()})
    assert split.validation.tolist() == source.validation.tolist()
    assert split.test.tolist() == list(range(30))


def test_the_record_and_the_summary_say_what_was_done(trained: Path, positions: Path, tmp_path: Path) -> None:
    run = forget(trained, tmp_path / "run", f'forget.indices="{positions}"')
    (deletion,) = record(run)
    source, split = load_source(trained), load_split(run / "split")
    sets = {k: source.data.train.select(torch.from_numpy(getattr(split, k))) for k in ("forget", "retain")}
    assert (deletion["requested"], deletion["retained"]) == (8, 100)
    assert deletion["forget_digest"] == examples_digest(sets["forget"])
    assert deletion["retain_digest"] == examples_digest(sets["retain"])
    assert (deletion["original"], deletion["unlearned"]) == (digest(trained), digest(run))
    assert deletion["method"]["name"] == "ngp"
    assert deletion["method"]["options"]["epochs"] == 1
    assert deletion["verdicts"]["split_digest"] == split.digest
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["forgotten"], summary["retained"], summary["requests_so_far"]) == (8, 100, 1)
    assert summary["unlearned_model"] == digest(run)
    model = load_source(run).model.eval()
    x, y = sets["retain"].x, sets["retain"].y
    assert summary["accuracy"]["unlearned"]["retain"] == float((model(x).argmax(1) == y).double().mean())
    assert deletion["verdicts"]["accuracy"] == summary["accuracy"]
    history = json.loads((run / "history.json").read_text())["updates"]
    assert summary["updates"] == len(history) == 2


def test_requests_in_a_row_are_chained_and_never_bring_anything_back(
    trained: Path, positions: Path, tmp_path: Path
) -> None:
    first = forget(trained, tmp_path / "1", f'forget.indices="{positions}"')
    second = forget(first, tmp_path / "2", "forget.fraction=0.1")
    third = forget(second, tmp_path / "3", "forget.label=1")
    runs = [first, second, third]
    splits = [load_split(run / "split") for run in runs]
    assert [len(record(run)) for run in runs] == [1, 2, 3]
    assert record(third)[:2] == record(second)
    assert record(second)[:1] == record(first)
    chain = record(third)
    assert [d["original"] for d in chain] == [digest(trained), digest(first), digest(second)]
    assert [d["unlearned"] for d in chain] == [digest(run) for run in runs]
    gone: set[int] = set()
    for split in splits:
        assert not gone & {*split.forget.tolist(), *split.retain.tolist()}
        gone |= {*split.forget.tolist()}
        assert len(split.retain) == 108 - len(gone)
    assert [len(s.forget) for s in splits[:2]] == [8, 10]
    labels = load_source(trained).data.train.y.numpy()
    assert 1 not in labels[splits[2].retain]
    with pytest.raises(DataError, match=rf"no longer knows, 8 of .*first: {min(np.load(positions))}, which was forgot"):
        forget(third, tmp_path / "4", f'forget.indices="{positions}"')
    with pytest.raises(InputError, match="no training example has label 1; the labels are 0, 2"):
        forget(third, tmp_path / "4", "forget.label=1")
    assert not (tmp_path / "4").exists()


def test_each_request_of_a_record_draws_from_a_stream_of_its_own(trained: Path, tmp_path: Path) -> None:
    source = load_source(forget(trained, tmp_path / "1", "forget.label=1"))
    first = replace(source, record=DeletionRecord())
    drawn = [choose_split(s, RandomFraction(0.5))[0].forget.tolist() for s in (source, first)]
    assert len(drawn[0]) == len(drawn[1])
    assert drawn[0] != drawn[1]


def test_a_random_fraction_is_decided_by_the_seed(trained: Path, tmp_path: Path) -> None:
    first = forget(trained, tmp_path / "1", "forget.fraction=0.5", "method.name=finetune")
    again = forget(trained, tmp_path / "2", "forget.fraction=0.5", "method.name=finetune")
    other = forget(trained, tmp_path / "3", "forget.fraction=0.5", "method.name=finetune", "seed=5")
    forgotten = [load_split(run / "split").forget.tolist() for run in (first, again, other)]
    assert forgotten[0] == forgotten[1] != forgotten[2]
    labels = load_source(trained).data.train.y.numpy()
    assert np.bincount(labels[forgotten[0]]).tolist() == [18, 18, 18]


def test_the_same_request_gives_the_same_bits_and_is_not_done_twice(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = forget(trained, tmp_path / "run", "forget.label=2")
    again = forget(trained, tmp_path / "again", "forget.label=2")
    assert digest(run) == digest(again)
    monkeypatch.setattr(module, "unlearn", None)
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.rglob("*") if p.is_file()}
    outcome = unlearn_run(UnlearnRequest(trained, run, overrides=(*QUICK, "forget.label=2")))
    assert outcome.summary == json.loads((run / "summary.json").read_text())
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("method", ["ngp", "retrain", "salun"])
def test_the_configuration_beside_a_result_makes_it_again(trained: Path, tmp_path: Path, method: str) -> None:
    run = forget(trained, tmp_path / "run", "forget.label=2", f"method.name={method}", "seed=3")
    unlearn_run(UnlearnRequest(trained, tmp_path / "again", run / "config.yaml"))
    assert digest(tmp_path / "again") == digest(run)
    assert (tmp_path / "again" / "config.yaml").read_bytes() == (run / "config.yaml").read_bytes()
    assert (tmp_path / "again" / "split" / "split.json").read_bytes() == (run / "split" / "split.json").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seed=1",), "seed: 0 there, 1 now"),
        (("method.options.lr=0.5",), "lr"),
        (("method.name=salun",), "method.name: 'ngp' there, 'salun' now"),
        (("forget.label=1",), "forget.label: 2 there, 1 now"),
    ],
)
def test_another_request_does_not_go_into_the_same_folder(
    trained: Path, tmp_path: Path, change: tuple[str, ...], message: str
) -> None:
    run = forget(trained, tmp_path / "run", "forget.label=2")
    with pytest.raises(InputError, match=f"another configuration .*{message}"):
        forget(trained, run, "forget.label=2", *change)


def test_indices_that_changed_or_another_model_are_another_request(
    trained: Path, train: Train, positions: Path, tmp_path: Path
) -> None:
    run = forget(trained, tmp_path / "run", f'forget.indices="{positions}"')
    other = train(tmp_path / "other", "seed=1")
    np.save(positions, np.load(positions)[:-1])
    with pytest.raises(InputError, match=r"resolved\.split: '\w+' there"):
        forget(trained, run, f'forget.indices="{positions}"')
    again = forget(trained, tmp_path / "label", "forget.label=2")
    with pytest.raises(InputError, match=r"resolved\.from_model: '\w+' there"):
        forget(other, again, "forget.label=2", "seed=0")


def test_a_request_stopped_at_any_write_is_whole_after_the_next_start(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = digest(forget(trained, tmp_path / "whole", "forget.label=2"))
    replace = os.replace
    for stop_at in range(20):
        calls = 0

        def stop(*paths: Any, stop_at: int = stop_at) -> None:
            nonlocal calls
            if calls == stop_at:
                raise Stopped
            calls += 1
            replace(*paths)

        out = tmp_path / str(stop_at)
        monkeypatch.setattr(os, "replace", stop)
        try:
            forget(trained, out, "forget.label=2")
        except Stopped:
            assert not (out / "manifest.json").exists()
            assert list(out.rglob(".*")) == []
        else:
            # config, model, five files of the split, history, record, summary, manifest
            assert stop_at == 11
            return
        finally:
            monkeypatch.setattr(os, "replace", replace)
        forget(trained, out, "forget.label=2")
        open_run(out)
        assert digest(out) == expected
        assert len(record(out)) == 1
    pytest.fail("a result of eleven files was expected")


def test_a_diverging_update_keeps_the_last_finite_weights(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(DivergedError, match="Lower the learning rate"):
        forget(trained, out, "forget.label=2", "method.options.lr=1e38", "method.options.epochs=20")
    assert {p.name for p in out.iterdir()} == {"config.yaml", "diverged.safetensors"}
    state = read_weights(out / "diverged.safetensors").state
    assert all(bool(t.isfinite().all()) for t in state.values())
    load_source(trained).model.load_state_dict(state)
    with pytest.raises(InputError, match=r"has no manifest\.json"):
        load_source(out)


def test_exact_copies_of_what_is_forgotten_are_not_kept(train: Train, blobs: Path, tmp_path: Path) -> None:
    arrays = dict(np.load(blobs))
    arrays["x"][30:33], arrays["y"][30:33] = arrays["x"][60], arrays["y"][60]
    # And under another label.
    arrays["x"][33], arrays["y"][33] = arrays["x"][60], (arrays["y"][60] + 1) % 3
    np.savez(tmp_path / "copies.npz", **arrays)
    trained = train(tmp_path / "trained", f'data.path="{tmp_path / "copies.npz"}"', "validation=0")
    np.save(tmp_path / "forget.npy", np.array([60]))
    request = UnlearnRequest(trained, tmp_path / "run", overrides=(*QUICK, f'forget.indices="{tmp_path}/forget.npy"'))
    outcome = unlearn_run(request)
    assert outcome.notes[0] == "4 retained examples are exact copies of forgotten ones and are left out"
    split = load_split(tmp_path / "run" / "split")
    assert split.retain.tolist() == sorted({*range(120)} - {30, 31, 32, 33, 60})
    assert record(tmp_path / "run")[0]["retained"] == 115


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            (),
            r"nothing says what to forget; give one of --forget FILE.npy .* --forget-class N .* --forget-fraction",
        ),
        (("forget.label=1", "forget.fraction=0.1"), "fraction and label are both set; give one of"),
        (("forget.label=1", "forget.indices=x", "forget.fraction=0.1"), "fraction and label and indices"),
        (("forget.label=3",), "no training example has label 3; the labels are 0, 1, 2"),
        (("forget.fraction=0.0001",), "a forget fraction of 0.0001 of 108 examples is none"),
        (("forget.fraction=0.9999",), "leaves none to retain"),
        (("forget.label=1", "method.name=ngpp"), "unknown method 'ngpp'; did you mean 'ngp'"),
        (("forget.label=1", "method.options.alhpa=1"), "ngp has no option 'alhpa'; did you mean 'alpha'"),
        (("forget.label=1", "method.options.name=x"), "ngp has no option 'name'"),
        (("forget.label=1", "method.options.lr=abc"), "ngp: lr is 'abc': .*valid number; `warp methods ngp` lists"),
        (("forget.label=1", "method.options.epochs=1.5"), "ngp: epochs is 1.5: .*valid integer; `warp methods ngp`"),
        (("forget.label=1", "method.options.anchor=abc"), "ngp: anchor is 'abc': .*valid number"),
        (("forget.label=1", "method.options.saturate=maybe"), "ngp: saturate is 'maybe': .*valid boolean"),
        (("forget.label=1", "method.options.lr=true"), "ngp: lr is True: .*valid number"),
        (("forget.label=1", "method.options.norm_mode=both"), "ngp: norm_mode is 'both': .*'train' or 'eval'"),
        (("forget.label=1", "method.options.lr=-1"), "ngp: lr is -1; it must be above 0"),
        (("forget.label=1", "device=gpu"), "the device 'gpu' cannot be used"),
    ],
)
def test_a_request_that_cannot_be_carried_out_is_refused_before_anything_is_written(
    trained: Path, tmp_path: Path, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        unlearn_run(UnlearnRequest(trained, tmp_path / "run", overrides=overrides))
    assert not (tmp_path / "run").exists()


def test_examples_held_for_validation_were_never_learned(trained: Path, tmp_path: Path) -> None:
    held = np.load(trained / "validation.npy")[:2]
    np.save(tmp_path / "i.npy", np.append(held, np.load(trained / "train.npy")[0]))
    with pytest.raises(DataError, match=rf"2 of the examples to forget \(first: {held[0]}, which is in the validation"):
        forget(trained, tmp_path / "run", f'forget.indices="{tmp_path}/i.npy"')
    assert not (tmp_path / "run").exists()


def test_each_rule_is_read_from_its_setting(trained: Path, positions: Path) -> None:
    def rule(override: str) -> object:
        source = load_source(trained, overrides=[override])
        return forget_rule(source.config.forget, source)

    assert rule("forget.fraction=0.2") == RandomFraction(0.2)
    assert rule("forget.label=0") == WholeClass(0)
    found = rule(f'forget.indices="{positions}"')
    assert isinstance(found, Indices)
    assert found.array.tolist() == sorted(np.load(positions).tolist())


def test_positions_are_those_of_the_data_and_not_of_what_is_known(trained: Path) -> None:
    source = load_source(trained)
    wanted = source.known[[50, 70]]
    # Some example before these was held back, so the two numberings differ.
    assert wanted.tolist() != [50, 70]
    split, notes = choose_split(source, Indices(wanted))
    assert split.forget.tolist() == wanted.tolist()
    assert notes == ()


def test_small_data_take_the_small_recipe_and_options_go_over_it(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def method(*overrides: str) -> Any:
        return choose_method(load_source(trained, overrides=overrides))[0]

    assert method().batch_size == SMALL_DATA["ngp"]["batch_size"] == 64
    assert method("method.recipe=published").batch_size == 256
    assert method("method.options.batch_size=5").batch_size == 5
    assert method("method.options.lr=1").lr == 1
    monkeypatch.setattr(module, "SMALL", 120)
    assert method().batch_size == 256
    assert method("method.recipe=small").batch_size == 64


def test_retraining_takes_the_settings_of_the_training(train: Train, tmp_path: Path) -> None:
    run = train(tmp_path / "run", "training.lr=0.07", "training.momentum=0.5")
    method: Any = choose_method(load_source(run, overrides=["method.name=retrain"]))[0]
    assert (method.epochs, method.batch_size, method.lr, method.momentum) == (3, 32, 0.07, 0.5)
    method = choose_method(load_source(run, overrides=["method.name=retrain", "method.options.epochs=9"]))[0]
    assert (method.epochs, method.lr) == (9, 0.07)


def test_the_source_is_left_as_it_was(trained: Path, tmp_path: Path) -> None:
    before = {p.name: p.read_bytes() for p in trained.iterdir()}
    forget(trained, tmp_path / "run", "forget.label=0")
    assert {p.name: p.read_bytes() for p in trained.iterdir()} == before
