package eval

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/sim"
	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/workload"
	"skyserve/lbd/core"
	"skyserve/lbd/prefix"
)

// recordedLoad collects from a record the inputs for simulating the same load: the
// requests, the replicas and the peers.
type recordedLoad struct {
	requests []replayRequest
	inFlight map[string]int // index in requests by ID, while in flight

	models       map[string]string         // of the present replicas, by ID
	replicas     map[string]int            // maximum present at once, by model
	peerReplicas map[string]map[string]int // maximum replicas reported, by peer and model
	rtt          map[string]time.Duration  // last reported RTT, by peer
}

// replayRequest is a recorded request with its output length, if it has a response.
type replayRequest struct {
	at          time.Duration
	model       string
	row         workload.TraceRow
	estimate    int // prompt tokens before an engine counted them
	maxTokens   int // max_tokens of the request, 0 = none
	counted     bool
	outputKnown bool
}

func newRecordedLoad() *recordedLoad {
	return &recordedLoad{
		inFlight: map[string]int{}, models: map[string]string{}, replicas: map[string]int{},
		peerReplicas: map[string]map[string]int{}, rtt: map[string]time.Duration{},
	}
}

// applyStep applies one step.
func (l *recordedLoad) applyStep(s *recordedStep) {
	if s.Event != nil { // nil in a configuration change
		l.applyEvent(s.T, s.Event)
	}
	actions, err := s.sentActions()
	if err != nil {
		return // never: the replay just compared them
	}
	for i := range actions {
		if actions[i].endsRequest() {
			delete(l.inFlight, actions[i].ID) // a fallback or a client may send the ID again
		}
	}
}

func (l *recordedLoad) applyEvent(at time.Duration, e *core.Event) {
	switch e.Kind {
	case core.EventArrived:
		l.addRequest(at, e.Request)
	case core.EventFinished:
		l.addOutcome(e)
	case core.EventCancelled:
		delete(l.inFlight, e.ID)
	case core.EventReplicaAdded:
		l.models[e.Replica.ID] = e.Replica.Model
		present := 0
		for _, model := range l.models {
			if model == e.Replica.Model {
				present++
			}
		}
		l.replicas[e.Replica.Model] = max(l.replicas[e.Replica.Model], present)
	case core.EventReplicaRemoved:
		delete(l.models, e.Target)
	case core.EventPeerReport:
		l.observePeer(e.Target, e.PeerReport)
	}
}

// addRequest adds a request; the balancer rejects an ID that is already in flight.
func (l *recordedLoad) addRequest(at time.Duration, r *core.Request) {
	if _, twice := l.inFlight[r.ID]; twice {
		return
	}
	l.inFlight[r.ID] = len(l.requests)
	l.requests = append(l.requests, replayRequest{
		at: at, model: r.Model, estimate: r.PromptTokens, maxTokens: r.MaxTokens,
		row: workload.TraceRow{
			InputTokens: r.PromptTokens, Blocks: slices.Clone(r.Prompt), Session: r.Session, User: r.Tenant, Tier: r.Tier,
		},
	})
}

// addOutcome records the token counts of a completed request.
func (l *recordedLoad) addOutcome(e *core.Event) {
	i, flying := l.inFlight[e.ID]
	if !flying {
		return
	}
	delete(l.inFlight, e.ID)
	o, r := e.Outcome, &l.requests[i]
	if o == nil {
		return
	}
	if o.PromptTokens.Known {
		r.row.InputTokens, r.counted = o.PromptTokens.Value, true
	}
	if o.OutputTokens.Known && o.OutputTokens.Value > 0 {
		r.row.OutputTokens, r.outputKnown = o.OutputTokens.Value, true
	}
}

func (l *recordedLoad) observePeer(peer string, report *core.PeerReport) {
	if report.RTT > 0 {
		l.rtt[peer] = report.RTT
	}
	if l.peerReplicas[peer] == nil {
		l.peerReplicas[peer] = map[string]int{}
	}
	for _, m := range report.Models {
		l.peerReplicas[peer][m.Model] = max(l.peerReplicas[peer][m.Model], m.Replicas)
	}
}

// scenario returns an open-loop scenario that sends the recorded requests, and the assumptions behind
// it, as sentences.
func (l *recordedLoad) scenario(name string, c *ReplayConstants, profile engine.Profile) (*sim.Scenario, []string, error) {
	if len(l.requests) == 0 {
		return nil, nil, errors.New("the record contains no request to simulate")
	}
	s := sim.Default()
	s.Name, s.Title = name, "recorded requests of balancer "+c.Self.ID
	s.Profile, s.MaxContext, s.Home, s.Warmup = profile, profile.KVTokens-1, c.Self.ID, 0
	s.Interval, s.Forward, s.PeerQueueLimit, s.MaxWait = c.Config.ProbeInterval, c.Config.Forward, c.Config.PeerQueueLimit, c.Config.MaxWait
	s.Unconfirmed = c.Config.UnconfirmedLimit
	var assumed []string
	model := l.mainModel(&assumed)
	l.addRegions(&s, c, model, &assumed)
	if err := l.addRows(&s, c.Self.ID, model, &assumed); err != nil {
		return nil, nil, err
	}
	if c.Config.Order != "" && c.Config.Order != core.OrderFCFS {
		assumed = append(assumed, fmt.Sprintf("the queue order is fcfs; recorded: %s", c.Config.Order))
	}
	return &s, assumed, s.Validate()
}

