package server

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// sendTo sends a short request to a rank and returns the status and the response.
func (b *bench) sendTo(rank, prompt string) (int, string) {
	b.t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://engine"+textPath, strings.NewReader(`{"prompt":"`+prompt+`","max_tokens":4}`))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header["X-data-parallel-rank"] = []string{rank} // as vLLM and SGLang write it
	resp, err := b.client.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp.StatusCode, read(b.t, resp)
}

// served returns the number of requests per rank.
func (b *bench) served() []int64 {
	var n []int64
	for _, l := range b.server.driver.loads() {
		n = append(n, l.Submitted)
	}
	return n
}

func TestRequestUsesItsRank(t *testing.T) {
	bubble(t, Options{DataParallel: 3}, func(t *testing.T, b *bench) {
		for _, rank := range []string{"2", "2", "0"} {
			if status, text := b.sendTo(rank, "hello there again"); status != http.StatusOK {
				t.Fatalf("%d: %s", status, text)
			}
		}
		if got := b.served(); got[0] != 1 || got[1] != 0 || got[2] != 2 {
			t.Errorf("the ranks were sent %v", got)
		}
		// Each rank has a cache of its own.
		if hits := b.server.driver.loads(); hits[2].HitTokens == 0 || hits[0].HitTokens != 0 {
			t.Errorf("cached: %d at rank 2, %d at rank 0", hits[2].HitTokens, hits[0].HitTokens)
		}
		for _, rank := range []string{"3", "-1", "x"} {
			status, text := b.sendTo(rank, "hello")
			if status != http.StatusBadRequest || !strings.Contains(text, "must be a rank from 0 to 2, got") {
				t.Errorf("rank %s: %d: %s", rank, status, text)
			}
		}
	})
}

func TestRanksRoundRobin(t *testing.T) {
	bubble(t, Options{DataParallel: 4}, func(t *testing.T, b *bench) {
		for range 8 {
			if status, text := b.post(textPath, `{"prompt":"hello","max_tokens":2}`); status != http.StatusOK {
				t.Fatalf("%d: %s", status, text)
			}
		}
		for rank, n := range b.served() {
			if n != 2 {
				t.Errorf("rank %d was sent %d of 8", rank, n)
			}
		}
	})
}

func TestMetricsPerRank(t *testing.T) {
	for flavor, want := range map[Flavor][]string{
		FlavorVLLM: {
			`vllm:num_requests_running{engine="0",model_name="m"} 0`,
			`vllm:num_requests_running{engine="1",model_name="m"} 1`,
			`vllm:num_requests_waiting{engine="1",model_name="m"} 1`,
		},
		FlavorSGLang: {
			`sglang:num_running_reqs{dp_rank="0",model_name="m"} 0`,
			`sglang:num_running_reqs{dp_rank="1",model_name="m"} 1`,
			`sglang:num_queue_reqs{dp_rank="1",model_name="m"} 1`,
		},
	} {
		o, err := Options{DataParallel: 2, Flavor: flavor, Model: "m"}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		o.Profile.MaxRunning = 1
		bubble(t, o, func(t *testing.T, b *bench) {
			for range 2 {
				go func() { b.sendTo("1", "hello") }()
			}
			time.Sleep(100 * time.Millisecond)
			_, page := b.get("/metrics")
			for _, line := range want {
				if strings.Count(page, line+"\n") != 1 {
					t.Errorf("%s: want %s in\n%s", flavor, line, page)
				}
			}
			if n := strings.Count(page, "# TYPE"); n != strings.Count(page, "# HELP") || 2*n != strings.Count(page, `model_name="m"`) {
				t.Errorf("%s: %d types for %d series", flavor, n, strings.Count(page, `model_name="m"`))
			}
		})
	}
}

func TestRankErrors(t *testing.T) {
	for _, n := range []int{-1, 65} {
		if _, err := New(Options{DataParallel: n}); err == nil {
			t.Errorf("%d ranks were accepted", n)
		}
	}
}
