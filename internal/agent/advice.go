package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Advice asks whether the cloud recommends to move what runs on the machine, and since
// when: the machine is likely to be taken, which may be hours away, or never happen.
type Advice func(ctx context.Context) (since time.Time, advised bool, err error)

// adviceEvery is how often advice is asked for: nothing ends soon because of it.
const adviceEvery = 15 * time.Second

// AdviceAWS asks for a rebalance recommendation for a spot instance, by IMDSv2; base is
// empty but in tests.
func AdviceAWS(base string) Advice {
	base = orBase(base, awsMetadata)
	return func(ctx context.Context) (since time.Time, advised bool, err error) {
		text, found, err := imds(ctx, base, "/latest/meta-data/events/recommendations/rebalance")
		if err != nil || !found {
			return since, false, err
		}
		var advice struct {
			Since time.Time `json:"noticeTime"`
		}
		if err := json.Unmarshal([]byte(text), &advice); err != nil {
			return since, false, fmt.Errorf("reading the rebalance recommendation: %w", err)
		}
		return advice.Since, true, nil
	}
}

// watchAdvice keeps what the cloud recommends, until it does once: it does not take that back.
func (a *Agent) watchAdvice(ctx context.Context) {
	a.every(ctx, adviceEvery, func() (done bool) {
		since, advised, err := a.opts.Advice(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			a.log.Warn("asking what the cloud recommends for this machine", "err", err)
		case advised:
			if since.IsZero() {
				since = a.opts.Now()
			}
			a.mu.Lock()
			a.advisedAt = since
			a.mu.Unlock()
			a.log.Warn("the cloud recommends to leave this machine", "since", since)
		}
		return advised
	})
}
