package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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
		token, err := metadata(ctx, http.MethodPut, base+"/latest/api/token", http.Header{"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": {"60"}}, "")
		if err != nil {
			return since, false, err
		}
		text, err := metadata(ctx, http.MethodGet, base+"/latest/meta-data/events/recommendations/rebalance", http.Header{"X-Aws-Ec2-Metadata-Token": {token}}, "")
		var me *metadataError
		if errors.As(err, &me) && me.status == http.StatusNotFound {
			return since, false, nil // nothing is recommended
		}
		if err != nil {
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
