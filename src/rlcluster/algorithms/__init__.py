"""The mathematics: pure functions of tensors. No logging, no clocks, no files, no processes."""
