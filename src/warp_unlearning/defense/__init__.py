"""Defences: when to move the weights during an unlearning."""

from .conjugate import Conjugate as Conjugate
from .protocol import Defense as Defense
from .protocol import Session as Session
from .teleport import teleport as teleport
from .warp import Warp as Warp
