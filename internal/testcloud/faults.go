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
	Served        Outcome = iota // executed and answered
	Throttled                    // rejected for its rate, without effect
	InternalError                // answered with an internal error, without effect
	RequestLost                  // disconnected before execution: the caller sees a broken connection
	ResponseLost                 // executed, and the response is lost: the caller sees a broken connection
)

// Faults decides the outcome of every call, and counts calls. Several clouds may share one. The zero
// value serves every call.
type Faults struct {
	// Decide returns the outcome of each call, one call at a time; nil = all are served.
	DecideOutcome func(Call) Outcome
	// Unseen is how many lists do not show a new object yet, or still show a deleted one, as with
	// eventually consistent clouds.
	StaleLists int
	// Hold is called while a call is in flight, so that tests can keep several calls in flight; nil =
	// no effect.
	DuringCall func(Call)

	mu          sync.Mutex
	number      int
	actions     map[string]int
	inFlight    map[string]int
	maxInFlight map[string]int
}

// Actions returns how often each action was called.
func (f *Faults) CallCounts() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := map[string]int{}
	for a, n := range f.actions {
		counts[a] = n
	}
	return counts
}

// MostInFlight returns the maximum number of calls that were in flight to a region at once.
func (f *Faults) MaxCallsInFlight(cloud, region string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.maxInFlight[cloud+"/"+region]
}

// Begin records the start of a call and returns its outcome; end records its end.
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

// Cut breaks the connection of a request without a response.
func DropConnection() { panic(http.ErrAbortHandler) }
