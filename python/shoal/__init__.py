"""Processes that share memory, queues and tensors."""
