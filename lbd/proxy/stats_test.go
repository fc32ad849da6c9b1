package proxy

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/record"
)

func TestRateWindow(t *testing.T) {
	var w rateWindow
	if got := w.perSecond(900 * time.Millisecond); got != nil {
		t.Errorf("a rate of %v in the first second, want none", *got)
	}
	for ms := range 30000 {
		if ms%100 == 0 {
			w.addCount(time.Duration(ms)*time.Millisecond, 3)
		}
	}
	for at, want := range map[time.Duration]float64{30 * time.Second: 30, 35 * time.Second: 15, 40 * time.Second: 0, time.Hour: 0} {
		if got := w.perSecond(at); got == nil || *got != want {
			t.Errorf("at %v the rate is %v, want %v", at, got, want)
		}
	}
}

func TestHitWindow(t *testing.T) {
	var w hitWindow
	if w.rate(0) != nil {
		t.Error("a hit rate of nothing")
	}
	w.addTokens(0, 100, 100)
	w.addTokens(30*time.Second, 100, 0)
	for at, want := range map[time.Duration]float64{30 * time.Second: 0.5, 61 * time.Second: 0} {
		if got := w.rate(at); got == nil || *got != want {
			t.Errorf("at %v the rate is %v, want %v", at, got, want)
		}
	}
	if got := w.rate(2 * time.Minute); got != nil {
		t.Errorf("after two minutes the rate is %v, want none", *got)
	}
}

// The percentiles equal those of the sorted latencies to within a bucket.
func TestLatencyWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := rapid.SliceOfN(rapid.Float64Range(0, 1e6), 1, 200).Draw(t, "ms")
		var w latencyWindow
		var largest, sum float64
		for _, m := range ms {
			d := time.Duration(m * float64(time.Millisecond))
			w.addLatency(time.Second, d)
			largest, sum = max(largest, millis(d)), sum+millis(d)
		}
		p := w.percentiles(time.Second)
		if p.Max != largest || math.Abs(p.Mean-sum/float64(len(ms))) > 1e-6*largest {
			t.Fatalf("max %v, mean %v: want %v, %v", p.Max, p.Mean, largest, sum/float64(len(ms)))
		}
		exact := func(q float64) float64 {
			rank := int(math.Ceil(q*float64(len(ms)))) - 1
			sorted := append([]float64(nil), ms...)
			for i := range sorted {
				for k := i + 1; k < len(sorted); k++ {
					if sorted[k] < sorted[i] {
						sorted[i], sorted[k] = sorted[k], sorted[i]
					}
				}
			}
			return sorted[rank]
		}
		for q, got := range map[float64]float64{.1: p.P10, .25: p.P25, .5: p.P50, .75: p.P75, .9: p.P90, .95: p.P95, .99: p.P99} {
			if want := exact(q); math.Abs(got-want) > 0.011*want+bucketFirst {
				t.Fatalf("the %v quantile is %v, want %v", q, got, want)
			}
		}
		if w.percentiles(2*time.Minute) != nil {
			t.Fatal("latencies are remembered after two minutes")
		}
	})
}

func TestPointsAdvanceAndAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := New(Options{Self: service.BalancerConfig{ID: "lb", Region: "local/us"}, Core: testOptions(t).Core, Limits: Limits{HistoryMinutes: 3}})
		if err != nil {
			t.Fatal(err)
		}
		begin := minuteOf(time.Now())
		for range 5 {
			rt.points.addTally("b", service.TierNormal, tally{requests: 1, prompt: 3})
			rt.points.addTally("a", service.TierFast, tally{requests: 1})
			rt.points.addTally("b", service.TierNormal, tally{cached: 3, output: 4})
			time.Sleep(time.Minute)
		}
		point := func(minute int64, model string, tier service.Tier, n ...int64) telemetry.Point {
			return telemetry.Point{
				Minute: begin + minute, Balancer: "lb", Region: "local/us", Model: model, Tier: tier,
				Requests: n[0], PromptTokens: n[1], CachedTokens: n[2], OutputTokens: n[3],
			}
		}
		want := []telemetry.Point{
			point(3, "a", service.TierFast, 1, 0, 0, 0), point(3, "b", service.TierNormal, 1, 3, 3, 4),
			point(4, "a", service.TierFast, 1, 0, 0, 0), point(4, "b", service.TierNormal, 1, 3, 3, 4),
		}
		if got := rt.History(0); !samePoints(got, want) {
			t.Errorf("history %+v, want %+v", got, want)
		}
		if got := rt.History(begin + 4); !samePoints(got, want[2:]) {
			t.Errorf("history since minute 4 %+v, want %+v", got, want[2:])
		}
		rt.points.addTally("c", service.TierFast, tally{requests: 1})
		if got := rt.History(begin + 5); len(got) != 1 || got[0].Model != "c" {
			t.Errorf("the running minute is %+v, want one point", got)
		}
	})
}

