package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"skyserve/internal/telemetry"
)

// Deployment is the desired state of a machine.
type Deployment struct {
	// Revision is set by its author; Status reports it.
	Revision string `json:"revision"`
	// Units are started in their order.
	Units []Unit `json:"units"`
	// Proxy is the proxy through which balancers use an engine on loopback; nil = none. Its JSON key is its former
	// name, as are means and fixed below: an agent of the previous version rejects unknown keys, so a new name could
	// be sent only once all agents know it.
	Proxy *Proxy `json:"front,omitempty"`
	// Cloud lets the controller call the cloud's API through this machine; nil = it cannot.
	Cloud *CloudAccess `json:"cloud,omitempty"`
}

// CloudAccess configures how a machine calls its own cloud's API.
type CloudAccess struct {
	// Regions are the service's regions in this cloud: gcp/europe-west4.
	Regions []string `json:"regions"`
	// Config configures the access to the cloud, in the format of the provider of that cloud. Its JSON key is a
	// former name: see Deployment.Proxy.
	Config json.RawMessage `json:"means"`
	// Balancers is true where controllers may also launch and terminate balancers.
	Balancers bool `json:"balancers,omitempty"`
}

// Unit is a program that a machine keeps running.
type Unit struct {
	// Name identifies the unit on its machine: engine, balancer.
	Name string `json:"name"`
	// Image is a container image. If it is empty, Args are a command of the machine, which runs in
	// the agent's directory.
	Image string   `json:"image,omitempty"`
	Args  []string `json:"args,omitempty"`
	// Port is the container's port, published on the same port of the machine's loopback. GPUs
	// makes all GPUs available to the container, after a check of their driver. CacheDir is its
	// download directory.
	Port     int    `json:"port,omitempty"`
	GPUs     bool   `json:"gpus,omitempty"`
	CacheDir string `json:"cache,omitempty"`
	// CompileCaches are directories of the container with code that the engine compiles. They outlive it on
	// volumes of Docker, until the image changes.
	CompileCaches []string `json:"compiled,omitempty"`
	// Weights are downloaded before a container starts; nil = the container downloads them.
	Weights *Weights `json:"weights,omitempty"`
	// Adapters are LoRA adapters that are downloaded before a container starts. LoRARankFlag is the engine's
	// flag for their highest rank, which is appended to Args with its value; empty = none.
	Adapters     []Adapter `json:"adapters,omitempty"`
	LoRARankFlag string    `json:"rank_flag,omitempty"`
	// MorePorts are further ports of the container, published like Port.
	MorePorts []int `json:"more_ports,omitempty"`
	// Memory is the memory limit in bytes, above which the unit is killed and restarted; 0 = none.
	Memory int64 `json:"memory,omitempty"`
	// Env and Secrets are environment variables. Secrets are never displayed or passed in a command
	// line.
	Env     map[string]string `json:"env,omitempty"`
	Secrets map[string]string `json:"secrets,omitempty"`
	// Files are file contents by their paths inside the agent's directory.
	Files map[string]string `json:"files,omitempty"`
	// ImmutableHash is the hash of everything whose change requires a restart. If only Files change that it
	// does not cover, the agent sends SIGHUP and the unit reloads them. Empty = any change requires a restart.
	ImmutableHash string `json:"fixed,omitempty"`
	// ReadinessURL is the URL of the unit's readiness probe on this machine, which returns 200 when the
	// unit is ready; empty = the unit is ready when it runs.
	ReadinessURL string `json:"ready,omitempty"`
	// ReadinessKey is the API key that the readiness probe sends; empty = none. It is a secret.
	ReadinessKey string `json:"ready_key,omitempty"`
}

// Proxy is an mTLS listener for balancers. It forwards their requests to Upstream.
type Proxy struct {
	Listen   string `json:"listen"` // host:port
	Upstream string `json:"to"`     // http URL on this machine
	// ConnectTargets are the addresses on this machine, host:port, to which balancers may open connections
	// with the HTTP method CONNECT: those at which the engine publishes its cache events, the changes of its KV cache,
	// and sends them again.
	ConnectTargets []string `json:"connect,omitempty"`
}

// Phase is the phase of a machine's startup.
type Phase string

