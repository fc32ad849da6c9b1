package peer

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// balancer is a fake peer: answers after a round trip, or fails.
type balancer struct {
	mu       sync.Mutex
	rtt      time.Duration
	answer   func(r *http.Request) (int, string, error)
	tokens   []string
	inFlight int
	most     int
}

func (b *balancer) RoundTrip(r *http.Request) (*http.Response, error) {
	b.mu.Lock()
	b.tokens = append(b.tokens, r.Header.Get(HeaderToken))
	b.inFlight++
	b.most = max(b.most, b.inFlight)
	rtt, answer := b.rtt, b.answer
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.inFlight--
		b.mu.Unlock()
	}()
	select {
	case <-time.After(rtt):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	status, body, err := answer(r)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

func (b *balancer) set(change func(*balancer)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b)
}

const beat = `{"id":"lb-eu-0","region":"local/eu","models":[
 {"model":"qwen","replicas":1,"available":0,"queued":0,"outstanding":0},
 {"model":"llama","replicas":2,"available":1,"queued":3,"outstanding":4}]}`

func healthy(r *http.Request) (int, string, error) {
	if r.URL.Path == PathRegion {
		return 200, `{"name":"local/eu","queued":3}`, nil
	}
	return 200, beat, nil
}

// reports collects the reports of a Client with their times.
type reports struct {
	mu  sync.Mutex
	all []core.Event
	at  []time.Time
}

func (r *reports) take(ev core.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all, r.at = append(r.all, ev), append(r.at, time.Now())
}

func (r *reports) drain() ([]core.Event, []time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, at := r.all, r.at
	r.all, r.at = nil, nil
	return all, at
}

var eu = service.PeerConfig{ID: "eu", Region: "local/eu", URL: "http://eu:1/"}

// talking runs a test with fake time and one peer.
func talking(t *testing.T, b *balancer, test func(t *testing.T, c *Client, r *reports)) {
	synctest.Test(t, func(t *testing.T) {
		var r reports
		c := NewClient(Options{Self: "lb-us-0", Token: "secret", Sink: r.take, Seed: 3})
		defer c.Close()
		c.Add(eu, b)
		test(t, c, &r)
	})
}

// A peer that reports draining has no capacity, regardless of its other figures, until another
// process responds in its place.
func TestDrainingPeerReportsNoModels(t *testing.T) {
	says := func(text string) func(*http.Request) (int, string, error) {
		return func(r *http.Request) (int, string, error) {
			if r.URL.Path == PathRegion {
				return healthy(r)
			}
			return 200, text, nil
		}
	}
	b := &balancer{rtt: 10 * time.Millisecond, answer: healthy}
	talking(t, b, func(t *testing.T, c *Client, r *reports) {
		for _, now := range []struct {
			text     string
			draining bool
			models   int
		}{
			{beat, false, 2},
			{strings.Replace(beat, `"models"`, `"draining":true,"models"`, 1), true, 0},
			{beat, false, 2},
			{strings.Replace(beat, `"models"`, `"killers":[{"fingerprint":18446744073709551615,"age_ns":5}],"models"`, 1), false, 2},
			{`{"id":"lb-eu-0","region":"local/eu","models":[]}`, false, 0}, // from an older balancer without this field
		} {
			time.Sleep(defaultInterval) // heartbeats in flight still contain the old state
			b.set(func(b *balancer) { b.answer = says(now.text) })
			time.Sleep(2 * defaultInterval)
			events, _ := r.drain()
			got := events[len(events)-1].PeerReport
			if killers := strings.Contains(now.text, "killers"); killers != (len(got.StoppedFingerprints) == 1 && got.StoppedFingerprints[0] == core.StoppedFingerprint{Fingerprint: math.MaxUint64, Age: 5}) {
				t.Errorf("%s: got killers %+v", now.text, got.StoppedFingerprints)
			}
			if status := c.Status()[0]; status.Draining != now.draining || len(got.Models) != now.models || status.Reason != "" {
				t.Errorf("%s: got %+v and %d models", now.text, status, len(got.Models))
			}
		}
	})
}

