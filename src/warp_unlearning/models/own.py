"""A user's own code and networks: functions of a file, the files she trusts, models whose outputs are objects, and
checks of a network and its examples.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial, wraps
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..data.examples import Examples, TensorExamples, check_finite
from ..data.files import write_atomically
from ..errors import DataError, InputError, WarpError, nearest, reason
from .modes import norm_mode

HUGGING_FACE = "hf:"


def load_function(spec: str, *, what: str = "function") -> Callable[..., Any]:
    """The function or class NAME of the file in `spec`, FILE.py:NAME; `what` it is for, in errors.

    Importing runs the file: only ever call this with a path that the user gave or that `is_trusted`.
    """
    file, _, name = spec.rpartition(":")
    if spec.startswith(HUGGING_FACE) or not (name and file.endswith(".py")):
        raise InputError(f"{spec!r} names no {what}; write it as FILE.py:NAME, such as own.py:build")
    module = _import(Path(file))
    found = getattr(module, name, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if key[0] != "_" and callable(value)]
        raise InputError(f"{file} has no {what} {name!r}; {nearest(name, known)}")
    return found  # type: ignore[no-any-return]


def load_builder(spec: str, *, untrained: bool = False) -> Callable[..., nn.Module]:
    """The builder of the network of `spec`: FILE.py:NAME, or hf:FOLDER for a Hugging Face image classifier on disk,
    trained or `untrained`. The network is checked, and wrapped in `Logits` if it is known to need it.
    """
    if spec.startswith(HUGGING_FACE):
        builder: Callable[..., object] = partial(_hugging_face, spec, untrained)
    else:
        builder = load_function(spec, what="model builder")

    @wraps(builder)
    def build(*args: object, **options: object) -> nn.Module:
        return as_network(built(spec, builder, *args, **options), what=f"what {spec} returned")

    return build


def built(what: str, builder: Callable[..., object], *args: object, **options: object) -> nn.Module:
    """The network that the user's `builder` returns."""
    try:
        model = builder(*args, **options)
    except WarpError:
        raise
    except Exception as error:
        raise InputError(f"{what} failed to build a model: {reason(error)}; mend it or its options") from error
    if not isinstance(model, nn.Module):
        raise InputError(f"{what} returned a {type(model).__name__}; make it return an nn.Module")
    return model


def _hugging_face(spec: str, untrained: bool) -> nn.Module:
    folder = _file_of(spec).parent
    try:
        from transformers import AutoConfig
        from transformers import AutoModelForImageClassification as Classifier
    except ImportError as error:
        raise InputError(f"{spec} needs the package transformers; install it, or give FILE.py:build") from error
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no config.json; give the folder of a model's `save_pretrained`")
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if untrained:
        return Classifier.from_config(AutoConfig.from_pretrained(folder, **options))  # type: ignore[no-any-return, no-untyped-call]
    model, found = Classifier.from_pretrained(folder, dtype="auto", output_loading_info=True, **options)
    if found["missing_keys"]:
        raise InputError(f"{folder} lacks weights for {min(found['missing_keys'])}; give a trained image classifier")
    return model  # type: ignore[no-any-return]


def _import(file: Path) -> ModuleType:
    if not file.is_file():
        raise InputError(f"{file} is no file; give the path of a Python file")
    path = file.resolve()
    name = f"user_model_{sha256(str(path).encode()).hexdigest()[:16]}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    # Dataclasses and pickling look their module up by name.
    sys.modules[name] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"{file} cannot be imported: {reason(error)}; make it run under Python first") from error
    return module


def _file_of(spec: str) -> Path:
    """The file in `spec` that decides what is built."""
    if spec.startswith(HUGGING_FACE):
        return Path(spec.removeprefix(HUGGING_FACE)) / "config.json"
    return Path(spec.rpartition(":")[0])


def file_digest(spec: str) -> str:
    """SHA-256 of the file in FILE.py:NAME, or of config.json in hf:FOLDER."""
    file = _file_of(spec)
    try:
        return sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"the file {file} cannot be read: {error.strerror}; give where it is now") from error


def trust(spec: str) -> None:
    """Remember the file in `spec` as it is now, which the user has named on a command line, as one of hers."""
    digest, (listing, known) = file_digest(spec), _trusted()
    if digest not in known:
        listing.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(listing, "".join(f"{one}\n" for one in (*known, digest)).encode())


def is_trusted(spec: str) -> bool:
    """Whether the user has named the file in `spec`, as it is now, herself."""
    return file_digest(spec) in _trusted()[1]


def _trusted() -> tuple[Path, list[str]]:
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    listing = (state if state.is_absolute() else Path.home() / ".local" / "state") / "warp" / "trusted"
    try:
        return listing, listing.read_text().split()
    except FileNotFoundError:
        return listing, []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the list of trusted files {listing} cannot be read: {error}; delete it") from error


