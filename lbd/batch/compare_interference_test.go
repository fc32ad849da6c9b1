//go:build compare && linux

package batch

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"skyserve/lbd/batch/job"
)

var (
	deferredRequests = flag.Int("batch.requests", 2000, "number of deferred requests")
	interactiveShare = flag.Float64("batch.load", 0.6, "interactive load as a share of the capacity")
	batchWindow      = flag.Duration("batch.window", 20*time.Minute, "completion window of the batch")
	replayTime       = flag.Duration("batch.duration", 80*time.Second, "duration of each interactive load")
)

// Sizes of requests in tokens.
const (
	interactivePrompt, interactiveOutput = 600, 120
	deferredWords, deferredOutput        = 200, 80
)

// loadResult is the part of the report of `skyserve load -o json` that is compared.
type loadResult struct {
	OK       int     `json:"ok"`
	Requests int     `json:"requests"`
	Rate     float64 `json:"requests_per_second"`
	TTFT     struct {
		P50 float64 `json:"p50"`
		P95 float64 `json:"p95"`
	} `json:"ttft_ms"`
	TPOT struct {
		P50 float64 `json:"p50"`
		P95 float64 `json:"p95"`
	} `json:"tpot_ms"`
}

// utilisation is the mean over samples of all replicas. gpu is GPU utilisation as nvidia-smi defines it, the share of
// time in which a kernel runs: the simulated engine computes steps exactly while a request runs.
type utilisation struct{ gpu, kv float64 }

// TestCompareInterference compares an interactive load on the quickstart with and without a batch.
func TestCompareInterference(t *testing.T) {
	s := startLive(t, strings.Replace(quickstart(t), "speed: 10 ", "speed: 2  ", 1)) // the host's processors must not be the limit
	capacity := s.capacity(600)
	rate := *interactiveShare * capacity
	t.Logf("capacity %.1f requests/s of %d + %d tokens; interactive load %.1f requests/s", capacity, interactivePrompt, interactiveOutput, rate)

	var without, with utilisation
	stop := s.sample(&without)
	alone := s.replay("alone", rate, *replayTime, 2, 3)
	stop()
	file := s.upload(0, func(w io.Writer) error { return writeDeferred(w, *deferredRequests) })
	b := s.create(0, file.ID, "/v1/chat/completions", batchWindow.String())
	stop = s.sample(&with)
	mixed := s.replay("mixed", rate, *replayTime, 2, 4)
	stop()
	during := s.awaitStatus(b.ID, time.Minute, job.Validating, job.InProgress, job.Finalizing, job.Completed)
	b = s.awaitStatus(b.ID, *batchWindow+time.Minute, job.Completed, job.Expired, job.Failed)

	row := func(name string, a, b float64) { t.Logf("%-42s %10.2f %10.2f %7.3f", name, a, b, b/a) }
	t.Logf("%-42s %10s %10s %7s", "interactive", "without", "with", "ratio")
	row("served requests/s", alone.Rate, mixed.Rate)
	row("TTFT P50, ms", alone.TTFT.P50, mixed.TTFT.P50)
	row("TTFT P95, ms", alone.TTFT.P95, mixed.TTFT.P95)
	row("TPOT P50, ms", alone.TPOT.P50, mixed.TPOT.P50)
	row("TPOT P95, ms", alone.TPOT.P95, mixed.TPOT.P95)
	row("GPU utilisation (time with a step)", without.gpu, with.gpu)
	row("KV utilisation", without.kv, with.kv)
	done := during.RequestCounts.Completed
	t.Logf("batch: %s, %d of %d completed during the load of %s, all after %s of %s", b.Status, done, b.RequestCounts.Total, *replayTime,
		time.Unix(*cmpOr(b.CompletedAt, b.ExpiredAt), 0).Sub(time.Unix(b.CreatedAt, 0)), b.CompletionWindow)
	if b.Status != job.Completed || b.RequestCounts.Completed != *deferredRequests {
		t.Errorf("the batch: %+v", b)
	}
	if with.gpu < 0.9 {
		t.Errorf("the GPU utilisation with both loads is %.2f, must be at least 0.9", with.gpu)
	}
	if ratio := mixed.TTFT.P95 / alone.TTFT.P95; ratio > 1.05 {
		t.Errorf("the P95 TTFT of interactive requests is %.3f of that without a batch, must be at most 1.05", ratio)
	}
}

