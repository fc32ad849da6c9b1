package policy

import (
	"fmt"
	"testing"
	"time"
)

// long returns a prompt of n tokens of 4 bytes.
func long(n int, cs []Candidate) *Facts {
	return &Facts{Model: "m", PromptBytes: 4 * n, PromptTokens: n, Queued: 1, MaxWait: time.Minute, Candidates: cs}
}

// leaves returns the lowest number of outstanding requests at which a replica that has cached half of a prompt of n
// tokens does not receive it. All other replicas are idle and have cached nothing.
func leaves(n int) int {
	for load := range 1000 {
		cs := fleet(4)
		cs[2].Outstanding, cs[2].MatchBytes = load, 2*n
		if NewCost().Choose(long(n, cs)).Index != 2 {
			return load
		}
	}
	return 1000
}

func TestCostWeighsLocalityAgainstLoad(t *testing.T) {
	short, middle, much := leaves(200), leaves(2000), leaves(8000)
	if short < 1 || middle <= 1 || much < middle || much > 20 {
		t.Errorf("200, 2,000 and 8,000 tokens leave the match at %d, %d and %d outstanding", short, middle, much)
	}
	// Nothing is cached: the least loaded replica is chosen.
	cs := fleet(3)
	cs[0].Outstanding, cs[1].Outstanding, cs[2].Outstanding = 5, 3, 4
	if got := NewCost().Choose(long(500, cs)); got.Index != 1 {
		t.Errorf("a miss: %+v", got)
	}
}

func TestCostHoldsForFullReplicaIfFaster(t *testing.T) {
	choose := func(tokens int, waited time.Duration) Choice {
		cs := fleet(2)
		for i := range cs {
			cs[i].Residence = 10 * time.Second
		}
		cs[0].Available, cs[0].Outstanding, cs[0].MatchBytes = false, 20, 4*tokens-64
		cs[0].Pending = Known(1)
		cs[1].Outstanding = 18
		f := long(tokens, cs)
		f.Waited = waited
		return NewCost().Choose(f)
	}
	// One of the 20 requests ends every half second: waiting is better than two seconds of prefill,
	// but not than a twentieth of a second.
	if got := choose(4000, 0); got != (Choice{Index: 0, Hold: true, Reason: ReasonLeastCost}) {
		t.Errorf("a long prompt: %+v", got)
	}
	if got := choose(100, 0); got != (Choice{Index: 1, Reason: ReasonLeastCost}) {
		t.Errorf("a short prompt: %+v", got)
	}
	if got := choose(4000, time.Minute); got != (Choice{Index: 1, Reason: ReasonLeastCost}) {
		t.Errorf("after a minute: %+v", got)
	}
}

// Requests held for a replica precede others, also once it is available.
func TestCostDoesNotOvertakeHeldRequests(t *testing.T) {
	cs := fleet(1)
	cs[0].Held = 2
	if got := NewCost().Choose(long(100, cs)); !got.Hold {
		t.Errorf("got %+v", got)
	}
}

// Complaint: counts of requests are balanced while a few long contexts fill one engine's memory.
func TestLongContextsThatFillEngineCountMore(t *testing.T) {
	cs := fleet(2)
	cs[0].Outstanding, cs[0].KV = 2, Known(0.97)
	cs[1].Outstanding, cs[1].KV = 6, Known(0.2)
	for i := range cs {
		cs[i].Residence = 10 * time.Second
	}
	if got := NewCost().Choose(long(300, cs)); got.Index != 1 {
		t.Errorf("got %+v, want the replica with memory left", got)
	}
	// For an engine that does not report its memory, the other figures count.
	cs[0].KV, cs[1].KV = Maybe[float64]{}, Maybe[float64]{}
	if got := NewCost().Choose(long(300, cs)); got.Index != 0 {
		t.Errorf("memory unknown: %+v", got)
	}
}

// An H100 and an L4, known only by the speed of their responses: the H100 receives many more requests
// before the L4 is cheaper.
func TestCostFollowsMeasuredSpeed(t *testing.T) {
	cs := fleet(2)
	cs[0].Pace, cs[1].Pace = 1, 0.09
	p, got := NewCost(), [2]int{}
	for range 1000 {
		i := p.Choose(long(500, cs)).Index
		cs[i].Outstanding++
		got[i]++
	}
	if got[1] < 5*got[0] || got[0] == 0 {
		t.Errorf("the slow one got %d, the fast one %d", got[0], got[1])
	}
}

