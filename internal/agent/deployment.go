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
)

// Deployment is what a machine is to run.
type Deployment struct {
	// Revision is what whoever made it calls it; Status tells it again.
	Revision string `json:"revision"`
	// Units are started in their order.
	Units []Unit `json:"units"`
	// Front lets balancers use an engine that listens on loopback; nil = none.
	Front *Front `json:"front,omitempty"`
	// Cloud lets the service's controller act in the machine's cloud by way of it; nil = it
	// does not.
	Cloud *Cloud `json:"cloud,omitempty"`
}

// Cloud is where and how a machine acts in its own cloud.
type Cloud struct {
	// Regions are those of the service in this cloud: gcp/europe-west4.
	Regions []string `json:"regions"`
	// Means say how the cloud is reached, in words of the program that the machine runs.
	Means json.RawMessage `json:"means"`
}

// Unit is a program that a machine keeps running.
type Unit struct {
	// Name tells the units of a machine apart: engine, balancer.
	Name string `json:"name"`
	// Image is a container's; empty = Args are a program of the machine itself, run in
	// the agent's directory.
	Image string   `json:"image,omitempty"`
	Args  []string `json:"args,omitempty"`
	// Port is what a container listens on; it is published on the same port of the
	// machine's loopback. GPUs lets it use all GPUs, after it was made sure that
	// their driver works. Cache is where it keeps what it downloads.
	Port  int    `json:"port,omitempty"`
	GPUs  bool   `json:"gpus,omitempty"`
	Cache string `json:"cache,omitempty"`
	// Weights are fetched before a container starts; nil = it gets its own.
	Weights *Weights `json:"weights,omitempty"`
	// Memory is how many bytes it may take, beyond which it is ended and started again;
	// 0 = as much as there is.
	Memory int64 `json:"memory,omitempty"`
	// Env and Secrets are variables of its environment. Secrets are never shown, and
	// stand in no command line.
	Env     map[string]string `json:"env,omitempty"`
	Secrets map[string]string `json:"secrets,omitempty"`
	// Files are texts by their paths inside the agent's directory.
	Files map[string]string `json:"files,omitempty"`
	// Fixed is the hash of what only a start changes; with the same Fixed, other Files
	// are told by SIGHUP. Empty = any change asks for a start.
	Fixed string `json:"fixed,omitempty"`
	// Ready is a URL on this machine that answers 200 when the unit is of use; empty =
	// it is once it runs.
	Ready string `json:"ready,omitempty"`
}

// Front is a listener for balancers: mTLS, with To behind it.
type Front struct {
	Listen string `json:"listen"` // host:port
	To     string `json:"to"`     // http URL on this machine
}

// Phase is how far a machine has come.
type Phase string

// The phases, in their usual order.
const (
	PhaseWaiting     Phase = "waiting"     // for its enrolment
	PhasePreparing   Phase = "preparing"   // makes sure of what units need, such as a GPU's driver
	PhaseImage       Phase = "image"       // an image is being pulled
	PhaseStarting    Phase = "starting"    // units are up and not ready
	PhaseWeights     Phase = "weights"     // an engine is getting its weights
	PhaseReady       Phase = "ready"       // all units are
	PhaseFailed      Phase = "failed"      // it cannot go on without help, or it tries again and again
	PhaseDraining    Phase = "draining"    // it takes nothing new
	PhaseInterrupted Phase = "interrupted" // the cloud takes the machine; it drains a minute before, or when it is asked to
)

