"""What the configuration of a tuning may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from .schema import DataConfig, ModelConfig, Section, TrainingConfig


class RangeConfig(Section):
    """The values that a search may give to one setting: `choices`, or numbers from `low` to `high`."""

    low: int | float | None = None
    high: int | float | None = None
    log: bool = Field(default=False, description="draw evenly in the logarithm")
    choices: list[bool | int | float | str] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _one_of_two(self) -> RangeConfig:
        if (self.choices is None) == (self.low is None or self.high is None):
            raise ValueError("give low and high, or choices")
        if self.choices is not None and (self.log or self.low is not None or self.high is not None):
            raise ValueError("give low and high, or choices, not both")
        return self


class TuneConfig(Section):
    """Everything that decides the results of a tuning, and `trials`, which may grow."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    methods: list[str] = Field(default_factory=lambda: ["ngp"], min_length=1, description="methods to tune")
    method_options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="settings by method that are held as they are, not searched"
    )
    recipe: Literal["auto", "published", "small"] = Field(
        default="auto", description="settings of the methods to start from; auto is small below 5,000 training examples"
    )
    defenses: list[str] = Field(
        default_factory=lambda: ["warp", "conjugate"], description="defences, each beside the method alone"
    )
    defense_options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="settings by defence that are held as they are, not searched"
    )
    ranges: dict[str, dict[str, RangeConfig]] = Field(
        default_factory=dict, description="ranges by method or defence and setting, over ours"
    )
    trials: int = Field(default=8, ge=1, description="trials of each arm, base and defended alike")
    sampler: Literal["nsga3", "tpe"] = Field(default="nsga3", description="how the next trials are drawn")
    population: int = Field(default=4, ge=2, description="trials of a round, and of a generation of nsga3")
    shadows: int = Field(default=2, ge=1, description="shadow models of the tuning, numbered from 1000 on")
    forget_sets: int = Field(default=1, ge=1, description="disjoint forget sets of each shadow")
    fraction: float = Field(default=0.1, gt=0, lt=1, description="share of a shadow's training half in a forget set")
    audited: Path | None = Field(
        default=None,
        description="an .npy file of training positions that a study audits: neither forgotten nor measured",
    )
    seed: int = 0
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, ...")