func TestHeartbeatsAreReported(t *testing.T) {
	b := &balancer{rtt: 10 * time.Millisecond, answer: healthy}
	talking(t, b, func(t *testing.T, c *Client, r *reports) {
		time.Sleep(10 * time.Second)
		synctest.Wait()
		all, _ := r.drain()
		if n := len(all); n < 95 || n > 105 {
			t.Errorf("%d reports in 10 s, want about 100", n)
		}
		want := core.PeerReport{Age: 5 * time.Millisecond, RTT: 10 * time.Millisecond, Models: []core.ModelLoad{
			{Model: "llama", Replicas: 2, Available: 1, Queued: 3, Outstanding: 4},
			{Model: "qwen", Replicas: 1},
		}}
		for _, ev := range all {
			if ev.Kind != core.EventPeerReport || ev.Target != "eu" || !reflect.DeepEqual(*ev.PeerReport, want) {
				t.Fatalf("got %+v %+v", ev, ev.PeerReport)
			}
		}
		for _, token := range b.tokens {
			if token != "secret" {
				t.Fatalf("a request carried the token %q", token)
			}
		}
		s := c.Status()[0]
		if s.Region == nil || s.Region.Queued != 3 || s.RegionAge < 5*time.Millisecond || s.RegionAge > 1100*time.Millisecond {
			t.Errorf("region %+v, age %s", s.Region, s.RegionAge)
		}
		if !s.Reported || s.Silence > 120*time.Millisecond || s.RTT != 10*time.Millisecond || s.Reason != "" {
			t.Errorf("status %+v", s)
		}
	})
}

// Failures whose texts differ only in the port of this machine are one failure: it is logged once.
func TestRepeatedResetIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		var port atomic.Int64
		b := &balancer{rtt: time.Millisecond, answer: healthy}
		c := NewClient(Options{Self: "lb-us-0", Sink: func(core.Event) {}, Seed: 3, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		c.Add(eu, b)
		time.Sleep(time.Second)
		b.set(func(b *balancer) {
			b.answer = func(*http.Request) (int, string, error) {
				return 0, "", &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{Port: int(50000 + port.Add(1))}, Addr: &net.TCPAddr{Port: 1}, Err: syscall.ECONNRESET}
			}
		})
		time.Sleep(2 * time.Second)
		c.Close()
		if n := strings.Count(log.String(), "heartbeat failed"); n != 1 {
			t.Errorf("%d warnings, want 1:\n%s", n, log.String())
		}
	})
}

// A peer that starts a moment later is no warning. One that stays away, or is lost, is.
func TestPeerThatStartsLaterIsNoWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := NewClient(Options{Self: "lb-us-0", Sink: func(core.Event) {}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		defer c.Close()
		refuse := func(*http.Request) (int, string, error) { return 0, "", errors.New("connection refused") }
		late := &balancer{rtt: time.Millisecond, answer: refuse}
		c.Add(eu, late)
		warnings := func(want int, when string) {
			t.Helper()
			synctest.Wait()
			if got := strings.Count(log.String(), "level=WARN"); got != want {
				t.Errorf("%s: %d warnings, want %d: %s", when, got, want, &log)
			}
		}
		time.Sleep(startGrace - time.Second)
		warnings(0, "while it starts")
		late.set(func(b *balancer) { b.answer = healthy })
		time.Sleep(time.Second)
		warnings(0, "after its start")
		late.set(func(b *balancer) { b.answer = refuse })
		time.Sleep(time.Second)
		warnings(1, "after its loss")
		c.Add(service.PeerConfig{ID: "ap", Region: "local/ap", URL: "http://ap:1/"}, &balancer{rtt: time.Millisecond, answer: refuse})
		time.Sleep(10 * startGrace)
		warnings(2, "of a peer that never starts")
	})
}

