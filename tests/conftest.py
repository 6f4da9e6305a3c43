"""Settings for every test process."""

import torch

# Test processes run side by side, one a core; more threads would fight over the cores.
torch.set_num_threads(1)
