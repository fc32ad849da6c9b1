package peer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
)

// learner is a balancer with cache updates: its entries are numbered from 1.
type learner struct {
	mu           sync.Mutex
	kept         []entry
	asked, whole int // number of requests, and of those for all entries
}

// entry returns an update that was received from another balancer, or an own one.
type entry struct {
	core.CacheUpdate
	received bool
}

func learned(own ...core.CacheUpdate) *learner {
	l := &learner{}
	for _, e := range own {
		l.kept = append(l.kept, entry{CacheUpdate: e})
	}
	return l
}

// read returns pages of two entries.
func (l *learner) read(since uint64, all bool, _ int) (entries []core.CacheUpdate, next uint64, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	if all {
		l.whole++
	}
	for next = since; next < uint64(len(l.kept)); next++ {
		switch e := l.kept[next]; {
		case e.received && !all:
		case len(entries) == 2:
			return entries, next, true
		default:
			entries = append(entries, e.CacheUpdate)
		}
	}
	return entries, next, false
}

func (l *learner) add(more ...entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, more...)
}

func (l *learner) questions() (asked, whole int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked, l.whole
}

// boot starts a balancer process that responds with the entries of l.
func (l *learner) boot(keys string) http.Handler {
	mux := http.NewServeMux()
	Register(mux, "secret", HandlerSource{
		Heartbeat: func() Heartbeat { return Heartbeat{ID: "lb-us-1", Region: "local/us"} },
		Region:    func() telemetry.RegionSnapshot { return telemetry.RegionSnapshot{Name: "local/us"} },
		Learned:   l.read, Keys: keys,
	})
	return mux
}

// through returns a transport that is served by a handler.
func through(h http.Handler) func(*http.Request) (int, string, error) {
	return func(r *http.Request) (int, string, error) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String(), nil
	}
}

func prompt(i int) core.CacheUpdate {
	return core.CacheUpdate{
		Replica: "us-7", Process: "p", Tenant: []string{"", "acme"}[i%2], Key: []uint64{uint64(i), 1<<63 + uint64(i)}, IncludesResponse: i%2 == 0,
		Age: time.Duration(i) * time.Second, SessionAge: time.Duration(2*i) * time.Second,
	}
}

var near = service.PeerConfig{ID: "lb-us-1", Region: "local/us", URL: "http://us-1:1"}

// following runs a test with fake time and one peer of the same region.
func following(t *testing.T, b *balancer, cfg service.PeerConfig, log *bytes.Buffer, test func(c *Client, received func() []core.CacheUpdate)) {
	synctest.Test(t, func(t *testing.T) {
		var r reports
		c := NewClient(Options{
			Self: "lb-us-0", Region: "local/us", Token: "secret", Keys: "k", Sink: r.take, Seed: 3,
			Logger: slog.New(slog.NewTextHandler(log, nil)),
		})
		defer c.Close()
		c.Add(cfg, b)
		test(c, func() (learned []core.CacheUpdate) {
			synctest.Wait()
			all, _ := r.drain()
			for _, ev := range all {
				if ev.Kind == core.EventPeerCacheUpdates {
					if ev.Target != cfg.ID || len(ev.CacheUpdates) > sinkEntries {
						t.Fatalf("got %+v", ev)
					}
					learned = append(learned, ev.CacheUpdates...)
				}
			}
			return learned
		})
	})
}

func TestNeighbourSharesCacheUpdates(t *testing.T) {
	l := learned(prompt(3), prompt(2), prompt(1))
	l.add(entry{prompt(4), true})
	const trip = 20 * time.Millisecond
	b := &balancer{rtt: trip, answer: through(l.boot("k"))}
	following(t, b, near, new(bytes.Buffer), func(c *Client, received func() []core.CacheUpdate) {
		time.Sleep(900 * time.Millisecond)
		want := []core.CacheUpdate{prompt(3), prompt(2), prompt(1), prompt(4)}
		for i := range want {
			want[i].Age += trip / 2
			want[i].SessionAge += trip / 2
		}
		if got := received(); !reflect.DeepEqual(got, want) {
			t.Errorf("at first came\n%+v, want\n%+v", got, want)
		}
		// From here on, entries that the peer received itself are not new.
		l.add(entry{prompt(8), true}, entry{core.CacheUpdate{Replica: "us-7", CacheLost: true}, false})
		time.Sleep(2 * time.Second)
		if got := received(); len(got) != 1 || !got[0].CacheLost {
			t.Errorf("then came %+v, want the loss alone", got)
		}
		before, _ := l.questions()
		time.Sleep(60 * time.Second)
		if asked, whole := l.questions(); asked-before < 54 || asked-before > 66 || whole != 2 {
			t.Errorf("asked %d times in a minute and %d times for all", asked-before, whole)
		}
		if got := received(); len(got) != 0 {
			t.Errorf("told again: %+v", got)
		}
		// Another process starts its own numbering.
		b.set(func(b *balancer) {
			again := learned(prompt(5))
			again.add(entry{prompt(6), true})
			b.answer = through(again.boot("k"))
		})
		time.Sleep(2 * time.Second)
		if got := received(); len(got) != 1 || got[0].Key[0] != 5 {
			t.Errorf("a peer that was started again told %+v", got)
		}
		c.Remove(near.ID)
		b.set(func(b *balancer) { b.answer = through(learned(prompt(5)).boot("k")) })
		time.Sleep(5 * time.Second)
		if got := received(); len(got) != 0 {
			t.Errorf("after it was removed came %+v", got)
		}
	})
}

