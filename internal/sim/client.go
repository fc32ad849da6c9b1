package sim

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/workload"
	"skyserve/lbd/prefix"
)

// client is a closed-loop client in its region, or a session of an open loop.
type client struct {
	index         int32
	region        int
	workload      workload.Client
	singleRequest bool // it issues no requests after its first
}

// clientRequest is a request of a client, from issue to end.
type clientRequest struct {
	row     client // of a trace row
	id      string
	client  *client
	request workload.Request
	maxNew  int
	text    string // the response
	// Not used with light engines.
	prompt   []engine.Token
	key      prefix.Key // of prompt
	response []engine.Token

	leg         leg           // at the client's balancer
	firstIssued time.Duration // first issue, before retries
	issued      time.Duration // issue of this attempt
	retried     bool          // not the first attempt
	first       time.Duration
	started     bool // received its first token
	ended       bool
	rejected    bool // no engine can run it
	cached      int  // cached prompt tokens, as reported by the engine
	output      int  // output tokens of the engine
}

// retryInterval is the wait of a client after a failed request: the balancer's Retry-After.
const retryInterval = time.Second

// wordBytes is the length of a token of the generated responses, which consist of the workload's words: a
// space and three letters.
const wordBytes = 4

// addClients creates the clients, with staggered starts.
func (w *world) addClients(phase func(time.Duration) time.Duration) error {
	for region, r := range w.scenario.Regions {
		for i := range r.Clients {
			c, err := w.newClient(region, i, false)
			if err != nil {
				return err
			}
			w.clients = append(w.clients, c)
			w.queue.pushEvent(event{at: phase(startSpread), kind: evIssue, issue: w.newRequests(c, nil, c.workload.Next())})
		}
	}
	return nil
}

// newClient creates the i-th client of a region, or its i-th session.
func (w *world) newClient(region, i int, once bool) (*client, error) {
	s := w.scenario
	name := s.Regions[region].Name
	load, err := workload.NewClient(s.Workload, workload.Options{
		Seed: w.setup.Seed, Region: name, Client: i, Heavy: name == s.heavy(), MaxContext: s.MaxContext,
		Lengths: s.Lengths, Sigma: s.Sigma, Once: once,
	})
	if err != nil {
		return nil, err
	}
	w.sessions++
	return &client{index: w.sessions - 1, region: region, workload: load}, nil
}

// heavy returns the region with the larger trees, for workloads that have one.
func (s *Scenario) heavy() string {
	names := make([]string, 0, len(s.Regions))
	for _, r := range s.Regions {
		names = append(names, r.Name)
	}
	return workload.HeavyRegion(names)
}

// newRequests creates requests for a client's next requests; before is its previous request.
func (w *world) newRequests(c *client, before *clientRequest, requests []workload.Request) []*clientRequest {
	issued := make([]*clientRequest, 0, len(requests))
	for _, r := range requests {
		issued = append(issued, w.newRequest(c, before, r))
	}
	return issued
}

func (w *world) newRequest(c *client, before *clientRequest, r workload.Request) *clientRequest {
	f := &clientRequest{}
	w.initRequest(f, c, before, r)
	return f
}

// newRowRequest creates the request of a trace row, and reuses a finished one if possible.
func (w *world) newRowRequest(region int, r workload.Request) *clientRequest {
	var f *clientRequest
	if n := len(w.spare); n > 0 {
		f = w.spare[n-1]
		w.spare = w.spare[:n-1]
		*f = clientRequest{}
	} else {
		f = &clientRequest{}
	}
	f.row = client{index: w.sessions, region: region, workload: oneRow{}, singleRequest: true}
	w.sessions++
	w.initRequest(f, &f.row, nil, r)
	return f
}

// maxSpareRequests limits the requests kept for reuse.
const maxSpareRequests = 4096

// recycle keeps the finished request of a row for reuse. Without faults and client timeouts no pending
// event refers to it.
func (w *world) recycle(f *clientRequest) {
	quiet := len(w.scenario.Faults) == 0 && w.scenario.ClientTimeout == 0 && w.setup.Layout != Everywhere
	if quiet && f.ended && f.client == &f.row && len(w.spare) < maxSpareRequests {
		w.spare = append(w.spare, f)
	}
}

// initRequest initialises f with a client's request.
func (w *world) initRequest(f *clientRequest, c *client, before *clientRequest, r workload.Request) {
	w.requestCount++
	f.id, f.client, f.request = strconv.FormatUint(w.requestCount, 10), c, r
	f.maxNew = max(w.scenario.MaxNew, r.OutputTokens)
	if r.Messages != nil {
		// The responses do not depend on the policy.
		draw := rand.New(rand.NewPCG(w.setup.Seed, uint64(c.index)<<32|uint64(uint32(r.AnswerOf))))
		f.text = workload.Text(r.OutputTokens, draw.Uint64())
	}
	if w.light() {
		return
	}
	f.prompt = promptOf(before, r.Messages)
	f.response = engine.Tokenize(make([]engine.Token, 0, r.OutputTokens), f.text)
	f.key = keyOf(nil, f.prompt, w.setup.Seed)
}

// promptTokens returns the length of the prompt.
func (f *clientRequest) promptTokens() int {
	if f.prompt == nil {
		return f.request.InputTokens
	}
	return len(f.prompt)
}

