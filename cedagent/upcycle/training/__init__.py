"""Trains a converted model: heal it towards its parent, teach it tools, apply what was trained."""
