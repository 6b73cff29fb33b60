"""A3C's way to share an optimiser, as in pytorch-a3c: the model and the optimiser's state are in shared memory, every worker computes gradients on
its own copy and steps the shared one. A lock makes the result exact."""
import json
import sys

import torch
import torch.nn as nn
import torch.multiprocessing as mp

WORKERS, STEPS = 2, 25


class SharedAdam(torch.optim.Adam):
    def __init__(self, params, lr):
        super().__init__(params, lr=lr)
        for group in self.param_groups:
            for p in group['params']:
                state = self.state[p]
                state['step'] = torch.zeros(())
                state['exp_avg'] = torch.zeros_like(p.data)
                state['exp_avg_sq'] = torch.zeros_like(p.data)

    def share_memory(self):
        for group in self.param_groups:
            for p in group['params']:
                for value in self.state[p].values():
                    value.share_memory_()


def ensure_shared_grads(model, shared_model):
    for param, shared_param in zip(model.parameters(), shared_model.parameters()):
        if shared_param.grad is not None:
            return
        shared_param._grad = param.grad


def train(rank, shared_model, counter, lock, optimizer):
    torch.set_num_threads(1)
    model = nn.Linear(3, 1)
    for step in range(STEPS):
        model.load_state_dict(shared_model.state_dict())
        model.zero_grad(set_to_none=False)
        (model(torch.tensor([[1.0, 2.0, -1.0]])) * 0.5).sum().backward()
        with lock:
            ensure_shared_grads(model, shared_model)
            optimizer.step()
            counter.value += 1


def main():
    ctx = mp.get_context(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shared_model = nn.Linear(3, 1)
    shared_model.share_memory()
    optimizer = SharedAdam(shared_model.parameters(), lr=0.01)
    optimizer.share_memory()
    before = [p.detach().clone() for p in shared_model.parameters()]
    counter, lock = ctx.Value('i', 0), ctx.Lock()
    processes = [ctx.Process(target=train, args=(rank, shared_model, counter, lock, optimizer)) for rank in range(WORKERS)]
    for p in processes:
        p.start()
    for p in processes:
        p.join()
    moved = [(p.detach() - b).flatten().tolist() for p, b in zip(shared_model.parameters(), before)]
    print(json.dumps({
        'steps': counter.value,
        'the optimiser has counted': [optimizer.state[p]['step'].item() for p in shared_model.parameters()],
        'the model has moved': [[round(x, 3) for x in m] for m in moved],
        'exit codes': [p.exitcode for p in processes],
    }))


if __name__ == '__main__':
    main()
