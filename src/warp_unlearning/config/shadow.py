"""What the configuration of a shadow audit may hold."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .schema import DataConfig, ModelConfig, Section, TrainingConfig

SIX = ["ngp", "scrub", "salun", "pgu", "bad_teacher", "srf_on"]


class ShadowConfig(Section):
    """Everything that decides the results of a shadow audit."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    methods: list[str] = Field(default_factory=lambda: list(SIX), min_length=1, description="methods to audit")
    method_options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="settings by method, over the recipe's"
    )
    recipe: Literal["auto", "published", "small"] = Field(
        default="auto", description="settings of the methods to start from; auto is small below 5,000 training examples"
    )
    defenses: list[str] = Field(default_factory=lambda: ["warp"], description="defences, each beside the method alone")
    defense_options: dict[str, dict[str, Any]] = Field(default_factory=dict, description="settings by defence")
    shadows: int = Field(default=16, ge=4, multiple_of=2, description="shadow models, in complementary pairs")
    forget_sets: int = Field(default=4, ge=1, description="disjoint forget sets of each shadow")
    share: float = Field(default=0.4, gt=0, le=1, description="share of a shadow's training half that they cover")
    pairs: int = Field(default=1, ge=0, description="pairs of models of each arm whose weights are attacked")
    seed: int = 0
    defense_seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**63,
        description="fixes the defences' draws for experiments that others are to repeat; else they are secret",
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, ...")
