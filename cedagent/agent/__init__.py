"""The agent: tools, sessions, the loop. Knows chat formats and an engine's narrow door, no tensors.

Import the modules directly; the package itself loads nothing.
"""