func TestCostLeavesRegionOnlyIfMuchCheaper(t *testing.T) {
	choose := func(local, remote int, wait time.Duration) int {
		cs := append(fleet(2), Candidate{ID: "eu", Peer: true, Live: true, Available: true, RTT: 100 * time.Millisecond, Replicas: 4, PeerOutstanding: 4 * remote, ExpectedWait: wait})
		cs[0].Outstanding, cs[1].Outstanding = local, local
		return NewCost().Choose(long(300, cs)).Index
	}
	for _, c := range []struct {
		name          string
		local, remote int
		wait          time.Duration
		away          bool
	}{
		{"both idle", 0, 0, 0, false},
		{"slightly less there", 6, 4, 0, false},
		{"full here, idle there", 30, 2, 0, true},
		{"full here, a queue there", 30, 2, 20 * time.Second, false},
	} {
		if got := choose(c.local, c.remote, c.wait); (got == 2) != c.away {
			t.Errorf("%s: chose %d", c.name, got)
		}
	}
}

// The choice follows from the scores.
// A low load of a peer is believed less the older its report is: other regions have sent requests there since. A high
// load is believed as reported.
func TestCostDistrustsOldLowLoadsOfPeers(t *testing.T) {
	chosen := func(outstanding int, age time.Duration) int {
		cs := append(fleet(1), peer("p", 0, 0), peer("q", 0, 0))
		cs[0].Outstanding, cs[0].Residence = 10, 10*time.Second
		cs[1].PeerOutstanding, cs[1].Replicas, cs[1].Residence, cs[1].Age = outstanding, 1, 10*time.Second, age
		cs[2].PeerOutstanding, cs[2].Replicas, cs[2].Residence = 12, 1, 10*time.Second
		return NewCost().Choose(long(2000, cs)).Index
	}
	for _, c := range []struct {
		outstanding int
		age         time.Duration
		want        int
	}{
		{8, 10 * time.Millisecond, 1},
		{8, time.Minute, 0},
		{12, 10 * time.Millisecond, 0},
		{12, time.Minute, 0},
		{2, time.Minute, 1}, // the mean is still lower than the load here
	} {
		if got := chosen(c.outstanding, c.age); got != c.want {
			t.Errorf("%d requests at the peer %v ago: candidate %d, want %d", c.outstanding, c.age, got, c.want)
		}
	}
}

func TestCostScoresLiveCandidates(t *testing.T) {
	cs := fleet(3)
	cs[0].Outstanding, cs[1].Live, cs[1].Available = 3, false, false
	got := NewCost().Choose(long(1000, cs))
	if got.Index != 2 || cs[1].Score.Known || cs[2].Score.Value >= cs[0].Score.Value || cs[2].Score.Value <= 0 {
		t.Errorf("chose %+v by %+v", got, cs)
	}
}