// The phases, in their usual order.
const (
	PhaseWaiting     Phase = "waiting"     // for its enrolment
	PhasePreparing   Phase = "preparing"   // checks the prerequisites of units, such as the GPU driver
	PhaseImage       Phase = "image"       // an image is being pulled
	PhaseStarting    Phase = "starting"    // units are running, but not ready
	PhaseWeights     Phase = "weights"     // weights are being downloaded, or loaded by an engine
	PhaseReady       Phase = "ready"       // all units are ready
	PhaseFailed      Phase = "failed"      // a unit could not be started or is not running; the agent retries (see Failure.Permanent)
	PhaseDraining    Phase = "draining"    // accepts no new requests
	PhaseInterrupted Phase = "interrupted" // an interruption is announced; the machine drains a minute before it, or on request
)

// Status is the status of a machine.
type Status struct {
	Name     string       `json:"name"`
	Phase    Phase        `json:"phase"`
	Reason   string       `json:"reason,omitempty"`
	Enrolled bool         `json:"enrolled"`
	Revision string       `json:"revision,omitempty"` // of the deployment that it received last
	Units    []UnitStatus `json:"units,omitempty"`
	// Start is the record of a replica's last start; nil if the agent has observed none.
	Start *telemetry.Start `json:"start,omitempty"`
	// Failure is why a replica is not ready, or, on other machines, that a port is in use; nil while nothing has
	// failed.
	Failure *Failure `json:"failure,omitempty"`
	// InFlight is the number of requests in flight at the machine's proxy.
	InFlight int `json:"in_flight"`
	// Expires is the expiry of the machine's certificate.
	Expires time.Time `json:"expires,omitzero"`
	// Issuer is the hexadecimal serial number of the delegated CA that signed the certificate;
	// empty for the service's own CA.
	Issuer string `json:"issuer,omitempty"`
	// Revoked is the number of its revocation list; 0 = none.
	Revoked int64 `json:"revoked,omitempty"`
	// InterruptionAt is when the cloud will have interrupted the machine, if announced.
	InterruptionAt time.Time `json:"interruption_at,omitzero"`
	// RebalanceAt is the time of the cloud's rebalance recommendation: an interruption is likely, but
	// the machine keeps serving.
	RebalanceAt time.Time `json:"rebalance_at,omitzero"`
	// GPUError is the first fatal error of a GPU since the machine's boot; empty = none. GPUs is the number
	// of GPUs that the driver sees; nil = unknown.
	GPUError string `json:"gpu_error,omitempty"`
	GPUs     *int   `json:"gpus,omitempty"`
	// GPUStats are the statistics of the GPUs; empty = unknown.
	GPUStats []telemetry.GPUFigures `json:"gpu_figures,omitempty"`
	// Version is the version of a replica's engine; empty = it does not report it, or is not ready.
	Version string `json:"version,omitempty"`
}

// formerTimes are times of a Status under their former keys.
type formerTimes struct {
	OldInterruptionAt time.Time `json:"gone_at,omitzero"`
	OldRebalanceAt    time.Time `json:"advised_at,omitzero"`
}

// MarshalJSON adds the former keys of the times, which controllers of the previous version read.
func (s Status) MarshalJSON() ([]byte, error) {
	type plain Status
	return json.Marshal(struct {
		plain
		formerTimes
	}{plain(s), formerTimes{s.InterruptionAt, s.RebalanceAt}})
}

