"""Vectorised environments over pipes, as in baselines and Stable-Baselines3: one process per environment, step_async and step_wait, observations
as numpy arrays. One worker is killed in the middle: its pipe ends, the others go on. It is the first: with fork, those that start before it would keep
its end of the pipe open."""
import json
import os
import pickle
import signal
import sys

import numpy as np
import torch.multiprocessing as mp


class CloudpickleWrapper:
    def __init__(self, var):
        self.var = var

    def __getstate__(self):
        return pickle.dumps(self.var)

    def __setstate__(self, var):
        self.var = pickle.loads(var)


class Env:
    """A walk whose steps are the actions."""
    def __init__(self, seed):
        self.random, self.at = np.random.default_rng(seed), None

    def reset(self):
        self.at = self.random.standard_normal(6).astype(np.float32)
        return self.at.copy()

    def step(self, action):
        self.at = self.at + np.float32(action)
        done = bool(abs(self.at).max() > 10)
        return self.at.copy(), float(self.at.sum()), done, {'seen': self.at[:2].copy()}

    def close(self):
        pass


class make:
    def __init__(self, seed):
        self.seed = seed

    def __call__(self):
        return Env(self.seed)


def worker(remote, parent_remote, env_fn_wrapper):
    parent_remote.close()
    env = env_fn_wrapper.var()
    while True:
        try:
            cmd, data = remote.recv()
            if cmd == 'step':
                observation, reward, done, info = env.step(data)
                if done:
                    info['terminal_observation'] = observation
                    observation = env.reset()
                remote.send((observation, reward, done, info))
            elif cmd == 'reset':
                remote.send(env.reset())
            elif cmd == 'pid':
                remote.send(os.getpid())
            elif cmd == 'close':
                env.close()
                remote.close()
                break
        except EOFError:
            break


class SubprocVecEnv:
    def __init__(self, env_fns, start_method):
        self.waiting = self.closed = False
        ctx = mp.get_context(start_method)
        self.remotes, self.work_remotes = zip(*[ctx.Pipe() for _ in env_fns])
        self.processes = []
        for work_remote, remote, env_fn in zip(self.work_remotes, self.remotes, env_fns):
            process = ctx.Process(target=worker, args=(work_remote, remote, CloudpickleWrapper(env_fn)), daemon=True)
            process.start()
            self.processes.append(process)
            work_remote.close()

    def step_async(self, actions):
        for remote, action in zip(self.remotes, actions):
            remote.send(('step', action))
        self.waiting = True

    def step_wait(self):
        results = [remote.recv() for remote in self.remotes]
        self.waiting = False
        obs, rews, dones, infos = zip(*results)
        return np.stack(obs), np.stack(rews), np.stack(dones), infos

    def reset(self):
        for remote in self.remotes:
            remote.send(('reset', None))
        return np.stack([remote.recv() for remote in self.remotes])

    def close(self):
        if self.waiting:
            for remote in self.remotes:
                remote.recv()
        for remote in self.remotes:
            remote.send(('close', None))
        for process in self.processes:
            process.join()


def failure(call):
    """The kind of failure: the standard module gives one of these for a peer that is gone."""
    try:
        call()
    except (EOFError, ConnectionResetError, BrokenPipeError):
        return 'the peer is gone'
    return 'no failure'


def main():
    envs = SubprocVecEnv([make(seed) for seed in range(3)], sys.argv[1])
    sums = [envs.reset().sum()]
    dones = 0
    for step in range(200):
        envs.step_async([(step % 5 - 2) / 2 + k * 0.1 for k in range(3)])
        obs, rewards, done, infos = envs.step_wait()
        dones += int(done.sum())
        sums.append(float(obs.sum() + rewards.sum() + sum(info['seen'].sum() for info in infos)))
    shape, kind = list(obs.shape), str(obs.dtype)

    killed = envs.remotes[0]
    killed.send(('pid', None))
    pid = killed.recv()
    os.kill(pid, signal.SIGKILL)
    envs.processes[0].join()
    received = failure(killed.recv)
    sent = failure(lambda: [killed.send(('step', np.zeros(100000))) for _ in range(3)])
    polled = failure(lambda: killed.poll(0) and killed.recv())
    envs.remotes = envs.remotes[1:]
    envs.step_async([0.5, 0.5])
    others = list(envs.step_wait()[0].shape)
    envs.close()
    print(json.dumps({
        'sum of what was seen': round(float(np.sum(sums)), 2), 'episodes that ended': dones, 'observations': [shape, kind],
        'a killed worker': {'recv': received, 'send': sent, 'poll and recv': polled, 'pid': pid == envs.processes[0].pid},
        'the others': others, 'exit codes': [p.exitcode for p in envs.processes],
    }))


if __name__ == '__main__':
    main()