// If all replicas are slower and all waits longer by the same factor, the cheapest candidate stays
// the same.
func TestScalingAllDurationsKeepsTheChoice(t *testing.T) {
	at := func(pace float64) int {
		cs := fleet(3)
		for i := range cs {
			cs[i].Pace, cs[i].Residence = pace, time.Duration(pace*float64(10*time.Second))
			cs[i].Outstanding, cs[i].MatchBytes = 3*i, 600*i
		}
		return NewCost().Choose(long(400, cs)).Index
	}
	// A request leaves its region at the same load, if round trips scale too.
	leavesAt := func(pace float64) int {
		for load := range 1000 {
			cs := append(fleet(1), Candidate{ID: "eu", Peer: true, Live: true, Available: true, Replicas: 1, RTT: time.Duration(pace * float64(100*time.Millisecond))})
			cs[0].Pace, cs[1].Pace, cs[0].Outstanding = pace, pace, load
			if NewCost().Choose(long(400, cs)).Index == 1 {
				return load
			}
		}
		return 1000
	}
	// A prefix at a replica with pending requests is worth the same wait, measured in its steps, whether
	// these are transient or stay until other requests end. The residence time is unknown.
	holdsFor := func(pace float64, steps time.Duration) int {
		for load := range 1000 {
			cs := fleet(2)
			for i := range cs {
				cs[i].Pace, cs[i].Outstanding = pace, 8
			}
			cs[0].Available, cs[0].Pending, cs[0].KV, cs[0].MatchBytes = false, Known(load), Known(0.3), 4*900
			cs[0].PendingFor = time.Duration(pace * float64(steps*NominalStep(0, 0)))
			if NewCost().Choose(long(1000, cs)).Index != 0 {
				return load
			}
		}
		return 1000
	}
	for _, pace := range []float64{0.05, 0.5, 2, 20} {
		if at(pace) != at(1) || leavesAt(pace) != leavesAt(1) {
			t.Errorf("at pace %v replica %d, and another region from %d requests; at 1 replica %d and %d", pace, at(pace), leavesAt(pace), at(1), leavesAt(1))
		}
		for _, steps := range []time.Duration{2, 20} {
			if got, want := holdsFor(pace, steps), holdsFor(1, steps); got != want {
				t.Errorf("at pace %v, after %d steps, a prefix is left at %d pending requests; at 1 at %d", pace, steps, got, want)
			}
		}
	}
}

// Complaint: code completion, with long prompts and responses of a few tokens, waits for the prompts of
// busy replicas while those of another region are idle.
func TestCostSpreadsShortResponsesToLongPrompts(t *testing.T) {
	choose := func(response float64, remote int) int {
		cs := append(fleet(1), Candidate{ID: "eu", Peer: true, Live: true, Available: true, Replicas: 4, RTT: 100 * time.Millisecond, PrefillTokens: remote})
		cs[0].Outstanding, cs[0].PrefillTokens = 1, 1000
		f := long(1000, cs)
		f.ResponseTokens = response
		return NewCost().Choose(f).Index
	}
	if got := choose(10, 0); got != 1 {
		t.Errorf("chose %d, want the idle region", got)
	}
	if got := choose(10, 2000); got != 0 {
		t.Errorf("with more prompts waiting there, chose %d", got)
	}
	// A request with a long response stays: the margin of a peer grows with the duration of the request.
	if got := choose(1000, 0); got != 0 {
		t.Errorf("for a long response, chose %d", got)
	}
}

// A request that is briefly pending at a replica with free memory is admitted in the next steps: a
// prefix cached there is worth that wait. A request that stays pending means that the batch is full.
func TestCostIgnoresTransientPending(t *testing.T) {
	computed := 0 // prompt tokens that are still to be computed, at both
	choose := func(pendingFor time.Duration, kv float64) Choice {
		cs := fleet(2)
		cs[0].PrefillTokens, cs[1].PrefillTokens = computed, computed
		cs[0].Available, cs[0].Pending, cs[0].PendingFor, cs[0].KV = false, Known(1), pendingFor, Known(kv)
		cs[0].Outstanding, cs[1].Outstanding, cs[0].Residence, cs[0].MatchBytes = 3, 3, 10*time.Second, 4*900
		return NewCost().Choose(long(1000, cs))
	}
	if got := choose(100*time.Millisecond, 0.3); got != (Choice{Index: 0, Hold: true, Reason: ReasonLeastCost}) {
		t.Errorf("for a moment: %+v", got)
	}
	if got := choose(time.Second, 0.3); got.Index != 1 {
		t.Errorf("for a second: %+v", got)
	}
	if got := choose(100*time.Millisecond, 0.95); got.Index != 1 {
		t.Errorf("memory full: %+v", got)
	}
	computed = 2 * int(DefaultCostConstants().PrefillRate) // two seconds
	if got := choose(time.Second, 0.3); got.Index != 0 || !got.Hold {
		t.Errorf("for a second, while prompts are computed: %+v", got)
	}
	if got := choose(3*time.Second, 0.3); got.Index != 1 {
		t.Errorf("for longer than the prompts take: %+v", got)
	}
}

