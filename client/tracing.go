package client

import "context"

// Tracing is what a client calls for each message, so that publishing and handling
// can be seen in traces. Package oteltracing fills it in for OpenTelemetry. What
// is nil costs nothing.
type Tracing struct {
	// Publish is called before a message is taken. It may add headers to m, in a
	// slice of its own. end is called with the outcome, before the caller's done.
	Publish func(ctx context.Context, topic string, m *Message) (end func(Receipt, error))
	// Handle is called before a handler, which gets the context that it returns. end
	// is called with what the handler returned.
	Handle func(ctx context.Context, d *Delivery) (handler context.Context, end func(error))
}

// WithTracing has every message traced.
func WithTracing(t Tracing) Option { return func(c *Client) { c.tracing = t } }

// traced begins what a publish is seen by, and gives the done to call.
func (t *Tracing) traced(ctx context.Context, topic string, m *Message, done func(Receipt, error)) func(Receipt, error) {
	if t.Publish == nil {
		return done
	}
	end := t.Publish(ctx, topic, m)
	return func(r Receipt, err error) {
		end(r, err)
		done(r, err)
	}
}

// call runs a handler, seen or not.
func (t *Tracing) call(ctx context.Context, h Handler, d *Delivery) error {
	if t.Handle == nil {
		return call(ctx, h, d)
	}
	ctx, end := t.Handle(ctx, d)
	err := call(ctx, h, d)
	end(err)
	return err
}
