package testcloud

import (
	"net/http"
	"sync"
)

// Call is one request that an emulated cloud received.
type Call struct {
	// Number counts the calls of all clouds that share a Faults, from 1.
	Number   int
	Cloud    string // aws, gcp
	Region   string // us-east-1; empty = the cloud as a whole
	Action   string // ec2:RunInstances, compute.instances.insert
	ReadOnly bool   // changes nothing
}

// Outcome is the outcome of a call.
type Outcome int

// The outcomes.
const (
	Served        Outcome = iota // executed, with a response
	Throttled                    // rejected for its rate, without effect
	InternalError                // rejected with an internal error, without effect
	RequestLost                  // the connection is dropped before execution
	ResponseLost                 // executed, but the connection is dropped before the response
)

// Faults decides the outcome of every call, and counts calls. Several clouds may share one Faults. The zero
// value serves every call.
type Faults struct {
	// DecideOutcome returns the outcome of a call. Its calls do not overlap. nil = all calls are served.
	DecideOutcome func(Call) Outcome
	// StaleLists is the number of lists that omit a new object, or still contain a deleted one. It emulates
	// the eventual consistency of clouds.
	StaleLists int
	// DuringCall is called while a call is in flight, and may block. Tests use it to have several calls in
	// flight. nil = no effect.
	DuringCall func(Call)

	mu          sync.Mutex
	number      int
	actions     map[string]int
	inFlight    map[string]int
	maxInFlight map[string]int
}

// CallCounts returns the number of calls of each action.
func (f *Faults) CallCounts() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := map[string]int{}
	for a, n := range f.actions {
		counts[a] = n
	}
	return counts
}

// MaxCallsInFlight returns the maximum number of concurrent calls to a region.
func (f *Faults) MaxCallsInFlight(cloud, region string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.maxInFlight[cloud+"/"+region]
}

// BeginCall records the start of a call and returns its outcome; end records its end.
func (f *Faults) BeginCall(c Call) (o Outcome, end func()) {
	f.mu.Lock()
	f.number++
	c.Number = f.number
	if f.actions == nil {
		f.actions, f.inFlight, f.maxInFlight = map[string]int{}, map[string]int{}, map[string]int{}
	}
	f.actions[c.Action]++
	key := c.Cloud + "/" + c.Region
	f.inFlight[key]++
	f.maxInFlight[key] = max(f.maxInFlight[key], f.inFlight[key])
	if f.DecideOutcome != nil {
		o = f.DecideOutcome(c)
	}
	f.mu.Unlock()
	if f.DuringCall != nil {
		f.DuringCall(c)
	}
	return o, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.inFlight[key]--
	}
}

// DropConnection closes the connection of a request without a response.
func DropConnection() { panic(http.ErrAbortHandler) }