// If engines compute again what they evicted, a request with a prefix that others share stays with the replica that has
// it up to a higher load: any other replica would evict the prefix of another request for it. A conversation moves, and
// leaves nothing behind that anybody needs.
func TestCostKeepsPrefixesIfCachesAreFull(t *testing.T) {
	leavesAt := func(evicted float64, shared bool) int {
		for load := range 1000 {
			cs := fleet(2)
			cs[0].Outstanding, cs[0].MatchBytes = load, 4*1800
			f := long(2000, cs)
			f.EvictedShare, f.SharedPrefix = evicted, shared
			if NewCost().Choose(f).Index != 0 {
				return load
			}
		}
		return 1000
	}
	none, few, most, all := leavesAt(0, true), leavesAt(0.4, true), leavesAt(0.6, true), leavesAt(1, true)
	if none >= few || few >= most || most >= all || all == 1000 {
		t.Errorf("leaves at %d, %d, %d and %d outstanding requests", none, few, most, all)
	}
	if got, want := leavesAt(1, false), leavesAt(0, false); got != want {
		t.Errorf("a conversation leaves at %d outstanding requests, want %d as long as nothing is evicted", got, want)
	}
}

// While the memory of a replica is full, a request with a prefix that others share waits for it longer than a conversation
// does, and longer the more requests a copy elsewhere would delay: the copy would take memory there and delay them.
func TestSharedPrefixWaitsForItsReplica(t *testing.T) {
	leavesAt := func(shared bool, others int) int {
		for held := range 1000 {
			cs := fleet(2)
			for i := range cs {
				cs[i].Residence, cs[i].Running, cs[i].ContextTokens = 20*time.Second, Known(16), 16*2500
			}
			cs[0].Available, cs[0].Pending, cs[0].Held, cs[0].KV = false, Known(1), held, Known(0.95)
			cs[0].Outstanding, cs[0].MatchBytes, cs[0].InUseBytes = 17, 4*2000, 4*2000
			cs[1].Outstanding, cs[1].Running, cs[1].KV = others, Known(others), Known(0.5)
			f := long(2300, cs)
			f.SharedPrefix = shared
			if NewCost().Choose(f).Index != 0 {
				return held
			}
		}
		return 1000
	}
	conversation, few, many := leavesAt(false, 8), leavesAt(true, 8), leavesAt(true, 12)
	if conversation >= few || few >= many || many == 1000 {
		t.Errorf("a conversation leaves at %d held requests, a shared prefix at %d and %d", conversation, few, many)
	}
}

// A peer with the same replicas reports their best figures together: the free replica's wait and the full one's match. A
// request with a shared prefix stays here; it is forwarded to a peer with less load.
func TestEqualPeerReceivesNoSharedPrefix(t *testing.T) {
	forwards := func(shared bool, remote int) bool {
		cs := append(fleet(2), Candidate{
			ID: "eu", Peer: true, Live: true, Available: true, RTT: 40 * time.Millisecond, Replicas: 2, PeerOutstanding: remote,
			KV: Known(0.7), Residence: 30 * time.Second, ContextTokens: remote * 2500, MatchBytes: 4 * 2000,
		})
		for i, n := range []int{12, 8} {
			cs[i].Outstanding, cs[i].Running, cs[i].Residence, cs[i].ContextTokens = n, Known(n), 30*time.Second, n*2500
		}
		cs[0].Available, cs[0].Pending, cs[0].Held, cs[0].KV, cs[0].MatchBytes = false, Known(1), 1, Known(0.9), 4*2000
		cs[1].KV = Known(0.5)
		f := long(2300, cs)
		f.SharedPrefix, f.EvictedShare = shared, 0.3
		return NewCost().Choose(f).Index == 2
	}
	for _, c := range []struct {
		name   string
		shared bool
		remote int
		want   bool
	}{
		{"the same load", true, 20, false},
		{"less load", true, 4, true},
		{"no shared prefix", false, 20, true},
	} {
		if got := forwards(c.shared, c.remote); got != c.want {
			t.Errorf("%s: forwarded %v, want %v", c.name, got, c.want)
		}
	}
}

// Complaint: questions about the same text follow the last question with the same words to a replica that
// received the text long ago, and has evicted it.
func TestCostFollowsLastReceiverOfText(t *testing.T) {
	cs := fleet(2)
	cs[0].MatchBytes, cs[0].SupersededBytes = 4*1000, 4*900 // the whole prompt, most of which the other one received later
	cs[1].MatchBytes = 4 * 900
	if got := NewCost().Choose(long(1000, cs)); got.Index != 1 {
		t.Errorf("%+v by costs of %.2f s and %.2f s", got, cs[0].Score.Value, cs[1].Score.Value)
	}
}

