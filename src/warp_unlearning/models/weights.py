"""Weights in files: written whole or not at all, read without running code of the file, never cast unasked."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from pickle import UnpicklingError

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..data.files import as_path, write_atomically
from ..errors import InputError, WeightsError

_SCHEMA_VERSION = 1
_PICKLED = (".pt", ".pth", ".bin")
_NESTED = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")
Model = nn.Module | Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Weights:
    """A state dict on the CPU under the names and in the types of its file, the file's header and its ending."""

    state: dict[str, Tensor]
    header: dict[str, object]
    suffix: str = ".safetensors"


def read_weights(path: Path) -> Weights:
    """The weights in a .safetensors file, or in a .pt, .pth or .bin file that holds nothing but tensors: a state dict,
    or one under the key "state_dict", "model_state_dict" or "model".
    """
    path = as_path(path, "the weight file")
    if not path.is_file():
        raise WeightsError(f"there is no weight file {path}; give the path of a .safetensors or .pt file")
    if path.suffix not in (".safetensors", *_PICKLED):
        raise WeightsError(f"{path} ends in {path.suffix!r}; give a file that ends in .safetensors, .pt, .pth or .bin")
    found, header = _read_pickled(path) if path.suffix in _PICKLED else _read_safetensors(path)
    state = _plain(found, source=str(path))
    _check_finite(state, source=str(path))
    return Weights(state, header, path.suffix)


def load_weights(
    model: nn.Module, weights: Weights | Mapping[str, Tensor], *, source: str = "weights", cast: bool = False
) -> None:
    """Put `weights` in `model`, which must have the same names, shapes and types; else leave `model` as it is. With
    `cast`, floating-point weights take the model's type.
    """
    state = _plain(weights.state if isinstance(weights, Weights) else weights, source=source)
    expected, prefix = _plain(model), _prefix(state)
    if prefix and not state.keys() & expected.keys():
        state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    if faults := _faults(expected, state):
        way = "Build the model with the options it was trained with"
        raise WeightsError(f"{source} does not fit the model {type(model).__name__}: {faults}. {way}")
    for name, tensor in expected.items():
        have, want = state[name].dtype, tensor.dtype
        if have != want and not (have.is_floating_point and want.is_floating_point and cast):
            way = "ask for float32 (--dtype float32)" if have.is_floating_point else "give them before quantisation"
            kinds = f"is {str(have)[6:]} and should be {str(want)[6:]}"
            raise WeightsError(f"{name} in {source} {kinds}; {way}, or build the model in the type of the weights")
    model.load_state_dict(state)


def save_weights(path: Path, model: Model, *, header: Mapping[str, object] | None = None) -> None:
    """Write the state dict and `header` to `path` (.safetensors), readable by its owner alone.

    An older file at `path` stays whole until the new one is. Tied tensors are each written.
    """
    path = as_path(path, "the weight file")
    if path.suffix != ".safetensors":
        raise InputError(f"weights are saved as .safetensors and the path is {path}; change its ending")
    try:
        text = json.dumps({**(header or {}), "schema_version": _SCHEMA_VERSION}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"the header of a weight file must be JSON: {error}; use text, numbers and lists") from error
    # Always a copy: safetensors refuses tensors that share memory or are not contiguous.
    state = {name: _host_copy(tensor) for name, tensor in _plain(model).items()}
    _check_finite(state, source="the state dict")
    _write(path, safetensors.torch.save(state, metadata={"warp": text}))


def save_as_given(
    path: Path, model: Model, given: Weights, *, header: Mapping[str, object] | None = None
) -> list[Path]:
    """Write the weights of `model` to `path` (.safetensors) under the names, in the order and in the types of the file
    they came from, and beside it as .pt, .pth or .bin where that file was one. Returns the files written.
    """
    found = _plain(model)
    if found.keys() != given.state.keys():
        found = {f"{_prefix(given.state)}{name}": tensor for name, tensor in found.items()}
    if faults := _faults(given.state, found):
        raise WeightsError(f"the weights to save are not those that were given: {faults}")
    state = {name: _host_copy(found[name].to(tensor.dtype)) for name, tensor in given.state.items()}
    save_weights(path, state, header=header)
    if given.suffix not in _PICKLED:
        return [path]
    buffer, beside = io.BytesIO(), path.with_suffix(given.suffix)
    key = given.header.get("nested")
    torch.save(state if key is None else {key: state}, buffer)
    _write(beside, buffer.getvalue())
    return [path, beside]


