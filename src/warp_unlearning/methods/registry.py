"""The methods by name: those of this package, and those that installed plug-ins register.

A plug-in declares an entry point in the group `warp_unlearning.methods`, whose name is the method's name and whose
value is its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, cast

from ..errors import InputError, nearest
from ..models.own import load_function
from .bad_teacher import BadTeacher
from .finetune import Finetune
from .langevin import Langevin
from .neg_grad_plus import NegGradPlus
from .pgu import ProjectedGradient
from .protocol import Method, options
from .retrain import Retrain
from .salun import SalUn
from .scrub import Scrub
from .srf_on import SrfOn

BUILT_IN: Mapping[str, type[Method]] = {
    cls.name: cast(type[Method], cls)
    for cls in (
        NegGradPlus,
        Scrub,
        SalUn,
        ProjectedGradient,
        BadTeacher,
        SrfOn,
        Retrain,
        Finetune,
        Langevin,
    )
}


def method_classes() -> dict[str, type[Method]]:
    """Every method by name. A plug-in may not take the name of another method."""
    found = dict(BUILT_IN)
    for point in entry_points(group="warp_unlearning.methods"):
        if point.name in found:
            raise InputError(
                f"the plug-in {point.value!r} registers the method {point.name!r}, which exists; rename it"
            )
        found[point.name] = point.load()
    return found


def make_method(name: str, /, **settings: Any) -> Method:
    """The method `name` with its settings; unknown names and settings are errors that name the nearest.

    >>> make_method("ngp", alpha=0.9).alpha
    0.9
    """
    known = method_classes()
    if name not in known:
        raise InputError(f"unknown method {name!r}; {nearest(name, known)}")
    names = [o.name for o in options(known[name])]
    for key in settings:
        if key not in names:
            raise InputError(f"{name} has no option {key!r}; {nearest(key, names)}")
    return known[name](**settings)


def as_method(method: str | Method, options: Mapping[str, Any] | None = None) -> Method:
    """A method from its name or FILE.py:Class with `options`, or an object that has its settings already."""
    if options is not None and not (isinstance(options, Mapping) and all(isinstance(key, str) for key in options)):
        raise InputError(f"the options are {options!r}; give a mapping of names to values, such as {{'epochs': 3}}")
    if isinstance(method, str):
        return _from_file(method, options or {}) if ".py:" in method else make_method(method, **(options or {}))
    if isinstance(method, Method) and not isinstance(method, type):
        if options:
            raise InputError(
                f"options are given beside a {type(method).__name__} object ({', '.join(options)}); "
                "set them where it is made, or give the method by name"
            )
        return method
    raise InputError(
        f"the method is a {type(method).__name__}; give a name ({', '.join(BUILT_IN)}), FILE.py:Class, or an object "
        "with `name`, `norm_mode` and `updates`"
    )


def _from_file(spec: str, settings: Mapping[str, Any]) -> Method:
    make = load_function(spec, what="method")
    try:
        method = make(**settings)
    except TypeError as error:
        raise InputError(f"{spec} cannot be made with {dict(settings)}: {error}; mend its options") from error
    if not isinstance(method, Method) or isinstance(method, type):
        raise InputError(f"{spec} gives a {type(method).__name__} without `name`, `norm_mode` and `updates`; add them")
    return method