// In a queue that takes longer than MaxHoldShare of the maximum wait, a request that waits as long as all others is still
// held for the replica that is best for it. One that was passed over is not held any more.
func TestCostHoldsInLongQueues(t *testing.T) {
	holds := func(queued int, waited, maxWait, residence time.Duration) bool {
		cs := fleet(2)
		for i := range cs {
			cs[i].Outstanding, cs[i].Residence = 20, residence
		}
		cs[0].Available, cs[0].MatchBytes, cs[0].Pending = false, 4*4000, Known(1)
		f := long(4000, cs)
		f.Queued, f.Waited, f.MaxWait = queued, waited, maxWait
		return NewCost().Choose(f).Hold
	}
	for _, c := range []struct {
		queued          int
		waited, maxWait time.Duration
		want            bool
	}{
		{1, 20 * time.Second, time.Minute, true},
		{1, 40 * time.Second, time.Minute, false},
		{1, 20 * time.Second, 30 * time.Second, false},
		{1, 40 * time.Second, 10 * time.Minute, true},
		{1, 6 * time.Minute, 10 * time.Minute, false},
		{201, 40 * time.Second, time.Minute, true},
		{201, 90 * time.Second, time.Minute, false},
	} {
		// Four requests a second end. Without a known residence time, as many are expected to.
		for _, residence := range []time.Duration{10 * time.Second, 0} {
			if got := holds(c.queued, c.waited, c.maxWait, residence); got != c.want {
				t.Errorf("%d requests, waited %v of %v, residence %v: held %v", c.queued, c.waited, c.maxWait, residence, got)
			}
		}
	}
}

// Complaint: the longer the queue, the more replicas with memory left receive nothing, because memory would be
// missing for all that wait.
func TestLongQueuesDoNotKeepReplicasIdle(t *testing.T) {
	for _, queued := range []int{1, 100, 10_000} {
		cs := fleet(2)
		for i := range cs {
			cs[i].Outstanding, cs[i].ContextTokens, cs[i].Residence = 6, 12_000, 10*time.Second
		}
		cs[0].KV = Known(0.7)
		cs[1].KV, cs[1].Available, cs[1].Pending = Known(0.55), false, Known(1)
		cs[1].PendingFor = time.Second
		f := long(200, cs)
		f.Queued, f.ResponseTokens = queued, 15
		if got := NewCost().Choose(f); got.Index != 0 || got.Hold {
			t.Errorf("%d requests wait: %+v, want the available replica", queued, got)
		}
	}
}

// Complaint: a question about a long context is sent to an engine that has not enough memory left for it, and waits
// there until a request ends, although another engine can start it at once.
func TestPromptGoesWhereItFitsIntoMemory(t *testing.T) {
	const capacity = 14800 // tokens
	for _, c := range []struct {
		name    string
		context int  // of the only request at the first replica
		others  int  // requests there that another balancer sent; all of them together have as many tokens as the first one
		cached  int  // tokens of the prompt at the first replica
		unknown bool // the engines do not report their memory
		want    int
	}{
		{name: "does not fit", context: 8400, want: 1},
		{name: "fits", context: 6000, want: 0},
		{name: "fits because most of it is cached", context: 8400, cached: 6000, want: 0},
		{name: "requests of another balancer fit too", context: 3000, others: 1, want: 0},
		{name: "memory unknown", context: 8400, unknown: true, want: 0},
	} {
		cs := fleet(2)
		cs[0].Outstanding, cs[0].ContextTokens, cs[0].MatchBytes = 1, c.context, 4*c.cached
		cs[1].Outstanding, cs[1].ContextTokens = 3+c.others, 3000
		for i := range cs {
			cs[i].Residence = 10 * time.Second
			if !c.unknown {
				cs[i].KV, cs[i].Running, cs[i].Pending = Known(float64(cs[i].ContextTokens)/capacity), Known(cs[i].Outstanding), Known(0)
			}
		}
		if c.others > 0 {
			cs[0].KV, cs[0].Running = Known(2*cs[0].KV.Value), Known(1+c.others)
		}
		if got := NewCost().Choose(long(8000, cs)); got.Index != c.want {
			t.Errorf("%s: %+v by costs of %.2f s and %.2f s", c.name, got, cs[0].Score.Value, cs[1].Score.Value)
		}
	}
}

