from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from warp_unlearning.workflows.source import (
    choose_device,
    header,
    load_examples,
    load_source,
    make_model,
    read_indices,
)
from warp_unlearning.workflows.train import TrainRequest, train_run

from warp_unlearning.config import resolve
from warp_unlearning.errors import DataError, InputError, WeightsError
from warp_unlearning.models.weights import model_digest, read_weights

Train = Callable[..., Path]


def npy(array: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array), **options)
    return buffer.getvalue()


def test_the_automatic_device_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device("cpu") == torch.device("cpu")
    for there, name in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device("auto") == torch.device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"the device 'cuda' cannot be used: .*; try auto or cpu"):
        choose_device("cuda")


def test_a_run_is_loaded_with_its_weights_and_settings(trained: Path) -> None:
    source = load_source(trained)
    assert model_digest(source.model) == model_digest(read_weights(trained / "model.safetensors").state)
    assert source.config.model.name == "mlp"
    assert source.config.training.epochs == 3
    assert source.record.deletions == ()
    assert source.known.tolist() == np.load(trained / "train.npy").tolist()


def test_what_a_run_forgot_and_how_is_not_carried_over(trained: Path) -> None:
    asked = ["forget.label=1", "method.name=salun", "method.options.lr=0.5"]
    again = load_source(trained, overrides=["method.name=scrub"]).config
    assert load_source(trained, overrides=asked).config.method.options == {"lr": 0.5}
    assert (again.method.name, again.method.options, again.forget.label) == ("scrub", {}, None)


def test_seed_and_device_may_change_after_training(trained: Path) -> None:
    config = load_source(trained, overrides=["seed=7", "device=auto"]).config
    assert (config.seed, config.device) == (7, "auto")


@pytest.mark.parametrize(
    ("override", "section"),
    [
        ("training.epochs=4", "training"),
        ("model.options.hidden=3", "model"),
        ("validation=0.2", "validation"),
        ("data.name=digits", "data"),
    ],
)
def test_what_training_fixed_cannot_be_changed(trained: Path, override: str, section: str) -> None:
    with pytest.raises(InputError, match=f"^{section} differs from that of the run .*: leave it out"):
        load_source(trained, overrides=[override])


def test_data_that_moved_are_taken_from_their_new_place(trained: Path, blobs: Path, tmp_path: Path) -> None:
    moved = shutil.copy(blobs, tmp_path / "1e5")
    source = load_source(trained, overrides=[f'data.path="{moved}"'])
    assert source.config.data.path == tmp_path / "1e5"


def test_data_that_changed_are_refused_with_both_digests(train: Train, blobs: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(blobs, tmp_path / "data.npz"))
    run = train(tmp_path / "run", f'data.path="{path}"')
    arrays = dict(np.load(path))
    arrays["y"][0] = (arrays["y"][0] + 1) % 3
    before = load_source(run).data.digest
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=rf"trained on other data \(npz, digest {before[:12]}\).*give the data it was"):
        load_source(run)


def test_a_weight_file_names_its_network(trained: Path, settings: tuple[str, ...]) -> None:
    data_only = settings[:2]
    source = load_source(trained / "model.safetensors", overrides=data_only)
    assert type(source.model).__name__ == "MLP"
    assert model_digest(source.model) == model_digest(load_source(trained).model)
    assert source.known.tolist() == load_source(trained).known.tolist()


def test_a_pickled_state_dict_needs_the_settings(trained: Path, settings: tuple[str, ...], tmp_path: Path) -> None:
    torch.save(read_weights(trained / "model.safetensors").state, tmp_path / "w.pt")
    source = load_source(tmp_path / "w.pt", overrides=settings)
    assert model_digest(source.model) == model_digest(load_source(trained).model)
    with pytest.raises(WeightsError, match=r"w\.pt does not fit the model MLP: .* and should be .*Build the model"):
        load_source(tmp_path / "w.pt", overrides=[*settings, "model.options.hidden=[7]"])


def test_nothing_at_the_path_is_said_with_what_may_be_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing at .*none; give the --out of .* or a weight file"):
        load_source(tmp_path / "none")


