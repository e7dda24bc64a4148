"""How many listeners the entry process of a server carries: engines that compute nothing, clients elsewhere."""
