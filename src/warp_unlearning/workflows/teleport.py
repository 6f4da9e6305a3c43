"""Move a model along symmetries, into a run directory with an equivalent model and a certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..config.resolve import RESOLVED, as_plain
from ..data.examples import TensorExamples
from ..data.files import array_digest, to_json
from ..data.table import Index
from ..defense.certificate import Certificate
from ..defense.teleporter import teleport
from ..errors import DataError, InputError
from ..models.digest import model_digest
from ..models.weights import Weights, load_weights, read_weights, save_weights
from ..runs.directory import RunDirectory, start_run
from ..symmetry.compose import Compose
from ..symmetry.null_space import NullSpace
from ..symmetry.symmetry import Symmetry, settings_of
from .source import Builder, Source, choose_device, load_source, read_indices
from .symmetries import choose_symmetry, split_settings
from .unlearn import forgotten_before

# Of the largest logit: what rounding does to a change of basis of a deep network, with room to spare.
EXACT = {torch.float32: 1e-4, torch.float64: 1e-10}


@dataclass(frozen=True)
class TeleportRequest:
    """Which model moves along which symmetries, and where the result goes.

    `settings` are "key=value": an option of a symmetry, "symmetry.option=value" where several have it, or a setting of
    the configuration. `tolerance` bounds the change of the retain loss by symmetries that are not exact. `seed` is for
    experiments: whoever knows it can undo the move.
    """

    source: Path
    out: Path
    symmetries: Sequence[str]
    settings: Sequence[str] = ()
    config_file: Path | None = None
    tolerance: float = 0.01
    seed: int | None = None


@dataclass(frozen=True)
class Verdict:
    """Whether the function was kept: what was measured, and the bound it had to stay within."""

    holds: bool
    what: str
    measured: float
    bound: float


@dataclass(frozen=True, eq=False)
class TeleportOutcome:
    """The certificate with its verdict, as written, and notes on what was decided on the way."""

    certificate: dict[str, Any]
    notes: tuple[str, ...]


def teleport_run(request: TeleportRequest, *, builder: Builder | None = None) -> TeleportOutcome:
    """Teleport, or do nothing where the run is complete."""
    if not request.tolerance >= 0:
        raise InputError(f"the tolerance is {request.tolerance}; it must be at least 0")
    overrides, options = split_settings(request.settings)
    symmetry = choose_symmetry(request.symmetries, options)
    source = load_source(request.source, config_file=request.config_file, overrides=overrides, builder=builder)
    weights = read_weights(_file(request.source))
    notes = _set_precision(source.model, weights)
    retain, forget, chosen = choose_examples(source)
    found = {
        "symmetries": [{"name": type(part).__name__, "options": settings_of(part)} for part in _parts(symmetry)],
        "tolerance": request.tolerance,
        "defense_seed": request.seed,
        "from_model": model_digest(source.model),
        "forget": array_digest(forget),
    }
    config = as_plain(source.config) | {RESOLVED: found}
    if request.out.exists():
        run = start_run(request.out, kind="teleport", config=config)
        if run.complete:
            return TeleportOutcome(run.read_json("certificate.json"), ())
    model, certificate = _carry_out(source, retain, forget, symmetry, request.seed)
    # A network that cannot be moved leaves no folder, so that the next try may use its name.
    run = start_run(request.out, kind="teleport", config=config)
    verdict = judge(certificate, symmetry, model, request.tolerance)
    _write(run, source.model, model, weights, certificate, verdict, request)
    about = run.read_json("certificate.json")
    if about["from_model"] == about["to_model"]:
        notes = (*notes, "nothing moved: the result is bit-identical")
    return TeleportOutcome(about, (*notes, *chosen, *certificate.notes))


def choose_examples(source: Source) -> tuple[Index, Index, tuple[str, ...]]:
    """Positions to keep and to forget, and notes: what is asked for, else what earlier requests forgot, else nothing;
    everything else that the model knows is to be kept.
    """
    config, y = source.config.forget, source.data.train.y.cpu().numpy()
    given = [key for key in ("fraction", "label", "indices") if getattr(config, key) is not None]
    if len(given) > 1 or config.fraction is not None:
        raise InputError(f"forget.{' and forget.'.join(given)} cannot be used here; give --forget or --forget-class")
    notes: tuple[str, ...] = ()
    if config.indices is not None:
        forget = read_indices(config.indices, count=len(y), what="forget")
    elif config.label is not None:
        forget = np.setdiff1d(np.flatnonzero(y == config.label), source.validation)
        if not len(forget):
            labels = ", ".join(map(str, np.unique(y)))
            raise InputError(f"no training example has label {config.label}; the labels are {labels}")
    else:
        forget = forgotten_before(source)
        if len(forget):
            notes = (f"the examples to forget are the {len(forget)} that this model was asked to forget",)
    known = source.known
    if known is None:
        known = np.setdiff1d(np.arange(len(y)), source.validation)
        notes = (*notes, "which examples this model has forgotten cannot be told from its file; all are kept")
    retain = np.setdiff1d(known, forget)
    if not len(retain):
        raise DataError("every training example is to be forgotten; leave some to keep")
    return retain, forget, notes


def judge(certificate: Certificate, symmetry: Symmetry, model: nn.Module, tolerance: float) -> Verdict:
    """Whether the function was kept: exact symmetries by logits, up to rounding; others by the retain loss."""
    drifts = [drift for drift in (certificate.retain, certificate.held_out) if drift is not None]
    if any(isinstance(part, NullSpace) for part in _parts(symmetry)):
        what, bound = "change of the mean loss of retained examples", tolerance
        measured = [abs(drift.loss_change) for drift in drifts]
    else:
        what, bound = "largest logit change, relative to the largest logit", EXACT[_precision(model)]
        measured = [drift.relative for drift in drifts]
    return Verdict(all(value <= bound for value in measured), what, float(np.max(measured)), bound)


def _carry_out(
    source: Source, retain: Index, forget: Index, symmetry: Symmetry, seed: int | None
) -> tuple[nn.Module, Certificate]:
    device = choose_device(source.config.device)
    model = source.model.to(device)
    kept = _part(source, retain, device)
    forgotten = _part(source, forget, device) if len(forget) else None
    return teleport(model, symmetry, retain=kept, forget=forgotten, seed=seed)


def _part(source: Source, index: Index, device: torch.device) -> TensorExamples:
    part = source.data.train.select(torch.from_numpy(index)).to(device)
    return TensorExamples(part.x.double(), part.y) if _precision(source.model) == torch.float64 else part


def _write(
    run: RunDirectory,
    before: nn.Module,
    after: nn.Module,
    weights: Weights,
    certificate: Certificate,
    verdict: Verdict,
    request: TeleportRequest,
) -> None:
    save_weights(run.path / "model.safetensors", _named_as(weights, after), header=weights.header)
    about = {
        **certificate.as_json(),
        "verdict": asdict(verdict),
        "experiment_only": request.seed is not None,
        "from_model": model_digest(before),
        "to_model": model_digest(after),
    }
    run.write_json("certificate.json", to_json(about))
    run.finish()


def _file(source: Path) -> Path:
    return source / "model.safetensors" if source.is_dir() else source


def _parts(symmetry: Symmetry) -> Sequence[Symmetry]:
    return symmetry.symmetries if isinstance(symmetry, Compose) else (symmetry,)


def _precision(model: nn.Module) -> torch.dtype:
    """float64 where every weight is; else float32, which is what rounding is judged by."""
    floating = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return torch.float64 if floating == {torch.float64} else torch.float32


def _set_precision(model: nn.Module, weights: Weights) -> tuple[str, ...]:
    """Give a model that was loaded from float64 weights these in full; a note where they are coarser than the model."""
    floating = {tensor.dtype for tensor in weights.state.values() if tensor.is_floating_point()}
    if floating == {torch.float64} and _precision(model) != torch.float64:
        load_weights(model.double(), weights)
    coarse = sorted(str(kind) for kind in floating - {torch.float32, torch.float64})
    if not coarse:
        return ()
    kept = str(next(model.parameters()).dtype)
    return (f"the weights are {coarse[0]} and the result is {kept}: rounding it would change the function",)


def _named_as(weights: Weights, model: nn.Module) -> dict[str, Tensor]:
    """The state dict of the model under the names of the file it came from."""
    state = model.state_dict()
    prefix = "" if state.keys() == weights.state.keys() else "module."
    return {prefix + name: tensor for name, tensor in state.items()}
