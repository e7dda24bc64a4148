"""The server's gRPC service: `server.start_grpc` opens its port; `vivavoce.clients.grpc` is the client."""
