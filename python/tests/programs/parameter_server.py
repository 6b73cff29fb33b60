"""A parameter server: workers take the newest weights from a manager's dict, and send gradients through a queue; each waits for its answer."""
import json
import sys

import torch
import torch.multiprocessing as mp

WORKERS, STEPS = 2, 15


def work(rank, weights, gradients, answer):
    torch.set_num_threads(1)
    for step in range(STEPS):
        w = weights['w'].clone().requires_grad_(True)
        x = torch.tensor([1.0, float(rank + 1), 0.5])
        (w * x).sum().backward()
        gradients.put({'rank': rank, 'step': step, 'gradient': w.grad, 'version': weights['version']})
        assert answer.get() == ('done', step)
    gradients.put(None)


def main():
    ctx = mp.get_context(sys.argv[1])
    torch.set_num_threads(1)
    w, version, versions = torch.zeros(3), 0, []
    with ctx.Manager() as manager:
        weights = manager.dict(w=w.clone(), version=0)
        gradients, answers = ctx.Queue(), [ctx.SimpleQueue() for _ in range(WORKERS)]
        processes = [ctx.Process(target=work, args=(rank, weights, gradients, answers[rank])) for rank in range(WORKERS)]
        for p in processes:
            p.start()
        left, counts = WORKERS, [0] * WORKERS
        while left:
            message = gradients.get()
            if message is None:
                left -= 1
                continue
            w = w - 0.125 * message['gradient']
            version += 1
            versions.append(message['version'] < version)
            weights['w'] = w.clone()
            weights['version'] = version
            counts[message['rank']] += 1
            answers[message['rank']].put(('done', message['step']))
        for p in processes:
            p.join()
        final = weights['w'].tolist()
    print(json.dumps({'weights': final, 'gradients': counts, 'no version of the future': all(versions),
                      'exit codes': [p.exitcode for p in processes]}))


if __name__ == '__main__':
    main()
