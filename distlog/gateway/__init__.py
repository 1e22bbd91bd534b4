"""The Kafka protocol for the topics of one root, which Kafka clients read and write.

A request goes its way in Kafka: SocketServer, Connection, RequestChannel, KafkaRequestHandlerPool, KafkaApis, and the
log. Record batches pass as bytes: they are checked and appended as they came, and served as they are stored.
"""
