"""Speech from a server elsewhere behind the doors of this one."""
