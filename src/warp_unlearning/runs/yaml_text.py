"""YAML in which 1e-3 is a number and a key stands once. YAML 1.1, which PyYAML reads and writes, takes 1e-3 for a word;
PyYAML takes the last of several equal keys, and drops the others without a word.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_FLOAT = "tag:yaml.org,2002:float"
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+\Z")


class RepeatedKey(yaml.YAMLError):
    """A key that stands in one mapping twice."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The mapping as written, before what it merges from others is put into it."""
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise RepeatedKey(f"the key {key.value!r} twice, on lines {lines[name]} and {line}; keep one of them")
            lines[name] = line
        return node


class _Dumper(yaml.SafeDumper):
    pass


_Loader.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))
_Dumper.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))


def load_yaml(text: str) -> Any:
    """Plain data out of `text`; raises `yaml.YAMLError`, also where a value is not what it seems (a 13th month), and
    `RepeatedKey` where a key stands twice.

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
