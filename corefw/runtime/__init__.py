"""Beside the device: worker, model runner, sampler."""
