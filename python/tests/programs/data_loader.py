"""Training with a DataLoader whose workers are processes. With the argument `GPU` the program uses CUDA before the workers start, as most
training programs do."""
import json
import sys

import torch
import torch.nn as nn
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, i):
        x = torch.linspace(-1, 1, 8) * (1 + i / 50)
        return {'x': x, 'y': (x * x).sum(), 'number': i, 'name': f'sample {i}'}


def main():
    card = 'card' in sys.argv[2:]
    if card and not torch.cuda.is_available():
        print('skipped: this torch sees no GPU')
        sys.exit(77)
    device = torch.device('cuda' if card else 'cpu')
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    ctx = mp.get_context(sys.argv[1])
    train = DataLoader(Squares(), batch_size=8, shuffle=True, num_workers=2, multiprocessing_context=ctx, persistent_workers=True,
                       pin_memory=card, generator=torch.Generator().manual_seed(1))
    test = DataLoader(Squares(), batch_size=16, num_workers=2, multiprocessing_context=ctx)
    losses, numbers = [], []
    for epoch in range(3):
        for batch in train:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch['x'].to(device)).squeeze(1), batch['y'].to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            numbers += batch['number'].tolist()
    names = [name for batch in test for name in batch['name']]
    print(json.dumps({
        'losses': None if card else [round(x, 3) for x in losses],
        'it learns': losses[-1] < losses[0],
        'every sample once an epoch': [sorted(numbers[e * 50:e * 50 + 50]) == list(range(50)) for e in range(3)],
        'in order': names == [f'sample {i}' for i in range(50)],
    }))


if __name__ == '__main__':
    main()