// A balancer of another region requests only the updates about the peer's own replicas: those that the peer received
// are about replicas of its neighbours, which are peers themselves.
func TestCacheUpdatesAcrossRegions(t *testing.T) {
	l := learned(prompt(1))
	l.add(entry{CacheUpdate: prompt(2), received: true})
	far := near
	far.Region = "local/eu"
	following(t, &balancer{answer: through(l.boot("k"))}, far, new(bytes.Buffer), func(c *Client, received func() []core.CacheUpdate) {
		time.Sleep(10 * time.Second)
		if asked, _ := l.questions(); asked > 0 {
			t.Errorf("requested %d times, although the policy does not use caches of other regions", asked)
		}
		c.FollowOtherRegions(true)
		time.Sleep(10 * time.Second)
		asked, whole := l.questions()
		if got := received(); asked < 8 || whole != 0 || len(got) != 1 || !reflect.DeepEqual(got[0].Key, prompt(1).Key) {
			t.Errorf("requested %d times, %d times everything, received %+v", asked, whole, got)
		}
	})
}

// A neighbour with invalid responses causes one line in the log, and its heartbeats continue.
func TestUnusablePrefixes(t *testing.T) {
	page := func(learned string) string {
		return `{"boot":"b","keys":"k","next":1,"learned":[` + learned + `]}`
	}
	for _, c := range []struct {
		name, body, want string
	}{
		{"other keys", `{"boot":"b","keys":"j","next":1}`, "it hashes prompts with another key: set the same peer_token for all balancers"},
		{"no page", `<html>`, "GET /skyserve/v1/prefixes returned an invalid response: invalid character '<' looking for beginning of value"},
		{"endless", strings.Repeat(" ", maxPrefixes+1), "GET /skyserve/v1/prefixes returned more than 262144 bytes"},
		{"no replica", page(`{"hashes":"AAAAAAAAAAA="}`), "learned[0].replica: must have 1 to 512 bytes, got 0"},
		{"a name too long", page(`{"replica":"` + strings.Repeat("x", 513) + `","hashes":"AAAAAAAAAAA="}`), "learned[0].replica: must have 1 to 512 bytes, got 513"},
		{"half a hash", page(`{"replica":"r","hashes":"AAAA"}`), "learned[0].hashes: must be at most 8192 hashes of 8 bytes, got 3 bytes"},
		{"nothing", page(`{"replica":"r"}`), "learned[0]: must have either hashes or forgotten"},
		{"both", page(`{"replica":"r","forgotten":true,"hashes":"AAAAAAAAAAA="}`), "learned[0]: must have either hashes or forgotten"},
		{"from the future", page(`{"replica":"r","forgotten":true,"age_ns":-1}`), "learned[0].age_ns, .session_age_ns: must be 0 to 720h0m0s, got -1ns and 0s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			b := &balancer{answer: func(r *http.Request) (int, string, error) {
				if r.URL.Path == PathPrefixes {
					return 200, c.body, nil
				}
				return healthy(r)
			}}
			following(t, b, near, &log, func(cl *Client, received func() []core.CacheUpdate) {
				time.Sleep(10 * time.Second)
				if got := received(); len(got) != 0 {
					t.Errorf("believed %+v", got)
				}
				if s := cl.Status()[0]; s.Reason != "" || s.Silence > time.Second {
					t.Errorf("its heartbeats: %+v", s)
				}
				if n := strings.Count(log.String(), "sharing prefixes with a peer failed"); n != 1 || !strings.Contains(log.String(), c.want) {
					t.Errorf("%d lines of\n%s\nwant one of %s", n, log.String(), c.want)
				}
				b.set(func(b *balancer) { b.answer = through(learned(prompt(1)).boot("k")) })
				time.Sleep(2 * time.Second)
				if got := received(); len(got) != 1 {
					t.Errorf("once it answers: %+v", got)
				}
			})
		})
	}
}

// A peer that does not respond at all is logged by the heartbeats.
func TestSilentNeighbourIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	b := &balancer{answer: func(*http.Request) (int, string, error) { return 0, "", errors.New("connection refused") }}
	following(t, b, near, &log, func(_ *Client, received func() []core.CacheUpdate) {
		time.Sleep(10 * time.Second)
		got := received() // and waits until nothing is being logged
		if n := strings.Count(log.String(), "\n"); n != 1 || len(got) != 0 {
			t.Errorf("%d lines, %d updates:\n%s", n, len(got), log.String())
		}
	})
}

