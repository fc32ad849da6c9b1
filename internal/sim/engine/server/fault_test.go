package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestFaultGrammar(t *testing.T) {
	for words, want := range map[string]Faults{
		"":                         {},
		"die-after=20s":            {DieAfter: Trigger{Set: true, After: 20 * time.Second}},
		"die-after=100":            {DieAfter: Trigger{Set: true, Requests: 100}},
		"hang-after=0":             {HangAfter: Trigger{Set: true}},
		"slow=3, error-rate=0.25":  {Slow: 3, ErrorRate: 0.25},
		"reset-after-tokens=5":     {ResetAfterTokens: 5},
		"slow=1e3,hang-after=1m5s": {Slow: 1000, HangAfter: Trigger{Set: true, After: 65 * time.Second}},
	} {
		got, err := ParseFaults([]string{words})
		if err != nil || got != want {
			t.Errorf("ParseFaults(%q) = %+v, %v; want %+v", words, got, err, want)
		}
		data, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var back Faults
		if err := json.Unmarshal(data, &back); err != nil || back != want {
			t.Errorf("%q as JSON is %s, read as %+v, %v", words, data, back, err)
		}
	}
	if f, err := ParseFaults([]string{"slow=2", "error-rate=1"}); err != nil || f.Slow != 2 || f.ErrorRate != 1 {
		t.Errorf("two separate words: %+v, %v", f, err)
	}
}

func TestFaultErrors(t *testing.T) {
	for words, want := range map[string]string{
		"explode=1":            `unknown fault "explode": must be one of die-after, error-rate, hang-after, reset-after-tokens, slow`,
		"slow":                 `parsing fault slow=: must be a number from 1 to 1000000, got ""`,
		"slow=0.5":             `got "0.5"`,
		"slow=NaN":             `got "NaN"`,
		"error-rate=2":         "must be a number from 0 to 1",
		"die-after=soon":       `must be a duration (20s) or a number of requests (at least 1), got "soon"`,
		"die-after=-1s":        `got "-1s"`,
		"reset-after-tokens=0": "must be an integer of at least 1",
	} {
		if _, err := ParseFaults([]string{words}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseFaults(%q): %v, want %q", words, err, want)
		}
	}
	for data, want := range map[string]string{
		`{"slow":"fast"}`:     `got "fast"`,
		`{"die-after":true}`:  `got "true"`,
		`{"error-rate":null}`: "error-rate",
	} {
		if err := json.Unmarshal([]byte(data), new(Faults)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", data, err, want)
		}
	}
}

// broken requests a stream that must break, and returns its text.
func broken(t *testing.T, b *bench, body string) string {
	t.Helper()
	resp, err := b.client.Post("http://engine"+chatPath, "application/json", strings.NewReader(body))
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil || strings.Contains(string(text), "[DONE]") {
		t.Errorf("the response did not break: %v, ...%.100q", err, text)
	}
	return string(text)
}

func TestDieAfterSomeTime(t *testing.T) {
	bubble(t, Options{Faults: Faults{DieAfter: Trigger{Set: true, After: time.Second}}}, func(t *testing.T, b *bench) {
		text := broken(t, b, chat("x", `,"max_tokens":60,"stream":true`))
		if n := strings.Count(text, "data: "); n < 10 || n > 20 {
			t.Errorf("%d tokens arrived before the stop after a second", n)
		}
		if err := <-b.ended; !errors.Is(err, ErrDied) {
			t.Errorf("Run returned %v, want ErrDied", err)
		}
		if _, err := b.client.Get("http://engine/health"); err == nil {
			t.Error("a dead server responds")
		}
	})
}

func TestDieAfterSomeRequests(t *testing.T) {
	bubble(t, Options{Speed: 100, Faults: Faults{DieAfter: Trigger{Set: true, Requests: 3}}}, func(t *testing.T, b *bench) {
		for range 2 {
			b.complete(chatPath, chat("x", `,"max_tokens":2`))
			b.get("/metrics")
		}
		broken(t, b, chat("x", `,"max_tokens":2,"stream":true`))
		if err := <-b.ended; !errors.Is(err, ErrDied) {
			t.Errorf("Run returned %v, want ErrDied", err)
		}
	})
}

