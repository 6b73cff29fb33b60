"""Hogwild as in PyTorch's notes on multiprocessing: workers train one shared model without a lock. A worker and the parent send
checkpoints (state dicts) through queues while they train, and another process evaluates the model that it shares."""
import json
import sys

import torch
import torch.nn as nn
import torch.multiprocessing as mp

WORKERS, STEPS = 2, 60
TRUE = torch.tensor([[1.0, -2.0, 3.0, 0.5]])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


def batch(seed):
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(seed))
    return x, x @ TRUE.t()


def loss_of(model, seed=12345):
    x, y = batch(seed)
    return nn.functional.mse_loss(model(x), y)


def total(tensors):
    return sum(t.detach().double().sum().item() for t in tensors)


def steps(model, rank, first, last):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(first, last):
        optimizer.zero_grad()
        loss_of(model, rank * 1000 + step).backward()
        optimizer.step()


def train(rank, model, halfway, go_on, checkpoints, ended, seen):
    torch.set_num_threads(1)
    steps(model, rank, 0, STEPS // 2)
    if rank == 0:
        checkpoints.put((rank, model.state_dict()))
    halfway.release()
    go_on.wait()
    steps(model, rank, STEPS // 2, STEPS)
    halfway.release()
    ended.wait()
    seen.put((rank, total(model.parameters())))
    ended.wait()


def evaluate(model, checkpoints, answers, ended, seen):
    torch.set_num_threads(1)
    kept = []
    for _ in range(2):
        rank, checkpoint = checkpoints.get()
        kept.append(checkpoint)
        copy = Net()
        copy.load_state_dict(checkpoint)
        with torch.no_grad():
            answers.put((rank, loss_of(copy).item()))
    ended.wait()
    seen.put(('evaluator', total(model.parameters())))
    for i, checkpoint in enumerate(kept):
        seen.put((f'checkpoint {i}', total(checkpoint.values())))
    ended.wait()


def main():
    ctx = mp.get_context(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    model.share_memory()
    first = loss_of(model).item()
    halfway, go_on, ended = ctx.Semaphore(0), ctx.Event(), ctx.Barrier(WORKERS + 2)
    checkpoints, answers, seen = ctx.Queue(), ctx.Queue(), ctx.Queue()
    processes = [ctx.Process(target=train, args=(rank, model, halfway, go_on, checkpoints, ended, seen)) for rank in range(WORKERS)]
    processes.append(ctx.Process(target=evaluate, args=(model, checkpoints, answers, ended, seen)))
    for p in processes:
        p.start()
    for _ in range(WORKERS):
        halfway.acquire()
    checkpoints.put(('parent', model.state_dict()))
    middle = dict(answers.get() for _ in range(2))
    go_on.set()
    for _ in range(WORKERS):
        halfway.acquire()
    last, mine = loss_of(model).item(), total(model.parameters())
    ended.wait()
    views = dict(seen.get() for _ in range(WORKERS + 3))
    ended.wait()
    for p in processes:
        p.join()
    print(json.dumps({
        'the parent sees the training': last < 0.8 * first,
        'checkpoints are trained': {str(who): loss < first for who, loss in sorted(middle.items(), key=str)},
        'all see the model of the parent': {str(who): abs(sum_ - mine) < 1e-9 for who, sum_ in sorted(views.items(), key=str)},
        'exit codes': [p.exitcode for p in processes],
    }))


if __name__ == '__main__':
    main()
