package concurrency

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// initial is the limit before anything is known.
const initial = 24

// engine is an engine that runs requests in slots, in the order in which they were sent, and clients
// that each have one request at a time. A limit decides how many requests are at the engine.
type engine struct {
	slots   int
	prefill func(*rand.Rand) float64 // time until a first token, from when a slot is free
	stream  func(*rand.Rand) float64 // and from it to the end
	clients int

	limit Limit
	fixed int // used instead of the limit unless 0
	rng   *rand.Rand
	now   float64
	at    []*request // outstanding, in the order of their sends
	ended int
}

type request struct {
	sent, first, end float64
	running, started bool
}

func newEngine(slots, clients int, prefill, stream func(*rand.Rand) float64) *engine {
	return &engine{slots: slots, clients: clients, prefill: prefill, stream: stream, rng: rand.New(rand.NewPCG(1, 2))}
}

func (e *engine) value() int {
	if e.fixed > 0 {
		return e.fixed
	}
	return e.limit.Value(initial)
}

// fill sends requests as the limit allows, and admits them to slots.
func (e *engine) fill() {
	for len(e.at) < min(e.value(), e.clients) {
		e.at = append(e.at, &request{sent: e.now})
	}
	running := 0
	for _, r := range e.at {
		if r.running {
			running++
		} else if running < e.slots {
			running++
			r.running = true
			r.first = e.now + e.prefill(e.rng)
			r.end = r.first + e.stream(e.rng)
		}
	}
}

// next returns the running request whose first token or end comes next, and when.
func (e *engine) next() (which *request, at float64) {
	at = math.Inf(1)
	for _, r := range e.at {
		t := r.first
		if r.started {
			t = r.end
		}
		if r.running && t < at {
			which, at = r, t
		}
	}
	return which, at
}

// serve runs until n further requests have ended, and returns how many ended per unit of time.
func (e *engine) serve(n int) float64 {
	began, until := e.now, e.ended+n
	for e.ended < until {
		e.fill()
		r, at := e.next()
		if e.now = at; !r.started {
			r.started = true
			e.limit.FirstToken(e.streaming(), len(e.at), initial)
			continue
		}
		e.limit.Ended(int64(1e6*(r.first-r.sent)), int64(1e6*(r.end-r.first)), len(e.at))
		e.at = slices.DeleteFunc(e.at, func(o *request) bool { return o == r })
		e.ended++
	}
	return float64(n) / (e.now - began)
}

func (e *engine) streaming() (n int) {
	for _, r := range e.at {
		if r.started {
			n++
		}
	}
	return n
}

// around returns a random time of a mean: a fifth of it to five times as long.
func around(mean float64) func(*rand.Rand) float64 {
	return func(rng *rand.Rand) float64 { return 0.76 * mean * math.Exp(rng.Float64()*2*math.Log(5)-math.Log(5)) }
}

func exactly(d float64) func(*rand.Rand) float64 { return func(*rand.Rand) float64 { return d } }

// For any number of slots, and from below and above, the limit becomes the number of slots, at most a
// quarter more while a higher one is tried, and the engine is as busy as without a limit.
func TestLimitFindsSlots(t *testing.T) {
	for _, slots := range []int{1, 2, 3, 4, 8, 16, 24, 32, 64, 256} {
		for _, clients := range []int{slots + 4, 3*slots + 4} {
			t.Run(fmt.Sprintf("slots=%d/clients=%d", slots, clients), func(t *testing.T) {
				e := newEngine(slots, clients, around(0.1), around(4))
				e.serve(200 + 60*slots)
				outside := 0
				for range 100 {
					e.serve(2 * slots)
					if v := e.value(); v < slots-slots/16 || v > slots+max(minRaise, slots/raiseDivisor)+1 {
						outside++
					}
				}
				if slots+4 <= initial && outside > 5 || outside > 50 {
					t.Errorf("outside of the slots in %d of 100 samples, now %d", outside, e.value())
				}
				free := newEngine(slots, clients, around(0.1), around(4))
				free.fixed = clients
				if got, want := e.serve(50*slots), free.serve(50*slots); got < 0.93*want {
					t.Errorf("%.2f requests per second, without a limit %.2f", got, want)
				}
			})
		}
	}
}

