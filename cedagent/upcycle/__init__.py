"""Makes models: reads a Llama checkpoint, converts it into a CED, fetches the default one.

Import the modules themselves; this file imports nothing, so that `cedagent --help` loads no torch.
"""
