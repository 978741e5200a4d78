"""Publishes, receives and settles over gRPC, with the protocol files as they are.

STRANDMQ_SERVER is the broker's URL.
"""

import os
import pathlib
import sys
from urllib.parse import urlparse

# grpcio-tools reads protocol files at run time from sys.path.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "proto"))

import grpc

publish_pb, publish_grpc = grpc.protos_and_services("strandmq/v1/publish.proto")
consume_pb, consume_grpc = grpc.protos_and_services("strandmq/v1/consume.proto")
admin_pb, admin_grpc = grpc.protos_and_services("strandmq/v1/admin.proto")
message_pb = grpc.protos("strandmq/v1/message.proto")

WAIT = 60  # seconds: every call has a deadline, so that none waits for ever


def main() -> None:
    server = urlparse(os.environ.get("STRANDMQ_SERVER", "http://127.0.0.1:7171")).netloc
    with grpc.insecure_channel(server) as channel:
        topics = admin_grpc.TopicServiceStub(channel)
        publish = publish_grpc.PublishServiceStub(channel)
        consume = consume_grpc.ConsumeServiceStub(channel)

        topic = f"example-python-{os.getpid()}"
        try:
            topics.CreateTopic(admin_pb.CreateTopicRequest(topic=topic, partitions=2), timeout=WAIT)
        except grpc.RpcError as err:
            if err.code() != grpc.StatusCode.UNAVAILABLE:
                raise
            sys.exit(f"no broker answers at {server}: start one with 'strandmq serve', or set STRANDMQ_SERVER ({err.details()})")

        messages = [
            message_pb.Message(key="alice", id="a-1", text="twelve apples"),
            message_pb.Message(key="alice", id="a-2", text="seven pears"),
            message_pb.Message(key="bob", id="b-1", bytes=b"\xff"),
        ]
        for what in ("stored", "sent again"):  # under the same ids nothing is stored twice
            answer = publish.Publish(publish_pb.PublishRequest(topic=topic, messages=messages), timeout=WAIT)
            for result in answer.results:
                if result.HasField("problem"):
                    raise RuntimeError(f"{result.problem.reason}: {result.problem.message}")
                print(what, result.receipt.partition, result.receipt.offset, "duplicate" if result.receipt.duplicate else "")

        acked = 0
        while acked < len(messages):
            got = consume.Receive(
                consume_pb.ReceiveRequest(topic=topic, group="billing", member="m1", max_messages=10, wait_ms=20_000, create_group=True),
                timeout=WAIT,
            )
            if not got.deliveries:
                continue  # the wait ran out: ask again
            for d in got.deliveries:
                print("got", d.message.key, d.message.text or d.message.bytes)
            settlements = [consume_pb.Settlement(token=d.token, action=consume_pb.SETTLE_ACTION_ACK) for d in got.deliveries]
            answer = consume.Settle(consume_pb.SettleRequest(topic=topic, group="billing", settlements=settlements), timeout=WAIT)
            acked += sum(not r.HasField("problem") for r in answer.results)

        try:
            publish.Publish(publish_pb.PublishRequest(topic="nowhere", messages=messages), timeout=WAIT)
        except grpc.RpcError as err:  # the reason of a refusal is in its details
            print("refused with", err.code().name, "-", err.details())

        topics.DeleteTopic(admin_pb.DeleteTopicRequest(topic=topic, confirm=topic), timeout=WAIT)
        print(f"done: {acked} acked")


if __name__ == "__main__":
    main()
