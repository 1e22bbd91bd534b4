"""The network: a listener, its connections, the queue of their requests, and the threads that handle them."""
