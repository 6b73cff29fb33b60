"""IMPALA as in monobeast: actors fill rollout buffers of torch tensors in shared memory, queues carry the buffers' numbers, and the learner
stacks full buffers to batches and updates the model that the actors read."""
import json
import sys

import torch
import torch.nn as nn
import torch.multiprocessing as mp

ACTORS, BUFFERS, BATCH, LENGTH, ROLLOUTS = 2, 6, 4, 5, 16  # rollouts of each actor


def create_buffers():
    specs = {
        'frame': dict(size=(LENGTH + 1, 3, 4), dtype=torch.uint8),
        'reward': dict(size=(LENGTH + 1,), dtype=torch.float32),
        'done': dict(size=(LENGTH + 1,), dtype=torch.bool),
        'action': dict(size=(LENGTH + 1,), dtype=torch.int64),
        'version': dict(size=(LENGTH + 1,), dtype=torch.float32),
    }
    return {key: [torch.empty(**spec).share_memory_() for _ in range(BUFFERS)] for key, spec in specs.items()}


def content(actor, rollout, t):
    return {'frame': torch.full((3, 4), (actor * 100 + rollout + t) % 256, dtype=torch.uint8), 'reward': actor + rollout / 64 + t,
            'done': (rollout + t) % 3 == 0, 'action': actor * 10000 + rollout * 100 + t}


def act(actor, free_queue, full_queue, model, buffers, initial_agent_state_buffers, reports):
    torch.set_num_threads(1)
    rollout = 0
    while True:
        index = free_queue.get()
        if index is None:
            break
        if rollout == ROLLOUTS:  # the other actor has more to do
            free_queue.put(index)
            continue
        for t in range(LENGTH + 1):
            for key, value in content(actor, rollout, t).items():
                buffers[key][index][t, ...] = value
            with torch.no_grad():
                buffers['version'][index][t] = model(torch.ones(1, 2)).item() / 2
        for tensor in initial_agent_state_buffers[index]:
            tensor.fill_(actor * 1000 + rollout)
        full_queue.put(index)
        rollout += 1
    reports.put((actor, rollout, model(torch.ones(1, 2)).item() / 2))


def get_batch(free_queue, full_queue, buffers, initial_agent_state_buffers):
    indices = [full_queue.get() for _ in range(BATCH)]
    batch = {key: torch.stack([buffers[key][m] for m in indices], dim=1) for key in buffers}
    state = tuple(torch.cat(ts, dim=1) for ts in zip(*[initial_agent_state_buffers[m] for m in indices]))
    for m in indices:
        free_queue.put(m)
    return batch, state


def check(batch, state, b):
    first = batch['action'][0, b].item()
    actor, rollout = first // 10000, first // 100 % 100
    for t in range(LENGTH + 1):
        for key, value in content(actor, rollout, t).items():
            if not torch.equal(batch[key][t, b], torch.as_tensor(value).to(batch[key].dtype)):
                return actor, rollout, False
    return actor, rollout, all((tensor[:, b] == actor * 1000 + rollout).all().item() for tensor in state)


def main():
    ctx = mp.get_context(sys.argv[1])
    torch.set_num_threads(1)
    actor_model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        actor_model.weight.zero_()
    actor_model.share_memory()
    learner_model = nn.Linear(2, 1, bias=False)
    buffers = create_buffers()
    initial_agent_state_buffers = []
    for _ in range(BUFFERS):
        state = tuple(torch.zeros(1, 1, 7) for _ in range(2))
        for t in state:
            t.share_memory_()
        initial_agent_state_buffers.append(state)
    free_queue, full_queue, reports = ctx.SimpleQueue(), ctx.SimpleQueue(), ctx.SimpleQueue()
    actors = [ctx.Process(target=act, args=(i, free_queue, full_queue, actor_model, buffers, initial_agent_state_buffers, reports))
              for i in range(ACTORS)]
    for actor in actors:
        actor.start()
    for m in range(BUFFERS):
        free_queue.put(m)
    seen, right, versions = [], [], True
    for update in range(1, ACTORS * ROLLOUTS // BATCH + 1):
        batch, state = get_batch(free_queue, full_queue, buffers, initial_agent_state_buffers)
        for b in range(BATCH):
            actor, rollout, good = check(batch, state, b)
            seen.append((actor, rollout))
            right.append(good)
        versions = versions and bool((batch['version'] < update).all())
        with torch.no_grad():
            learner_model.weight.fill_(update)
        actor_model.load_state_dict(learner_model.state_dict())
    for _ in actors:
        free_queue.put(None)
    ended = sorted(reports.get() for _ in actors)
    for actor in actors:
        actor.join()
    print(json.dumps({
        'every rollout arrives once': sorted(seen) == [(a, r) for a in range(ACTORS) for r in range(ROLLOUTS)],
        'and is what the actor wrote': all(right) and len(right),
        'actors never saw a version of the future': versions,
        'actors at the end': ended,
        'exit codes': [actor.exitcode for actor in actors],
    }))


if __name__ == '__main__':
    main()
