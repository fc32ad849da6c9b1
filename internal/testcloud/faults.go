package testcloud

import (
	"net/http"
	"sync"
)

// Call is one request that a fake received.
type Call struct {
	// Number counts the calls of all fakes that share a Faults, from 1.
	Number int
	Cloud  string // aws, gcp
	Region string // us-east-1; empty = the cloud as a whole
	Action string // ec2:RunInstances, compute.instances.insert
	Reads  bool   // changes nothing
}

// Outcome is what becomes of a call.
type Outcome int

// The outcomes.
const (
	Served    Outcome = iota // done and answered
	Throttled                // refused for its rate, and nothing done
	Broken                   // answered with an internal error, and nothing done
	Refused                  // cut off before anything was done: the caller sees a broken connection
	Lost                     // done, and the answer is lost: the caller sees a broken connection
)

// Faults decides what becomes of every call, and counts them. Several fakes may
// share one. The zero value serves everything.
type Faults struct {
	// Decide is asked about each call, one at a time; nil = all are served.
	Decide func(Call) Outcome
	// Unseen is how many lists do not yet show an object that was just made, or still
	// show one that has just gone, as clouds do whose lists lag behind.
	Unseen int
	// Hold is called while a call is in flight, which tests use to hold calls up
	// together; nil = they are not.
	Hold func(Call)

	mu       sync.Mutex
	number   int
	actions  map[string]int
	inFlight map[string]int
	most     map[string]int
}

// Actions says how often each action was called.
func (f *Faults) Actions() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := map[string]int{}
	for a, n := range f.actions {
		counts[a] = n
	}
	return counts
}

// MostInFlight is the most calls that were in flight to a region at once.
func (f *Faults) MostInFlight(cloud, region string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most[cloud+"/"+region]
}

// Begin counts a call in and says what becomes of it; end counts it out.
func (f *Faults) Begin(c Call) (o Outcome, end func()) {
	f.mu.Lock()
	f.number++
	c.Number = f.number
	if f.actions == nil {
		f.actions, f.inFlight, f.most = map[string]int{}, map[string]int{}, map[string]int{}
	}
	f.actions[c.Action]++
	place := c.Cloud + "/" + c.Region
	f.inFlight[place]++
	f.most[place] = max(f.most[place], f.inFlight[place])
	if f.Decide != nil {
		o = f.Decide(c)
	}
	f.mu.Unlock()
	if f.Hold != nil {
		f.Hold(c)
	}
	return o, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.inFlight[place]--
	}
}

// Cut breaks the connection of a request without an answer.
func Cut() { panic(http.ErrAbortHandler) }
