"""Model, data and training: plain PyTorch."""

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Two convolutions, each with BatchNorm, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images).flatten(1))


@cache  # a process may serve many clients
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's handwritten digits."""
    return load_digits(return_X_y=True)


def load_data(
    partition_id: int, num_partitions: int, batch_size: int
) -> tuple[DataLoader, DataLoader]:
    """Return a client's images, four fifths of them for training."""
    images, labels = digits()
    mine = np.arange(partition_id, len(labels), num_partitions)
    x = torch.tensor(images[mine] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    y = torch.tensor(labels[mine])
    cut = len(mine) * 4 // 5
    train = TensorDataset(x[:cut], y[:cut])
    # A last batch of one image would stop BatchNorm.
    loader = DataLoader(train, batch_size, shuffle=True, drop_last=cut % batch_size == 1)
    return loader, DataLoader(TensorDataset(x[cut:], y[cut:]), batch_size)


def train(net: Net, loader: DataLoader, epochs: int, lr: float) -> float:
    """Train in place and return the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(net: Net, loader: DataLoader) -> tuple[float, float]:
    """Return loss and accuracy."""
    net.eval()
    loss, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for images, labels in loader:
            outputs = net(images)
            loss += nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
            correct += int((outputs.argmax(1) == labels).sum())
            count += len(labels)
    return loss / count, correct / count
