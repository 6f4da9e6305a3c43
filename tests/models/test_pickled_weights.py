from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from warp_unlearning.errors import WeightsError
from warp_unlearning.models.weights import read_pickled

STATE = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3)}


class Touch:
    """Its unpickling would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "stored",
    [
        STATE,
        OrderedDict(STATE),
        {"state_dict": STATE, "epoch": 3},
        {"model": STATE, "optimizer": {"lr": 0.1}},
        {name: nn.Parameter(t, requires_grad=False) for name, t in STATE.items()},
    ],
)
def test_state_dicts_and_checkpoints_are_read(tmp_path: Path, stored: object, legacy: bool) -> None:
    path = tmp_path / "w.pt"
    torch.save(stored, path, _use_new_zipfile_serialization=not legacy)
    state = read_pickled(path)
    assert list(state) == ["a", "b"]
    assert all(torch.equal(state[name], STATE[name]) for name in STATE)


def test_a_tensor_called_model_is_a_weight(tmp_path: Path) -> None:
    torch.save({"model": torch.ones(2)}, tmp_path / "w.pt")
    assert torch.equal(read_pickled(tmp_path / "w.pt")["model"], torch.ones(2))


@pytest.mark.parametrize("legacy", [False, True])
def test_pickled_objects_are_refused_and_their_code_does_not_run(tmp_path: Path, legacy: bool) -> None:
    path, witness = tmp_path / "w.pt", tmp_path / "witness"
    torch.save({"a": Touch(witness)}, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(WeightsError, match=r"Python objects, which are never loaded; save `model\.state_dict\(\)`"):
        read_pickled(path)
    assert not witness.exists()
    torch.load(path, weights_only=False)
    assert witness.exists()


def test_a_whole_pickled_model_is_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "w.pt")
    with pytest.raises(WeightsError, match="Python objects"):
        read_pickled(tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (torch.ones(2), "holds a Tensor, no state dict"),
        ([torch.ones(2)], "holds a list, no state dict"),
        ({"a": torch.ones(2), "epoch": 3}, "'epoch' in .* is a int"),
        ({}, "holds no weights"),
        ({"state_dict": {}}, "holds no weights"),
    ],
)
def test_what_is_no_state_dict_is_refused(tmp_path: Path, stored: object, message: str) -> None:
    torch.save(stored, tmp_path / "w.pt")
    with pytest.raises(WeightsError, match=message):
        read_pickled(tmp_path / "w.pt")


@pytest.fixture(scope="module", params=[False, True], ids=["zip", "legacy"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "w.pt"
    torch.save(STATE, path, _use_new_zipfile_serialization=not request.param)
    return path


@settings(max_examples=100, deadline=None)
@given(part=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused_wherever_it_ends(whole: Path, part: float) -> None:
    data = whole.read_bytes()
    cut = whole.with_suffix(".cut")
    cut.write_bytes(data[: int(part * len(data))])
    with pytest.raises(WeightsError, match="save"):
        read_pickled(cut)


def test_a_file_short_of_its_last_bytes_is_refused(whole: Path) -> None:
    data = whole.read_bytes()
    cut = whole.with_suffix(".cut")
    for missing in range(1, 40):
        cut.write_bytes(data[:-missing])
        with pytest.raises(WeightsError, match="save"):
            read_pickled(cut)


@pytest.mark.parametrize("data", [b"", b"\x80", b"PK\x03\x04", b"text\n" * 50, bytes(200)])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "w.pt").write_bytes(data)
    with pytest.raises(WeightsError, match="save"):
        read_pickled(tmp_path / "w.pt")
