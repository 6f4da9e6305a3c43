"""Compare run directories or weight files: original, unlearned and, where there is one, retrained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..data.split_folder import load_split
from ..data.splits import IndexArray
from ..errors import DataError, InputError
from ..unlearning.judge import ModelComparison, compare
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


def evaluate_run(request: EvaluateRequest, *, builder: Builder | None = None) -> ModelComparison:
    """Score each model on the forget, retain and test sets of the split."""
    folder = request.split or request.unlearned / "split"
    if not folder.is_dir():
        raise InputError(
            f"there is no split {folder}; give the --out of `warp unlearn` as the unlearned model, or --split FOLDER"
        )
    paths = {"original": request.original, "unlearned": request.unlearned, "retrained": request.retrained}
    sources = {
        name: load_source(path, config_file=request.config_file, overrides=request.overrides, builder=builder)
        for name, path in paths.items()
        if path is not None
    }
    check_one_data_set(sources)
    data = sources["original"].data
    split = load_split(folder, train_count=len(data.train), test_count=len(data.test))
    if request.retrained is not None and request.retrained.is_dir():
        check_reference(sources["retrained"], split.forget, request.retrained)
    device = choose_device(sources["original"].config.device)
    forget, retain = (data.train.select(torch.from_numpy(i)).to(device) for i in (split.forget, split.retain))
    return compare(
        sources["original"].model.to(device),
        sources["unlearned"].model,
        retrained=sources["retrained"].model if "retrained" in sources else None,
        forget=forget,
        retain=retain,
        test=data.test.select(torch.from_numpy(split.test)),
    )


def check_one_data_set(sources: Mapping[str, Source]) -> None:
    """Refuse models of different data."""
    first = sources["original"].data
    for name, source in sources.items():
        if source.data.digest != first.digest:
            raise DataError(
                f"the {name} model has other data ({source.data.name}, digest {source.data.digest[:12]}) than the "
                f"original ({first.name}, digest {first.digest[:12]}); compare models of one data set"
            )


def check_reference(retrained: Source, forget: IndexArray, path: Path) -> None:
    """Refuse a reference that was not retrained, or that learned from examples to forget."""
    done = retrained.record.deletions
    if done and done[-1].method.get("name") != "retrain":
        raise InputError(
            f"the retrained model {path} was made by {done[-1].method.get('name')}, so it is no reference; give a run "
            "of `--method retrain` with the same forget set"
        )
    if retrained.known is None:
        return
    known = np.intersect1d(retrained.known, forget)
    if len(known):
        raise InputError(
            f"the retrained model {path} learned from {len(known)} of the {len(forget)} examples of the forget "
            f"set (first: {known[0]}), so it is no reference; retrain without them: --method retrain, same forget set"
        )