// mainModel returns the model with the most requests; a scenario has one model.
func (l *recordedLoad) mainModel(assumed *[]string) string {
	requests := map[string]int{}
	for i := range l.requests {
		requests[l.requests[i].model]++
	}
	models := slices.Sorted(maps.Keys(requests))
	largest := slices.MaxFunc(models, func(a, b string) int { return cmp.Compare(requests[a], requests[b]) })
	if others := len(l.requests) - requests[largest]; others > 0 {
		*assumed = append(*assumed, fmt.Sprintf("omitted: %s for models other than %s", printable.Count(others, "request"), largest))
	}
	return largest
}

// addRegions creates a region for the balancer and for each peer with replicas.
func (l *recordedLoad) addRegions(s *sim.Scenario, c *ReplayConstants, model string, assumed *[]string) {
	s.Regions, s.Links = []sim.Region{{Name: c.Self.ID, Replicas: l.replicas[model]}}, nil
	for _, peer := range slices.Sorted(maps.Keys(l.peerReplicas)) {
		if peer == c.Self.ID || l.peerReplicas[peer][model] < 1 {
			continue
		}
		away := cmp.Or(l.rtt[peer], s.LocalRTT)
		for _, r := range s.Regions {
			// Requests are forwarded once, so the RTT between two peers has no effect.
			s.Links = append(s.Links, sim.Link{A: r.Name, B: peer, RTT: away})
		}
		s.Regions = append(s.Regions, sim.Region{Name: peer, Replicas: l.peerReplicas[peer][model]})
		*assumed = append(*assumed, fmt.Sprintf("peer %s has %s, as it reported, and no clients of its own: the record does not contain them", peer, printable.Count(l.peerReplicas[peer][model], "replica")))
	}
}

// addRows converts the requests to rows of a trace.
func (l *recordedLoad) addRows(s *sim.Scenario, region, model string, assumed *[]string) error {
	block, response, bound, err := l.lengths(model)
	if err != nil {
		return err
	}
	var rows []workload.TraceRow
	leftOut := 0
	if bound > 0 {
		s.MaxNew = bound
	}
	first, guessed := time.Duration(-1), 0
	for i := range l.requests {
		r := &l.requests[i]
		if r.model != model {
			continue
		}
		if first < 0 {
			first = r.at
		}
		row := r.row
		row.Number, row.At, row.Region, row.BlockTokens = i+1, r.at-first, region, block
		if !r.outputKnown {
			row.OutputTokens = response
			guessed++
		}
		if row.InputTokens >= s.MaxContext {
			leftOut++
			continue
		}
		rows = append(rows, row)
	}
	s.Trace = &sim.Trace{Name: s.Name, Format: "record", Open: sim.InMemory(rows, leftOut)}
	if len(rows) == 0 {
		return fmt.Errorf("every prompt in the record exceeds the %d tokens that fit into the KV memory of %s", s.MaxContext, s.Profile.Name)
	}
	if guessed > 0 {
		*assumed = append(*assumed, fmt.Sprintf("%s without a recorded response, taken to have the mean output of the others, %s", printable.Count(guessed, "request"), printable.Count(response, "token")))
	}
	if leftOut > 0 {
		*assumed = append(*assumed, fmt.Sprintf("omitted: %s above the %d tokens of %s", printable.Count(leftOut, "request"), s.MaxContext, s.Profile.Name))
	}
	*assumed = append(*assumed, "a response repeated in a later prompt counts as uncached there: the record contains no text")
	return nil
}

// lengths returns the mean tokens of a prompt block, of a response, and of the max_tokens of requests (0
// if none sets it).
func (l *recordedLoad) lengths(model string) (block, response, bound int, err error) {
	var counted, estimated, output, responses, bounds, bounded float64
	for i := range l.requests {
		r := &l.requests[i]
		if r.model != model {
			continue
		}
		if r.counted && r.estimate > 0 {
			counted, estimated = counted+float64(r.row.InputTokens), estimated+float64(r.estimate)
		}
		if r.outputKnown {
			output, responses = output+float64(r.row.OutputTokens), responses+1
		}
		if r.maxTokens > 0 {
			bounds, bounded = bounds+float64(r.maxTokens), bounded+1
		}
	}
	if responses == 0 {
		return 0, 0, 0, errors.New("the record contains no response: the output length is unknown")
	}
	const perBlock = prefix.BlockBytes / 4 // the estimate of prompt tokens before an engine counts them
	block = perBlock
	if counted > 0 && estimated > 0 {
		block = max(1, int(math.Round(perBlock*counted/estimated)))
	}
	if bounded > 0 {
		bound = int(math.Round(bounds / bounded))
	}
	return block, max(1, int(math.Round(output/responses))), bound, nil
}
