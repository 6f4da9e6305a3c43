"""Digits again, but what is to be forgotten is a tenth of the examples at random, not a class."""

from __future__ import annotations

import torch
from torch import nn

from warp_unlearning.conformance.problem import Problem
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.preprocess import load_data
from warp_unlearning.models.networks import build_model
from warp_unlearning.randomness import Streams
from warp_unlearning.training.recipe import Recipe
from warp_unlearning.training.training import Training, run_training


def scattered_problem(seed: int) -> Problem:
    """126 of 1,260 training examples to forget; the network and its training are those of `digits_problem`."""
    streams = Streams(seed, "scattered problem")
    data = load_data().train
    order = torch.randperm(len(data), generator=streams.generator("order"))
    validation, forget, retain = (data.select(i) for i in (order[:140], order[140:266], order[266:]))
    everything = data.select(order[140:])
    return Problem(_trained(everything, seed), _trained(retain, seed), forget, retain, validation)


def _trained(examples: TensorExamples, seed: int) -> nn.Module:
    streams = Streams(seed, "training")
    model = build_model("small_resnet", generator=streams.generator("weights"))
    run_training(Training(model, examples, recipe=Recipe(epochs=12), streams=streams))
    return model
