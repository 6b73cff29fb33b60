"""torch's own: importing it gives torch.multiprocessing.reductions. What is registered there is known to our queues, too.
Without torch this module is empty."""
import sys

__all__ = ()

try:
    import torch.multiprocessing.reductions

    sys.modules[__name__] = torch.multiprocessing.reductions
except ModuleNotFoundError:
    pass
