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

// stay is a request's time at one replica, as a balancer saw it.
type stay struct {
	replica, model string
	prompt, cached int
	output         int

	sent, first, end time.Duration // of the record; first and end are 0 until they are known

	// whole: it came and was answered here, and the engine counted its tokens.
	whole bool
}

// uncached is how many tokens of the prompt the engine computed; the last one
// it always does.
func (s *stay) uncached() int { return max(1, s.prompt-s.cached) }

// decode is the time between the first token and the last.
func (s *stay) decode() time.Duration { return s.end - s.first }

// stays gathers from a record who was where and when.
type stays struct {
	all    []*stay
	flying map[string]*stay // by request: where it is now
	asked  map[string]*core.Request

	uncounted, failed int // stays that tell nothing: without token counts; ended otherwise

	own     map[string]int // outstanding, by replica
	foreign float64        // sum over reports of what a replica had beyond own
	seen    float64        // sum over reports of what it had
	last    time.Duration
}

// sentAction is what matters of an action here.
type sentAction struct {
	Kind   core.ActionKind `json:"kind"`
	ID     string          `json:"id"`
	Target string          `json:"target"`
	Reason string          `json:"reason"`
}

// readStays reads a whole record whose header was read.
func readStays(ctx context.Context, r *recordReader) (*stays, error) {
	s := &stays{flying: map[string]*stay{}, asked: map[string]*core.Request{}, own: map[string]int{}}
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		step, err := r.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		s.last = step.T
		if step.Event != nil {
			s.event(step.T, step.Event)
		}
		if err := s.actions(step); err != nil {
			return nil, fmt.Errorf("reading %s:%d: %w", r.name, r.line, err)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.flying)) {
		s.leave(id, s.last) // what is not over when the record ends
	}
	return s, nil
}

// event takes in what happened.
func (s *stays) event(at time.Duration, e *core.Event) {
	switch e.Kind {
	case core.EventArrived:
		if _, twice := s.asked[e.Request.ID]; !twice {
			r := *e.Request
			s.asked[r.ID] = &r
		}
	case core.EventFirstToken:
		if f := s.flying[e.ID]; f != nil && f.first == 0 {
			f.first = at
		}
	case core.EventFinished:
		s.finish(at, e)
	case core.EventFailed:
		s.leave(e.ID, at)
	case core.EventCancelled, core.EventBounced:
		s.leave(e.ID, at)
		delete(s.asked, e.ID)
	case core.EventReplicaReport:
		if running := e.Report.Running; running.Known {
			there := running.Value + e.Report.Pending.Or(0)
			s.seen += float64(there)
			s.foreign += float64(max(0, there-s.own[e.Target]))
		}
	}
}

// actions takes in what the balancer did about it.
func (s *stays) actions(step *recordedStep) error {
	if len(step.Actions) == 0 {
		return nil
	}
	var actions []sentAction
	if err := json.Unmarshal(step.Actions, &actions); err != nil {
		return fmt.Errorf("actions: %w", err)
	}
	for _, a := range actions {
		switch {
		case a.Kind == core.ActionDispatch:
			s.send(step.T, a)
		case a.Kind == core.ActionReject && a.Reason == core.RejectDuplicate: // of the other request of that id
		case a.Kind == core.ActionReject, a.Kind == core.ActionForward, a.Kind == core.ActionBounce:
			s.leave(a.ID, step.T)
			delete(s.asked, a.ID)
		}
	}
	return nil
}

// send begins a stay.
func (s *stays) send(at time.Duration, a sentAction) {
	r := s.asked[a.ID]
	if r == nil {
		return
	}
	s.leave(a.ID, at)
	f := &stay{replica: a.Target, model: r.Model, prompt: r.PromptTokens, sent: at, whole: true}
	s.flying[a.ID] = f
	s.all = append(s.all, f)
	s.own[a.Target]++
}

// finish ends a stay with an answer.
func (s *stays) finish(at time.Duration, e *core.Event) {
	f := s.flying[e.ID]
	if f != nil {
		f.end = at
		delete(s.flying, e.ID)
		s.own[f.replica]--
		if o := e.Outcome; o != nil && o.PromptTokens.Known && o.OutputTokens.Known && o.OutputTokens.Value > 0 && o.CachedTokens.Or(0) <= o.PromptTokens.Value {
			f.prompt, f.cached, f.output = o.PromptTokens.Value, o.CachedTokens.Or(0), o.OutputTokens.Value
		} else {
			f.whole = false
			s.uncounted++
		}
		if f.first == 0 {
			f.whole = false
		}
	}
	delete(s.asked, e.ID)
}

// leave ends a stay without an answer.
func (s *stays) leave(id string, at time.Duration) {
	if f := s.flying[id]; f != nil {
		f.end, f.whole = at, false
		s.failed++
		s.own[f.replica]--
		delete(s.flying, id)
	}
}

// ofModel keeps the stays of one model, the one that was asked for or the only
// one there is.
func (s *stays) ofModel(want string) (model string, kept []*stay, err error) {
	found := map[string]bool{}
	for _, f := range s.all {
		found[f.model] = true
	}
	names := slices.Sorted(maps.Keys(found))
	switch {
	case len(names) == 0:
		return "", nil, errors.New("no request was sent to a replica: there is nothing to fit")
	case want == "" && len(names) > 1:
		return "", nil, fmt.Errorf("there are requests of %s: choose one with --model", strings.Join(names, ", "))
	case want == "":
		want = names[0]
	case !found[want]:
		return "", nil, fmt.Errorf("no request of model %q was sent to a replica: there are those of %s", want, strings.Join(names, ", "))
	}
	for _, f := range s.all {
		if f.model == want {
			kept = append(kept, f)
		}
	}
	return want, kept, nil
}
