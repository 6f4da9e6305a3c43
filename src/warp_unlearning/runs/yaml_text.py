"""YAML in which 1e-3 is a number. YAML 1.1, which PyYAML reads and writes, takes it for a word."""

from __future__ import annotations

import re
from typing import Any

import yaml

_FLOAT = "tag:yaml.org,2002:float"
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+\Z")


class _Loader(yaml.SafeLoader):
    pass


class _Dumper(yaml.SafeDumper):
    pass


_Loader.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))
_Dumper.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))


def load_yaml(text: str) -> Any:
    """Plain data out of `text`; raises `yaml.YAMLError`, also where a value is not what it seems (a 13th month).

    >>> load_yaml("{lr: 1e-3, name: '1e-3'}")
    {'lr': 0.001, 'name': '1e-3'}
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (ValueError, RecursionError) as error:
        raise yaml.YAMLError(str(error)) from error


def dump_yaml(data: Any) -> str:
    """`data` as text that `load_yaml` reads back the same.

    >>> dump_yaml({"lr": 1e-05, "name": "1e-3"})
    "lr: 1.0e-05\\nname: '1e-3'\\n"
    """
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
