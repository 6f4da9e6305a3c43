from __future__ import annotations

import json
import os
import stat
from collections import OrderedDict
from hashlib import sha256
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from warp_unlearning.errors import InputError, WarpError, WeightsError
from warp_unlearning.models.networks import SmallResNet
from warp_unlearning.models.weights import load_weights, model_digest, read_weights, save_as_given, save_weights

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
DTYPES = [*FLOATS, torch.int64, torch.int8, torch.uint8, torch.bool]
STATE = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3)}
ENDINGS = [".pt", ".pth", ".bin"]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
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
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, Tensor], header: dict[str, object]
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.safetensors"
    save_weights(path, state, header=header)
    weights = read_weights(path)
    assert (weights.header, weights.suffix) == (header, ".safetensors")
    for name, tensor in state.items():
        assert (weights.state[name].dtype, weights.state[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(weights.state[name].double(), tensor.double())
    assert model_digest(weights.state) == model_digest(state)


def test_tied_weights_and_channels_last_reload(tmp_path: Path) -> None:
    first, second = (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) for _ in range(2))
    for model in (first, second):
        model[1].weight = model[0].weight
    save_weights(tmp_path / "w.safetensors", first)
    load_weights(second, read_weights(tmp_path / "w.safetensors"))
    assert torch.equal(first[1].weight, second[0].weight)
    assert second[1].weight is second[0].weight
    model, other = SmallResNet(width=2).to(memory_format=torch.channels_last), SmallResNet(width=2)
    save_weights(tmp_path / "w.safetensors", model)
    load_weights(other, read_weights(tmp_path / "w.safetensors"))
    assert model_digest(model) == model_digest(other)


def test_the_file_is_private_alone_and_outlived_by_its_weights(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    old = os.umask(0)
    try:
        save_weights(path, {"a": torch.ones(4096)}, header={"model": "mlp"})
    finally:
        os.umask(old)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    data = path.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    assert {key: json.loads(text) for key, text in metadata.items()} == {"warp": {"model": "mlp", "schema_version": 1}}
    state = read_weights(path).state
    path.write_bytes(bytes(len(data)))
    assert torch.equal(state["a"], torch.ones(4096))


def test_a_failed_write_leaves_the_old_file_whole(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").mkdir()
    with pytest.raises(WarpError, match=r"w\.safetensors is a folder, which is not replaced"):
        save_weights(tmp_path / "w.safetensors", {"a": torch.ones(2)})
    with pytest.raises(WeightsError, match=r"cannot write .*w\.safetensors: .*; free it or give another path"):
        save_weights(tmp_path / "absent" / "w.safetensors", {"a": torch.ones(2)})
    save_weights(tmp_path / "v.safetensors", {"a": torch.ones(2)})
    with pytest.raises(WeightsError, match="not finite"):
        save_weights(tmp_path / "v.safetensors", {"a": torch.tensor([torch.nan])})
    assert torch.equal(read_weights(tmp_path / "v.safetensors").state["a"], torch.ones(2))
    assert [entry.name for entry in tmp_path.iterdir()] == ["v.safetensors", "w.safetensors"]


@pytest.mark.parametrize(
    ("name", "state", "header", "message"),
    [
        ("w.pt", STATE, {}, "change its ending"),
        ("w.safetensors", STATE, {"x": torch.ones(1)}, "must be JSON"),
        ("w.safetensors", STATE, {"x": float("nan")}, "must be JSON"),
        ("w.safetensors", {"a": torch.tensor([1.0, torch.inf, torch.nan])}, {}, "2 entries that are not finite"),
        ("w.safetensors", {"a": 3}, {}, "is a int"),
        ("w.safetensors", {3: torch.ones(1)}, {}, "3 in the state dict is a Tensor, no named tensor"),
        ("w.safetensors", {"a": torch.ones(1, dtype=torch.complex64)}, {}, "'a' .* is no dense tensor of real numbers"),
        ("w.safetensors", {"a": torch.ones(2, 2).to_sparse()}, {}, "'a' .* is no dense tensor of real numbers"),
        ("w.safetensors", {"a": torch.ones(2, device="meta")}, {}, "'a' .* is no dense tensor of real numbers"),
        ("w.safetensors", {}, {}, "holds no weights"),
    ],
)
def test_what_could_not_be_read_back_is_not_saved(
    tmp_path: Path, name: str, state: dict[str, Tensor], header: dict[str, object], message: str
) -> None:
    with pytest.raises((InputError, WeightsError), match=message):
        save_weights(tmp_path / name, state, header=header)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("ending", [".safetensors", *ENDINGS])
def test_a_user_gets_back_names_types_and_ending_of_what_came_in(tmp_path: Path, prefix: str, ending: str) -> None:
    came = {prefix + name: t.bfloat16() for name, t in reversed(nn.Linear(3, 2).state_dict().items())}
    given_ = tmp_path / f"given{ending}"
    safetensors.torch.save_file(came, given_) if ending == ".safetensors" else torch.save(came, given_)
    weights = read_weights(given_)
    assert weights.suffix == ending
    model = nn.Linear(3, 2)
    with pytest.raises(
        WeightsError, match=r"weight in f is bfloat16 and should be float32; ask for float32 .--dtype float32"
    ):
        load_weights(model, weights, source="f")
    load_weights(model, weights, cast=True)
    assert torch.equal(model.weight, came[f"{prefix}weight"].float())
    with torch.no_grad():
        model.weight += 1.0
    files = save_as_given(tmp_path / "new.safetensors", model, weights, header={"x": 1})
    assert [file.suffix for file in files] == [".safetensors", *([ending] if ending in ENDINGS else [])]
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        back = read_weights(file)
        assert back.state.keys() == came.keys()
        assert torch.equal(back.state[f"{prefix}weight"], model.weight.bfloat16())
    if ending != ".safetensors":
        assert list(torch.load(files[1], weights_only=True)) == list(came)
    with pytest.raises(WeightsError, match=r"not those that were given: 2 missing.*; 4 unexpected"):
        save_as_given(tmp_path / "new.safetensors", nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), weights)


def test_a_mismatch_names_keys_shapes_and_the_nearest_and_changes_nothing() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
    before = model_digest(model)
    state = {"0.weight": torch.ones(2, 2), "0.bias": torch.ones(3), "1.weigth": torch.ones(1)}
    with pytest.raises(WeightsError) as caught:
        load_weights(model, state, source="old.pt")
    assert str(caught.value) == (
        "old.pt does not fit the model Sequential: 4 missing: 1.weight, 1.bias, 2.weight, ...; "
        "1 unexpected: 1.weigth; 1 of another shape: 0.bias is (3,) and should be (2,); "
        "1.weigth may be 1.weight. Build the model with the options it was trained with"
    )
    assert model_digest(model) == before
    source, named = (nn.ModuleDict({"module": nn.Linear(2, 2)}) for _ in range(2))
    load_weights(named, source.state_dict())
    assert model_digest(named) == model_digest(source)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.uint8])
