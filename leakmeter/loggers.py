"""Loggers for `Audited(..., callbacks=[...])`: TensorBoard, Weights & Biases, MLflow.

Each needs its tool: `pip install "leakmeter[tensorboard]"`, `[wandb]` or `[mlflow]`.
To write another, subclass `leakmeter.Callback`.
"""

from __future__ import annotations

from leakmeter.fl_app.loggers import MLflow, TensorBoard, WandB

__all__ = ["MLflow", "TensorBoard", "WandB"]