func TestHangAndWakeUp(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		running := b.send(chatPath, chat("x", `,"max_tokens":30,"stream":true`))
		defer running.Body.Close()
		time.Sleep(time.Second)
		if status, text := b.post("/fault", `{"hang-after":"500ms"}`); status != 200 || !strings.Contains(text, `"hang-after":"500ms"`) {
			t.Fatalf("POST /fault: %d %s", status, text)
		}
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		before := b.server.driver.loads()[0]
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, "GET", "http://engine/health", nil)
		if resp, err := b.client.Do(r); err == nil {
			resp.Body.Close()
			t.Error("a hanging server responds")
		}
		if after := b.server.driver.loads()[0]; after != before || after.Running != 1 {
			t.Errorf("while hanging the load went from %+v to %+v", before, after)
		}
		if status, text := b.get("/fault"); status != 200 || !strings.Contains(text, "hang-after") {
			t.Errorf("GET /fault while hanging: %d %s", status, text)
		}
		if status, text := b.post("/fault", `{}`); status != 200 || strings.TrimSpace(text) != "{}" {
			t.Errorf("POST /fault {}: %d %s", status, text)
		}
		if text := read(t, running); strings.Count(text, "data: ") != 31 {
			t.Errorf("after the hang the response ended with %d events, want 31", strings.Count(text, "data: "))
		}
		if status, _ := b.get("/health"); status != 200 {
			t.Errorf("GET /health after the hang: %d", status)
		}
	})
}

func TestHangAfterBlocksThatRequest(t *testing.T) {
	bubble(t, Options{Faults: Faults{HangAfter: Trigger{Set: true, Requests: 1}}}, func(t *testing.T, b *bench) {
		responded := make(chan reply)
		go func() { responded <- b.complete(chatPath, chat("x", `,"max_tokens":2`)) }()
		select {
		case <-responded:
			t.Error("the request has a response")
		case <-time.After(time.Hour):
		}
		if l := b.server.driver.loads()[0]; l.Submitted != 0 {
			t.Errorf("the request reached the engine: %+v", l)
		}
		b.post("/fault", `{}`)
		if r := <-responded; r.Usage.CompletionTokens != 2 {
			t.Errorf("after the hang: %+v", r)
		}
	})
}

func TestHangingServerStops(t *testing.T) {
	bubble(t, Options{Faults: Faults{HangAfter: Trigger{Set: true}}}, func(t *testing.T, b *bench) {
		synctest.Wait()
		failed := make(chan error)
		go func() {
			_, err := b.client.Get("http://engine/health")
			failed <- err
		}()
		synctest.Wait()
		b.stop()
		if err := <-failed; err == nil {
			t.Error("a hanging server responded")
		}
		if err := <-b.ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestSlow(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		body := chat("x", `,"max_tokens":5,"stream":true`)
		b.complete(chatPath, chat("x", `,"max_tokens":5`)) // warms the cache
		last := func() time.Duration {
			chunks, err := b.stream(chatPath, body)
			if err != nil || len(chunks) != 6 {
				t.Fatalf("%d events, %v", len(chunks), err)
			}
			return chunks[5].at
		}
		before := last()
		b.post("/fault", `{"slow":3}`)
		if slow := last(); slow < 3*before-time.Millisecond || slow > 3*before+time.Millisecond {
			t.Errorf("slow=3 took %v, want three times %v", slow, before)
		}
	})
}

func TestErrorRateIsSeeded(t *testing.T) {
	var runs [2]string
	for i := range runs {
		bubble(t, Options{Speed: 1000, Seed: 4, Faults: Faults{ErrorRate: 0.3}}, func(t *testing.T, b *bench) {
			for range 60 {
				status, text := b.post(chatPath, chat("x", `,"max_tokens":1`))
				if status != 200 {
					errorOf(t, text)
				}
				runs[i] += fmt.Sprint(status, " ")
			}
			if status, _ := b.get("/health"); status != 200 {
				t.Errorf("GET /health: %d, want the fault on generation only", status)
			}
		})
	}
	if runs[0] != runs[1] {
		t.Errorf("the same seed yielded\n%s\nand\n%s", runs[0], runs[1])
	}
	if n := strings.Count(runs[0], "500"); n < 8 || n > 28 {
		t.Errorf("%d of 60 requests failed, want about 18", n)
	}
}

func TestResetAfterTokens(t *testing.T) {
	bubble(t, Options{Faults: Faults{ResetAfterTokens: 4}}, func(t *testing.T, b *bench) {
		text := broken(t, b, chat("x", `,"max_tokens":20,"stream":true`))
		if n := strings.Count(text, "data: "); n != 4 {
			t.Errorf("%d tokens arrived, want 4", n)
		}
		broken(t, b, chat("x", `,"max_tokens":20`))
		synctest.Wait()
		if l := b.server.driver.loads()[0]; l.Running != 0 || l.Cancelled != 2 {
			t.Errorf("after both: %+v", l)
		}
		if r := b.complete(chatPath, chat("x", `,"max_tokens":3`)); r.Usage.CompletionTokens != 3 {
			t.Errorf("a shorter response: %+v", r)
		}
	})
}

func TestLateTimerOfReplacedFaultsDoesNothing(t *testing.T) {
	bubble(t, Options{Faults: Faults{DieAfter: Trigger{Set: true, After: time.Second}}}, func(t *testing.T, b *bench) {
		b.post("/fault", `{"slow":2}`)
		time.Sleep(time.Minute)
		if status, _ := b.get("/health"); status != 200 {
			t.Errorf("GET /health: %d", status)
		}
	})
}
