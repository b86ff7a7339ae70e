"""The `ced_llama` family: a Llama checkpoint turned into a CED. Knows no other family.

Import the modules directly; the package itself loads no torch.
"""
