"""How to forget: one method, one file. `make_method` builds one by name."""

from .bad_teacher import BadTeacher as BadTeacher
from .base import Method as Method
from .base import Task as Task
from .langevin import Langevin as Langevin
from .langevin import NoiseWarning as NoiseWarning
from .neg_grad_plus import NegGradPlus as NegGradPlus
from .pgu import ProjectedGradient as ProjectedGradient
from .references import Finetune as Finetune
from .references import Retrain as Retrain
from .registry import make_method as make_method
from .registry import method_classes as method_classes
from .salun import SalUn as SalUn
from .scrub import Scrub as Scrub
from .srf_on import SrfOn as SrfOn
