package eval

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"skyserve/internal/sim"
	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/workload"
	"skyserve/lbd/core"
	"skyserve/lbd/prefix"
)

// recordedLoad gathers from a record what a simulation needs to be asked the
// same: the requests, the replicas and the peers.
type recordedLoad struct {
	requests []askedRequest
	flying   map[string]int // position in requests by id, while in flight

	models   map[string]string         // of the replicas present, by id
	replicas map[string]int            // the most that were present at once, by model
	offers   map[string]map[string]int // the most replicas reported, by peer and model
	rtt      map[string]time.Duration  // last reported, by peer
}

// askedRequest is a request as it came and, where it was served, as long as it was.
type askedRequest struct {
	at          time.Duration
	model       string
	row         workload.Row
	estimate    int // prompt tokens before an engine had counted
	bound       int // most tokens asked for, 0 = no bound
	counted     bool
	answerKnown bool
}

func newRecordedLoad() *recordedLoad {
	return &recordedLoad{
		flying: map[string]int{}, models: map[string]string{}, replicas: map[string]int{},
		offers: map[string]map[string]int{}, rtt: map[string]time.Duration{},
	}
}

// step takes in one step.
func (l *recordedLoad) step(s *recordedStep) {
	e := s.Event
	if e == nil {
		return // a configuration: nobody asked for anything
	}
	switch e.Kind {
	case core.EventArrived:
		l.arrive(s.T, e.Request)
	case core.EventFinished:
		l.end(e)
	case core.EventCancelled:
		delete(l.flying, e.ID)
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
		l.hear(e.Target, e.PeerReport)
	}
}

// arrive notes a request; an id that is in flight is refused by the balancer.
func (l *recordedLoad) arrive(at time.Duration, r *core.Request) {
	if _, twice := l.flying[r.ID]; twice {
		return
	}
	l.flying[r.ID] = len(l.requests)
	l.requests = append(l.requests, askedRequest{
		at: at, model: r.Model, estimate: r.PromptTokens, bound: r.MaxTokens,
		row: workload.Row{
			InputTokens: r.PromptTokens, Blocks: slices.Clone(r.Prompt), Session: r.Session, User: r.Tenant, Tier: r.Tier,
		},
	})
}

// end notes how long a request was that was served.
func (l *recordedLoad) end(e *core.Event) {
	i, flying := l.flying[e.ID]
	if !flying {
		return
	}
	delete(l.flying, e.ID)
	o, r := e.Outcome, &l.requests[i]
	if o == nil {
		return
	}
	if o.PromptTokens.Known {
		r.row.InputTokens, r.counted = o.PromptTokens.Value, true
	}
	if o.OutputTokens.Known && o.OutputTokens.Value > 0 {
		r.row.OutputTokens, r.answerKnown = o.OutputTokens.Value, true
	}
}

func (l *recordedLoad) hear(peer string, report *core.PeerReport) {
	if report.RTT > 0 {
		l.rtt[peer] = report.RTT
	}
	if l.offers[peer] == nil {
		l.offers[peer] = map[string]int{}
	}
	for _, m := range report.Models {
		l.offers[peer][m.Model] = max(l.offers[peer][m.Model], m.Replicas)
	}
}

// scenario is the open loop that asks what the record was asked, and what had to
// be assumed for it, in words.
func (l *recordedLoad) scenario(name string, c *ReplayConstants, profile engine.Profile) (*sim.Scenario, []string, error) {
	if len(l.requests) == 0 {
		return nil, nil, errors.New("no request arrived in the record: there is nothing to ask again")
	}
	s := sim.Default()
	s.Name, s.Title = name, "what was asked of balancer "+c.Self.ID+", asked again"
	s.Profile, s.MaxContext, s.Home, s.Warmup = profile, profile.KVTokens-1, c.Self.ID, 0
	s.Interval, s.Forward, s.Tau, s.MaxWait = c.Config.ProbeInterval, c.Config.Forward, c.Config.Tau, c.Config.MaxWait
	var assumed []string
	model := l.mainModel(&assumed)
	l.regions(&s, c, model, &assumed)
	if err := l.rows(&s, c.Self.ID, model, &assumed); err != nil {
		return nil, nil, err
	}
	if c.Config.Order != "" && c.Config.Order != core.OrderFCFS {
		assumed = append(assumed, fmt.Sprintf("the queue is first come, first served; recorded was %s", c.Config.Order))
	}
	return &s, assumed, s.Validate()
}

