"""The conformance kit: the rules every unlearning method keeps, for anyone's method."""

from .kit import Finding as Finding
from .kit import Report as Report
from .kit import check_method as check_method
