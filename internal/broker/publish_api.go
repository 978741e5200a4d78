package broker

import (
	"context"
	"time"

	"connectrpc.com/connect"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// publishAPI is strandmq.v1.PublishService.
type publishAPI struct{ b *Broker }

// Route tells how keys become partitions.
func (a publishAPI) Route(_ context.Context, req *strandmqv1.RouteRequest) (*strandmqv1.RouteResponse, error) {
	t, err := a.b.topic(req.GetTopic())
	if err != nil {
		return nil, err
	}
	return route(t), nil
}

// PublishStream stores batches as they come.
func (a publishAPI) PublishStream(ctx context.Context, stream *connect.BidiStream[strandmqv1.PublishStreamRequest, strandmqv1.PublishStreamResponse]) error {
	return newPublishStream(ctx, a.b, stream).run()
}

// Publish stores a batch.
func (a publishAPI) Publish(ctx context.Context, req *strandmqv1.PublishRequest) (*strandmqv1.PublishResponse, error) {
	start := time.Now()
	t, err := a.b.topic(req.GetTopic())
	if err != nil {
		return nil, err
	}
	if err := checkCarrier(req); err != nil {
		return nil, err
	}
	if len(req.GetRecordBatch()) > 0 {
		return a.b.publishRaw(ctx, t, req, start)
	}
	if r := a.b.full(); r != nil {
		return nil, r
	}
	o, send, err := fromMessages(t, req)
	if err != nil {
		return nil, err
	}
	requestOf(ctx).mark(&o.sent, req.GetProducerId())
	if len(send.Records) > 0 {
		if o.results, err = a.b.publisher.Publish(ctx, send); err != nil {
			return nil, err
		}
		if len(o.sent.refused) == 0 {
			if err := wholeCall(o.results); err != nil {
				return nil, err
			}
		}
	}
	a.b.publishMeter(t.Name).count(ctx, a.b, o, time.Since(start))
	return &strandmqv1.PublishResponse{Results: a.b.receipts(ctx, o)}, nil
}
