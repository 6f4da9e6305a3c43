"""How to forget: one method, one file. `make_method` builds one by name."""

from .bad_teacher import BadTeacher as BadTeacher
from .finetune import Finetune as Finetune
from .langevin import Langevin as Langevin
from .langevin import NoiseWarning as NoiseWarning
from .neg_grad_plus import NegGradPlus as NegGradPlus
from .pgu import ProjectedGradient as ProjectedGradient
from .protocol import Method as Method
from .protocol import Task as Task
from .registry import make_method as make_method
from .registry import method_classes as method_classes
from .retrain import Retrain as Retrain
from .salun import SalUn as SalUn
from .scrub import Scrub as Scrub
from .srf_on import SrfOn as SrfOn
