"""Weights in files: written whole or not at all, and read without running code that a file may hold."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from types import MappingProxyType

import safetensors.torch
from safetensors import safe_open
from torch import Tensor, nn

from ..errors import InputError, WeightsError
from .pickled_weights import PICKLED_SUFFIXES, read_pickled
from .state_tensors import check_finite, host_copy, plain_tensors, tensors_of

SCHEMA_VERSION = 1
_NOTHING: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Weights:
    """A state dict on the CPU, and what its file says of it."""

    state: dict[str, Tensor]
    header: dict[str, object]


def save_weights(
    path: Path, model: nn.Module | Mapping[str, Tensor], *, header: Mapping[str, object] = _NOTHING
) -> None:
    """Write the state dict and `header` to `path` (.safetensors), readable by its owner alone.

    An older file at `path` stays whole until the new one is. Tied tensors are each written.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise InputError(f"weights are saved as .safetensors and the path is {path}; change its ending")
    text = _header_text(header)
    # Always a copy: safetensors refuses tensors that share memory or are not contiguous.
    state = {name: host_copy(tensor) for name, tensor in tensors_of(model).items()}
    check_finite(state, source="the state dict")
    try:
        data = safetensors.torch.save(state, metadata={"warp": text})
    except (KeyError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise WeightsError(f"the weights cannot be stored as safetensors: {error}; cast them to float32") from error
    _write(path, data)


def read_weights(path: Path) -> Weights:
    """The weights in a .safetensors file, or in a .pt, .pth or .bin file that holds nothing but tensors."""
    path = Path(path)
    if not path.is_file():
        kind = "is not a file" if path.exists() else "does not exist"
        raise WeightsError(f"the weight file {path} {kind}; give the path of a .safetensors or .pt file")
    if path.suffix == ".safetensors":
        weights = _read_safetensors(path)
    elif path.suffix in PICKLED_SUFFIXES:
        weights = Weights(read_pickled(path), {})
    else:
        raise WeightsError(f"{path} ends in {path.suffix!r}; give a file that ends in .safetensors, .pt, .pth or .bin")
    check_finite(weights.state, source=str(path))
    return weights


def load_weights(model: nn.Module, weights: Weights | Mapping[str, Tensor], *, source: str = "weights") -> None:
    """Put `weights` in `model`, which must have the same names and shapes; else leave `model` as it is."""
    state = plain_tensors(weights.state if isinstance(weights, Weights) else weights, source=source)
    expected = tensors_of(model)
    if state and all(name.startswith("module.") for name in state) and not state.keys() & expected.keys():
        state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    faults = _faults(expected, state)
    if faults:
        raise WeightsError(
            f"{source} does not fit the model {type(model).__name__}: {'; '.join(faults)}. "
            "Build the model with the options it was trained with"
        )
    model.load_state_dict(state)


def _faults(expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    shapes = [
        f"{name} is {tuple(state[name].shape)} and should be {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in state and state[name].shape != tensor.shape
    ]
    found = {
        "missing": [name for name in expected if name not in state],
        "unexpected": [name for name in state if name not in expected],
        "of another shape": shapes,
    }
    return [
        f"{len(names)} {kind}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
        for kind, names in found.items()
        if names
    ]


def _header_text(header: Mapping[str, object]) -> str:
    if "schema_version" in header:
        raise InputError("the header of a weight file sets schema_version itself; leave it out")
    try:
        return json.dumps({**header, "schema_version": SCHEMA_VERSION}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"the header of a weight file must be JSON: {error}; use text, numbers and lists") from error


def _write(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, through a file that mkstemp lets only its owner read."""
    try:
        handle, name = mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise WeightsError(f"cannot write to {path.parent}: {error.strerror}; give another folder") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError as error:
        raise WeightsError(f"cannot write {path}: {error.strerror}; free it or give another path") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _read_safetensors(path: Path) -> Weights:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            text = (file.metadata() or {}).get("warp")
            # A clone, so that the weights do not hang on the mapped file.
            state = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise WeightsError(f"{path} is no whole safetensors file: {error}; copy or save it again") from error
    return Weights(plain_tensors(state, source=str(path)), {} if text is None else _header(text, path))


def _header(text: str, path: Path) -> dict[str, object]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"the header of {path} is damaged: {error}; save it again") from error
    version = header.pop("schema_version", None) if isinstance(header, dict) else None
    if version != SCHEMA_VERSION:
        raise WeightsError(
            f"the header of {path} has schema version {version!r} and {SCHEMA_VERSION} is read here; "
            "use the version of this package that wrote it"
        )
    return dict(header)
