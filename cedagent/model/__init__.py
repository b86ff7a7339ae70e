"""What the network computes: configs, checkpoints, layers. Knows no sequence, store or chat.

Import the modules directly; the package itself loads no torch.
"""