// promptOf returns the tokens of a conversation. Most conversations continue an earlier request of the
// client and its response: only the rest is tokenised.
func promptOf(before *clientRequest, messages []workload.Message) []engine.Token {
	var tokens []engine.Token
	if before != nil {
		if n := len(before.request.Messages); len(messages) > n && messages[n].Content == before.text && slices.Equal(messages[:n], before.request.Messages) {
			tokens = append(tokens, before.prompt...)
			tokens = append(tokens, before.response...)
			messages = messages[n+1:]
		}
	}
	for _, m := range messages {
		tokens = engine.Tokenize(tokens, m.Content)
	}
	return tokens
}

// keyOf extends the key of the first tokens to all whole blocks of tokens. Every token counts as four
// bytes, so a block has 16 tokens.
func keyOf(key prefix.Key, tokens []engine.Token, seed uint64) prefix.Key {
	// A key's hashes are a chain: each is the seed of the next.
	if len(key) > 0 {
		seed = key[len(key)-1]
	}
	h := prefix.NewHasher(seed)
	var block [prefix.BlockBytes]byte
	const each = prefix.BlockBytes / wordBytes
	for rest := tokens[len(key)*each:]; len(rest) >= each; rest = rest[each:] {
		for i, t := range rest[:each] {
			block[4*i], block[4*i+1], block[4*i+2], block[4*i+3] = byte(t), byte(t>>8), byte(t>>16), byte(t>>24)
		}
		_, _ = h.Write(block[:]) // never fails
	}
	return append(key[:len(key):len(key)], h.Key()...)
}

// wholeKey returns the key of the prompt and its response.
func (f *clientRequest) wholeKey(seed uint64) prefix.Key {
	if f.prompt == nil {
		return nil
	}
	whole := make([]engine.Token, 0, len(f.prompt)+len(f.response))
	return keyOf(f.key, append(append(whole, f.prompt...), f.response...), seed)
}

// finished applies the engine's final counts: it may have truncated the response.
func (f *clientRequest) finished(ev *engine.Event) {
	f.cached, f.output = ev.CachedTokens, ev.OutputTokens
	if f.response != nil {
		f.response = f.response[:ev.OutputTokens]
	}
	if f.text != "" {
		f.text = f.text[:ev.OutputTokens*wordBytes]
	}
}

// issueAll sends requests to their clients' balancers.
func (w *world) issueAll(requests []*clientRequest) {
	for _, f := range requests {
		w.issue(f)
	}
}

func (w *world) issue(f *clientRequest) {
	c := f.client
	home := w.balancerFor(c)
	f.issued = w.now
	if !f.retried {
		f.firstIssued = w.now
	}
	f.leg = leg{request: f, node: home}
	w.tally.issued++
	w.pushEvent(w.delay[c.region][w.location(home, c)], event{kind: evArrive, leg: &f.leg})
	if w.scenario.ClientTimeout > 0 {
		w.pushEvent(max(0, f.firstIssued+w.scenario.ClientTimeout-w.now), event{kind: evTimeout, request: f})
	}
}

// deliver delivers a message about a request to its client at a time.
func (w *world) deliver(f *clientRequest, msg message, at time.Duration) {
	if f.ended {
		return
	}
	switch msg {
	case msgFirstToken:
		f.first, f.started = at, true
	case msgDone:
		if !f.started || f.first < f.issued || at < f.first {
			w.violate("request %s: issued at %v, first token at %v, finished at %v", f.id, f.issued, f.first, at)
		}
		f.ended = true
		w.tally.addCompleted(at >= w.warmupEnd(), at, f)
		w.issueNext(f)
	case msgBroken, msgRefused:
		f.ended = true
		w.tally.lost++
		again := w.newRequest(f.client, nil, f.request)
		again.firstIssued, again.retried = f.firstIssued, true
		w.pushEvent(retryInterval, event{kind: evIssue, issue: []*clientRequest{again}})
	default:
		f.ended = true
		w.tally.failed(at >= w.warmupEnd())
		w.continueClient(f)
	}
}

// issueNext issues a client's next requests, after its think time, when a request ended.
func (w *world) issueNext(f *clientRequest) {
	next := w.newRequests(f.client, f, f.client.workload.Done(f.request, f.text))
	if w.scenario.Think == 0 || len(next) == 0 {
		w.issueAll(next)
		return
	}
	w.pushEvent(w.thinkTime(f), event{kind: evIssue, issue: next})
}

// streamThink separates the think times of a seed from its responses.
const streamThink = 0x7468696e6b

// thinkTime returns the think time after a request, which does not depend on the policy.
func (w *world) thinkTime(f *clientRequest) time.Duration {
	draw := rand.New(rand.NewPCG(w.setup.Seed^streamThink, uint64(f.client.index)<<32|uint64(uint32(f.request.Seq))))
	return time.Duration(draw.ExpFloat64() * float64(w.scenario.Think))
}

// timeOut cancels a request when its client's timeout expires.
func (w *world) timeOut(f *clientRequest) {
	if f.ended {
		return
	}
	f.ended = true
	w.tally.cancelled++
	w.pushEvent(w.delay[f.client.region][w.location(f.leg.node, f.client)], event{kind: evCancel, leg: &f.leg})
	w.continueClient(f)
}

// continueClient issues a client's next requests, after a pause, when a request failed.
func (w *world) continueClient(f *clientRequest) {
	c := f.client
	if next := w.newRequests(c, nil, c.workload.Failed(f.request)); len(next) > 0 {
		w.pushEvent(retryInterval, event{kind: evIssue, issue: next})
	}
}