// Complaint: in a service without a queue, conversations with long responses leave the replicas that have cached them
// as soon as memory is short, although the responses need as much memory elsewhere.
func TestLongResponsesStayWithTheirPrefix(t *testing.T) {
	for _, response := range []float64{15, 150, 600} {
		cs := fleet(2)
		for i := range cs {
			cs[i].Residence = 6 * time.Second
		}
		// Memory of 7,400 tokens, as in small engines.
		cs[0].Outstanding, cs[0].KV, cs[0].ContextTokens, cs[0].MatchBytes = 8, Known(0.85), 6300, 4*500
		cs[1].Outstanding, cs[1].KV, cs[1].ContextTokens = 6, Known(0.7), 5200
		f := long(600, cs)
		f.ResponseTokens = response
		if got := NewCost().Choose(f); got.Index != 0 {
			t.Errorf("responses of %v tokens: %+v by costs of %.2f s and %.2f s", response, got, cs[0].Score.Value, cs[1].Score.Value)
		}
	}
}

// Complaint: replicas at which no request had ended seemed to have no waits and no cost of memory, so requests were
// sent there although others had as much memory and fewer requests.
func TestResidenceIsThatOfOthersUntilOneHasEnded(t *testing.T) {
	for _, full := range []bool{false, true} {
		cs := fleet(3)
		for i := range cs {
			c := &cs[i]
			c.Pace = float64(1 + i)
			c.Outstanding, c.ContextTokens, c.Available = 2, 16000, !full
			c.KV, c.Running, c.Pending = Known(0.9), Known(2), Known(0)
		}
		cs[0].Residence, cs[2].Residence = 100*time.Second, 300*time.Second
		known := append([]Candidate(nil), cs...)
		known[1].Residence = 200 * time.Second // like the others, at its pace
		NewCost().Choose(long(8000, cs))
		NewCost().Choose(long(8000, known))
		for i := range cs {
			if cs[i].Score != known[i].Score {
				t.Errorf("full %v: replica %d costs %.3f s, with a known residence time %.3f s", full, i, cs[i].Score.Value, known[i].Score.Value)
			}
		}
	}
}

// Complaint: in a burst, all regions forward their queues to the same peer before its next report. Its clients then wait
// while the other regions are idle. A request that waits here can still be sent to whichever target is free first.
func TestRequestIsNotForwardedIntoLongQueue(t *testing.T) {
	for _, pace := range []float64{0.1, 1, 5} {
		for _, known := range []bool{true, false} { // whether a request has ended there
			for _, c := range []struct {
				share float64 // the wait at the peer, relative to the time that a request stays there
				want  Choice
			}{
				{0, Choice{Index: 1, Reason: ReasonForward}},
				{0.9, Choice{Index: 1, Reason: ReasonForward}},
				{1.1, Choice{Index: Wait, Reason: ReasonNoneAvailable}},
				{10, Choice{Index: Wait, Reason: ReasonNoneAvailable}},
			} {
				residence := NominalResidence(pace)
				cs := append(fleet(1), Candidate{ID: "eu", Peer: true, Live: true, Available: true, Replicas: 1, Pace: pace})
				cs[1].ExpectedWait = time.Duration(c.share * float64(residence))
				cs[0].Pace, cs[0].Available, cs[0].Outstanding, cs[0].Held, cs[0].Pending = pace, false, 1, 100, Known(1)
				if known {
					cs[0].Residence, cs[1].Residence = residence, residence
				}
				if got := NewCost().Choose(long(1000, cs)); got != c.want {
					t.Errorf("pace %v, residence known %v, a wait of %v residence times: %+v, want %+v", pace, known, c.share, got, c.want)
				}
				// A peer that has the prefix stays the best target, so the request is forwarded at once and queued there.
				cs[1].MatchBytes = 4 * 900
				if got := NewCost().Choose(long(1000, cs)); got.Index != 1 {
					t.Errorf("pace %v, residence known %v, the prefix after a wait of %v residence times: %+v", pace, known, c.share, got)
				}
			}
		}
	}
}

