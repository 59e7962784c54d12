"""The core types: trees of tensors, models, messages, sites, and the contract of a method."""
