"""`unlearn()` and the deletion record."""

from .driver import Unlearned as Unlearned
from .driver import unlearn as unlearn
from .record import Deletion as Deletion
from .record import DeletionRecord as DeletionRecord
