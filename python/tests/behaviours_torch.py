"""torch tensors whose sender ends at once (B15), and DataLoader with our contexts (B76). torch_share_test.py has B73 and the rest."""
import os
import signal
import sys
import unittest

try:
    import torch
except ImportError:
    sys.exit(77)
from torch.utils.data import DataLoader, Dataset, TensorDataset

import support
from support import LONG, Case, each_method, run_all

ROUNDS = 30


def put_and_end(messages, way):
    """30 tensors from one process: importing torch takes more than a second."""
    for i in range(ROUNDS):
        messages.put({"number": i, "tensor": torch.full((100, 100), float(i))})
    if way == "_exit":
        os._exit(0)
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


class Squares(Dataset):
    """Kills its process when it reaches one number."""

    def __init__(self, count, deadly=None):
        self.count, self.deadly = count, deadly

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if i == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"number": i, "square": torch.full((3,), float(i * i))}


class Torch(Case):
    @each_method
    def test_b15_the_sender_ends_at_once(self, ctx):
        ways = {"return": 0, "_exit": 0, "kill": -signal.SIGKILL}
        queues = {way: ctx.Queue() for way in ways}
        self.assertEqual(run_all(ctx, [(put_and_end, queues[way], way) for way in ways]), list(ways.values()))
        for messages in queues.values():
            for i in range(ROUNDS):
                message = messages.get(timeout=LONG)
                self.assertEqual(message["number"], i)
                self.assertTrue(torch.equal(message["tensor"], torch.full((100, 100), float(i))))
            self.assertTrue(messages.empty())

    @each_method
    def test_b76_batches_and_epochs(self, ctx):
        images, labels = torch.arange(400.).reshape(100, 4), torch.arange(100)
        loader = DataLoader(TensorDataset(images, labels), batch_size=8, num_workers=2, multiprocessing_context=ctx,
                            persistent_workers=True)
        for _ in range(3):
            batches = list(loader)
            self.assertTrue(torch.equal(torch.cat([x for x, _ in batches]), images))
            self.assertTrue(torch.equal(torch.cat([y for _, y in batches]), labels))
        del loader, batches

    def test_b76_many_loaders(self):
        """Each has workers of its own, which end with it; also when an epoch is left early."""
        for i in range(ROUNDS):
            loader = DataLoader(Squares(20), batch_size=3, num_workers=2, multiprocessing_context=support.mp.get_context("fork"))
            seen = []
            for batch in loader:
                seen += batch["number"].tolist()
                self.assertTrue(torch.equal(batch["square"][:, 0], (batch["number"] ** 2).float()))
                if i % 2 and len(seen) > 6:
                    break
            self.assertEqual(seen, list(range(len(seen))))

    @each_method
    def test_b76_a_worker_is_killed(self, ctx):
        for _ in range(5 if ctx.get_start_method() == "fork" else 1):
            loader = DataLoader(Squares(20, deadly=9), batch_size=2, num_workers=2, multiprocessing_context=ctx)
            with self.assertRaisesRegex(RuntimeError, "DataLoader worker"):
                list(loader)


if __name__ == "__main__":
    support.mp.set_forkserver_preload(["torch"])
    unittest.main()
