"""The Kafka protocol for the topics of one root, which Kafka clients read and write.

A request passes the same components as in Kafka: SocketServer, Connection, RequestChannel, KafkaRequestHandlerPool,
KafkaApis, and the log. The gateway appends the bytes of received record batches, and serves the stored bytes.
"""
