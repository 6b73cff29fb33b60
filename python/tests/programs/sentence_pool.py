"""The pool of a sentence encoder: workers get chunks of texts from one queue and put embeddings, numpy or torch, into another. They are ended by
terminate()."""
import json
import queue
import sys
import zlib

import numpy as np
import torch
import torch.nn as nn
import torch.multiprocessing as mp


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(101, 12, mode='mean')
        self.dense = nn.Linear(12, 8)

    def forward(self, texts):
        numbers = [[zlib.crc32(word.encode()) % 101 for word in text.split()] for text in texts]
        offsets = torch.tensor(np.cumsum([0] + [len(n) for n in numbers[:-1]]))
        return nn.functional.normalize(self.dense(self.words(torch.tensor(sum(numbers, [])), offsets)), dim=1)

    def encode(self, texts, batch_size=4, convert_to_numpy=True):
        self.eval()
        with torch.no_grad():
            parts = [self(texts[i:i + batch_size]) for i in range(0, len(texts), batch_size)]
        together = torch.cat(parts)
        return together.numpy() if convert_to_numpy else together

    def start_multi_process_pool(self, ctx, target_devices):
        self.share_memory()
        input_queue, output_queue, processes = ctx.Queue(), ctx.Queue(), []
        for device in target_devices:
            p = ctx.Process(target=Encoder._encode_multi_process_worker, args=(device, self, input_queue, output_queue), daemon=True)
            p.start()
            processes.append(p)
        return {'input': input_queue, 'output': output_queue, 'processes': processes}

    @staticmethod
    def stop_multi_process_pool(pool):
        for p in pool['processes']:
            p.terminate()
        for p in pool['processes']:
            p.join()
        codes = [p.exitcode for p in pool['processes']]
        for p in pool['processes']:
            p.close()
        pool['input'].close()
        pool['output'].close()
        return codes

    def encode_multi_process(self, texts, pool, chunk_size, convert_to_numpy):
        chunks = [texts[i:i + chunk_size] for i in range(0, len(texts), chunk_size)]
        for chunk_id, chunk in enumerate(chunks):
            pool['input'].put([chunk_id, chunk, convert_to_numpy])
        results = sorted([pool['output'].get() for _ in chunks], key=lambda x: x[0])
        return [embeddings for _, embeddings in results]

    @staticmethod
    def _encode_multi_process_worker(device, model, input_queue, results_queue):
        torch.set_num_threads(1)
        while True:
            try:
                chunk_id, texts, convert_to_numpy = input_queue.get()
                results_queue.put([chunk_id, model.encode(texts, convert_to_numpy=convert_to_numpy)])
            except queue.Empty:
                break


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Encoder()
    texts = [' '.join(f'word{(i * 7 + k * k) % 53}' for k in range(1 + i % 9)) for i in range(103)]
    alone = model.encode(texts)
    pool = model.start_multi_process_pool(mp.get_context(sys.argv[1]), ['cpu', 'cpu'])
    arrays = model.encode_multi_process(texts, pool, 10, True)
    tensors = model.encode_multi_process(texts, pool, 25, False)
    codes = model.stop_multi_process_pool(pool)
    print(json.dumps({
        'numpy': [type(arrays[0]).__name__, len(arrays), bool(np.allclose(np.concatenate(arrays), alone, atol=1e-6))],
        'torch': [type(tensors[0]).__name__, len(tensors), bool(np.allclose(torch.cat(tensors).numpy(), alone, atol=1e-6))],
        'writable': bool(arrays[0].flags.writeable),
        'exit codes': codes,
    }))


if __name__ == '__main__':
    main()
