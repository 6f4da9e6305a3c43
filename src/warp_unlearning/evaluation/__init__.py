"""What a model forgot and what it kept."""

from .compare import Comparison as Comparison
from .compare import compare as compare