def test_initial_weights_come_from_the_seed_and_leave_torch_alone(settings: tuple[str, ...]) -> None:
    config = resolve(overrides=settings)
    data = load_examples(config)
    torch.manual_seed(3)
    expected = torch.rand(2)
    for builder in (None, lambda: nn.Linear(6, 3)):
        torch.manual_seed(3)
        digests = [model_digest(make_model(config, data, builder))]
        assert torch.equal(torch.rand(2), expected)
        digests.append(model_digest(make_model(config, data, builder)))
        other = config.model_copy(update={"seed": 1})
        assert digests[0] == digests[1] != model_digest(make_model(other, data, builder))


def test_a_network_of_the_users_own_is_given_its_options(settings: tuple[str, ...], tmp_path: Path) -> None:
    def build(width: int = 2) -> nn.Module:
        return nn.Sequential(nn.Linear(6, width), nn.Linear(width, 3))

    config = resolve(overrides=[*settings, "model.name=custom", "model.options.width=5"])
    train_run(TrainRequest(config, tmp_path / "run"), builder=build)
    assert read_weights(tmp_path / "run" / "model.safetensors").state["0.weight"].shape == (5, 6)
    source = load_source(tmp_path / "run", builder=build)
    assert source.config.model.options == {"width": 5}
    with pytest.raises(InputError, match="this model is one of your own; name its file and function with --model"):
        load_source(tmp_path / "run")


def test_a_weight_file_says_what_it_is(trained: Path) -> None:
    source = load_source(trained)
    about = read_weights(trained / "model.safetensors").header
    assert source.known is not None
    assert about == header(source.config, source.data, source.known)
    assert about["data_digest"] == source.data.digest
    assert (about["model"], about["classes"]) == ("mlp", 3)


def test_indices_are_sorted(tmp_path: Path) -> None:
    (tmp_path / "i.npy").write_bytes(npy(np.array([5, 1, 3], dtype=np.int16)))
    found = read_indices(tmp_path / "i.npy", count=6, what="forget")
    assert (found.tolist(), found.dtype) == ([1, 3, 5], np.int64)


def test_only_validation_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / "i.npy").write_bytes(npy([]))
    assert len(read_indices(tmp_path / "i.npy", count=6, what="validation", may_be_empty=True)) == 0
    with pytest.raises(DataError, match="the forget indices are empty; give at least one"):
        read_indices(tmp_path / "i.npy", count=6, what="forget")


def several() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(3))
    return buffer.getvalue()


HUGE = npy(np.arange(3)).replace(b"(3,), }", b"(3" + b"0" * 14 + b",), }")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"cannot be read \(.+\); give an \.npy"),
        (b"1\n2\n3\n", r"cannot be read \(.+\); give an \.npy"),
        (b"PK\x03\x04 no zip", r"cannot be read \(.+\); give an \.npy"),
        (npy(np.arange(5))[:-9], r"cannot be read \(.+\); give an \.npy"),
        (npy(np.arange(5))[:20], r"cannot be read \(.+\); give an \.npy"),
        (npy(np.arange(3)).replace(b"{'descr", b"{(descr"), r"cannot be read \(.+\); give an \.npy"),
        (HUGE, r"cannot be read \(.+\); give an \.npy"),
        (npy(np.array([{}], dtype=object), allow_pickle=True), r"cannot be read \(Object arrays.+\); give an \.npy"),
        (several(), r"hold several arrays; give an \.npy file of one"),
        (npy([1.0, 2.0]), "type float64; give whole numbers"),
        (npy([True, False]), "type bool; give whole numbers"),
        (npy([[1, 2]]), r"shape \(1, 2\)"),
        (npy(3), r"shape \(\)"),
        (npy([3, 6]), "index 6 is out of range; there are 6 examples, numbered from 0"),
        (npy([-1]), "index -1 is out of range"),
        (npy([2, 1, 2]), "index 2 is repeated; name each example once"),
    ],
)
def test_what_is_no_list_of_positions_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "i.npy"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_indices(file, count=6, what="forget")
