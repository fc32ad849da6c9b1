package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/sim/workload"
)

const second = time.Second

func TestRunClosedMeasuresFigures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A response takes 0.5 s plus 10 times 50 ms: one per second.
		svc := newFake(func(int, seen) reply { return reply{chunks: streamed(11, second/2, 50*time.Millisecond)} })
		client := &looped{}
		r, err := RunClosed(context.Background(), oneRegion(svc), []ClosedLoopClient{{"us", client}}, 10*second+1)
		if err != nil {
			t.Fatal(err)
		}
		checkLaw(t, r)
		if r.OK != 11 || r.Requests != 11 || r.OutputTokens != 121 || r.PromptTokens != 1100 || *r.CachedTokens != 440 {
			t.Errorf("figures %+v", r.ClientFigures)
		}
		wantClose(t, "hit rate", *r.PrefixHitRate, 0.4, 1e-9)
		wantClose(t, "requests/s", r.RequestsPerSecond, 1, 1e-6)
		wantClose(t, "tokens/s", r.OutputTokensPerSecond, 11, 1e-6)
		wantClose(t, "duration", r.DurationSeconds, 10, 1e-6)
		wantClose(t, "TTFT p50", r.TTFT.P50, 500, 3)
		wantClose(t, "TTFT mean", r.TTFT.Mean, 500, 1e-6)
		wantClose(t, "ITL p99", r.ITL.P99, 50, 0.3)
		wantClose(t, "TPOT mean", r.TPOT.Mean, 50, 1e-6)
		wantClose(t, "E2E max", r.E2E.Max, 1000, 1e-6)
		if got := client.responses[0]; got != " tok tok tok tok tok tok tok tok tok tok tok" {
			t.Errorf("the client got the response %q", got)
		}
	})
}

func TestRunClosedRequestContents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newFake(func(int, seen) reply { return reply{chunks: streamed(1, second, 0)} })
		c := oneRegion(svc)
		c.APIKey = "sk-1"
		client, err := workload.NewClient(workload.Arena, workload.Options{Region: "us", Tier: "IW-N"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := RunClosed(context.Background(), c, []ClosedLoopClient{{"us", client}}, second); err != nil {
			t.Fatal(err)
		}
		s := svc.seen[0]
		for name, want := range map[string]string{
			"X-Session-ID": s.body.User, "X-Skyserve-Tier": "IW-N", "Authorization": "Bearer sk-1", "Content-Type": "application/json",
		} {
			if got := s.header.Get(name); got != want || got == "" {
				t.Errorf("header %s is %q, want %q", name, got, want)
			}
		}
		b := s.body
		if b.Model != "m" || !b.Stream || !b.StreamOptions.IncludeUsage || !b.IgnoreEOS || b.MaxTokens < 1 || len(b.Messages) != 2 {
			t.Errorf("body %+v", b)
		}
	})
}

func TestRequestsInFlightDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Three regions with responses of 3 s, 8 s and 20 s, and a load of 4 s.
		takes := map[string]time.Duration{"us": 3 * second, "eu": 8 * second, "asia": 20 * second}
		svc := newFake(func(_ int, s seen) reply { return reply{chunks: streamed(1, takes[s.host], 0)} })
		c := oneRegion(svc)
		c.Targets = append(c.Targets, Target{"eu", "http://eu"}, Target{"asia", "http://asia"})
		clients := []ClosedLoopClient{{"us", &looped{}}, {"eu", &looped{}}, {"asia", &looped{}}}
		begin := time.Now()
		r, err := RunClosed(context.Background(), c, clients, 4*second)
		if err != nil {
			t.Fatal(err)
		}
		checkLaw(t, r)
		if took := time.Since(begin); took != 9*second {
			t.Errorf("the load took %s, want 4 s and a drain of 5 s", took)
		}
		us, eu, asia := r.ByRegion["us"], r.ByRegion["eu"], r.ByRegion["asia"]
		if us.OK != 2 || eu.OK != 1 || asia.Cancelled != 1 || r.Requests != 4 || r.Interrupted {
			t.Errorf("us %+v\neu %+v\nasia %+v", us, eu, asia)
		}
		wantClose(t, "requests/s of us: the second response came after the end", us.RequestsPerSecond, 0.25, 1e-6)
		if r.TTFT == nil || asia.TTFT != nil || asia.PrefixHitRate != nil {
			t.Error("latencies must cover completed requests only")
		}
	})
}

func TestInterruptedLoadIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newFake(func(n int, _ seen) reply { return reply{chunks: streamed(1, second+time.Duration(n/2)*time.Hour, 0)} })
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(5*second, cancel)
		begin := time.Now()
		r, err := RunClosed(ctx, oneRegion(svc), []ClosedLoopClient{{"us", &looped{}}}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		checkLaw(t, r)
		if took := time.Since(begin); took != 6*second || !r.Interrupted || r.OK != 2 || r.Cancelled != 1 {
			t.Errorf("after %s: interrupted %v, %d ok, %d cancelled", took, r.Interrupted, r.OK, r.Cancelled)
		}
		wantClose(t, "duration", r.DurationSeconds, 5, 1e-6)
	})
}

func TestFailedClientBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newFake(func(n int, _ seen) reply {
			switch {
			case n < 3:
				return reply{status: 503}
			case n == 3:
				return reply{chunks: streamed(2, 0, 0)}
			case n == 4:
				return reply{status: 429, header: map[string]string{"Retry-After": "2"}}
			case n == 5:
				return reply{status: 429, header: map[string]string{"Retry-After": "3600"}}
			}
			return reply{err: errors.New("no route")}
		})
		client := &looped{}
		r, err := RunClosed(context.Background(), oneRegion(svc), []ClosedLoopClient{{"us", client}}, 30*second)
		if err != nil {
			t.Fatal(err)
		}
		checkLaw(t, r)
		var at []string
		for _, s := range svc.seen {
			at = append(at, s.at.String())
		}
		want := "[0s 100ms 300ms 700ms 700ms 2.7s 7.7s 8.1s 8.9s 10.5s 13.7s 18.7s 23.7s 28.7s]"
		if fmt.Sprint(at) != want {
			t.Errorf("requests at %v\nwant %s", at, want)
		}
		if r.Rejected != 5 || r.Failures["connect"] != 8 || r.ByStatus["none"] != 8 || r.OK != 1 || client.failed != 13 {
			t.Errorf("figures %+v, the client saw %d failures", r.ClientFigures, client.failed)
		}
	})
}

func TestTreeSiblingsAreConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newFake(func(int, seen) reply { return reply{chunks: streamed(1, second, 0)} })
		client, err := workload.NewClient(workload.ToT15, workload.Options{Seed: 1, Region: "us"})
		if err != nil {
			t.Fatal(err)
		}
		r, err := RunClosed(context.Background(), oneRegion(svc), []ClosedLoopClient{{"us", client}}, 8*second-1)
		if err != nil {
			t.Fatal(err)
		}
		if r.OK != 30 { // a tree of four levels takes 4 s
			t.Errorf("%d requests in 8 s, want two trees", r.OK)
		}
		at := map[time.Duration]int{}
		for _, s := range svc.seen {
			at[s.at]++
		}
		if fmt.Sprint(at[0], at[second], at[2*second], at[3*second], at[4*second]) != "1 2 4 8 1" {
			t.Errorf("requests by time: %v", at)
		}
	})
}

// Every request ends with exactly one outcome, whatever the service does.
func TestEveryRequestHasOneOutcome(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			random := rand.New(rand.NewPCG(seed, 0))
			svc := newFake(func(int, seen) reply {
				mu.Lock()
				defer mu.Unlock()
				whole := streamed(1+random.IntN(20), time.Duration(random.IntN(2000))*time.Millisecond, 20*time.Millisecond)
				switch random.IntN(8) {
				case 0:
					return reply{err: errors.New("connection reset")}
				case 1:
					return reply{status: []int{429, 503, 500, 404}[random.IntN(4)], chunks: []chunk{{0, "no"}}}
				case 2:
					return reply{chunks: whole[:random.IntN(len(whole))]}
				case 3:
					return reply{chunks: append(whole[:len(whole)-1:len(whole)-1], chunk{0, `data: {"error":{"message":"lost"}}` + "\n\n"})}
				case 4:
					return reply{chunks: append([]chunk{{time.Hour, ""}}, whole...)}
				}
				return reply{chunks: whole}
			})
			c := oneRegion(svc)
			c.Timeout = 3 * second
			c.Targets = append(c.Targets, Target{"eu", "http://eu"})
			var clients []ClosedLoopClient
			for i := range 6 {
				region := []string{"us", "eu"}[i%2]
				client, err := workload.NewClient(workload.ToT30, workload.Options{Seed: seed, Region: region, Client: i})
				if err != nil {
					t.Fatal(err)
				}
				clients = append(clients, ClosedLoopClient{region, client})
			}
			r, err := RunClosed(context.Background(), c, clients, 20*second)
			if err != nil {
				t.Fatal(err)
			}
			checkLaw(t, r)
			if r.Requests != len(svc.seen) || r.OK == 0 || r.Rejected == 0 || r.Failures["timeout"] == 0 || r.Failures["stream_error"] == 0 {
				t.Errorf("seed %d: the service saw %d requests, the report is %+v", seed, len(svc.seen), r.ClientFigures)
			}
		})
	}
}

func TestRunClosedErrors(t *testing.T) {
	svc := newFake(nil)
	for _, c := range []struct {
		config   Config
		region   string
		duration time.Duration
		want     string
	}{
		{Config{}, "us", second, "starting the load: no target"},
		{oneRegion(svc), "us", 0, "starting the load: duration: must be positive, got 0s"},
		{oneRegion(svc), "mars", second, `starting client 0: region "mars" has no target`},
	} {
		if _, err := RunClosed(context.Background(), c.config, []ClosedLoopClient{{c.region, &looped{}}}, c.duration); err == nil || err.Error() != c.want {
			t.Errorf("error %v, want %s", err, c.want)
		}
	}
}

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Tokens at 130, 230 ... 1030 ms, then a failure, and again from 1130 ms.
		svc := newFake(func(n int, _ seen) reply {
			if n == 1 {
				return reply{status: 500}
			}
			return reply{chunks: streamed(10, 130*time.Millisecond, 100*time.Millisecond)}
		})
		c := oneRegion(svc)
		var got []string
		c.Progress = func(p ProgressReport) { got = append(got, p.Line()) }
		if _, err := RunClosed(context.Background(), c, []ClosedLoopClient{{"us", &looped{}}}, 1600*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		want := []string{
			"0s  in flight 1  ok 0  failed 0  8 tok/s",
			"1s  in flight 1  ok 0  failed 0  10 tok/s",
			"1s  in flight 1  ok 1  failed 1  8 tok/s",
		}
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Errorf("progress\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}
