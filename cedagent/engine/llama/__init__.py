"""Family `ced_llama` as the engine runs it. Import the modules directly."""
