"""Options with secrets that Spark would show are refused; `test_spark_connect.py` checks all other places."""

from __future__ import annotations

import pytest

from distlog.core.errors import InvalidConfigError
from distlog.spark.options import check_hidden

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("account_key", "x"),
        ("connection_string", "AccountName=a;AccountKey=x"),
        ("sas", "x"),
        ("passwd", "x"),
        ("passphrase", "x"),
        ("credential", "x"),
        ("client_kwargs", '{"verify": false, "passwd": "x"}'),
        ("client_kwargs", '{"inner": {"account_key": "x"}}'),
        ("client_kwargs", '{"headers": {"X-Api-Key": "x"}}'),
        ("client_kwargs", '{"connection-string": "x"}'),
        ("endpoint_url", "https://user:hush@host/"),
    ],
)
def test_an_option_with_a_secret_that_spark_would_show_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"storage.{name} holds a secret.*register") as refused:
        check_hidden({f"storage.{name}": value})
    assert value not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("storage.endpoint_url", "https://private.host:9000/"),
        ("storage.secret", "hidden by Spark"),
        ("storage.token", "hidden by Spark"),
        ("storage.client_kwargs", '{"region_name": "us-east-1", "verify": false}'),
        ("storage.client_kwargs", '{"aws_secret_access_key": "hidden by Spark"}'),
        ("path", "/data/passwd"),
        ("storage.use_ssl", "true"),
    ],
)
def test_other_options_pass(name: str, value: str) -> None:
    check_hidden({name: value})