// Complaint: clients of a region without replicas, or with slower ones than a busy peer, are never served, because the queue
// of the peer never becomes short.
func TestRequestDoesNotWaitForeverForShortQueue(t *testing.T) {
	residence := NominalResidence(1)
	choose := func(live bool, waited time.Duration) Choice {
		cs := append(fleet(1), Candidate{ID: "eu", Peer: true, Live: true, Available: true, Replicas: 1, Pace: 1, ExpectedWait: 3 * residence})
		cs[0].Live, cs[0].Available, cs[0].Outstanding, cs[0].Held, cs[0].Pending = live, false, 1, 100, Known(1)
		f := long(1000, cs)
		f.Waited, f.MaxWait = waited, 100*residence
		return NewCost().Choose(f)
	}
	if got := choose(true, 2*residence); got.Index != Wait {
		t.Errorf("before the wait at the peer has passed: %+v", got)
	}
	if got := choose(true, 3*residence); got.Index != 1 {
		t.Errorf("after a wait as long as at the peer: %+v", got)
	}
	if got := choose(false, 0); got.Index != 1 {
		t.Errorf("no replica here is live: %+v", got)
	}
}

// Complaint: requests with a common prefix that all replicas still have cached go to the replica that was the last to
// receive it, so that the loads become uneven.
func TestPrefixThatAllReplicasKeepDoesNotBind(t *testing.T) {
	for _, c := range []struct {
		share Maybe[float64]
		want  int
	}{
		{Maybe[float64]{}, 0}, // assumed: the other replica has probably evicted it
		{Known(0.2), 0},
		{Known(0.95), 1},
		{Known(1.0), 1},
	} {
		cs := fleet(2)
		for i := range cs {
			cs[i].MatchBytes = 4 * 900
			cs[i].SupersededBytes = i * cs[i].MatchBytes
		}
		cs[0].Outstanding = 3
		f := long(1000, cs)
		f.SupersededShare = c.share
		if got := NewCost().Choose(f); got.Index != c.want {
			t.Errorf("share %v: %+v by costs of %.2f s and %.2f s", c.share, got, cs[0].Score.Value, cs[1].Score.Value)
		}
	}
}

// Complaint: a request is rejected after its maximum wait although a replica here was idle for all this time, because a
// faster peer with a long queue had the lowest cost.
func TestOverdueRequestTakesIdleReplica(t *testing.T) {
	choose := func(waited time.Duration) Choice {
		cs := append(fleet(1), Candidate{ID: "eu", Peer: true, Live: true, Available: true, Replicas: 1, Pace: 0.1, ExpectedWait: 65 * time.Second})
		f := long(1000, cs)
		f.ResponseTokens, f.Waited, f.MaxWait = 1500, waited, time.Minute
		return NewCost().Choose(f)
	}
	if got := choose(time.Second); got.Index != Wait {
		t.Errorf("a request that is not overdue: %+v", got)
	}
	if got := choose(59 * time.Second); got.Index != 0 || got.Hold {
		t.Errorf("one second before its maximum wait: %+v", got)
	}
}

// Complaint: requests queue for the only fast replica while slower ones have free memory. A request is held for a
// faster replica only if it takes less time there even with twice the wait.
func TestSlowReplicaServesBeforeLongHold(t *testing.T) {
	for _, c := range []struct {
		held int
		pace float64 // of the replica to which the request can be sent
		hold bool
	}{{0, 2, true}, {5, 2, false}, {5, 3, true}} {
		cs := fleet(2)
		cs[0].Available, cs[0].Outstanding, cs[0].Running, cs[0].Pending = false, 10, Known(10), Known(1)
		cs[0].KV, cs[0].Residence, cs[0].Held = Known(0.6), 10*time.Second, c.held
		cs[1].Pace = c.pace
		if got := NewCost().Choose(long(100, cs)); got.Hold != c.hold || got.Index == 0 != c.hold {
			t.Errorf("%d held, %v times as slow: %+v by costs of %.1f s and %.1f s", c.held, c.pace, got, cs[0].Score.Value, cs[1].Score.Value)
		}
	}
}

