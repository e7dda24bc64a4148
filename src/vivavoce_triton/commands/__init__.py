"""The commands `vivavoce triton` and `vivavoce client`."""
