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

// client is a closed-loop client in its region, or one session of an open loop.
type client struct {
	index    int32
	region   int
	workload workload.Client
	mute     bool // it never asks anything after its first
}

// flight is one request of a client, from its issue to its end.
type flight struct {
	row     client // of a row of a trace
	id      string
	client  *client
	request workload.Request
	maxNew  int
	text    string // the answer
	// What a light engine does without.
	prompt []engine.Token
	key    prefix.Key // of prompt
	answer []engine.Token

	leg     leg           // at the balancer that the client asked
	asked   time.Duration // when the client first asked for it
	issued  time.Duration // and when this try began
	retried bool          // it is not the first try
	first   time.Duration
	started bool // the first token came
	ended   bool
	refused bool // an engine can never run it
	cached  int  // prompt tokens that the engine found in its cache
	output  int  // tokens that the engine emitted
}

// retryPause is how long a client waits after a request that was not answered:
// the Retry-After of the balancer.
const retryPause = time.Second

// wordBytes is the length of a token of the answers, which are made of the
// workload's words: a space and three letters.
const wordBytes = 4

// addClients makes the clients; they start one after the other.
func (w *world) addClients(phase func(time.Duration) time.Duration) error {
	for region, r := range w.scenario.Regions {
		for i := range r.Clients {
			c, err := w.newClient(region, i, false)
			if err != nil {
				return err
			}
			w.clients = append(w.clients, c)
			w.queue.push(event{at: phase(startSpread), kind: evIssue, issue: w.flightsOf(c, nil, c.workload.Next())})
		}
	}
	return nil
}

// newClient makes the i-th client of a region, or its i-th session.
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

// heavy is the region with the larger trees, where a workload has such.
func (s *Scenario) heavy() string {
	names := make([]string, 0, len(s.Regions))
	for _, r := range s.Regions {
		names = append(names, r.Name)
	}
	return workload.HeavyRegion(names)
}

// flightsOf makes flights of what a client asks next; before is what it asked last.
func (w *world) flightsOf(c *client, before *flight, requests []workload.Request) []*flight {
	flights := make([]*flight, 0, len(requests))
	for _, r := range requests {
		flights = append(flights, w.newFlight(c, before, r))
	}
	return flights
}

func (w *world) newFlight(c *client, before *flight, r workload.Request) *flight {
	f := &flight{}
	w.fill(f, c, before, r)
	return f
}

// rowFlight makes the flight of a row of a trace, of one that came home if there
// is any.
func (w *world) rowFlight(region int, r workload.Request) *flight {
	var f *flight
	if n := len(w.spare); n > 0 {
		f = w.spare[n-1]
		w.spare = w.spare[:n-1]
		*f = flight{}
	} else {
		f = &flight{}
	}
	f.row = client{index: w.sessions, region: region, workload: oneRow{}, mute: true}
	w.sessions++
	w.fill(f, &f.row, nil, r)
	return f
}

// mostSpare bounds the flights that are kept to be used again.
const mostSpare = 4096

// home keeps the flight of a row for the next one: it was answered, and where
// nothing fails and nobody gives up nothing under way can speak of it any more.
func (w *world) home(f *flight) {
	quiet := len(w.scenario.Faults) == 0 && w.scenario.Patience == 0 && w.setup.Layout != Everywhere
	if quiet && f.ended && f.client == &f.row && len(w.spare) < mostSpare {
		w.spare = append(w.spare, f)
	}
}

// fill makes f what a client asks for.
func (w *world) fill(f *flight, c *client, before *flight, r workload.Request) {
	w.flights++
	f.id, f.client, f.request = strconv.FormatUint(w.flights, 10), c, r
	f.maxNew = max(w.scenario.MaxNew, r.OutputTokens)
	if r.Messages != nil {
		// Answers are the same under every policy.
		draw := rand.New(rand.NewPCG(w.setup.Seed, uint64(c.index)<<32|uint64(uint32(r.AnswerOf))))
		f.text = workload.Text(r.OutputTokens, draw.Uint64())
	}
	if w.light() {
		return
	}
	f.prompt = promptOf(before, r.Messages)
	f.answer = engine.Tokenize(make([]engine.Token, 0, r.OutputTokens), f.text)
	f.key = keyOf(nil, f.prompt, w.setup.Seed)
}