def test_packed_weights_are_refused_also_where_a_cast_is_asked_for(dtype: torch.dtype) -> None:
    state = {"weight": torch.ones(2, 2, dtype=dtype), "bias": torch.ones(2)}
    with pytest.raises(WeightsError, match=f"weight in weights is {str(dtype)[6:]} .*give them before quantisation"):
        load_weights(nn.Linear(2, 2), state, cast=True)
    with pytest.raises(WeightsError, match="'bias' in weights is a int"):
        load_weights(nn.Linear(2, 2), {"weight": torch.ones(2, 2), "bias": 3})  # type: ignore[dict-item]


class Touch:
    """Its unpickling would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "stored",
    [
        STATE,
        OrderedDict(STATE),
        {"state_dict": STATE, "epoch": 3},
        {"model_state_dict": STATE, "loss": 0.1},
        {"model": STATE, "optimizer": {"lr": 0.1}},
        {name: nn.Parameter(t, requires_grad=False) for name, t in STATE.items()},
    ],
)
def test_state_dicts_and_checkpoints_of_torch_are_read(
    tmp_path: Path, stored: object, ending: str, legacy: bool
) -> None:
    torch.save(stored, tmp_path / f"w{ending}", _use_new_zipfile_serialization=not legacy)
    found = read_weights(tmp_path / f"w{ending}")
    assert (list(found.state), found.header.get("schema_version")) == (["a", "b"], None)
    assert all(torch.equal(found.state[name], STATE[name]) for name in STATE)


@pytest.mark.parametrize("legacy", [False, True])
def test_pickled_objects_are_refused_and_their_code_does_not_run(tmp_path: Path, legacy: bool) -> None:
    path, witness = tmp_path / "w.pt", tmp_path / "witness"
    for stored in ({"a": Touch(witness)}, nn.Linear(2, 2)):
        torch.save(stored, path, _use_new_zipfile_serialization=not legacy)
        with pytest.raises(WeightsError, match=r"Python objects, which are never loaded; save `model\.state_dict\(\)`"):
            read_weights(path)
    assert not witness.exists()


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (torch.ones(2), "holds a Tensor, no state dict"),
        ([torch.ones(2)], "holds a list, no state dict"),
        ({"a": torch.ones(2), "epoch": 3}, "'epoch' in .* is a int"),
        ({"state_dict": {}}, "holds no weights"),
        ({"model": torch.tensor([1.0, torch.inf])}, r"'model' in .* has 1 entries that are not finite"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, "'a' in .* is no dense tensor of real numbers"),
        *(
            ({"w": torch.tensor([1.0, torch.nan, torch.nan]).to(dtype)}, "'w' in .* has 2 entries that are not finite")
            for dtype in FLOATS
        ),
        *((content, "save") for content in (b"", b"\x80", b"PK\x03\x04", b"text\n" * 50, bytes(200))),
    ],
)
def test_what_is_no_state_dict_is_refused(tmp_path: Path, stored: object, message: str) -> None:
    torch.save(stored, tmp_path / "w.pt")
    names = ["w.pt"]
    if isinstance(stored, bytes):
        names.append("w.safetensors")
        for name in names:
            (tmp_path / name).write_bytes(stored)
    for name in names:
        with pytest.raises(WeightsError, match=message):
            read_weights(tmp_path / name)


@pytest.fixture(scope="module", params=["safetensors", "zip", "legacy"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / f"w.{'safetensors' if request.param == 'safetensors' else 'pt'}"
    if request.param == "safetensors":
        save_weights(path, STATE, header={"note": "x"})
    else:
        torch.save(STATE, path, _use_new_zipfile_serialization=request.param == "zip")
    return path


def test_a_truncated_file_is_refused_in_one_line_wherever_it_ends(whole: Path) -> None:
    data = whole.read_bytes()
    cut = whole.with_name(f"cut{whole.suffix}")
    short = len(data) < 400
    for end in range(len(data)) if short else (*range(0, len(data), 13), *range(len(data) - 40, len(data))):
        cut.write_bytes(data[:end])
        with pytest.raises(WeightsError, match=r"^[^\n]*save[^\n]*$"):
            read_weights(cut)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_bytes_give_weights_or_a_weights_error_of_one_line(whole: Path, data: st.DataObject) -> None:
    raw = bytearray(whole.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=4)):
        raw[place] = data.draw(st.integers(0, 255))
    hurt = whole.with_name(f"hurt{whole.suffix}")
    hurt.write_bytes(raw)
    lines = 0
    try:
        assert all(bool(t.isfinite().all()) for t in read_weights(hurt).state.values())
    except WeightsError as error:
        lines = str(error).count("\n")
    assert lines == 0


@pytest.mark.parametrize("name", ["absent.safetensors", "folder.safetensors", "w.ckpt", "w"])
def test_other_paths_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    for empty in ("w.ckpt", "w"):
        (tmp_path / empty).touch()
    with pytest.raises(WeightsError, match=r"there is no weight file|ends in '.*'; give a file that ends in"):
        read_weights(tmp_path / name)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, None),
        ({"format": "pt"}, None),
        ({"warp": "{"}, "header of .* is damaged"),
        ({"warp": "[" * 10**5}, "header of .* is damaged"),
        ({"warp": "[1]"}, "schema version None"),
        ({"warp": '{"schema_version": 2}'}, "schema version 2 and 1 is read here"),
    ],
)
def test_headers_of_another_form_are_refused(
    tmp_path: Path, metadata: dict[str, str] | None, message: str | None
) -> None:
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file({"a": torch.ones(1)}, path, metadata=metadata)
    if message is None:
        assert read_weights(path).header == {}
        return
    with pytest.raises(WeightsError, match=message):
        read_weights(path)


def test_the_digest_is_the_sha256_of_names_types_shapes_and_bits_in_sorted_order() -> None:
    state = {"b": torch.tensor([1, 2], dtype=torch.int16), "a": torch.tensor(1.5)}
    stream = b"('a', 'torch.float32', ())\n\x00\x00\xc0\x3f('b', 'torch.int16', (2,))\n\x01\x00\x02\x00"
    assert model_digest(state) == sha256(stream).hexdigest()
    x = torch.arange(24.0).reshape(1, 2, 3, 4)
    states = [{"w": x}, {"v": x}, {"w": x, "v": x}, {"w": x.reshape(4, 6)}, {"w": x.int()}, {"w": -x}, {"w": x[:0]}]
    assert len({model_digest(state) for state in states}) == len(states)
    plain = model_digest({"a": x, "b": x + 1})
    assert model_digest({"b": nn.Parameter(x + 1), "a": x.to(memory_format=torch.channels_last)}) == plain
    assert model_digest({"z": torch.tensor([1 + 2j]).conj().imag}) == model_digest({"z": torch.tensor([-2.0])})
