"""The names of `vivavoce_triton.client`, where scripts look for them."""
