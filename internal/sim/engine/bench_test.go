package engine

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// chatter is a closed-loop client with one conversation after another, which sends its next turn after
// the last response.
type chatter struct {
	rng      *rand.Rand
	first    Token // makes its tokens unique
	prompt   []Token
	response []Token
	turns    int
}

// lognormal draws a length from its median and sigma, at least 1.
func lognormal(rng *rand.Rand, median, sigma float64, maximum int) int {
	return min(max(1, int(median*math.Exp(sigma*rng.NormFloat64()))), maximum)
}

// next extends the conversation by the last response and a new user message, or
// begins a new one (the arena workload: 2 + Geom(.5) turns, user LogN(40, 1),
// output LogN(160, .75) up to 512, a header of 30 tokens).
func (c *chatter) next(id uint64) Request {
	if c.turns == 0 {
		c.turns = 2
		for c.turns < 10 && c.rng.IntN(2) == 0 {
			c.turns++
		}
		c.prompt = append(c.prompt[:0], numbered(0, 30)...)
	} else {
		c.prompt = append(c.prompt, c.response...)
	}
	c.turns--
	for range lognormal(c.rng, 40, 1, 4000) {
		c.prompt = append(c.prompt, c.first|Token(c.rng.Uint32()>>8))
	}
	c.response = c.response[:0]
	for range lognormal(c.rng, 160, 0.75, 512) {
		c.response = append(c.response, c.first|Token(c.rng.Uint32()>>8))
	}
	return Request{ID: id, Prompt: c.prompt, MaxNew: 512, Output: c.response}
}

// benchmarkChat runs b.N requests of a number of closed-loop clients.
func benchmarkChat(b *testing.B, d ReportDetail, clients int) {
	e := newEngine(b, Profiles()[0], d)
	chatters := make([]*chatter, clients)
	for i := range chatters {
		chatters[i] = &chatter{rng: rand.New(rand.NewPCG(uint64(i), 1)), first: Token(i+1) << 24}
	}
	owner := make(map[uint64]*chatter)
	id := uint64(0)
	submit := func(now time.Duration, c *chatter) {
		id++
		owner[id] = c
		e.Submit(now, c.next(id))
	}
	b.ReportAllocs()
	b.ResetTimer()
	for _, c := range chatters {
		submit(0, c)
	}
	done := 0
	var again []*chatter
	for done < b.N {
		at, _ := e.NextAt()
		again = again[:0]
		for _, ev := range e.Advance(at) {
			if ev.Kind == Finished || ev.Kind == Rejected {
				done++
				again = append(again, owner[ev.ID])
				delete(owner, ev.ID)
			}
		}
		for _, c := range again {
			submit(at, c)
		}
	}
	l := e.Load()
	b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "requests/s")
	b.ReportMetric(float64(l.HitTokens)/float64(l.QueriedTokens), "hit-rate")
	b.ReportMetric(float64(l.GeneratedTokens)/l.BusyTime.Seconds(), "model-tokens/s")
}

func BenchmarkChatChanges10(b *testing.B) { benchmarkChat(b, ReportChanges, 10) }
func BenchmarkChatChanges30(b *testing.B) { benchmarkChat(b, ReportChanges, 30) }
func BenchmarkChatChanges80(b *testing.B) { benchmarkChat(b, ReportChanges, 80) }
func BenchmarkChatTokens30(b *testing.B)  { benchmarkChat(b, ReportTokens, 30) }
