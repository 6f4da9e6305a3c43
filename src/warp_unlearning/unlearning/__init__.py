"""`unlearn()`, what it leaves, and whether that holds."""

from .checks import Checked as Checked
from .checks import check_model as check_model
from .driver import Unlearned as Unlearned
from .driver import unlearn as unlearn
from .judge import ModelComparison as ModelComparison
from .judge import compare as compare
from .judge import judge_models as judge_models
from .record import Deletion as Deletion
from .record import DeletionRecord as DeletionRecord