// A peer is queried immediately when it is added, from the second heartbeat on at the same moment
// as the others, and no longer after its removal.
func TestPeersAreQueriedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r reports
		c := NewClient(Options{Self: "lb-us-0", Sink: r.take, Seed: 3})
		defer c.Close()
		b := &balancer{rtt: time.Millisecond, answer: healthy}
		ids := []string{"a", "b", "c"}
		for _, id := range ids {
			c.Add(service.PeerConfig{ID: id, Region: "local/eu", URL: "http://" + id}, b)
			time.Sleep(5 * time.Millisecond)
			if all, _ := r.drain(); len(all) != 1 || all[0].Target != id {
				t.Fatalf("after adding %s: %+v", id, all)
			}
		}
		c.Remove("b")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		all, at := r.drain()
		if len(all) < 2*45 || len(all)%2 != 0 {
			t.Fatalf("%d reports of two peers in 5 s, want about 100", len(all))
		}
		for i := 0; i < len(all); i += 2 {
			if !at[i].Equal(at[i+1]) || all[i].Target == all[i+1].Target || all[i].Target == "b" || all[i+1].Target == "b" {
				t.Errorf("reports of %s at %s and %s at %s", all[i].Target, at[i], all[i+1].Target, at[i+1])
			}
			if i > 0 && (at[i].Sub(at[i-2]) < 90*time.Millisecond || at[i].Sub(at[i-2]) > 110*time.Millisecond) {
				t.Errorf("%s between heartbeats, want 90..110 ms", at[i].Sub(at[i-2]))
			}
		}
		for _, id := range []string{"a", "c"} {
			c.Remove(id)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if all, _ := r.drain(); len(all) > 0 {
			t.Errorf("%d reports of peers that were removed", len(all))
		}
		c.Add(eu, b) // starts again
		time.Sleep(time.Second)
		synctest.Wait()
		if all, _ := r.drain(); len(all) < 9 {
			t.Errorf("%d reports in a second", len(all))
		}
	})
}

// A distant peer reports often enough for its figures never to be stale.
func TestDistantPeerIsNeverStale(t *testing.T) {
	b := &balancer{rtt: 220 * time.Millisecond, answer: healthy}
	talking(t, b, func(t *testing.T, _ *Client, r *reports) {
		time.Sleep(10 * time.Second)
		synctest.Wait()
		all, at := r.drain()
		for i := 1; i < len(all); i++ {
			if age := at[i].Sub(at[i-1]) + all[i-1].PeerReport.Age; age >= 300*time.Millisecond {
				t.Fatalf("figures were %s old before report %d", age, i)
			}
		}
		if b.most > maxInFlight+1 {
			t.Errorf("%d requests in flight, want at most %d and a region's", b.most, maxInFlight)
		}
	})
}

// A lost heartbeat has no effect if the peer has responded to later ones.
func TestLateFailureIsIgnored(t *testing.T) {
	n := 0
	b := &balancer{rtt: 10 * time.Millisecond}
	lost := false
	b.answer = func(r *http.Request) (int, string, error) {
		b.mu.Lock()
		n++
		lose := n == 20
		lost = lost || lose
		b.mu.Unlock()
		if lose {
			<-r.Context().Done()
			return 0, "", r.Context().Err()
		}
		return healthy(r)
	}
	talking(t, b, func(t *testing.T, c *Client, _ *reports) {
		for range 300 {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			if s := c.Status()[0]; s.Reported && s.Reason != "" {
				t.Fatalf("%q of a peer that was heard %s ago", s.Reason, s.Silence)
			}
		}
		if !lost {
			t.Error("no heartbeat was lost")
		}
	})
}

