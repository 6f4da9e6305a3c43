from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from warp_unlearning.errors import InputError, WeightsError
from warp_unlearning.models.networks import SmallResNet
from warp_unlearning.models.weights import Weights, load_weights, read_weights, save_weights

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]
DTYPES = [*FLOATS, torch.int64, torch.int8, torch.uint8, torch.bool]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    tensor = (4 * torch.randn(shape, generator=generator)).to(draw(st.sampled_from(DTYPES)))
    layout = draw(st.sampled_from(["plain", "reversed", "strided", "expanded", "channels_last"]))
    if layout == "reversed":
        return tensor.permute(tuple(reversed(range(tensor.ndim))))
    if layout == "strided" and tensor.ndim:
        return tensor[::2]
    if layout == "expanded":
        return tensor.unsqueeze(0).expand(3, *tensor.shape)
    if layout == "channels_last" and tensor.ndim == 4:
        return tensor.to(memory_format=torch.channels_last)
    return tensor


headers = st.dictionaries(
    st.text(max_size=5).filter(lambda key: key != "schema_version"),
    st.none() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    max_size=3,
)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(lambda name: name != "__metadata__")


@settings(max_examples=80, deadline=None)
@given(state=st.dictionaries(names, tensors(), min_size=1, max_size=4), header=headers)
def test_what_is_saved_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, torch.Tensor], header: dict[str, object]
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.safetensors"
    save_weights(path, state, header=header)
    weights = read_weights(path)
    assert weights.header == header
    assert weights.state.keys() == state.keys()
    for name, tensor in state.items():
        read = weights.state[name]
        assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read.double(), tensor.double())


def test_shared_and_overlapping_tensors_are_all_written(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    save_weights(tmp_path / "w.safetensors", {"a": base, "b": base, "c": base[1:4]})
    state = read_weights(tmp_path / "w.safetensors").state
    assert [state[name].tolist() for name in "abc"] == [base.tolist(), base.tolist(), [1.0, 2.0, 3.0]]


def test_a_model_with_tied_weights_reloads(tmp_path: Path) -> None:
    def tied() -> nn.Sequential:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        return model

    first, second = tied(), tied()
    save_weights(tmp_path / "w.safetensors", first)
    load_weights(second, read_weights(tmp_path / "w.safetensors"))
    assert torch.equal(first[1].weight, second[0].weight)
    assert second[1].weight is second[0].weight


def test_a_model_in_channels_last_reloads(tmp_path: Path) -> None:
    model = SmallResNet(width=2).to(memory_format=torch.channels_last)
    other = SmallResNet(width=2)
    save_weights(tmp_path / "w.safetensors", model)
    load_weights(other, read_weights(tmp_path / "w.safetensors"))
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.eval()(x), other.eval()(x))


def test_the_header_is_one_json_string_beside_the_tensors(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(path, {"a": torch.ones(2)}, header={"model": "mlp"})
    data = path.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    assert list(metadata) == ["warp"]
    assert json.loads(metadata["warp"]) == {"model": "mlp", "schema_version": 1}


def test_the_file_is_private_and_alone_in_its_folder(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        save_weights(tmp_path / "w.safetensors", {"a": torch.ones(2)})
    finally:
        os.umask(old)
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]
    assert stat.S_IMODE((tmp_path / "w.safetensors").stat().st_mode) == 0o600


def test_a_failed_write_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(path, {"a": torch.ones(2)})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WeightsError, match="No space left on device"):
        save_weights(path, {"a": torch.zeros(2)})
    assert torch.equal(read_weights(path).state["a"], torch.ones(2))
    assert [entry.name for entry in tmp_path.iterdir()] == ["w.safetensors"]


def test_saving_over_a_folder_or_in_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").mkdir()
    with pytest.raises(WeightsError, match=r"cannot write .*w\.safetensors"):
        save_weights(tmp_path / "w.safetensors", {"a": torch.ones(2)})
    assert [entry.name for entry in tmp_path.iterdir()] == ["w.safetensors"]
    with pytest.raises(WeightsError, match="give another folder"):
        save_weights(tmp_path / "absent" / "w.safetensors", {"a": torch.ones(2)})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.tensor([torch.nan]), "1 entries that are not finite"),
        (3, "is a int"),
        (torch.ones(1, dtype=torch.complex128), "cannot be stored"),
    ],
)
def test_what_could_not_be_read_back_is_not_saved(tmp_path: Path, value: object, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        save_weights(tmp_path / "w.safetensors", {"a": value})  # type: ignore[dict-item]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "header", "message"),
    [
        ("w.pt", {}, "change its ending"),
        ("w.safetensors", {"schema_version": 2}, "leave it out"),
        ("w.safetensors", {"x": torch.ones(1)}, "must be JSON"),
        ("w.safetensors", {"x": float("nan")}, "must be JSON"),
    ],
)
def test_other_endings_and_headers_are_refused(
    tmp_path: Path, name: str, header: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        save_weights(tmp_path / name, {"a": torch.ones(1)}, header=header)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prefix", ["", "module."])
def test_weights_load_with_and_without_the_prefix_of_data_parallel(prefix: str) -> None:
    source, model = nn.Linear(3, 2), nn.Linear(3, 2)
    load_weights(model, Weights({prefix + name: t for name, t in source.state_dict().items()}, {}))
    assert torch.equal(model.weight, source.weight)
    assert torch.equal(model.bias, source.bias)


def test_a_model_whose_names_start_with_module_keeps_them() -> None:
    source, model = (nn.ModuleDict({"module": nn.Linear(2, 2)}) for _ in range(2))
    load_weights(model, source.state_dict())
    assert torch.equal(model["module"].weight, source["module"].weight)


def test_a_mismatch_names_keys_shapes_and_counts_and_changes_nothing() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = {"0.weight": torch.ones(2, 2), "0.bias": torch.ones(3), "x": torch.ones(1)}
    with pytest.raises(WeightsError) as caught:
        load_weights(model, state, source="old.pt")
    assert str(caught.value) == (
        "old.pt does not fit the model Sequential: 4 missing: 1.weight, 1.bias, 2.weight, ...; "
        "1 unexpected: x; 1 of another shape: 0.bias is (3,) and should be (2,). "
        "Build the model with the options it was trained with"
    )
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_what_is_no_tensor_is_not_loaded() -> None:
    with pytest.raises(WeightsError, match="'bias' in weights is a int"):
        load_weights(nn.Linear(2, 2), {"weight": torch.ones(2, 2), "bias": 3})  # type: ignore[dict-item]