func TestPrefixesRequireToken(t *testing.T) {
	for _, c := range []struct {
		keys, token string
		want        int
	}{{"k", "secret", 200}, {"k", "", 401}, {"", "secret", 404}} {
		r := httptest.NewRequest("GET", PathPrefixes+"?since=x", nil)
		r.Header.Set(HeaderToken, c.token)
		w := httptest.NewRecorder()
		learned(prompt(1)).boot(c.keys).ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%+v: %d", c, w.Code)
		}
	}
}

// A session may be older than peers accept. Its updates, and all after them, are still shared.
func TestOldSessionsAreShared(t *testing.T) {
	old := prompt(1)
	old.SessionAge = 2 * maxSharedAge
	b := &balancer{answer: through(learned(old, prompt(2)).boot("k"))}
	following(t, b, near, new(bytes.Buffer), func(_ *Client, received func() []core.CacheUpdate) {
		if got := received(); len(got) != 2 || got[0].SessionAge != maxSharedAge {
			t.Errorf("got %+v, want two, the first with a session age of %s", got, maxSharedAge)
		}
	})
}

// A peer accepts the longest page that the core creates.
func TestLongestPageFits(t *testing.T) {
	for _, hashes := range []int{1, 64, maxSharedHashes} {
		rng := rand.New(rand.NewPCG(1, uint64(hashes)))
		var entries []core.CacheUpdate
		for size := 0; ; {
			e := core.CacheUpdate{
				Replica: fmt.Sprintf("%0512d", len(entries)), Process: strings.Repeat("p", 16), IncludesResponse: true,
				Age: maxSharedAge / 2, SessionAge: maxSharedAge / 2,
			}
			for range hashes {
				e.Key = append(e.Key, rng.Uint64())
			}
			// The minimum size that the core counts for it.
			if size += 8*hashes + len(e.Replica) + len(e.Process) + 256; size > pageBytes && len(entries) > 0 {
				break
			}
			entries = append(entries, e)
		}
		s := HandlerSource{Learned: func(uint64, bool, int) ([]core.CacheUpdate, uint64, bool) { return entries, 1 << 63, true }, Keys: "k"}
		page := s.prefixes(httptest.NewRequest("GET", PathPrefixes, nil), strings.Repeat("B", 26))
		text, err := json.Marshal(page)
		if err != nil || len(text) > maxPrefixes {
			t.Errorf("%d entries of %d hashes make %d bytes, %v", len(entries), hashes, len(text), err)
		}
		got, err := page.decode(0)
		if err != nil || !reflect.DeepEqual(got, entries) {
			t.Errorf("%d entries of %d hashes: %v", len(entries), hashes, err)
		}
	}
}

func FuzzPrefixes(f *testing.F) {
	f.Add([]byte(`{"boot":"b","keys":"k","next":3,"more":true,"learned":[{"replica":"r","hashes":"AAAAAAAAAAA=","age_ns":5}]}`))
	f.Add([]byte(`{"boot":"b","keys":"k","learned":[{"replica":"r","forgotten":true}]}`))
	f.Add([]byte(`{"keys":"k","learned":[{"replica":"r","hashes":"AAAA","age_ns":-1}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var got []core.CacheUpdate
		c := NewClient(Options{Self: "lb-us-0", Keys: "k", Sink: func(ev core.Event) { got = append(got, ev.CacheUpdates...) }})
		defer c.Close()
		b := &balancer{answer: func(*http.Request) (int, string, error) { return 200, string(body), nil }}
		l := &link{client: c, cfg: near, hc: &http.Client{Transport: b}}
		l.fetchPrefixes(t.Context(), &follower{})
		for _, e := range got {
			if e.Replica == "" || e.Age < 0 || e.SessionAge < 0 || len(e.Key) > maxSharedHashes || e.CacheLost == (len(e.Key) > 0) {
				t.Errorf("believed %+v", e)
			}
		}
	})
}

// BenchmarkPrefixes measures one second's response of a balancer that serves 100 prompts of 4 KB
// per second: created, sent as JSON and decoded.
func BenchmarkPrefixes(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	entries := make([]core.CacheUpdate, 100)
	for i := range entries {
		entries[i] = core.CacheUpdate{Replica: "us-7", Process: "0123456789abcdef", IncludesResponse: true, Age: time.Second, SessionAge: time.Minute}
		for range 72 {
			entries[i].Key = append(entries[i].Key, rng.Uint64())
		}
	}
	s := HandlerSource{Learned: func(uint64, bool, int) ([]core.CacheUpdate, uint64, bool) { return entries, 100, false }, Keys: "k"}
	r := httptest.NewRequest("GET", PathPrefixes, nil)
	b.ReportAllocs()
	for b.Loop() {
		text, err := json.Marshal(s.prefixes(r, "b"))
		if err != nil {
			b.Fatal(err)
		}
		var page Prefixes
		if err := json.Unmarshal(text, &page); err != nil {
			b.Fatal(err)
		}
		if got, err := page.decode(0); err != nil || len(got) != len(entries) {
			b.Fatal(len(got), err)
		}
		b.SetBytes(int64(len(text)))
	}
}
