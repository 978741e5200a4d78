import type { Transport } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";

/** A transport of Node that speaks gRPC over HTTP/2. It needs @connectrpc/connect-node. */
export function grpcTransport(baseUrl: string): Transport {
  return createGrpcTransport({ baseUrl });
}
