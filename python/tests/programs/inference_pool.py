"""Inference by a pool: an initializer gives each worker the model, batches go in, tensors, arrays and numbers come back. By Pool, and by
concurrent.futures with the same context."""
import json
import sys
from concurrent.futures import ProcessPoolExecutor

import torch
import torch.nn as nn
import torch.multiprocessing as mp

model = None


def load(shared, bias):
    global model
    torch.set_num_threads(1)
    model = nn.Sequential(shared, nn.ReLU())
    model.bias = bias


def infer(batch):
    with torch.no_grad():
        return model(batch) + model.bias


def score(number):
    if number == 13:
        raise ValueError('unlucky', number)
    return number, infer(torch.full((1, 4), float(number))).numpy().sum().item()


def main():
    ctx = mp.get_context(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shared = nn.Linear(4, 3)
    shared.share_memory()
    batches = [torch.full((2, 4), i / 7) for i in range(12)]
    with torch.no_grad():
        wanted = torch.cat([torch.relu(shared(b)) + 0.5 for b in batches])
    out = {}
    with ctx.Pool(2, initializer=load, initargs=(shared, 0.5), maxtasksperchild=None) as pool:
        out['map'] = torch.equal(torch.cat(pool.map(infer, batches, chunksize=3)), wanted)
        out['imap'] = torch.equal(torch.cat(list(pool.imap(infer, batches))), wanted)
        numbers = dict(pool.imap_unordered(score, range(10), chunksize=2))
        out['unordered'] = [round(numbers[i], 4) for i in range(10)]
        out['async'] = torch.equal(pool.apply_async(infer, (batches[3],)).get(), wanted[6:8])
        try:
            pool.map(score, [12, 13, 14])
        except ValueError as error:
            out['error'] = list(error.args)
    with ProcessPoolExecutor(2, mp_context=ctx, initializer=load, initargs=(shared, 0.5)) as executor:
        out['executor'] = torch.equal(torch.cat(list(executor.map(infer, batches))), wanted)
        out['future'] = [round(x, 4) if isinstance(x, float) else x for x in executor.submit(score, 3).result()]
        out['exception'] = repr(executor.submit(score, 13).exception())
    print(json.dumps(out))


if __name__ == '__main__':
    main()
