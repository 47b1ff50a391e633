"""The data plane: it runs plans. Integers come in, tensors stay here, token ids go out."""
