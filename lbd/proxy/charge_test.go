package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/quota"
)

// generateEvery is the pace of pacedEngine: 50 tokens per second.
const generateEvery = 20 * time.Millisecond

var maxTokensMember = regexp.MustCompile(`"max_tokens":(\d+)`)

// pacedEngine is an engine that generates a token every 20 ms, up to max_tokens, otherwise 5,000, for
// a prompt of 10 tokens.
func pacedEngine(ctx context.Context, body string) (*http.Response, error) {
	n := 5000
	if m := maxTokensMember.FindStringSubmatch(body); m != nil {
		n, _ = strconv.Atoi(m[1])
	}
	if strings.Contains(body, `"stream":true`) {
		var pieces []string
		for range n {
			pieces = append(pieces, chunk(" w"))
		}
		return speaking("text/event-stream", generateEvery, append(pieces, usageEvent(10, 0, n)+doneEvent)...)(ctx, body)
	}
	select {
	case <-time.After(time.Duration(n) * generateEvery):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	answer := fmt.Sprintf(`{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"length"}],"usage":{"prompt_tokens":10,"completion_tokens":%d}}`, n)
	return &http.Response{Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(answer))}, nil
}

// pacedRuntime returns a runtime with one replica, at the pace of that engine.
func pacedRuntime(t *testing.T, o Options, engine func(context.Context, string) (*http.Response, error)) *balancer {
	t.Helper()
	o.Transport = hostTransport{"us-0": engine}
	o.Limits.SilenceTimeout, o.Limits.ResponseTimeout = 24*time.Hour, 24*time.Hour // the replica is not probed
	rt, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	rt.Start(ctx)
	t.Cleanup(func() {
		cancel()
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
	b := &balancer{Runtime: rt, t: t}
	b.attach("us-0", "http://us-0")
	return b
}

// hangUp sends a request with the client's key and disconnects after a while; 0 = after the response.
func (b *balancer) hangUp(body string, after time.Duration) *httptest.ResponseRecorder {
	ctx, leave := context.WithCancel(b.t.Context())
	defer leave()
	if after > 0 {
		defer time.AfterFunc(after, leave).Stop()
	}
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, chatPath, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer sk")
	w := httptest.NewRecorder()
	func() {
		defer func() {
			if r := recover(); r != nil && r != http.ErrAbortHandler {
				panic(r)
			}
		}()
		b.serveRequest(w, req)
	}()
	return w
}

func bodyOf(stream bool, more string) string {
	return fmt.Sprintf(`{"model":%q,"stream":%v%s,"messages":[{"role":"user","content":"hello"}]}`, testModel, stream, more)
}

// A client that disconnects is charged for the tokens generated until then, streamed or not, with
// or without a token limit. The charge equals that of a client that reads to the end, and never
// exceeds the requested tokens.
func TestCancelledRequestIsChargedForGenerated(t *testing.T) {
	for name, c := range map[string]struct {
		body     string
		after    time.Duration
		from, to int64 // tokens of responses
	}{
		"a stream":                         {bodyOf(true, `,"max_tokens":1000`), 10*time.Second + generateEvery/2, 500, 500},
		"not streamed":                     {bodyOf(false, `,"max_tokens":1900`), 38*time.Second - generateEvery, 1700, 1900},
		"not streamed, half way":           {bodyOf(false, `,"max_tokens":1900`), 19 * time.Second, 850, 1050},
		"not streamed, no token limit":     {bodyOf(false, ``), 38 * time.Second, 1700, 2100},
		"four parallel responses":          {bodyOf(false, `,"n":4,"max_tokens":500`), 5 * time.Second, 900, 1100},
		"before anything was generated":    {bodyOf(false, ``), time.Millisecond, 0, 1},
		"a stream, before its first token": {bodyOf(true, ``), time.Millisecond, 0, 0},
		"not streamed, engine hangs":       {bodyOf(false, `,"max_tokens":100`), time.Hour, 100, 100},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := testOptions(t)
			o.Keys = limited(t, "tokens_per_day=1000000")
			hangs := false
			b := pacedRuntime(t, o, func(ctx context.Context, body string) (*http.Response, error) {
				if hangs {
					return vanishedReplica(ctx, body)
				}
				return pacedEngine(ctx, body)
			})
			for range 3 { // to learn the pace
				b.hangUp(bodyOf(false, `,"max_tokens":200`), 0)
			}
			before := b.usedBy("acme")
			hangs = strings.HasSuffix(name, "hangs")
			b.hangUp(c.body, c.after)
			used := b.usedBy("acme").Minus(before)
			if used.Requests != 1 || used.PromptTokens <= 0 || used.OutputTokens < c.from || used.OutputTokens > c.to {
				t.Errorf("%s: used %+v, want %d to %d output tokens", name, used, c.from, c.to)
			}
		})
	}
}

// A non-streamed response that is not buffered, because it is too long or its tenant has no free
// memory, has the same charge as any other.
func TestUnparsedResponsesAreCharged(t *testing.T) {
	for name, prepare := range map[string]func(b *balancer){
		"too long": func(b *balancer) { b.limits.MaxBufferedResponse = 16 },
		"no memory left": func(b *balancer) {
			acme, _ := b.keyring().Find(quota.Hash("sk"))
			tenant, _, _ := acme.Rights()
			hog := b.memory.Use(tenant)
			if err := hog.Set(b.limits.TenantMemory - b.memory.Used() - 5<<10); err != nil { // a small body fits
				b.t.Fatal(err)
			}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := testOptions(t)
			o.Keys = limited(t, "tokens_per_day=1000000")
			b := pacedRuntime(t, o, pacedEngine)
			for range 3 { // to learn the pace
				b.hangUp(bodyOf(false, `,"max_tokens":200`), 0)
			}
			before := b.usedBy("acme")
			prepare(b)
			w := b.hangUp(bodyOf(false, `,"max_tokens":1900`), 0)
			used := b.usedBy("acme").Minus(before)
			if w.Code != http.StatusOK || used.Requests != 1 || used.OutputTokens < 1700 || used.OutputTokens > 1900 {
				t.Errorf("%s: status %d, used %+v, want 1,700 to 1,900 output tokens", name, w.Code, used)
			}
		})
	}
}

