"""What every request and WebSocket passes, in order.

1. ``connections``: the number of connections, of one address and in all, and their TLS.
2. ``instruments``: counts and durations of responses; probes need no authentication.
3. ``origins``: headers of the proxy, then headers of all responses, CORS, and the check of Origin and Host.
4. ``limits``: the rate of an address, then, once the client is authenticated (``access``), that of its subject;
   WebSockets, event streams and the quotas of tenants.
5. ``audit``: refusals so far, and the attempt of a command.
6. ``admission``: headers, rights, condition and order of a command, on its way to the exchange with Kafka.
"""
