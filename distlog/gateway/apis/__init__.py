"""The APIs that the gateway has. To add an API, write its handler and add it to the `APIS` of its module."""

from distlog.gateway.apis import configs, fetch, groups, produce, security, topics, transactions
from distlog.gateway.kafka_apis import Api

APIS: dict[int, Api] = {
    api.key: api
    for module in (produce, fetch, topics, configs, groups, transactions, security)
    for api in module.APIS
}