// Status is what a machine tells of itself.
type Status struct {
	Name     string       `json:"name"`
	Phase    Phase        `json:"phase"`
	Reason   string       `json:"reason,omitempty"`
	Enrolled bool         `json:"enrolled"`
	Revision string       `json:"revision,omitempty"` // of the deployment in force
	Units    []UnitStatus `json:"units,omitempty"`
	// InFlight is how many requests its front has let in that have not ended.
	InFlight int `json:"in_flight"`
	// Expires is when its certificate ends.
	Expires time.Time `json:"expires,omitzero"`
	// Issuer is the serial number, in hexadecimal, of the delegated authority that signed
	// it; empty where the service's own did.
	Issuer string `json:"issuer,omitempty"`
	// Revoked is the number of the list of revoked certificates that it goes by; 0 = none.
	Revoked int64 `json:"revoked,omitempty"`
	// GoneAt is when the cloud will have taken the machine, where it said so.
	GoneAt time.Time `json:"gone_at,omitzero"`
	// AdvisedAt is since when the cloud recommends to move what runs on the machine, because
	// it is likely to be taken; it serves all the same.
	AdvisedAt time.Time `json:"advised_at,omitzero"`
}

// UnitStatus is how a unit does.
type UnitStatus struct {
	Name    string `json:"name"`
	Running bool   `json:"running"`
	Ready   bool   `json:"ready"`
	Reason  string `json:"reason,omitempty"`
}

var (
	unitForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	envForm  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Check says what is wrong with a deployment; nil when it can be run. No value of a
// variable is told.
func (d Deployment) Check() error {
	seen := map[string]bool{}
	for i, u := range d.Units {
		if err := u.check(); err != nil {
			return fmt.Errorf("checking the deployment: units[%d]: %w", i, err)
		}
		if seen[u.Name] {
			return fmt.Errorf("checking the deployment: units[%d].name: %q is there twice", i, u.Name)
		}
		seen[u.Name] = true
	}
	if f := d.Front; f != nil {
		if _, _, err := net.SplitHostPort(f.Listen); err != nil {
			return fmt.Errorf("checking the deployment: front.listen: want HOST:PORT, got %q", f.Listen)
		}
		if !onLoopback(f.To) {
			return fmt.Errorf("checking the deployment: front.to: want an http URL on loopback, got %q", f.To)
		}
	}
	return nil
}

func (u Unit) check() error {
	switch {
	case !unitForm.MatchString(u.Name):
		return fmt.Errorf("name: want lower-case letters, digits and dashes, got %q", u.Name)
	case u.Image == "" && len(u.Args) == 0:
		return errors.New("args: missing, and there is no image")
	case strings.HasPrefix(u.Image, "-"):
		return fmt.Errorf("image: got %q", u.Image)
	case u.Image != "" && (u.Port < 1 || u.Port > 65535):
		return fmt.Errorf("port: want 1 to 65535, got %d", u.Port)
	case u.Weights != nil && (u.Image == "" || !folderForm.MatchString(u.Weights.From) || !strings.HasPrefix(u.Weights.To, "/") || strings.Contains(u.Weights.To, ":")):
		return fmt.Errorf("weights: want s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, and a directory of a container, got %q and %q", u.Weights.From, u.Weights.To)
	case u.Memory < 0:
		return fmt.Errorf("memory: want a number of bytes, got %d", u.Memory)
	case u.Ready != "" && !onLoopback(u.Ready):
		return fmt.Errorf("ready: want an http URL on loopback, got %q", u.Ready)
	}
	for _, set := range []map[string]string{u.Env, u.Secrets} {
		for _, name := range slices.Sorted(maps.Keys(set)) {
			if !envForm.MatchString(name) {
				return fmt.Errorf("env: want a variable's name, got %q", name)
			}
			if strings.ContainsAny(set[name], "\n\r\x00") {
				return fmt.Errorf("env.%s: holds a line's end, which files of variables cannot", name)
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(u.Files)) {
		if !filepath.IsLocal(path) || !strings.HasPrefix(filepath.ToSlash(filepath.Clean(path)), u.Name+"/") {
			return fmt.Errorf("files: want a path below %s/, got %q", u.Name, path)
		}
	}
	return nil
}

// onLoopback says whether a URL is plain HTTP on this machine.
func onLoopback(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.User != nil {
		return false
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return err == nil && addr.IsLoopback()
}

// fixed is the hash of what only a start changes.
func (u Unit) fixed() string {
	if u.Fixed != "" {
		return u.Fixed
	}
	text, _ := json.Marshal(u) // strings, numbers and maps of them always can be
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
