package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// RebalancePoller polls for the cloud's rebalance recommendation and its time. An interruption is then
// likely, but it may be hours away or never happen.
type RebalancePoller func(ctx context.Context) (since time.Time, advised bool, err error)

// adviceInterval is the polling interval of recommendations: they are not urgent.
const adviceInterval = 15 * time.Second

// PollRebalanceAWS polls for a rebalance recommendation for a spot instance, with IMDSv2; base is only set
// in tests.
func PollRebalanceAWS(base string) RebalancePoller {
	base = baseURLOr(base, awsMetadata)
	return func(ctx context.Context) (since time.Time, advised bool, err error) {
		text, found, err := readIMDS(ctx, base, "/latest/meta-data/events/recommendations/rebalance")
		if err != nil || !found {
			return since, false, err
		}
		var advice struct {
			Since time.Time `json:"noticeTime"`
		}
		if err := json.Unmarshal([]byte(text), &advice); err != nil {
			return since, false, fmt.Errorf("parsing the rebalance recommendation: %w", err)
		}
		return advice.Since, true, nil
	}
}

// watchAdvice records the first recommendation; the cloud never withdraws it.
func (a *Agent) watchAdvice(ctx context.Context) {
	a.repeat(ctx, adviceInterval, func() (done bool) {
		since, advised, err := a.opts.PollRebalance(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			a.log.Warn("polling for a rebalance recommendation failed", "err", err)
		case advised:
			if since.IsZero() {
				since = a.opts.Now()
			}
			a.mu.Lock()
			a.rebalanceAt = since
			a.mu.Unlock()
			a.log.Warn("rebalance recommendation received: an interruption of this machine is likely", "since", since)
		}
		return advised
	})
}
