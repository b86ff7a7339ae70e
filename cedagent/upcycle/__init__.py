"""Makes models: converts a Llama checkpoint into a CED, trains it, judges it, fetches the default.

Import the modules themselves; this file imports nothing, so that `cedagent --help` loads no torch.
"""