class Logits(nn.Module):
    """A model whose outputs are objects or mappings with `logits`, as one whose outputs are the logits.

    It shares the model's tables of modules, parameters and buffers, so that every name is the model's.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._modules, self._parameters, self._buffers = model._modules, model._parameters, model._buffers
        self._non_persistent_buffers_set = model._non_persistent_buffers_set
        # In a tuple, or it would be a module of its own.
        self._wrapped = (model,)
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:
        """The logits (batch, classes) of inputs `x`."""
        inner = unwrap(self)
        # Called as a function, so that torch.fx, which knows only registered modules, follows it.
        watched = inner._forward_hooks or inner._forward_pre_hooks
        return _logits_of((inner if watched else inner.forward)(x))  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        """What the wrapper does not have, such as `config` or `reset_parameters`, is the model's."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or "_wrapped" not in self.__dict__:
                raise
            return getattr(self._wrapped[0], name)


def as_network(model: nn.Module, *, example: Tensor | None = None, what: str = "the model") -> nn.Module:
    """`model`, checked, and wrapped in `Logits` if it is a Hugging Face model, or if its output for the batch `example`
    holds `logits`.
    """
    check_network(model, what=what)
    if isinstance(model, Logits):
        return model
    wraps_logits = any(kind.__module__ == "transformers.modeling_utils" for kind in type(model).__mro__)
    if not wraps_logits and example is not None:
        wraps_logits = _logits_of(_output(model, example, "given")) is not None
    return Logits(model) if wraps_logits else model


def unwrap(model: nn.Module) -> nn.Module:
    """The model in a `Logits`, in the mode of the wrapper; any other model as it is."""
    if not isinstance(model, Logits):
        return model
    inner: nn.Module = model._wrapped[0]
    inner.training = model.training
    return inner


def check_network(model: object, *, what: str = "the model") -> None:
    """Refuse what is no plain module, and parameters that hold no real numbers."""
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise InputError(f"{what} is a {kind}; give an nn.Module")
    if isinstance(model, torch.jit.ScriptModule) or hasattr(model, "_orig_mod"):
        raise InputError(f"{what} is a compiled {kind}; give the module that it was made from")
    parameters = dict(model.named_parameters())
    for name, tensor in (*parameters.items(), *model.named_buffers()):
        if is_lazy(tensor):
            raise InputError(f"{name} of {what} has no shape yet; call the lazy network once on an example")
        if tensor.is_meta:
            raise InputError(f"{name} of {what} is on the device meta and holds no numbers; load its weights first")
    for path, module in model.named_modules():
        if ".quantized" in type(module).__module__:
            raise InputError(f"{path or what} is a quantised {type(module).__name__}; give the network before that")
    for name, tensor in parameters.items():
        if tensor.is_quantized or not tensor.is_floating_point():
            raise InputError(f"{name} of {what} is {str(tensor.dtype)[6:]}; give a network of floating-point weights")
    if not parameters:
        raise InputError(f"{what} is a {kind} with no parameters; there is nothing in it to change")


def failed(error: Exception, doing: str) -> InputError:
    """What to raise where the user's network failed while `doing`; of memory that is full, with the way out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error):
        return InputError(f"memory is full: the model was {doing}; lower the batch size (batch_size of the method)")
    return InputError(f"the model failed while {doing} ({reason(error)}); mend its code")


def check_examples(model: nn.Module, sets: Mapping[str, Examples]) -> int:
    """The number of classes of the model, if every set has examples, finite and labelled within the classes."""
    classes = 0
    seen: set[tuple[object, ...]] = set()
    for what, examples in sets.items():
        if len(examples) == 0:
            raise DataError(f"the {what} set is empty; give at least one example")
        if isinstance(examples, TensorExamples):
            check_finite(examples.x, what)
        x = examples.take(torch.arange(min(2, len(examples)))).x
        # A model that takes one example takes every other of that shape and type.
        if (x.shape[1:], x.dtype) not in seen:
            classes = _classes(model, x, what)
            seen.add((x.shape[1:], x.dtype))
        outside = (examples.y < 0) | (examples.y >= classes)
        if bool(outside.any()):
            row = int(outside.nonzero()[0])
            label = f"the label {int(examples.y[row])} at row {row}, but the model has {classes} classes, from 0"
            raise DataError(f"the {what} set has {label}; remove the row or use a model with that class")
    return classes


@torch.no_grad()
def _output(model: nn.Module, x: Tensor, what: str) -> Any:
    try:
        with norm_mode(model, "eval"):
            return model(x)
    except Exception as error:
        kind = f"of shape {tuple(x.shape[1:])} and type {x.dtype}"
        raise DataError(f"the model cannot take an example of the {what} set, {kind}: {reason(error)}") from error


def _logits_of(output: Any) -> Any:
    return output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)


def _classes(model: nn.Module, x: Tensor, what: str) -> int:
    output = _output(model, x, what)
    if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != len(x):
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        way = "" if _logits_of(output) is None else "; wrap the model: warp_unlearning.models.own.Logits(model)"
        raise InputError(f"the model's output is {shape}; it must be a tensor of logits, shape (batch, classes){way}")
    if output.layout != torch.strided or output.is_meta or not output.is_floating_point() or not output.shape[1]:
        kind = f"{str(output.dtype)[6:]}, {output.layout}, {tuple(output.shape)} on {output.device}"
        raise InputError(f"the model's output is {kind}; it must be dense floating-point logits with values")
    if not bool(output.isfinite().all()):
        raise InputError(f"the model's output on the {what} set is not finite; its weights are damaged")
    return output.shape[1]
