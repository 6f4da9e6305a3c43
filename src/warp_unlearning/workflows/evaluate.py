"""Compare run directories or weight files: original, unlearned and, where there is one, retrained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..data.split_folder import load_split
from ..data.splits import Split
from ..errors import InputError
from ..evaluation.compare import Comparison, compare
from .source import Builder, Source, choose_device, load_source


@dataclass(frozen=True)
class EvaluateRequest:
    """The models to compare. The sets come from `split`, by default the unlearned run's."""

    original: Path
    unlearned: Path
    retrained: Path | None = None
    split: Path | None = None
    config_file: Path | None = None
    overrides: Sequence[str] = ()


def evaluate_run(request: EvaluateRequest, *, builder: Builder | None = None) -> Comparison:
    """Score each model on the forget, retain and test sets of the split."""
    folder = request.split or request.unlearned / "split"
    if not folder.is_dir():
        raise InputError(
            f"there is no split {folder}; give the --out of `warp unlearn` as the unlearned model, or --split FOLDER"
        )
    original, unlearned, retrained = (
        None
        if path is None
        else load_source(path, config_file=request.config_file, overrides=request.overrides, builder=builder)
        for path in (request.original, request.unlearned, request.retrained)
    )
    assert original is not None
    assert unlearned is not None
    data = original.data
    split = load_split(folder, train_count=len(data.train), test_count=len(data.test))
    if retrained is not None and request.retrained is not None and request.retrained.is_dir():
        _check_reference(retrained, split, request.retrained)
    device = choose_device(original.config.device)
    forget, retain = (data.train.select(torch.from_numpy(i)).to(device) for i in (split.forget, split.retain))
    return compare(
        original.model.to(device),
        unlearned.model,
        retrained=None if retrained is None else retrained.model,
        forget=forget,
        retain=retain,
        test=data.test.select(torch.from_numpy(split.test)),
    )


def _check_reference(retrained: Source, split: Split, path: Path) -> None:
    known = np.intersect1d(retrained.known, split.forget)
    if len(known):
        raise InputError(
            f"the retrained model {path} learned from {len(known)} of the {len(split.forget)} examples of the forget "
            f"set (first: {known[0]}), so it is no reference; retrain without them: --method retrain, same forget set"
        )
