"""What a study at the size of the paper would cost without a GPU."""

from __future__ import annotations

from time import perf_counter

import torch

from ..config import ReproduceConfig
from ..data.preprocess import load_data
from ..errors import InputError
from ..models.networks import build_model, suggest_options
from ..randomness import Streams
from ..studies.cell_settings import CellSettings
from ..studies.study import STUDIES, study_settings
from ..training.training import Recipe, Training
from .study_asked import asked_of

_TIMED_UPDATES = 3


def require_gpu(config: ReproduceConfig) -> None:
    """An error, at the size of the paper without a GPU, that says what it would cost."""
    if config.size != "paper" or not config.device.startswith("cpu") or config.study not in STUDIES:
        return
    settings = study_settings(config.study, "paper", asked_of(config))
    hours = settings.shadows * _training_seconds(settings) / 3600
    raise InputError(
        f"there is no GPU, and training the {settings.shadows} originals alone would take about {hours:,.0f} hours of "
        "one core here, going by a few updates; give --size small, which takes minutes, or --anyway"
    )


def _training_seconds(settings: CellSettings) -> float:
    """What the training of one original takes here, from a few updates of it on one thread."""
    data = load_data(**settings.data)
    half = (len(data.train) - settings.validation) // 2
    recipe = Recipe(**settings.training)
    options = {**suggest_options(settings.network, data.shape, len(data.classes)), **settings.network_options}
    streams = Streams(0, "cost")
    model = build_model(settings.network, generator=streams.generator("weights"), **options)
    training = Training(model, data.train.select(torch.arange(half)), recipe=recipe, streams=streams, fill=data.fill)
    updates = training.updates()
    total = next(updates).total
    began = perf_counter()
    for _ in range(_TIMED_UPDATES):
        next(updates)
    return total * (perf_counter() - began) / _TIMED_UPDATES