// Estimates of prompts that prove too high, and cached tokens that become known after their prompts, are subtracted from
// and added to later minutes: no count is negative, no more tokens are cached than there are, and the sums are right.
func TestCorrectionsOfPointsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := New(Options{Self: service.BalancerConfig{ID: "lb", Region: "local/us"}, Core: testOptions(t).Core, Limits: Limits{HistoryMinutes: 9}})
		if err != nil {
			t.Fatal(err)
		}
		for _, adds := range [][]tally{
			{{requests: 2, prompt: 100}},             // two requests of estimated 50 tokens arrive
			{{prompt: -30, cached: 15, output: 4}},   // one ends: it had 20 tokens, 15 of them cached
			{{prompt: 30, cached: 75}},               // the other one had 80, 75 of them cached
			{{requests: 1, prompt: 40}},              // another one arrives
			{{prompt: 60}, {requests: 1, prompt: 5}}, // and had 100; one more arrives
		} {
			for _, a := range adds {
				rt.points.addTally("a", service.TierFast, a)
			}
			time.Sleep(time.Minute)
		}
		var got [][3]int64
		for _, p := range rt.History(0) {
			got = append(got, [3]int64{p.Requests, p.PromptTokens, p.CachedTokens})
		}
		if want := [][3]int64{{2, 100, 0}, {0, 0, 0}, {0, 0, 0}, {1, 40, 40}, {1, 65, 50}}; !slices.Equal(got, want) {
			t.Errorf("requests, prompt and cached tokens %v, want %v", got, want)
		}
	})
}

// A prompt counts when it arrives, not when its response ends: in an overload, responses end at the rate at which
// replicas serve, and plans for that rate would never end the overload.
func TestPromptsCountAtArrival(t *testing.T) {
	b := start(t, roundRobin(t))
	release := make(chan struct{})
	reply := whole(plainReply)
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		<-release
		reply(w, req)
	}))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		read(t, b.post(chatPath, plainBody))
	}()
	b.until(func() bool { return b.tallied().Requests == 1 })
	if p := b.tallied(); p.PromptTokens == 0 {
		t.Errorf("before the response: %+v", p)
	}
	close(release)
	<-ended
	b.settled()
	if p := b.tallied(); p.Requests != 1 || p.PromptTokens != 12 {
		t.Errorf("after the response: %+v, want the 12 prompt tokens that the engine reported", p)
	}
}

func samePoints(a, b []telemetry.Point) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestSubscribe(t *testing.T) {
	o := testOptions(t)
	o.Limits.SubscriberBuffer = 2
	b := start(t, o)
	b.attach("us-0", engine(t, whole(plainReply)))
	events, cancel := b.Subscribe()
	for range 3 {
		read(t, b.post(chatPath, plainBody))
	}
	b.settled()
	for range 2 {
		var d record.RequestRecord
		if err := json.Unmarshal(<-events, &d); err != nil || d.Target != "us-0" || d.State != record.StateSent || d.Decision == nil {
			t.Errorf("event %+v, %v: want a dispatch", d, err)
		}
	}
	if got := b.subs.dropped.Load(); got != 1 {
		t.Errorf("%d events were dropped, want 1", got)
	}
	cancel()
	cancel()
	if _, open := <-events; open {
		t.Error("the channel is open after cancel")
	}
}

