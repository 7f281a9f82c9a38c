"""kafka-python's fixtures start brokers; here they are given the node that runs, by the listener that they ask for."""

import os
import shutil
import tempfile

from kafka import KafkaAdminClient
from test.integration import fixtures
from test.integration.fixtures import KafkaFixture


def instance(cls, broker_id, transport="PLAINTEXT", sasl_mechanism=None, **_):
    port = int(os.environ[f"PORT_{transport}"])
    node = cls("localhost", port, broker_id, transport=transport, sasl_mechanism=sasl_mechanism, external=True)
    if node.ssl_enabled:
        node.ssl_dir = tempfile.mkdtemp()
        shutil.copy(os.environ["AUTHORITY"], os.path.join(node.ssl_dir, "ca-cert"))
    return node


def get_topic_names(self):
    admin = KafkaAdminClient(**fixtures.client_params(self, "names"))
    try:
        return admin.list_topics()
    finally:
        admin.close()


KafkaFixture.instance = classmethod(instance)
KafkaFixture.get_topic_names = get_topic_names
KafkaFixture.dump_logs = lambda self: None