func TestSilentPeerIsNotReported(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*balancer)
		reason string
	}{
		{"hangs", func(b *balancer) { b.rtt = time.Hour }, "no response within 1s"},
		{"refuses", func(b *balancer) {
			b.answer = func(*http.Request) (int, string, error) { return 0, "", errors.New("connection refused") }
		}, "connection refused"},
		{"other token", func(b *balancer) { b.answer = func(*http.Request) (int, string, error) { return 401, "", nil } }, "it rejected this balancer's peer token: set the same peer_token for all balancers"},
		{"broken", func(b *balancer) { b.answer = func(*http.Request) (int, string, error) { return 502, "", nil } }, "GET /skyserve/v1/heartbeat returned 502 Bad Gateway"},
		{
			"not a balancer", func(b *balancer) { b.answer = func(*http.Request) (int, string, error) { return 200, "<html>", nil } },
			"GET /skyserve/v1/heartbeat returned an invalid response: invalid character '<' looking for beginning of value",
		},
		{"endless", func(b *balancer) {
			b.answer = func(*http.Request) (int, string, error) { return 200, strings.Repeat(" ", maxHeartbeat+1), nil }
		}, "GET /skyserve/v1/heartbeat returned more than 1048576 bytes"},
		{"itself", func(b *balancer) {
			b.answer = func(*http.Request) (int, string, error) { return 200, `{"id":"lb-us-0"}`, nil }
		}, "it has this balancer's own id lb-us-0: set a unique id for each balancer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &balancer{answer: healthy}
			talking(t, b, func(t *testing.T, cl *Client, r *reports) {
				time.Sleep(time.Second)
				b.set(c.change)
				time.Sleep(time.Second)
				r.drain()
				time.Sleep(5 * time.Second)
				if all, _ := r.drain(); len(all) > 0 {
					t.Errorf("%d reports", len(all))
				}
				s := cl.Status()[0]
				if s.Reason != c.reason || !s.Reported || s.Silence < 5*time.Second {
					t.Errorf("status %+v", s)
				}
				b.set(func(b *balancer) { b.rtt, b.answer = 0, healthy })
				time.Sleep(1200 * time.Millisecond)
				if s := cl.Status()[0]; s.Reason != "" || s.Silence > 200*time.Millisecond {
					t.Errorf("after it came back: %+v", s)
				}
			})
		})
	}
}

// The region of a peer that starts later, or comes back, is known as soon as the peer responds.
func TestRegionIsFetchedWhenPeerResponds(t *testing.T) {
	refuses := func(*http.Request) (int, string, error) { return 0, "", errors.New("connection refused") }
	b := &balancer{answer: refuses}
	talking(t, b, func(t *testing.T, c *Client, _ *reports) {
		for _, silence := range []time.Duration{300 * time.Millisecond, 5*time.Second + 300*time.Millisecond} {
			b.set(func(b *balancer) { b.answer = refuses })
			time.Sleep(silence)
			b.set(func(b *balancer) { b.answer = healthy })
			time.Sleep(2 * defaultInterval)
			if s := c.Status()[0]; s.Region == nil || s.RegionAge > 2*defaultInterval {
				t.Errorf("%s after it responds: %+v, age %s", 2*defaultInterval, s, s.RegionAge)
			}
		}
	})
}

func TestRemovedPeerIsNotQueried(t *testing.T) {
	b := &balancer{answer: healthy}
	talking(t, b, func(t *testing.T, c *Client, r *reports) {
		time.Sleep(time.Second)
		c.Remove("eu")
		synctest.Wait()
		r.drain()
		time.Sleep(5 * time.Second)
		if all, _ := r.drain(); len(all) > 0 || len(c.Status()) > 0 {
			t.Errorf("%d reports after it was removed", len(all))
		}
	})
}

func TestOvertakenHeartbeatIsDropped(t *testing.T) {
	l := &link{client: NewClient(Options{Self: "lb-us-0", Sink: func(core.Event) {}})}
	defer l.client.Close()
	start := time.Unix(100, 0)
	if _, newest := l.recordResponse(start.Add(time.Second), 30*time.Millisecond, false); !newest {
		t.Error("the first answer was dropped")
	}
	rtt, newest := l.recordResponse(start, 20*time.Millisecond, false)
	if newest {
		t.Error("an answer to an earlier heartbeat was taken for news")
	}
	if rtt != 20*time.Millisecond {
		t.Errorf("round trip %s, want the least", rtt)
	}
}

