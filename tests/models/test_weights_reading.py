from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from warp_unlearning.errors import WeightsError
from warp_unlearning.models.weights import read_weights, save_weights


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "w.safetensors"
    save_weights(path, {"a": torch.arange(6.0), "b": torch.tensor(3)}, header={"note": "x"})
    return path


def test_a_truncated_file_is_refused_wherever_it_ends(whole: Path) -> None:
    data = whole.read_bytes()
    cut = whole.with_name("cut.safetensors")
    for end in range(len(data)):
        cut.write_bytes(data[:end])
        with pytest.raises(WeightsError, match=r"no whole safetensors file: .*; copy or save it again"):
            read_weights(cut)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_bytes_give_weights_or_a_weights_error(whole: Path, data: st.DataObject) -> None:
    raw = bytearray(whole.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=4)):
        raw[place] = data.draw(st.integers(0, 255))
    hurt = whole.with_name("hurt.safetensors")
    hurt.write_bytes(raw)
    try:
        read = read_weights(hurt)
    except WeightsError:
        return
    assert all(torch.isfinite(tensor.double()).all() for tensor in read.state.values())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.safetensors", "does not exist; give the path"),
        ("folder.safetensors", "is not a file; give the path"),
        ("w.ckpt", r"ends in '\.ckpt'; give a file that ends in"),
        ("w", r"ends in ''; give a file that ends in"),
        ("empty.safetensors", "no whole safetensors file"),
        ("empty.pt", "save"),
    ],
)
def test_other_paths_are_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    for empty in ("w.ckpt", "w", "empty.safetensors", "empty.pt"):
        (tmp_path / empty).touch()
    with pytest.raises(WeightsError, match=message):
        read_weights(tmp_path / name)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin"])
def test_files_of_torch_are_read_with_an_empty_header(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"w{suffix}"
    torch.save({"a": torch.arange(3.0)}, path)
    weights = read_weights(path)
    assert torch.equal(weights.state["a"], torch.arange(3.0))
    assert weights.header == {}


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"w{suffix}"
    state = {"a": torch.tensor([1.0, torch.inf])}
    if suffix == ".pt":
        torch.save(state, path)
    else:
        safetensors.torch.save_file(state, path)
    with pytest.raises(WeightsError, match=r"'a' in .* has 1 entries that are not finite"):
        read_weights(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"warp": "{"}, "header of .* is damaged"),
        ({"warp": "[" * 10**5}, "header of .* is damaged"),
        ({"warp": "[1]"}, "schema version None"),
        ({"warp": '{"schema_version": 2}'}, "schema version 2 and 1 is read here"),
        ({"warp": "{}"}, "schema version None"),
    ],
)
def test_headers_of_another_form_are_refused(tmp_path: Path, metadata: dict[str, str], message: str) -> None:
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file({"a": torch.ones(1)}, path, metadata=metadata)
    with pytest.raises(WeightsError, match=message):
        read_weights(path)


def test_files_without_a_header_of_ours_are_read(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    for metadata in (None, {"format": "pt"}):
        safetensors.torch.save_file({"a": torch.ones(1)}, path, metadata=metadata)
        assert read_weights(path).header == {}


def test_read_weights_outlive_their_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(path, {"a": torch.ones(4096)})
    state = read_weights(path).state
    path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(state["a"], torch.ones(4096))