// capacity returns how many interactive requests are served per second when all are sent at once.
func (s *liveService) capacity(requests int) float64 {
	started := time.Now()
	var sending sync.WaitGroup
	for i := range requests {
		sending.Go(func() {
			prompt := strings.Repeat(fmt.Sprintf("w%d ", i), interactivePrompt)
			body := fmt.Sprintf(`{"model":"chat-small","max_tokens":%d,"ignore_eos":true,"messages":[{"role":"user","content":%q}]}`, interactiveOutput, prompt)
			var out map[string]any
			if err := s.call("POST", i%3, "/v1/chat/completions", "application/json", strings.NewReader(body), &out); err != nil {
				s.t.Error(err)
			}
			if i == 0 {
				s.t.Logf("a request: %v", out["usage"])
			}
		})
	}
	sending.Wait()
	return float64(requests) / time.Since(started).Seconds()
}

func cmpOr(a, b *int64) *int64 {
	if a == nil {
		return b
	}
	return a
}

// replay sends interactive requests at a rate, in random intervals, and returns the report. seed is that of the
// intervals and sizes, prompts that of the prompts: equal ones would be in the caches of the run before.
func (s *liveService) replay(name string, rate float64, duration time.Duration, seed, prompts uint64) (r loadResult) {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), name+".csv")
	var trace strings.Builder
	trace.WriteString("TIMESTAMP,ContextTokens,GeneratedTokens\n")
	rng := rand.New(rand.NewPCG(seed, 1))
	start := time.Date(2023, 11, 16, 18, 0, 0, 0, time.UTC)
	for at := 0.0; at < duration.Seconds(); at += rng.ExpFloat64() / rate {
		fmt.Fprintf(&trace, "%s,%d,%d\n", start.Add(time.Duration(at*1e9)).Format("2006-01-02 15:04:05.0000000"), interactivePrompt/2+rng.IntN(interactivePrompt), interactiveOutput/2+rng.IntN(interactiveOutput))
	}
	if err := os.WriteFile(path, []byte(trace.String()), 0o600); err != nil {
		s.t.Fatal(err)
	}
	out := s.Run("load", liveName, "--workload", path, "--quiet", "--seed", fmt.Sprint(prompts), "-o", "json")
	if err := json.Unmarshal(out, &r); err != nil || r.OK == 0 {
		s.t.Fatalf("%s: %v: %s", name, err, out)
	}
	return r
}

// sample measures the utilisation of the replicas until the returned function is called.
func (s *liveService) sample(u *utilisation) (stop func()) {
	end := make(chan struct{})
	var sampling sync.WaitGroup
	sampling.Go(func() {
		replicas, busy, kv := 0.0, 0.0, 0.0 // busy = with a step
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				*u = utilisation{busy / max(1, replicas), kv / max(1, replicas)}
				return
			case <-tick.C:
			}
			for balancer := range 3 {
				for _, rep := range s.replicas(balancer) {
					if rep.Running == nil || rep.KV == nil {
						continue
					}
					replicas, kv = replicas+1, kv+*rep.KV
					if *rep.Running > 0 {
						busy++
					}
				}
			}
		}
	})
	return func() {
		close(end)
		sampling.Wait()
	}
}

// liveReplica is the part of a replica in a snapshot that is measured.
type liveReplica struct {
	Running *int     `json:"running"`
	KV      *float64 `json:"kv"`
}

// replicas returns the replicas of a balancer.
func (s *liveService) replicas(balancer int) (all []liveReplica) {
	res, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/v1/snapshot", s.Port+100+balancer))
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	var snapshot struct {
		Regions []struct {
			Replicas []liveReplica `json:"replicas"`
		} `json:"regions"`
	}
	if json.NewDecoder(res.Body).Decode(&snapshot) != nil {
		return nil
	}
	for _, r := range snapshot.Regions {
		all = append(all, r.Replicas...)
	}
	return all
}

// writeDeferred writes the lines of a batch. Ten requests at a time have a common prefix.
func writeDeferred(w io.Writer, requests int) error {
	out := bufio.NewWriter(w)
	for i := range requests {
		topic := strings.Repeat(fmt.Sprintf("topic%d ", i%(requests/10)), deferredWords/2)
		text := topic + strings.Repeat(fmt.Sprintf("question%d ", i), deferredWords/2)
		if _, err := fmt.Fprintf(out, `{"custom_id":"r%d","method":"POST","url":"/v1/chat/completions","body":{"model":"chat-small","max_tokens":%d,"ignore_eos":true,"messages":[{"role":"user","content":%q}]}}`+"\n", i, deferredOutput, text); err != nil {
			return err
		}
	}
	return out.Flush()
}
