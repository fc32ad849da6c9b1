package eval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"skyserve/lbd/core"
)

// attempt is one dispatch of a request to a replica, from sent to end, as the balancer observed it.
type attempt struct {
	replica, model string
	prompt, cached int
	output         int

	sent, first, end time.Duration // since the record's start; first and end are 0 until they are known

	// usable reports that the request arrived here and was completed, and that the engine
	// counted its tokens.
	usable bool
}

// uncached returns the number of prompt tokens that the engine computed; it always computes the last
// one.
func (s *attempt) uncached() int { return max(1, s.prompt-s.cached) }

// decode returns the time between the first token and the last.
func (s *attempt) decode() time.Duration { return s.end - s.first }

// attemptLog collects the dispatches of a record.
type attemptLog struct {
	all      []*attempt
	inFlight map[string]*attempt // by request ID: the current dispatch
	requests map[string]*core.Request

	uncounted, failed int // attempts unusable for the fit: no token counts; no response

	outstanding map[string]int // outstanding requests of this balancer, by replica
	foreign     float64        // sum over reports of the requests beyond own
	reported    float64        // sum over reports of the replica's requests
	last        time.Duration
}

// sentAction holds the fields of an action that the fit uses.
type sentAction struct {
	Kind   core.ActionKind `json:"kind"`
	ID     string          `json:"id"`
	Target string          `json:"target"`
	Reason string          `json:"reason"`
}

// endsRequest reports whether the balancer has no more to do with the request.
func (a *sentAction) endsRequest() bool {
	// A duplicate ID ends the new arrival, not the request with that ID.
	return a.Kind == core.ActionReject && a.Reason != core.RejectDuplicate || a.Kind == core.ActionBounce
}

// sentActions decodes the balancer's actions in a step.
func (s *recordedStep) sentActions() ([]sentAction, error) {
	if len(s.Actions) == 0 {
		return nil, nil
	}
	var actions []sentAction
	if err := json.Unmarshal(s.Actions, &actions); err != nil {
		return nil, fmt.Errorf("actions: %w", err)
	}
	return actions, nil
}

// readAttempts reads the rest of a record after its header.
func readAttempts(ctx context.Context, r *recordReader) (*attemptLog, error) {
	s := &attemptLog{inFlight: map[string]*attempt{}, requests: map[string]*core.Request{}, outstanding: map[string]int{}}
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		step, err := r.nextStep()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		s.last = step.T
		if step.Event != nil {
			s.applyEvent(step.T, step.Event)
		}
		if err := s.applyActions(step); err != nil {
			return nil, fmt.Errorf("reading %s:%d: %w", r.name, r.line, err)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.inFlight)) {
		s.abandon(id, s.last) // unfinished at the end of the record
	}
	return s, nil
}

// applyEvent applies an event.
func (s *attemptLog) applyEvent(at time.Duration, e *core.Event) {
	switch e.Kind {
	case core.EventArrived:
		if _, twice := s.requests[e.Request.ID]; !twice {
			r := *e.Request
			s.requests[r.ID] = &r
		}
	case core.EventFirstToken:
		if f := s.inFlight[e.ID]; f != nil && f.first == 0 {
			f.first = at
		}
	case core.EventFinished:
		s.finish(at, e)
	case core.EventFailed:
		s.abandon(e.ID, at)
	case core.EventCancelled, core.EventBounced:
		s.abandon(e.ID, at)
		delete(s.requests, e.ID)
	case core.EventReplicaReport:
		if running := e.Report.Running; running.Known {
			there := running.Value + e.Report.Pending.Or(0)
			s.reported += float64(there)
			s.foreign += float64(max(0, there-s.outstanding[e.Target]))
		}
	}
}

// applyActions applies the balancer's actions in a step.
func (s *attemptLog) applyActions(step *recordedStep) error {
	actions, err := step.sentActions()
	if err != nil {
		return err
	}
	for _, a := range actions {
		switch {
		case a.Kind == core.ActionDispatch:
			s.start(step.T, a)
		case a.Kind == core.ActionForward, a.endsRequest():
			s.abandon(a.ID, step.T)
			delete(s.requests, a.ID)
		}
	}
	return nil
}

// start begins an attempt.
func (s *attemptLog) start(at time.Duration, a sentAction) {
	r := s.requests[a.ID]
	if r == nil {
		return
	}
	s.abandon(a.ID, at)
	f := &attempt{replica: a.Target, model: r.Model, prompt: r.PromptTokens, sent: at, usable: true}
	s.inFlight[a.ID] = f
	s.all = append(s.all, f)
	s.outstanding[a.Target]++
}

// finish ends an attempt with a response.
func (s *attemptLog) finish(at time.Duration, e *core.Event) {
	f := s.inFlight[e.ID]
	if f != nil {
		f.end = at
		delete(s.inFlight, e.ID)
		s.outstanding[f.replica]--
		if o := e.Outcome; o != nil && o.PromptTokens.Known && o.OutputTokens.Known && o.OutputTokens.Value > 0 && o.CachedTokens.Or(0) <= o.PromptTokens.Value {
			f.prompt, f.cached, f.output = o.PromptTokens.Value, o.CachedTokens.Or(0), o.OutputTokens.Value
		} else {
			f.usable = false
			s.uncounted++
		}
		if f.first == 0 {
			f.usable = false
		}
	}
	delete(s.requests, e.ID)
}

// abandon ends an attempt without a response.
func (s *attemptLog) abandon(id string, at time.Duration) {
	if f := s.inFlight[id]; f != nil {
		f.end, f.usable = at, false
		s.failed++
		s.outstanding[f.replica]--
		delete(s.inFlight, id)
	}
}

// selectModel returns the attempts of the requested model, or of the only model in the record.
func (s *attemptLog) selectModel(want string) (model string, kept []*attempt, err error) {
	found := map[string]bool{}
	for _, f := range s.all {
		found[f.model] = true
	}
	names := slices.Sorted(maps.Keys(found))
	switch {
	case len(names) == 0:
		return "", nil, errors.New("the record contains no request that was sent to a replica")
	case want == "" && len(names) > 1:
		return "", nil, fmt.Errorf("the record contains several models (%s): select one with --model", strings.Join(names, ", "))
	case want == "":
		want = names[0]
	case !found[want]:
		return "", nil, fmt.Errorf("the record contains no request for model %q, only for %s", want, strings.Join(names, ", "))
	}
	for _, f := range s.all {
		if f.model == want {
			kept = append(kept, f)
		}
	}
	return want, kept, nil
}
