package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"skyserve/internal/identity"
)

// Config is what a machine is born with, in a file that its cloud-init writes. Nothing
// in it is secret.
type Config struct {
	Service string        `json:"service"`
	Role    identity.Role `json:"role"`
	ID      string        `json:"id"`
	// Owner is the fingerprint of the service's authority.
	Owner string `json:"owner"`
	// Listen is where operators reach the agent, and Dir where it keeps what it has.
	Listen string `json:"listen"`
	Dir    string `json:"dir"`
	// Publish is how the key's fingerprint is told: guest-attributes, or console:PATH.
	Publish string `json:"publish"`
	// Notices is the cloud that is asked about interruptions: aws, gcp, or none.
	Notices string `json:"notices,omitempty"`
	// Metadata is the base URL of the cloud's metadata server; empty = where it always is.
	Metadata string `json:"metadata,omitempty"`
	// Runner is system, exec for machines without systemd, or inside for those that are a process:
	// exec that runs units of this program inside of the agent.
	Runner string `json:"runner,omitempty"`
}

// RunnerInside is the runner of a machine that is a process.
const RunnerInside = "inside"

// lookNear is the time between two looks at units that the agent runs itself: on this computer, where
// whoever brings them up is near.
const lookNear = 100 * time.Millisecond

// ReadConfig reads the file of a Config.
func ReadConfig(path string) (Config, error) {
	var c Config
	text, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("reading the machine's configuration: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return c, fmt.Errorf("reading %s: %w", path, err)
	}
	if _, err := c.Options(); err != nil {
		return c, fmt.Errorf("reading %s: %w", path, err)
	}
	return c, nil
}

// Options are the agent's as the configuration has them.
func (c Config) Options() (Options, error) {
	o := Options{Name: identity.Name{Service: c.Service, Role: c.Role, ID: c.ID}, Owner: c.Owner, Listen: c.Listen, Dir: c.Dir}
	if err := o.Name.Check(); err != nil {
		return o, err
	}
	switch {
	case len(c.Owner) != 52:
		return o, fmt.Errorf("owner: want the 52 letters and digits of a fingerprint, got %q", c.Owner)
	case c.Listen == "":
		return o, errors.New("listen: missing")
	case !filepath.IsAbs(c.Dir):
		return o, fmt.Errorf("dir: want an absolute path, got %q", c.Dir)
	}
	path, console := strings.CutPrefix(c.Publish, "console:")
	switch {
	case console && path != "":
		o.Publisher = Console{path}
	case c.Publish == "guest-attributes":
		o.Publisher = GuestAttributes{Base: c.Metadata}
	default:
		return o, fmt.Errorf("publish: want guest-attributes or console:PATH, got %q", c.Publish)
	}
	var err error
	if o.Notice, o.Advice, err = c.asks(); err != nil {
		return o, err
	}
	switch c.Runner {
	case "", "system":
		o.Runner = &System{Dir: c.Dir}
	case "exec", RunnerInside:
		o.Runner, o.Look = &Exec{Dir: c.Dir}, lookNear
	default:
		return o, fmt.Errorf("runner: want system, exec or inside, got %q", c.Runner)
	}
	return o, nil
}

// asks is what the machine's cloud is asked; nil = nothing. Maintenance is a replica's to
// tell: another takes its place, and nobody takes a balancer's.
func (c Config) asks() (Notice, Advice, error) {
	replica := c.Role == identity.Replica
	switch c.Notices {
	case "aws":
		spot := within(spotAhead, NoticeAWS(c.Metadata))
		if replica {
			return firstOf(spot, MaintenanceAWS(c.Metadata)), AdviceAWS(c.Metadata), nil
		}
		return spot, AdviceAWS(c.Metadata), nil
	case "gcp":
		if replica {
			return firstOf(NoticeGCP(c.Metadata), MaintenanceGCP(c.Metadata)), nil, nil
		}
		return NoticeGCP(c.Metadata), nil, nil
	case "":
		return nil, nil, nil
	}
	return nil, nil, fmt.Errorf("notices: want aws or gcp, got %q", c.Notices)
}
