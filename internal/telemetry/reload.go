package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Reload is what a balancer made of its configuration when it read it again:
// the answer of POST /reload.
type Reload struct {
	// Revision is what the configuration in force calls itself; empty where it has
	// no name, or where Restart keeps a part of it back.
	Revision string `json:"revision"`
	// Changed is what holds from now on, in words; empty: nothing had changed.
	Changed []string `json:"changed"`
	// Restart names the keys that differ and hold only once the balancer was
	// started again; they are left as they are.
	Restart []string `json:"restart"`
	// Left names the replicas that differ and belong to the controller by now.
	Left []string `json:"left"`
}

// ReloadRefused is a configuration that a balancer cannot run with, of which
// nothing was applied.
type ReloadRefused struct {
	Problems []string // each with its place
}

// Error lists the problems.
func (e *ReloadRefused) Error() string {
	return "the configuration is refused, nothing was changed: " + strings.Join(e.Problems, "; ")
}

// Reload makes the balancer read its configuration again. A *StatusError of 400
// says what is wrong with it; nothing was changed then.
func (c *Client) Reload(ctx context.Context) (*Reload, error) {
	_, body, err := c.do(ctx, http.MethodPost, "/reload", nil)
	if err != nil {
		return nil, err
	}
	r := new(Reload)
	if err := json.Unmarshal(body, r); err != nil {
		return nil, fmt.Errorf("decoding the answer of POST %s: %w", redact(c.base+"/reload"), err)
	}
	return r, nil
}