// An engine that always has a free slot is not held back, whatever share of its time a request is in
// its prefill.
func TestFreeEngineIsNotStarved(t *testing.T) {
	for _, prefill := range []float64{0.01, 0.2, 1, 4} {
		for _, clients := range []int{8, 40, 200} {
			e := newEngine(1000, clients, around(prefill), around(4))
			e.serve(400 * clients)
			free := newEngine(1000, clients, around(prefill), around(4))
			free.fixed = clients
			if got, want := e.serve(100*clients), free.serve(100*clients); got < 0.9*want {
				t.Errorf("prefill %v, %d clients: limit %d, %.2f requests per second, without a limit %.2f", prefill, clients, e.value(), got, want)
			}
		}
	}
}

// Requests that end together with their first token do not show how many the engine runs.
func TestBriefRequestsLowerNothing(t *testing.T) {
	for _, share := range []float64{1, 0.5, 0.3} {
		stream := func(rng *rand.Rand) float64 {
			if rng.Float64() < share {
				return 0
			}
			return 4
		}
		e := newEngine(16, 100, around(4), stream)
		if e.serve(3000); e.value() < initial {
			t.Errorf("with %v of brief requests the limit is %d", share, e.value())
		}
	}
}

// Neither a few long prompts nor one request without any token change what is learned.
func TestLongPromptsDoNotLowerTheLimit(t *testing.T) {
	prefill := func(rng *rand.Rand) float64 {
		if rng.IntN(10) == 0 {
			return 10
		}
		return 0.05
	}
	e := newEngine(8, 30, prefill, around(4))
	e.serve(1000)
	e.at[0].started, e.at[0].running, e.at[0].first, e.at[0].end = false, true, math.Inf(1), math.Inf(1)
	for range 50 {
		if e.serve(20); e.value() < 6 || e.value() > 12 {
			t.Errorf("with 8 slots the limit is %d", e.value())
		}
	}
}

// An engine that gets more or fewer slots without a restart is followed.
func TestLimitFollowsTheEngine(t *testing.T) {
	e := newEngine(4, 60, around(0.1), around(4))
	e.serve(1000)
	for _, slots := range []int{32, 2, 8} {
		e.slots = slots
		e.serve(8000)
		if v := e.value(); v < slots-1 || v > slots+max(2, slots/2) {
			t.Errorf("with %d slots the limit is %d", slots, v)
		}
	}
}

// Only counts matter: an engine that is a thousand times faster has the same limits.
func TestLimitDoesNotDependOnSpeed(t *testing.T) {
	for _, slots := range []int{1, 4, 40} {
		slow, fast := newEngine(slots, 60, exactly(1), around(40)), newEngine(slots, 60, exactly(0.001), around(0.04))
		for range 100 {
			slow.serve(20)
			fast.serve(20)
			if a, b := slow.value(), fast.value(); a != b {
				t.Fatalf("%d slots: limits %d and %d", slots, a, b)
			}
		}
	}
}

func TestNothingIsLearnedWithoutDemand(t *testing.T) {
	e := newEngine(64, 12, around(0.2), around(4))
	if e.serve(2000); e.value() < 12 {
		t.Errorf("with 12 clients the limit is %d", e.value())
	}
	var l Limit
	if l.Value(initial) != initial || l.Value(7) != 7 {
		t.Errorf("the zero value is %d", l.Value(initial))
	}
}

// After any events, possible or not, a limit is within its bounds.
func TestLimitIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Limit
		first := rapid.IntRange(1, 100).Draw(t, "initial")
		for range rapid.IntRange(0, 300).Draw(t, "events") {
			n := rapid.IntRange(0, 40).Draw(t, "streaming")
			l.FirstToken(n, n+rapid.IntRange(-2, 40).Draw(t, "others"), first)
			l.Ended(rapid.Int64().Draw(t, "ttft"), rapid.Int64().Draw(t, "streamed"), rapid.IntRange(-1, 100).Draw(t, "outstanding"))
			if v := l.Value(first); v < 1 || v > Max {
				t.Fatalf("the limit is %d", v)
			}
		}
	})
}
