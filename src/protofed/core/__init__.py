"""The vocabulary: trees of tensors, models, messages, sites and the method contract."""
