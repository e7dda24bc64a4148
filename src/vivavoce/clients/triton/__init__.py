"""Re-exports the modules of `vivavoce_triton.client` for scripts that import `vivavoce.clients.triton`."""
