package provision

import (
	"cmp"
	"hash/fnv"
	"time"

	"skyserve/internal/service"
)

// BackoffPolicy is how the time between two attempts grows with the number of consecutive failures.
type BackoffPolicy struct {
	First time.Duration // the time after the first failure; it doubles after each further one
	Max   time.Duration
	// Jitter is the share by which a time is shortened or lengthened, 0..1, so that replicas that failed
	// together are not all retried at the same moment.
	Jitter float64
}

// The policies, with their reasons.
var (
	// CapacityBackoff is how long an offering without capacity is skipped. Capacity often returns within
	// minutes and a rejected attempt costs nothing, so the time does not grow. But each attempt delays a
	// launch by some seconds.
	CapacityBackoff = BackoffPolicy{First: exhaustedFor, Max: exhaustedFor}
	// FailureBackoff is the time between two launches of a replica that never becomes ready. Each
	// attempt costs a machine for the whole of ready_timeout. Five minutes allow for a temporary cause, such as
	// a registry that does not respond. Once it has grown to four hours, a wrong image costs two launches a night.
	FailureBackoff = BackoffPolicy{First: 5 * time.Minute, Max: 4 * time.Hour, Jitter: 0.2}
	// ThrottleBackoff is the time without launches in a region whose API still throttles calls after the
	// client's retries: the rate limits of clouds recover within seconds to minutes.
	ThrottleBackoff = BackoffPolicy{First: 30 * time.Second, Max: 10 * time.Minute, Jitter: 0.2}
)

// Delay returns the time after a number of consecutive failures, from 1. seed selects the jitter: the same
// seed and number give the same time.
func (p BackoffPolicy) Delay(failures int, seed string) time.Duration {
	d := p.First
	for n := 1; n < failures && d < p.Max; n++ {
		d *= 2
	}
	d = min(d, p.Max)
	if p.Jitter == 0 {
		return d
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(seed)) // never fails
	_, _ = h.Write([]byte{byte(failures), byte(failures >> 8)})
	unit := float64(h.Sum64()>>11) / (1 << 53) // 0..1
	return time.Duration(float64(d) * (1 + p.Jitter*(2*unit-1)))
}

// BackoffKey identifies the launches that a backoff covers. An empty field matches every value: a key with only
// a Model covers all launches of the model.
type BackoffKey struct {
	Model  string         `json:"model,omitempty"`
	Region service.Region `json:"region,omitempty"`
	// Type and Capacity are those of the offering.
	Type     string               `json:"type,omitempty"`
	Capacity service.CapacityType `json:"capacity,omitempty"`
}

// BackoffKeyOf returns the key of launches of a model on an offering.
func BackoffKeyOf(model string, o Offering) BackoffKey {
	return BackoffKey{Model: model, Region: o.Region, Type: o.Type, Capacity: o.Capacity}
}

// String formats the key for display: chat on spot g6.xlarge in aws/us-east-1.
func (k BackoffKey) String() string {
	text := cmp.Or(k.Model, "any model")
	switch {
	case k.Type != "":
		text += " on " + string(k.Capacity) + " " + k.Type
	case k.Region == "":
		return text + " everywhere"
	}
	return text + " in " + string(k.Region)
}

// covers reports whether the key matches launches of a model on an offering.
func (k BackoffKey) covers(model string, o Offering) bool {
	return (k.Model == "" || k.Model == model) && (k.Region == "" || k.Region == o.Region) &&
		(k.Type == "" || k.Type == o.Type && k.Capacity == o.Capacity)
}

// Backoff is the state after one or more consecutive failures: what failed last, and when the next attempt is.
type Backoff struct {
	BackoffKey
	// Failures is the number of consecutive failures.
	Failures int       `json:"failures"`
	Last     time.Time `json:"last"`
	Next     time.Time `json:"next"`
	// ID is the object that failed last, Reason why.
	ID     string `json:"id,omitempty"`
	Reason string `json:"reason"`
	// Config is the hash of the configuration that failed; a launch with another one does not wait. Empty
	// = any.
	Config string `json:"config,omitempty"`
}
