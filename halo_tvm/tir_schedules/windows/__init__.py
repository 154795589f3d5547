"""Rules for windows that slide over a channels-last tensor: convolution, depthwise convolution, pooling."""
