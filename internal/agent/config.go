package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"skyserve/internal/identity"
)

// Config is a machine's initial configuration, in a file that its cloud-init writes. It contains no
// secrets.
type Config struct {
	Service string        `json:"service"`
	Role    identity.Role `json:"role"`
	ID      string        `json:"id"`
	// Owner is the fingerprint of the service's CA.
	Owner string `json:"owner"`
	// Listen is the agent's address for operators, and Dir its directory.
	Listen string `json:"listen"`
	Dir    string `json:"dir"`
	// Publish is how the key's fingerprint is published: guest-attributes, or console:PATH.
	Publish string `json:"publish"`
	// PollCloud is the cloud that is polled for interruptions: aws, gcp, or empty.
	PollCloud string `json:"notices,omitempty"`
	// Metadata is the base URL of the cloud's metadata server; empty = the default.
	Metadata string `json:"metadata,omitempty"`
	// Runner is system (default), exec (for machines without systemd), or inside (exec, but units
	// that run this binary run inside the agent's process).
	Runner string `json:"runner,omitempty"`
	// KernelLog is a file that stands for the kernel's log on a machine with simulated GPUs: lines that are
	// appended to it are read like the driver's messages. Empty = the kernel's own log, on replicas with the
	// runner system.
	KernelLog string `json:"kernel_log,omitempty"`
}

// RunnerInProcess is the runner of a machine that a process emulates.
const RunnerInProcess = "inside"

// Intervals at which units are checked that are the agent's own children, on the operator's computer: the operator
// waits until they are ready; afterwards the agents of an idle service should use little CPU.
const (
	localCheckInterval      = 100 * time.Millisecond
	localReadyCheckInterval = 500 * time.Millisecond
)

// ReadConfig reads the file of a Config.
func ReadConfig(path string) (Config, error) {
	var c Config
	text, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("reading the machine's configuration: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var syntax *json.SyntaxError
	switch err := dec.Decode(&c); {
	case errors.Is(err, io.EOF):
		return c, fmt.Errorf("reading %s: the file is empty", path)
	case errors.As(err, &syntax), errors.Is(err, io.ErrUnexpectedEOF):
		return c, fmt.Errorf("reading %s: is not a machine's configuration in JSON", path)
	case err != nil:
		return c, fmt.Errorf("reading %s: %w", path, err)
	}
	if _, err := c.Options(); err != nil {
		return c, fmt.Errorf("reading %s: %w", path, err)
	}
	return c, nil
}

// Options returns the agent's options.
func (c Config) Options() (Options, error) {
	o := Options{Name: identity.Name{Service: c.Service, Role: c.Role, ID: c.ID}, Owner: c.Owner, Listen: c.Listen, Dir: c.Dir}
	if err := o.Name.Check(); err != nil {
		return o, err
	}
	switch {
	case len(c.Owner) != 52:
		return o, fmt.Errorf("owner must be a fingerprint of 52 letters and digits, got %q", c.Owner)
	case c.Listen == "":
		return o, errors.New("listen is required")
	case !filepath.IsAbs(c.Dir):
		return o, fmt.Errorf("dir must be an absolute path, got %q", c.Dir)
	}
	path, console := strings.CutPrefix(c.Publish, "console:")
	switch {
	case console && path != "":
		o.Publisher = Console{path}
	case c.Publish == "guest-attributes":
		o.Publisher = GuestAttributes{Base: c.Metadata}
	default:
		return o, fmt.Errorf("publish must be guest-attributes or console:PATH, got %q", c.Publish)
	}
	var err error
	if o.PollInterruption, o.PollRebalance, err = c.cloudPolls(); err != nil {
		return o, err
	}
	if c.KernelLog != "" {
		o.GPUs = fileGPUs(c.KernelLog)
	}
	switch c.Runner {
	case "", "system":
		o.Runner = &System{Dir: c.Dir}
		if c.Role == identity.Replica && o.GPUs == nil {
			o.GPUs = systemGPUs()
		}
	case "exec", RunnerInProcess:
		o.Runner, o.CheckInterval, o.ReadyCheckInterval = &Exec{Dir: c.Dir}, localCheckInterval, localReadyCheckInterval
	default:
		return o, fmt.Errorf("runner must be one of system, exec, inside; got %q", c.Runner)
	}
	return o, nil
}

// cloudPolls returns the functions that poll the machine's cloud; nil = none. Only replicas poll for
// maintenance, because only they are replaced before it.
func (c Config) cloudPolls() (InterruptionPoller, RebalancePoller, error) {
	replica := c.Role == identity.Replica
	switch c.PollCloud {
	case "aws":
		spot := capNotice(maxSpotNotice, PollSpotAWS(c.Metadata))
		if replica {
			return earliestOf(spot, PollMaintenanceAWS(c.Metadata)), PollRebalanceAWS(c.Metadata), nil
		}
		return spot, PollRebalanceAWS(c.Metadata), nil
	case "gcp":
		if replica {
			return earliestOf(PollPreemptionGCP(c.Metadata), PollMaintenanceGCP(c.Metadata)), nil, nil
		}
		return PollPreemptionGCP(c.Metadata), nil, nil
	case "":
		return nil, nil, nil
	}
	return nil, nil, fmt.Errorf("notices must be one of aws, gcp; got %q", c.PollCloud)
}
