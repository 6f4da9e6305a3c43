"""What a configuration of `warp reproduce`, with tuned recipes where it names some, asks of a study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import ReproduceConfig, read_recipes
from ..studies import version_0_1
from ..studies.study import VARIANTS, Asked, Settings


def asked_of(config: ReproduceConfig) -> Asked:
    """What a configuration asks of a study; its own options go over those of its recipes."""
    variants = VARIANTS if config.made_with is None else version_0_1.VARIANTS
    methods, defenses = _from_recipes(config.recipes, variants)
    return Asked(
        methods=tuple(dict.fromkeys(config.methods)),
        defenses=config.defenses,
        method_options=_over(methods, config.method_options, of=0),
        defense_options=_over(defenses, config.defense_options, of=1),
        shadows=config.shadows,
        forget_sets=config.forget_sets,
        pairs=config.pairs,
        epochs=config.epochs,
        seed=config.seed,
        device=config.device,
        data_path=config.data_path,
    )


def _over(recipes: Settings, given: Settings, *, of: int) -> Settings:
    """What is given for a method or a defence goes over the recipes of every arm that has it; `of` says which of the
    two a name like "method + defence" is looked up by.
    """
    found: dict[str, Mapping[str, Any]] = {**given}
    for name, settings in recipes.items():
        own = name.split(" + ")[min(of, name.count(" + "))]
        found[name] = {**settings, **given.get(own, {}), **given.get(name, {})}
    return found


def _from_recipes(file: Path | None, variants: Settings) -> tuple[Settings, Settings]:
    """Settings by arm; variants of WARP have those that were found for it."""
    methods: dict[str, Mapping[str, Any]] = {}
    defenses: dict[str, Mapping[str, Any]] = {}
    for arm in () if file is None else read_recipes(file).arms:
        own = arm.method_options.get(arm.method, {})
        if arm.defense is None:
            methods[arm.method] = own
            continue
        found = arm.defense_options.get(arm.defense, {})
        # What makes a variant one is not for a search to undo.
        own_variants = variants if arm.defense == "warp" else {}
        for defense, fixed in {arm.defense: {}, **own_variants}.items():
            methods[f"{arm.method} + {defense}"] = own
            defenses[f"{arm.method} + {defense}"] = {**found, **fixed}
    return methods, defenses