// mainModel is the model of the most requests; one scenario has one model.
func (l *recordedLoad) mainModel(assumed *[]string) string {
	asked := map[string]int{}
	for i := range l.requests {
		asked[l.requests[i].model]++
	}
	models := slices.Sorted(maps.Keys(asked))
	most := slices.MaxFunc(models, func(a, b string) int { return cmp.Compare(asked[a], asked[b]) })
	if others := len(l.requests) - asked[most]; others > 0 {
		*assumed = append(*assumed, fmt.Sprintf("%d requests of other models than %s are left out", others, most))
	}
	return most
}

// regions makes the balancer and each peer that has replicas a region of its own.
func (l *recordedLoad) regions(s *sim.Scenario, c *ReplayConstants, model string, assumed *[]string) {
	s.Regions, s.Links = []sim.Region{{Name: c.Self.ID, Replicas: l.replicas[model]}}, nil
	for _, peer := range slices.Sorted(maps.Keys(l.offers)) {
		if peer == c.Self.ID || l.offers[peer][model] < 1 {
			continue
		}
		away := cmp.Or(l.rtt[peer], s.LocalRTT)
		for _, r := range s.Regions {
			// Between two peers nothing passes: requests are forwarded once.
			s.Links = append(s.Links, sim.Link{A: r.Name, B: peer, RTT: away})
		}
		s.Regions = append(s.Regions, sim.Region{Name: peer, Replicas: l.offers[peer][model]})
		*assumed = append(*assumed, fmt.Sprintf("peer %s has as many replicas as it reported, %d, and no clients of its own: they are not in this record", peer, l.offers[peer][model]))
	}
}

// rows makes the requests rows of a trace.
func (l *recordedLoad) rows(s *sim.Scenario, region, model string, assumed *[]string) error {
	block, answer, bound, err := l.lengths(model)
	if err != nil {
		return err
	}
	var rows []workload.Row
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
		if !r.answerKnown {
			row.OutputTokens = answer
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
		return fmt.Errorf("every prompt in the record is longer than the %d tokens that %s holds", s.MaxContext, s.Profile.Name)
	}
	if guessed > 0 {
		*assumed = append(*assumed, fmt.Sprintf("%d requests without an answer in the record get the mean of the others, %d tokens", guessed, answer))
	}
	if leftOut > 0 {
		*assumed = append(*assumed, fmt.Sprintf("%d requests that do not fit into the %d tokens of %s are left out", leftOut, s.MaxContext, s.Profile.Name))
	}
	*assumed = append(*assumed, "an answer that a later prompt repeats counts as new there: a record has no text to tell that it is the same")
	return nil
}

// lengths are the tokens of a block of prompt, of a mean answer, and the mean
// bound that requests ask with (0 where none does).
func (l *recordedLoad) lengths(model string) (block, answer, bound int, err error) {
	var counted, estimated, output, answers, bounds, bounded float64
	for i := range l.requests {
		r := &l.requests[i]
		if r.model != model {
			continue
		}
		if r.counted && r.estimate > 0 {
			counted, estimated = counted+float64(r.row.InputTokens), estimated+float64(r.estimate)
		}
		if r.answerKnown {
			output, answers = output+float64(r.row.OutputTokens), answers+1
		}
		if r.bound > 0 {
			bounds, bounded = bounds+float64(r.bound), bounded+1
		}
	}
	if answers == 0 {
		return 0, 0, 0, errors.New("no request of the record was answered: how long answers are is not known")
	}
	const perBlock = prefix.BlockBytes / 4 // as prompts are estimated before an engine counts
	block = perBlock
	if counted > 0 && estimated > 0 {
		block = max(1, int(math.Round(perBlock*counted/estimated)))
	}
	if bounded > 0 {
		bound = int(math.Round(bounds / bounded))
	}
	return block, max(1, int(math.Round(output/answers))), bound, nil
}
