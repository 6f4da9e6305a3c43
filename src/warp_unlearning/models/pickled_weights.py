"""State dicts out of files of torch.save, through the reader of torch that builds only tensors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from ..errors import WeightsError
from .state_tensors import plain_tensors

PICKLED_SUFFIXES = (".pt", ".pth", ".bin")


def read_pickled(path: Path) -> dict[str, Tensor]:
    """The state dict in `path`, which may lie under the key "state_dict" or "model" of a checkpoint."""
    try:
        with warnings.catch_warnings():
            # Torch's advice is for its own callers; what is wrong with the file is said below.
            warnings.simplefilter("ignore")
            found = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise WeightsError(
            f"{path} is damaged or holds Python objects, which are never loaded; save `model.state_dict()` instead"
        ) from error
    # Damaged bytes make the reader raise nearly anything.
    except Exception as error:
        raise WeightsError(
            f"{path} is no whole file of torch.save ({type(error).__name__}); copy or save it again"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
            break
    if not isinstance(found, Mapping):
        raise WeightsError(f"{path} holds a {type(found).__name__}, no state dict; save `model.state_dict()` instead")
    return plain_tensors(found, source=str(path))
