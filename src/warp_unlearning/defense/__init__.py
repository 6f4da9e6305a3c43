"""Defences: when to move the weights during an unlearning."""

from .protocol import Defense as Defense
from .protocol import Session as Session