// UnmarshalJSON also reads the former keys of the times, which agents of the previous version send.
func (s *Status) UnmarshalJSON(data []byte) error {
	type plain Status
	var read struct {
		plain
		formerTimes
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	*s = Status(read.plain)
	if s.InterruptionAt.IsZero() {
		s.InterruptionAt = read.OldInterruptionAt
	}
	if s.RebalanceAt.IsZero() {
		s.RebalanceAt = read.OldRebalanceAt
	}
	return nil
}

// UnitStatus is the status of a unit.
type UnitStatus struct {
	Name    string `json:"name"`
	Running bool   `json:"running"`
	Ready   bool   `json:"ready"`
	Reason  string `json:"reason,omitempty"`
	// Alerts are those that a controller reports. Reason does not contain them.
	Alerts []telemetry.Alert `json:"alerts,omitempty"`
}

// problem returns Reason and Alerts in one line.
func (s UnitStatus) problem() string {
	text := s.Reason
	for _, a := range s.Alerts {
		text += ": " + a.Line()
	}
	return text
}

var (
	unitPattern = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	envPattern  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Check returns an error for an invalid deployment. The error contains no values of variables.
func (d Deployment) Check() error {
	seen := map[string]bool{}
	for i, u := range d.Units {
		if err := u.check(); err != nil {
			return fmt.Errorf("invalid deployment: units[%d].%w", i, err)
		}
		if seen[u.Name] {
			return fmt.Errorf("invalid deployment: units[%d].name must be unique, got %q again", i, u.Name)
		}
		seen[u.Name] = true
	}
	if f := d.Proxy; f != nil {
		if _, _, err := net.SplitHostPort(f.Listen); err != nil {
			return fmt.Errorf("invalid deployment: proxy.listen must be HOST:PORT, got %q", f.Listen)
		}
		if !onLoopback(f.Upstream) {
			return fmt.Errorf("invalid deployment: proxy.to must be an http URL on loopback, got %q", f.Upstream)
		}
		for i, address := range f.ConnectTargets {
			if !onLoopback("http://" + address) {
				return fmt.Errorf("invalid deployment: proxy.connect[%d] must be an address on loopback, got %q", i, address)
			}
		}
	}
	return nil
}

func (u Unit) check() error {
	switch {
	case !unitPattern.MatchString(u.Name):
		return fmt.Errorf("name must be lower-case letters, digits and dashes, got %q", u.Name)
	case u.Image == "" && len(u.Args) == 0:
		return errors.New("args is required without an image")
	case strings.HasPrefix(u.Image, "-"):
		return fmt.Errorf("image must not start with a dash, got %q", u.Image)
	case u.Image != "" && (u.Port < 1 || u.Port > 65535):
		return fmt.Errorf("port must be 1 to 65535, got %d", u.Port)
	case u.Weights != nil && (u.Image == "" || !folderPattern.MatchString(u.Weights.Source) || !strings.HasPrefix(u.Weights.MountPath, "/") || strings.Contains(u.Weights.MountPath, ":")):
		return fmt.Errorf("weights must be from s3://BUCKET/PREFIX or gs://BUCKET/PREFIX to an absolute path in a container, got from %q to %q", u.Weights.Source, u.Weights.MountPath)
	case slices.ContainsFunc(u.CompileCaches, func(dir string) bool { return !strings.HasPrefix(dir, "/") || strings.Contains(dir, ":") }):
		return fmt.Errorf("compiled must be absolute paths in a container, got %q", u.CompileCaches)
	case slices.ContainsFunc(u.MorePorts, func(port int) bool { return port < 1 || port > 65535 }):
		return fmt.Errorf("more_ports must be 1 to 65535, got %v", u.MorePorts)
	case u.Memory < 0:
		return fmt.Errorf("memory must be at least 0 bytes, got %d", u.Memory)
	case u.ReadinessURL != "" && !onLoopback(u.ReadinessURL):
		return fmt.Errorf("ready must be an http URL on loopback, got %q", u.ReadinessURL)
	}
	for i, a := range u.Adapters {
		if u.Image == "" || a.Name == "" || !adapterPattern.MatchString(a.Source) || !strings.HasPrefix(a.MountPath, "/") || strings.Contains(a.MountPath, ":") {
			return fmt.Errorf("adapters[%d] must be from s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or hf://ORG/NAME to an absolute path in a container, got from %q to %q", i, a.Source, a.MountPath)
		}
	}
	if strings.ContainsFunc(u.ReadinessKey, func(r rune) bool { return r < ' ' || r > '~' }) {
		return errors.New("ready_key must contain only printable ASCII characters")
	}
	for _, set := range []map[string]string{u.Env, u.Secrets} {
		for _, name := range slices.Sorted(maps.Keys(set)) {
			if !envPattern.MatchString(name) {
				return fmt.Errorf("env must have names of letters, digits and underscores, got %q", name)
			}
			if strings.ContainsAny(set[name], "\n\r\x00") {
				return fmt.Errorf("env.%s must not contain a newline or a zero byte", name)
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(u.Files)) {
		if !filepath.IsLocal(path) || !strings.HasPrefix(filepath.ToSlash(filepath.Clean(path)), u.Name+"/") {
			return fmt.Errorf("files must have paths below %s/, got %q", u.Name, path)
		}
	}
	return nil
}

// onLoopback reports whether a URL is plain HTTP on this machine.
func onLoopback(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.User != nil {
		return false
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return err == nil && addr.IsLoopback()
}

// immutableHash returns the hash of everything that requires a restart.
func (u Unit) immutableHash() string {
	if u.ImmutableHash != "" {
		return u.ImmutableHash
	}
	text, _ := json.Marshal(u) // cannot fail for strings, numbers and maps of them
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
