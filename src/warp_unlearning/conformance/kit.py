"""`check_method`: all rules over one method, for the methods of this package and for those of plug-in authors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import ConformanceError
from ..methods.base import Method
from ..methods.registry import as_method
from . import rules
from .problem import Problem, digits_problem, forgets, noise_problem

Rule = Callable[[Method, Problem], str | None]

RULES: dict[str, Rule] = {
    "original untouched": rules.original_untouched,
    "teacher frozen": rules.teacher_frozen,
    "frozen weights stay": rules.frozen_weights_stay,
    "batch-norm mode kept": rules.norm_mode_kept,
    "seed decides": rules.seed_decides,
    "permutations followed": rules.permutations_followed,
    "change of basis unseen": rules.rescaling_unseen,
    "start move followed": rules.start_move_followed,
    "last move kept": rules.last_move_kept,
}


@dataclass(frozen=True)
class Finding:
    """One rule, and how it was broken; None where it was kept."""

    rule: str
    broken: str | None


@dataclass(frozen=True)
class Report:
    """The findings for one method."""

    method: str
    findings: tuple[Finding, ...]

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The rules that were broken."""
        return tuple(f for f in self.findings if f.broken is not None)

    def require(self) -> None:
        """Raise an error that lists every broken rule."""
        if self.broken:
            rows = "; ".join(f"{f.rule}: {f.broken}" for f in self.broken)
            raise ConformanceError(f"{self.method} breaks {len(self.broken)} of {len(self.findings)} rules: {rows}")


def check_method(method: str | Method, *, forgetting_seeds: Sequence[int] = (0, 1, 2)) -> Report:
    """Run every rule over a method with its settings.

    Most rules run on a small float64 problem in seconds. Whether the method forgets is checked on digits, for each of
    `forgetting_seeds` (two trainings and one unlearning each; an empty list leaves it out, as for a reference that is
    not meant to forget). A method that declares `reads_forget = False` is also checked never to read the forget set.

    >>> from warp_unlearning.methods import Finetune
    >>> check_method(Finetune(epochs=1), forgetting_seeds=()).broken
    ()
    """
    chosen = as_method(method)
    problem = noise_problem()
    findings = [Finding(name, _outcome(rule, chosen, problem)) for name, rule in RULES.items()]
    if not getattr(chosen, "reads_forget", True):
        findings.append(Finding("forget set unread", _outcome(rules.forget_unread, chosen, problem)))
    findings += [
        Finding(f"forgets (seed {seed})", forgets(chosen, digits_problem(seed), seed=seed)) for seed in forgetting_seeds
    ]
    return Report(chosen.name, tuple(findings))


def _outcome(rule: Rule, method: Method, problem: Problem) -> str | None:
    try:
        return rule(method, problem)
    except Exception as error:  # a plug-in may fail in any way; the report names it and goes on
        return f"{type(error).__name__}: {error}"
