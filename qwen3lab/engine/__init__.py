"""The loop, the scheduler and the pool (ints), and where plans meet the device (batch, runner, sampler)."""
