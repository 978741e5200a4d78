package client

import "context"

// Observer is what a client calls for each message, so that publishing and handling
// can be seen. Packages oteltracing and otelmetrics fill it in for OpenTelemetry. What
// is nil, an end too, costs nothing.
type Observer struct {
	// Publish is called before a message is taken. It may add headers to m, in a
	// slice of its own. end is called once with the outcome, before the caller's done,
	// and must not block.
	Publish func(ctx context.Context, topic string, m *Message) (end func(Receipt, error))
	// Handle is called before a handler, which gets the context that it returns. end
	// is called with what the handler returned.
	Handle func(ctx context.Context, d *Delivery) (handler context.Context, end func(error))
}

// WithObserver has an observer see every message. Given more than once, all do: the
// first one begins first and ends last.
func WithObserver(o Observer) Option {
	return func(c *Client) {
		if o.Publish != nil {
			c.observed.publish = append(c.observed.publish, o.Publish)
		}
		if o.Handle != nil {
			c.observed.handle = append(c.observed.handle, o.Handle)
		}
	}
}

// observed is what all observers are called by.
type observed struct {
	publish []func(context.Context, string, *Message) func(Receipt, error)
	handle  []func(context.Context, *Delivery) (context.Context, func(error))
}

// published begins what a publish is seen by, and gives the done to call.
func (o *observed) published(ctx context.Context, topic string, m *Message, done func(Receipt, error)) func(Receipt, error) {
	for _, publish := range o.publish {
		end, then := publish(ctx, topic, m), done
		if end == nil {
			continue
		}
		done = func(r Receipt, err error) {
			end(r, err)
			then(r, err)
		}
	}
	return done
}

// call runs a handler, seen or not.
func (o *observed) call(ctx context.Context, h Handler, d *Delivery) error {
	ends := make([]func(error), 0, 4)
	for _, handle := range o.handle {
		var end func(error)
		ctx, end = handle(ctx, d)
		if end != nil {
			ends = append(ends, end)
		}
	}
	err := call(ctx, h, d)
	for i := len(ends); i > 0; i-- {
		ends[i-1](err)
	}
	return err
}
