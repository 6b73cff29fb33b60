"""DistributedDataParallel over gloo on the CPU, started by spawn(): each process trains on its share, and rank 0 puts the result into a queue."""
import json
import socket
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

WORLD = 2


def run(rank, port, results):
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'tcp://127.0.0.1:{port}', rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step * WORLD + rank))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    total = sum(p.detach().sum() for p in model.parameters())
    sums = [torch.zeros(()) for _ in range(WORLD)]
    dist.all_gather(sums, total)
    if rank == 0:
        results.put({'weights': [round(x, 4) for x in model.module.weight.flatten().tolist()], 'equal': bool(sums[0] == sums[1])})
    dist.barrier()
    dist.destroy_process_group()


def main():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    results = mp.get_context(sys.argv[1]).SimpleQueue()
    mp.start_processes(run, args=(port, results), nprocs=WORLD, join=True, start_method=sys.argv[1])
    print(json.dumps(results.get()))


if __name__ == '__main__':
    main()