func TestRingForgetsTheOldest(t *testing.T) {
	g := newRing(2)
	a, b, c := &record.RequestRecord{Request: "a"}, &record.RequestRecord{Request: "b"}, &record.RequestRecord{Request: "a", Status: 2}
	g.addRecord(a)
	g.addRecord(b)
	g.addRecord(c) // replaces the first a, and its entry by id
	if g.byID["a"] != c || g.byID["b"] != b || len(g.byID) != 2 {
		t.Errorf("the ring knows %v", g.byID)
	}
	g.addRecord(&record.RequestRecord{Request: "d"})
	if g.byID["b"] != nil || len(g.byID) != 2 {
		t.Errorf("the ring knows %v, want a and d", g.byID)
	}
}

func TestStatsByOrigin(t *testing.T) {
	b := start(t, testOptions(t))
	if s := b.TrafficStats(); s.PrefixHitRate != nil || s.TTFT != nil {
		t.Errorf("stats of no traffic: %+v", s)
	}
	b.attach("us-0", engine(t, speak("a", " b")))
	read(t, b.post(chatPath, streamBody))
	b.settled()
	s := b.TrafficStats()
	if s.PrefixHitRate == nil || *s.PrefixHitRate != 0.64 || s.TTFT == nil || s.TTFT.Max <= 0 {
		t.Errorf("stats %+v, want the request's", s)
	}
	if r := s.ByReplica["us-0"]; r.PrefixHitRate == nil || *r.PrefixHitRate != 0.64 {
		t.Errorf("stats of the replica %+v, want the request's", r)
	}
}

// The counts of a replica begin at 0 with another attachment number, and only then.
func TestAttachmentNumbersCounts(t *testing.T) {
	b := start(t, testOptions(t))
	attached := func(url string) uint64 {
		if _, err := b.AddReplica(replicaAt("us-0", url)); err != nil {
			t.Fatal(err)
		}
		return b.TrafficStats().ByReplica["us-0"].Attachment
	}
	first, again := attached("http://127.0.0.1:1"), attached("http://127.0.0.1:1")
	moved := attached("http://127.0.0.1:2")
	if _, err := b.RemoveReplica("us-0", 0); err != nil {
		t.Fatal(err)
	}
	if last := attached("http://127.0.0.1:2"); first == 0 || again != first || moved == first || last == moved || last == first {
		t.Errorf("attachments %d, %d, %d and %d", first, again, moved, last)
	}
}

// Readers of snapshots compare counts before and after the restart of a balancer, too.
func TestAttachmentNumbersDifferAfterRestart(t *testing.T) {
	number := func() uint64 {
		b := start(t, testOptions(t))
		if _, err := b.AddReplica(replicaAt("us-0", "http://127.0.0.1:1")); err != nil {
			t.Fatal(err)
		}
		return b.TrafficStats().ByReplica["us-0"].Attachment
	}
	if first, second := number(), number(); first == second || second > 1<<53 {
		t.Errorf("attachments %d and %d", first, second)
	}
}

// A minute without requests has a zero point. If it were a gap, forecasts would continue to expect
// the earlier load.
func TestSilentMinutesAreZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		self := service.BalancerConfig{ID: "lb", Region: "local/us", Models: []service.BalancerModel{{Name: "m", Aliases: []string{"small"}}}}
		rt, err := New(Options{Self: self, Core: testOptions(t).Core})
		if err != nil {
			t.Fatal(err)
		}
		begin := minuteOf(time.Now())
		time.Sleep(2 * time.Minute)
		rt.points.addTally("m", service.TierNormal, tally{requests: 1})
		time.Sleep(2 * time.Minute)
		zero := func(minute int64) telemetry.Point {
			return telemetry.Point{Minute: begin + minute, Balancer: "lb", Region: "local/us", Model: "m", Tier: service.TierFast}
		}
		requested := zero(2)
		requested.Tier, requested.Requests = service.TierNormal, 1
		if got, want := rt.History(0), []telemetry.Point{zero(0), zero(1), requested, zero(3)}; !samePoints(got, want) {
			t.Errorf("history %+v, want %+v", got, want)
		}
	})
}
