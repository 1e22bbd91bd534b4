"""Kafka's own protocol in front of the topics of one root: Kafka's clients read and write them.

A request goes its way in Kafka: acceptor, connection, RequestChannel, KafkaRequestHandlerPool, KafkaApis, and the
log. Record batches pass as bytes: they are checked and appended as they came, and served as they are stored.
"""
