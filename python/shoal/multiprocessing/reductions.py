"""torch's own: importing it gives torch.multiprocessing.reductions. What is registered there is known to our queues, too."""
import sys

import torch.multiprocessing.reductions

sys.modules[__name__] = torch.multiprocessing.reductions