// promptTokens is the length of the prompt.
func (f *flight) promptTokens() int {
	if f.prompt == nil {
		return f.request.InputTokens
	}
	return len(f.prompt)
}

// promptOf is the tokens of a conversation. Most go on where an earlier request
// of the client and its answer ended: only the rest is new.
func promptOf(before *flight, messages []workload.Message) []engine.Token {
	var tokens []engine.Token
	if before != nil {
		if n := len(before.request.Messages); len(messages) > n && messages[n].Content == before.text && slices.Equal(messages[:n], before.request.Messages) {
			tokens = append(tokens, before.prompt...)
			tokens = append(tokens, before.answer...)
			messages = messages[n+1:]
		}
	}
	for _, m := range messages {
		tokens = engine.Tokenize(tokens, m.Content)
	}
	return tokens
}

// keyOf is the key of tokens that go on after those that key was made of; key
// covers whole blocks of them. Every token counts as its four bytes, so a block
// is 16 tokens.
func keyOf(key prefix.Key, tokens []engine.Token, seed uint64) prefix.Key {
	// A key's hashes are a chain: the last one is where the next begins.
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

// wholeKey is the key of the prompt with its answer.
func (f *flight) wholeKey(seed uint64) prefix.Key {
	if f.prompt == nil {
		return nil
	}
	whole := make([]engine.Token, 0, len(f.prompt)+len(f.answer))
	return keyOf(f.key, append(append(whole, f.prompt...), f.answer...), seed)
}

// finished takes the engine's word: the answer may have been cut.
func (f *flight) finished(ev *engine.Event) {
	f.cached, f.output = ev.CachedTokens, ev.OutputTokens
	if f.answer != nil {
		f.answer = f.answer[:ev.OutputTokens]
	}
	if f.text != "" {
		f.text = f.text[:ev.OutputTokens*wordBytes]
	}
}

// issueAll sends flights to their client's balancer.
func (w *world) issueAll(flights []*flight) {
	for _, f := range flights {
		w.issue(f)
	}
}

func (w *world) issue(f *flight) {
	c := f.client
	home := w.ask(c)
	f.issued = w.now
	if !f.retried {
		f.asked = w.now
	}
	f.leg = leg{flight: f, node: home}
	w.tally.issued++
	w.push(w.delay[c.region][w.seat(home, c)], event{kind: evArrive, leg: &f.leg})
	if w.scenario.Patience > 0 {
		w.push(max(0, f.asked+w.scenario.Patience-w.now), event{kind: evPatience, flight: f})
	}
}

// answer takes news of a request that the client still waits for, which reach it
// at a time.
func (w *world) answer(f *flight, said word, at time.Duration) {
	if f.ended {
		return
	}
	switch said {
	case saidFirst:
		f.first, f.started = at, true
	case saidDone:
		if !f.started || f.first < f.issued || at < f.first {
			w.broke("request %s: issued at %v, first token at %v, done at %v", f.id, f.issued, f.first, at)
		}
		f.ended = true
		w.tally.answered(at >= w.begin(), at, f)
		w.issueAll(w.flightsOf(f.client, f, f.client.workload.Done(f.request, f.text)))
	case saidBroken, saidRefused:
		f.ended = true
		w.tally.lost++
		again := w.newFlight(f.client, nil, f.request)
		again.asked, again.retried = f.asked, true
		w.push(retryPause, event{kind: evIssue, issue: []*flight{again}})
	default:
		f.ended = true
		w.tally.failed(at >= w.begin())
		w.goOn(f)
	}
}

// giveUp ends the patience of a client with a request.
func (w *world) giveUp(f *flight) {
	if f.ended {
		return
	}
	f.ended = true
	w.tally.cancelled++
	w.push(w.delay[f.client.region][w.seat(f.leg.node, f.client)], event{kind: evCancel, leg: &f.leg})
	w.goOn(f)
}

// goOn lets a client ask on, after a pause, when a request was not answered.
func (w *world) goOn(f *flight) {
	c := f.client
	if next := w.flightsOf(c, nil, c.workload.Failed(f.request)); len(next) > 0 {
		w.push(retryPause, event{kind: evIssue, issue: next})
	}
}
