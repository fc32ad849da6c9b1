package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Reload is the result of a balancer's configuration reload: the response of
// POST /reload.
type Reload struct {
	// Revision is the revision of the configuration in force; empty if it has none, or if
	// keys in Restart are not applied yet.
	Revision string `json:"revision"`
	// Changed describes the changes applied; empty if nothing changed.
	Changed []string `json:"changed"`
	// Restart lists the changed keys that take effect only after a restart of the
	// balancer.
	Restart []string `json:"restart"`
	// NotApplied lists the changed replicas that were not applied because they are attached for another
	// reason: the controller has assigned them since, a file or a DNS name lists them, or the admin API
	// attached them.
	NotApplied []string `json:"not_applied"`
}

// MarshalJSON adds the former key of NotApplied.
func (r Reload) MarshalJSON() ([]byte, error) {
	type plain Reload
	return json.Marshal(struct {
		plain
		OldNotApplied []string `json:"left"`
	}{plain(r), r.NotApplied})
}

// UnmarshalJSON also reads the former key of NotApplied, which older balancers send.
func (r *Reload) UnmarshalJSON(data []byte) error {
	type plain Reload
	var read struct {
		plain
		OldNotApplied []string `json:"left"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	*r = Reload(read.plain)
	if r.NotApplied == nil {
		r.NotApplied = read.OldNotApplied
	}
	return nil
}

// ReloadRefused is the error of a reload whose configuration was rejected. Nothing of it was applied.
type ReloadRefused struct {
	Problems []string // each with its position in the file
}

// Error lists the problems.
func (e *ReloadRefused) Error() string {
	return "the configuration was rejected and nothing was changed: " + strings.Join(e.Problems, "; ")
}

// Reload makes the balancer reload its configuration. A *StatusError of 400 reports an
// invalid configuration; nothing of it was applied.
func (c *Client) Reload(ctx context.Context) (*Reload, error) {
	_, body, err := c.do(ctx, http.MethodPost, "/reload", nil)
	if err != nil {
		return nil, err
	}
	r := new(Reload)
	if err := json.Unmarshal(body, r); err != nil {
		return nil, fmt.Errorf("decoding the response of POST %s: %w", redact(c.base+"/reload"), err)
	}
	return r, nil
}