// Complaint: a region with idle replicas sends every request with a common prefix to the region that computed the prefix
// first. Each of them pays the round trip. Complaint: regions whose memory is full compute the prefixes of each other, and
// so evict them all the time.
func TestPrefixThatComesAgainIsComputedHere(t *testing.T) {
	choose := func(cachedShare float64, match int, evictedShare float64) (Choice, float64) {
		cs := append(fleet(1), Candidate{ID: "eu", Peer: true, Live: true, Available: true, Replicas: 1, RTT: 100 * time.Millisecond, MatchBytes: 4 * match})
		f := long(max(match, 1000), cs)
		f.CachedShare, f.EvictedShare = cachedShare, evictedShare
		return NewCost().Choose(f), cs[1].Score.Value
	}
	for _, c := range []struct {
		cachedShare  float64
		match        int
		evictedShare float64
		want         int
	}{
		{0, 1000, 0, 1},     // no prefix has come again: the peer computes less
		{0.9, 1000, 0, 0},   // nine later requests would pay 0.1 s each to save 0.5 s
		{0.9, 10000, 0, 1},  // to save 5 s
		{1, 10000, 0, 0},    // any number of later requests
		{0.9, 1000, 0.1, 1}, // the copy would evict a prefix that is needed again
		{1, 10000, 0.1, 1},
	} {
		if got, _ := choose(c.cachedShare, c.match, c.evictedShare); got.Index != c.want {
			t.Errorf("%v of tokens cached, %d at the peer, %v evicted: %+v, want %d", c.cachedShare, c.match, c.evictedShare, got, c.want)
		}
	}
	// A prefix never makes a peer costlier.
	for _, share := range []float64{0, 0.5, 0.9, 1} {
		_, with := choose(share, 1000, 0)
		if _, without := choose(share, 0, 0); with > without+costTolerance {
			t.Errorf("%v of tokens cached: %.3f s with a prefix at the peer, %.3f s without", share, with, without)
		}
	}
}

// Each prefill step interrupts the requests that run at a replica. A request joins a step that is about to begin, but not at
// any price: it waits for the prompts of the step.
func TestRequestsJoinAPrefillStep(t *testing.T) {
	for _, c := range []struct {
		name                   string
		running, prefillTokens int
		joins                  bool
	}{
		{"nothing runs", 0, 200, false},
		{"many run", 60, 200, true},
		{"many run, and the step is long", 60, 8000, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := Facts{PromptTokens: 200, PromptBytes: 800, ResponseTokens: 100}
			for _, joins := range []bool{false, true} {
				candidate := Candidate{ID: fmt.Sprint(joins), Live: true, Available: true, Outstanding: c.running, Running: Known(c.running), Residence: 10 * time.Second}
				if joins {
					candidate.JoinsPrefill, candidate.PrefillTokens = true, c.prefillTokens
				}
				f.Candidates = append(f.Candidates, candidate)
			}
			if choice := NewCost().Choose(&f); (choice.Index == 1) != c.joins {
				t.Errorf("chose %d: %v", choice.Index, f.Candidates)
			}
		})
	}
}

// A replica has cached a prefix of 2,000 tokens and has 90 requests, another one has 40. Once many requests have had the
// prefix, a copy at the other replica is computed: later requests use it too.
func TestPrefixOfManyRequestsIsCopied(t *testing.T) {
	for _, c := range []struct {
		what           string
		uses, requests int
		evicted        float64
		want           int
	}{
		{"few requests had the prefix", 3, 40, 0, 0},
		{"many requests had the prefix", 300, 40, 0, 1},
		{"the loads differ by chance only", 300, 75, 0, 0},
		{"caches are full", 300, 40, 0.7, 0},
	} {
		cs := fleet(2)
		cs[0].Outstanding, cs[0].MatchBytes, cs[0].InUseBytes = 90, 8000, 8000
		cs[1].Outstanding = c.requests
		f := long(2100, cs)
		f.SharedPrefix, f.PrefixUses, f.EvictedShare = true, c.uses, c.evicted
		if got := NewCost().Choose(f).Index; got != c.want {
			t.Errorf("%s: chose replica %d, want %d", c.what, got, c.want)
		}
	}
}