// Open responses count for a quota while they run, and if their client disconnects early: five
// responses of 1,900 tokens exceed 2,000.
func TestOpenResponsesCountAgainstQuota(t *testing.T) {
	for _, more := range []string{``, `,"max_tokens":1900`} {
		synctest.Test(t, func(t *testing.T) {
			o := testOptions(t)
			o.Keys = limited(t, "tokens_per_day=2600")
			b := pacedRuntime(t, o, pacedEngine)
			for range 3 {
				b.hangUp(bodyOf(false, `,"max_tokens":100`), 0)
			}
			left := 2600 - b.usedBy("acme").Tokens()
			refused := 0
			for range 5 {
				if w := b.hangUp(bodyOf(false, more), 38*time.Second-generateEvery); w.Code == http.StatusTooManyRequests {
					refused++
				}
			}
			used := b.usedBy("acme").Tokens() - (2600 - left)
			if refused != 4 && refused != 3 || used < left*7/10 {
				t.Errorf("with %q: %d of 5 were refused, %d of %d tokens are used", more, refused, used, left)
			}
		})
	}
}

// Tokens by which a response exceeds its reservation are reserved while it runs, so that they limit
// concurrent requests of the key.
func TestReservationGrowsWithResponse(t *testing.T) {
	for _, stream := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			o := testOptions(t)
			o.Keys = limited(t, "tokens_per_day=2600")
			b := pacedRuntime(t, o, pacedEngine)
			for range 3 {
				b.hangUp(bodyOf(false, `,"max_tokens":100`), 0)
			}
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				b.hangUp(bodyOf(stream, ``), 40*time.Second)
			}()
			small := bodyOf(false, `,"max_tokens":300`)
			time.Sleep(time.Second)
			if w := b.hangUp(small, 0); w.Code != http.StatusOK {
				t.Errorf("stream %v: beside an answer that has begun: %d", stream, w.Code)
			}
			time.Sleep(32 * time.Second)
			if w := b.hangUp(small, 0); w.Code != http.StatusTooManyRequests {
				t.Errorf("stream %v: beside an answer of 1,900 tokens so far: %d, want 429", stream, w.Code)
			}
			<-gone
			if inFlight, tokens := b.reserved("acme"); tokens != 0 || inFlight != 0 {
				t.Errorf("stream %v: afterwards %d tokens are reserved, %d in flight", stream, tokens, inFlight)
			}
		})
	}
}

// If an engine puts several tokens into an event, events do not count as tokens.
func TestEventsWithSeveralTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(t)
		o.Keys = limited(t, "")
		bundles := func(ctx context.Context, body string) (*http.Response, error) {
			var pieces []string
			for range 50 {
				pieces = append(pieces, chunk(" eight tokens are in this one event"))
			}
			return speaking("text/event-stream", 8*generateEvery, append(pieces, usageEvent(10, 0, 400)+doneEvent)...)(ctx, body)
		}
		b := pacedRuntime(t, o, bundles)
		b.hangUp(bodyOf(true, ``), 0)
		before := b.usedBy("acme")
		b.hangUp(bodyOf(true, ``), 25*8*generateEvery+generateEvery)
		if used := b.usedBy("acme").Minus(before).OutputTokens; used != 200 {
			t.Errorf("25 events of 8 tokens each count as %d tokens, want 200", used)
		}
	})
}

// core receives the number of generated tokens when a client disconnects or a replica fails, and the
// record replays it.
func TestOutcomeReportsGeneratedTokens(t *testing.T) {
	var record bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(t)
		o.Keys, o.Record = limited(t, ""), &record
		o.Core.MaxAttempts = 2
		breaks := false
		b := pacedRuntime(t, o, func(ctx context.Context, body string) (*http.Response, error) {
			if breaks {
				time.Sleep(4 * time.Second)
				return nil, io.ErrUnexpectedEOF
			}
			return pacedEngine(ctx, body)
		})
		b.hangUp(bodyOf(false, `,"max_tokens":200`), 0)
		b.hangUp(bodyOf(true, ``), 2*time.Second+generateEvery/2)
		b.hangUp(bodyOf(false, ``), 6*time.Second)
		breaks = true
		b.hangUp(bodyOf(false, ``), 0)
	})
	replays(t, record.Bytes())
	_, lines := readRecord(t, bytes.NewReader(record.Bytes()))
	var got []string
	for _, l := range lines {
		if e := l.Event; e != nil && (e.Kind == core.EventCancelled || e.Kind == core.EventFailed) {
			if e.Outcome == nil {
				t.Fatalf("%s without an outcome", e.Kind)
			}
			got = append(got, fmt.Sprint(e.Kind, " ", (e.Outcome.OutputTokens.Value+25)/50*50))
		}
	}
	want := []string{"cancelled 100", "cancelled 300", "failed 200", "failed 200"}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("to within 25 tokens the core hears %v, want %v", got, want)
	}
}