func TestHandlers(t *testing.T) {
	source := HandlerSource{
		Heartbeat: func() Heartbeat {
			return Heartbeat{ID: "lb-eu-0", Region: "local/eu", Models: []core.ModelLoad{{Model: "llama", Replicas: 1}}}
		},
		Region: func() telemetry.RegionSnapshot { return telemetry.RegionSnapshot{Name: "local/eu", Queued: 7} },
	}
	for _, c := range []struct {
		name, token, sent, from string
		want                    int
	}{
		{"right token", "secret", "secret", "10.0.0.1:999", 200},
		{"wrong token", "secret", "secrets", "127.0.0.1:999", 401},
		{"no token", "secret", "", "127.0.0.1:999", 401},
		{"none configured, near", "", "", "127.0.0.1:999", 200},
		{"none configured, near, IPv6", "", "", "[::1]:999", 200},
		{"none configured, mapped", "", "", "[::ffff:127.0.0.1]:999", 200},
		{"none configured, far", "", "", "10.0.0.1:999", 401},
		{"none configured, far, guessed", "", "secret", "10.0.0.1:999", 401},
		{"none configured, nowhere", "", "", "@", 401},
	} {
		t.Run(c.name, func(t *testing.T) {
			mux := http.NewServeMux()
			Register(mux, c.token, source)
			for path, want := range map[string]any{PathHeartbeat: source.Heartbeat(), PathRegion: source.Region()} {
				r := httptest.NewRequest("GET", path, nil)
				r.RemoteAddr = c.from
				r.Header.Set(HeaderToken, c.sent)
				w := httptest.NewRecorder()
				mux.ServeHTTP(w, r)
				if w.Code != c.want {
					t.Errorf("%s: %d, want %d", path, w.Code, c.want)
				}
				text, err := json.Marshal(want)
				if err != nil {
					t.Fatal(err)
				}
				if ok := strings.TrimSpace(w.Body.String()) == string(text); ok != (c.want == 200) {
					t.Errorf("%s: body %s", path, w.Body)
				}
			}
		})
	}
}

func FuzzHeartbeat(f *testing.F) {
	f.Add([]byte(beat))
	f.Add([]byte(`{"models":null}`))
	f.Add([]byte(`{"models":[{"replicas":-5,"available":99}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var got []core.Event
		c := NewClient(Options{Self: "lb-us-0", Sink: func(ev core.Event) { got = append(got, ev) }})
		defer c.Close()
		b := &balancer{answer: func(*http.Request) (int, string, error) { return 200, string(body), nil }}
		l := &link{client: c, cfg: eu, hc: &http.Client{Transport: b}}
		l.heartbeat(t.Context())
		for _, ev := range got {
			for i, m := range ev.PeerReport.Models {
				if m.Replicas < 0 || m.Available < 0 || m.Queued < 0 || m.Outstanding < 0 {
					t.Errorf("a count below zero was believed: %+v", m)
				}
				if i > 0 && ev.PeerReport.Models[i-1].Model >= m.Model {
					t.Errorf("models not in order: %+v", ev.PeerReport.Models)
				}
			}
		}
	})
}

// Impossible figures of a peer are ignored: a share of memory outside 0..1 counts as unknown, and a
// negative count drops the model.
func TestImpossiblePeerFiguresAreDropped(t *testing.T) {
	got := dropInvalidLoads([]core.ModelLoad{
		{Model: "c", KV: policy.Known(0.5)},
		{Model: "b", KV: policy.Known(7.0)},
		{Model: "a", KV: policy.Known(math.NaN())},
		{Model: "d", Queued: -1},
	})
	want := []core.ModelLoad{{Model: "a"}, {Model: "b"}, {Model: "c", KV: policy.Known(0.5)}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A peer has been silent since it was added, also before its first heartbeat was sent.
func TestSilenceBeginsWhenPeerIsAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClient(Options{Self: "lb-us-0", Sink: func(core.Event) {}})
		defer c.Close()
		b := &balancer{answer: healthy}
		for i := range 100 {
			c.Add(service.PeerConfig{ID: strconv.Itoa(i), URL: "http://eu:1"}, b)
			for _, s := range c.Status() {
				if s.Silence != 0 {
					t.Fatalf("peer %s was added now, and silent for %s", s.Peer.ID, s.Silence)
				}
			}
		}
	})
}
