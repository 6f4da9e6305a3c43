"""The device that a name means."""

from __future__ import annotations

import torch

from ..errors import InputError


def choose_device(name: str) -> torch.device:
    """The device called `name`, if it can be used; "auto" is the first GPU, or the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"the device {name!r} cannot be used: {_first_sentence(error)}; try auto or cpu") from error
    return device


def _first_sentence(error: BaseException) -> str:
    """What torch says first: in one line it may go on with all of its backends."""
    return str(error).splitlines()[0].split(". ", 1)[0].rstrip(".")
