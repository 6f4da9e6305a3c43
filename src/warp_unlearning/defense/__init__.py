"""Defences: when to move the weights during an unlearning."""

from .base import Defense as Defense
from .base import Session as Session
from .conjugate import Conjugate as Conjugate
from .teleporter import teleport as teleport
from .warp import Warp as Warp
