package broker

import (
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// policyProto writes a policy as the API and the metadata log do, all filled in.
func policyProto(p consumer.Policy) *strandmqv1.GroupPolicy {
	return &strandmqv1.GroupPolicy{
		Mode:                 modeProto(p.Mode),
		AckDeadlineMs:        proto.Int64(int64(p.AckDeadline)),
		MaxHoldMs:            proto.Int64(int64(p.MaxHold)),
		MaxAttempts:          proto.Uint32(p.MaxAttempts),
		BackoffMs:            proto.Int64(int64(p.Backoff)),
		BackoffMaxMs:         proto.Int64(int64(p.BackoffMax)),
		MaxInFlightMember:    proto.Uint32(p.MaxInFlightMember),
		MaxInFlightPartition: proto.Uint32(p.MaxInFlightPartition),
		OnExhaustion:         exhaustionProto(p.OnExhaustion),
		AtMostOnce:           proto.Bool(p.AtMostOnce),
		MaxDeferred:          proto.Uint32(p.MaxDeferred),
		MaxDeferredKey:       proto.Uint32(p.MaxDeferredKey),
		BreakerFailedPercent: proto.Uint32(p.BreakerPercent),
		BreakerKeys:          proto.Uint32(p.BreakerKeys),
		BreakerWindowMs:      proto.Int64(int64(p.BreakerWindow)),
		Retention:            retentionProto(p.Retention),
		HoldLimitBytes:       proto.Uint64(p.HoldBytes),
		HoldLimitMs:          proto.Int64(int64(p.HoldAge)),
	}
}

// policyOf reads a policy that is all filled in.
func policyOf(p *strandmqv1.GroupPolicy) consumer.Policy {
	return consumer.Policy{
		Mode:                 modeOf(p.GetMode()),
		AckDeadline:          partition.Millis(p.GetAckDeadlineMs()),
		MaxHold:              partition.Millis(p.GetMaxHoldMs()),
		MaxAttempts:          p.GetMaxAttempts(),
		Backoff:              partition.Millis(p.GetBackoffMs()),
		BackoffMax:           partition.Millis(p.GetBackoffMaxMs()),
		MaxInFlightMember:    p.GetMaxInFlightMember(),
		MaxInFlightPartition: p.GetMaxInFlightPartition(),
		OnExhaustion:         exhaustionOf(p.GetOnExhaustion()),
		AtMostOnce:           p.GetAtMostOnce(),
		MaxDeferred:          p.GetMaxDeferred(),
		MaxDeferredKey:       p.GetMaxDeferredKey(),
		BreakerPercent:       p.GetBreakerFailedPercent(),
		BreakerKeys:          p.GetBreakerKeys(),
		BreakerWindow:        partition.Millis(p.GetBreakerWindowMs()),
		Retention:            retentionOf(p.GetRetention()),
		HoldBytes:            holdBytesOf(p),
		HoldAge:              partition.Millis(p.GetHoldLimitMs()),
	}
}

// withPolicy sets in base what change sets, and checks the whole. A maximum
// that was left to its default follows a minimum that passed it: whoever asks
// for an hour's deadline need not know of max_hold.
func withPolicy(base, change *strandmqv1.GroupPolicy) error {
	if change != nil {
		if _, ok := strandmqv1.GroupMode_name[int32(change.GetMode())]; !ok {
			return refuse("BAD_POLICY", "policy.mode", "%d is not a mode: use key, partition or none", change.GetMode())
		}
		if _, ok := strandmqv1.OnExhaustion_name[int32(change.GetOnExhaustion())]; !ok {
			return refuse("BAD_POLICY", "policy.on_exhaustion", "%d is not a choice: use skip or park", change.GetOnExhaustion())
		}
		if _, ok := strandmqv1.GroupRetention_name[int32(change.GetRetention())]; !ok {
			return refuse("BAD_POLICY", "policy.retention", "%d is not a choice: use expire or hold", change.GetRetention())
		}
		proto.Merge(base, change)
		if change.MaxHoldMs == nil && base.GetMaxHoldMs() < base.GetAckDeadlineMs() {
			base.MaxHoldMs = proto.Int64(base.GetAckDeadlineMs())
		}
		if change.BackoffMaxMs == nil && base.GetBackoffMaxMs() < base.GetBackoffMs() {
			base.BackoffMaxMs = proto.Int64(base.GetBackoffMs())
		}
	}
	if err := policyOf(base).Validate(); err != nil {
		var bad *consumer.ErrBadPolicy
		if errors.As(err, &bad) {
			return refuse("BAD_POLICY", "policy", "%s", bad)
		}
		return err
	}
	return nil
}

func modeProto(m consumer.Mode) strandmqv1.GroupMode {
	switch m {
	case consumer.ByPartition:
		return strandmqv1.GroupMode_GROUP_MODE_PARTITION
	case consumer.NoOrder:
		return strandmqv1.GroupMode_GROUP_MODE_NONE
	}
	return strandmqv1.GroupMode_GROUP_MODE_KEY
}

func modeOf(m strandmqv1.GroupMode) consumer.Mode {
	switch m {
	case strandmqv1.GroupMode_GROUP_MODE_PARTITION:
		return consumer.ByPartition
	case strandmqv1.GroupMode_GROUP_MODE_NONE:
		return consumer.NoOrder
	}
	return consumer.ByKey
}

func exhaustionProto(e consumer.Exhaustion) strandmqv1.OnExhaustion {
	if e == consumer.Park {
		return strandmqv1.OnExhaustion_ON_EXHAUSTION_PARK
	}
	return strandmqv1.OnExhaustion_ON_EXHAUSTION_SKIP
}

func exhaustionOf(e strandmqv1.OnExhaustion) consumer.Exhaustion {
	if e == strandmqv1.OnExhaustion_ON_EXHAUSTION_PARK {
		return consumer.Park
	}
	return consumer.Skip
}

func retentionProto(r consumer.Retention) strandmqv1.GroupRetention {
	if r == consumer.Hold {
		return strandmqv1.GroupRetention_GROUP_RETENTION_HOLD
	}
	return strandmqv1.GroupRetention_GROUP_RETENTION_EXPIRE
}

func retentionOf(r strandmqv1.GroupRetention) consumer.Retention {
	if r == strandmqv1.GroupRetention_GROUP_RETENTION_HOLD {
		return consumer.Hold
	}
	return consumer.Expire
}

// holdBytesOf reads a policy that may have been stored before there was a limit.
func holdBytesOf(p *strandmqv1.GroupPolicy) uint64 {
	if p.HoldLimitBytes == nil {
		return consumer.DefaultHoldBytes
	}
	return p.GetHoldLimitBytes()
}