def model_digest(model: Model) -> str:
    """The SHA-256 of the state dict, in hexadecimal: equal exactly when every name, type, shape and bit is.

    It does not depend on the order of the entries, their memory layout or their device.

    >>> model_digest({"a": torch.zeros(2)}) == model_digest({"a": torch.zeros(2, dtype=torch.bfloat16)})
    False
    """
    total = sha256()
    for name, tensor in sorted(_plain(model).items()):
        # Type and shape fix the number of bytes that follow, so no two states feed the same stream.
        total.update(f"{(name, str(tensor.dtype), tuple(tensor.shape))!r}\n".encode())
        total.update(_host_copy(tensor).reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _plain(model: nn.Module | Mapping[str, object], *, source: str = "the state dict") -> dict[str, Tensor]:
    """The state dict of a model, or the one given, detached; every entry must be a dense tensor with data."""
    state = model.state_dict() if isinstance(model, nn.Module) else model
    plain: dict[str, Tensor] = {}
    if not isinstance(state, Mapping):
        raise WeightsError(f"{source} is a {type(state).__name__}; give the state dict of a model")
    for name, tensor in state.items():
        if not (isinstance(name, str) and isinstance(tensor, Tensor)):
            kind = type(tensor).__name__
            raise WeightsError(f"{name!r} in {source} is a {kind}, no named tensor; keep the weights only")
        empty = is_lazy(tensor) or tensor.is_meta
        if empty or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex():
            raise WeightsError(f"{name!r} in {source} is no dense tensor of real numbers; densify or load it first")
        plain[name] = tensor.detach()
    if not plain:
        raise WeightsError(f"{source} holds no weights; give the state dict of a model")
    return plain


def _host_copy(tensor: Tensor) -> Tensor:
    """A copy on the CPU whose bytes lie in the order of its entries."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _check_finite(state: Mapping[str, Tensor], *, source: str) -> None:
    for name, tensor in state.items():
        # torch cannot ask an 8-bit float whether it is finite.
        wide = tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor
        if count := int((~torch.isfinite(wide)).sum()):
            raise WeightsError(f"{name!r} in {source} has {count} entries that are not finite; use earlier weights")


def _prefix(names: Iterable[str]) -> str:
    # Put before every name by `DataParallel` ("module.") and `torch.compile` ("_orig_mod.").
    rest, found = list(names), ""
    while prefix := next((p for p in _PREFIXES if rest and all(name.startswith(p) for name in rest)), ""):
        rest, found = [name.removeprefix(prefix) for name in rest], found + prefix
    return found


def _faults(expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    missing = [name for name in expected if name not in state]
    unexpected = [name for name in state if name not in expected]
    shapes = [
        f"{name} is {tuple(state[name].shape)} and should be {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in state and state[name].shape != tensor.shape
    ]
    faults = []
    for kind, names in {"missing": missing, "unexpected": unexpected, "of another shape": shapes}.items():
        if names:
            faults.append(f"{len(names)} {kind}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}")
    close = get_close_matches(missing[0], unexpected, n=1) if missing else []
    return "; ".join([*faults, *(f"{name} may be {missing[0]}" for name in close)])


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomically(path, data)
    except OSError as error:
        raise WeightsError(f"cannot write {path}: {error.strerror}; free it or give another path") from error


def _read_pickled(path: Path) -> tuple[Mapping[str, object], dict[str, object]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Torch's advice is for its own callers.
            found = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        why = "is damaged or holds Python objects, which are never loaded"
        raise WeightsError(f"{path} {why}; save `model.state_dict()` instead") from error
    except Exception as error:  # Damaged bytes make the reader raise nearly anything.
        raise WeightsError(f"{path} is no whole file of torch.save ({type(error).__name__}); save it again") from error
    if not isinstance(found, Mapping):
        raise WeightsError(f"{path} holds a {type(found).__name__}, no state dict; save `model.state_dict()` instead")
    key = next((key for key in _NESTED if isinstance(found.get(key), Mapping)), None)
    return (found, {}) if key is None else (found[key], {"nested": key})


def _read_safetensors(path: Path) -> tuple[Mapping[str, object], dict[str, object]]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            text = (file.metadata() or {}).get("warp")
            # Clones, since the file is mapped.
            state = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise WeightsError(f"{path} is no whole safetensors file: {error}; copy or save it again") from error
    if text is None:
        return state, {}
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"the header of {path} is damaged: {error}; save it again") from error
    version = header.pop("schema_version", None) if isinstance(header, dict) else None
    if version != _SCHEMA_VERSION:
        why = f"has schema version {version!r} and {_SCHEMA_VERSION} is read here"
        raise WeightsError(f"the header of {path} {why}; use the version of this package that wrote it")
    return state, header
