"""A model builder out of a Python file that the user wrote and named, as FILE.py:NAME."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from torch import nn

from ..errors import InputError, WarpError, nearest
from .model_checks import check_network


def load_builder(spec: str) -> Callable[..., nn.Module]:
    """Import the file in `spec` and return its function NAME, which must build an `nn.Module` when called.

    Importing runs the file: only ever call this with a path that the user gave.
    """
    file, colon, name = spec.rpartition(":")
    if not (colon and name and file.endswith(".py")):
        raise InputError(f"{spec!r} names no model builder; write it as FILE.py:NAME, such as model.py:build")
    module = _import(Path(file))
    if not hasattr(module, name):
        public = [key for key, value in vars(module).items() if key[0] != "_" and callable(value)]
        raise InputError(f"{file} has no {name!r}; {nearest(name, public)}")
    builder = getattr(module, name)
    if not callable(builder):
        raise InputError(f"{name!r} in {file} is a {type(builder).__name__}; name a function that builds the model")
    return _checked(builder, spec)


def _import(file: Path) -> ModuleType:
    if not file.is_file():
        raise InputError(f"{file} is no file; give the path of the Python file that builds the model")
    path = file.resolve()
    name = f"user_model_{sha256(str(path).encode()).hexdigest()[:16]}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{file} cannot be imported; give a Python file that ends in .py")
    module = module_from_spec(spec)
    # Dataclasses and pickling look their module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"{file} cannot be imported: {_line(error)}; make it run under Python first") from error
    return module


def _checked(builder: Callable[..., object], spec: str) -> Callable[..., nn.Module]:
    @wraps(builder)
    def build(*args: object, **options: object) -> nn.Module:
        try:
            model = builder(*args, **options)
        except WarpError:
            raise
        except Exception as error:
            raise InputError(f"{spec} failed to build a model: {_line(error)}; mend it or its options") from error
        if not isinstance(model, nn.Module):
            raise InputError(f"{spec} returned a {type(model).__name__}; make it return an nn.Module")
        check_network(model, what=f"what {spec} returned")
        return model

    return build


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
