"""Speech from a Triton server elsewhere behind the protocols of this one."""
