package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"skyserve/internal/sim/engine"
	"skyserve/internal/testkit"
	"skyserve/lbd/cacheevents"
)

// mirror follows an engine's cache by its events: the tokens from the beginning of every cached block.
type mirror struct {
	mu     sync.Mutex
	blocks map[cacheevents.BlockHash][]uint32
	ranks  map[int]bool
	resets int
}

func (m *mirror) handle(u cacheevents.Update) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u.Reset {
		m.resets++
		clear(m.blocks)
	}
	if u.Batch == nil {
		return
	}
	m.ranks[u.Batch.Rank] = true
	for _, e := range u.Batch.Events {
		switch e.Kind {
		case cacheevents.BlockStored:
			before := m.blocks[e.Parent]
			for i, h := range e.Hashes {
				before = append(before[:len(before):len(before)], e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize]...)
				m.blocks[h] = before
			}
		case cacheevents.BlockRemoved:
			for _, h := range e.Hashes {
				delete(m.blocks, h)
			}
		}
	}
}

// cachedOf returns how many leading tokens of a prompt are in cached blocks.
func (m *mirror) cachedOf(tokens []uint32) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, have := range m.blocks {
		if len(have) > n && len(have) <= len(tokens) && fmt.Sprint(have) == fmt.Sprint(tokens[:len(have)]) {
			n = len(have)
		}
	}
	return n
}

// The events of a server, decoded as those of an engine, predict the cached tokens that its responses
// report.
func TestCacheEventsDescribeTheCache(t *testing.T) {
	for _, flavor := range []Flavor{FlavorVLLM, FlavorSGLang} {
		t.Run(string(flavor), func(t *testing.T) {
			listeners, err := ListenCacheEvents("127.0.0.1:0", 1)
			if err != nil {
				t.Fatal(err)
			}
			p := engine.Profiles()[0]
			p.KVTokens = 250
			s, err := New(Options{Profile: p, Speed: 1e5, Flavor: flavor, CacheEvents: listeners})
			if err != nil {
				t.Fatal(err)
			}
			web := httptest.NewServer(s.Handler())
			defer s.Close()
			defer web.Close()
			post := func(path, body string, into any) {
				t.Helper()
				resp, err := http.Post(web.URL+path, "application/json", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if err := json.NewDecoder(resp.Body).Decode(into); err != nil || resp.StatusCode != http.StatusOK {
					t.Fatalf("%s: status %d, %v", path, resp.StatusCode, err)
				}
			}
			ctx, stop := context.WithCancel(context.Background())
			m := &mirror{blocks: map[cacheevents.BlockHash][]uint32{}, ranks: map[int]bool{}}
			done := make(chan struct{})
			go func() {
				defer close(done)
				cacheevents.NewSubscriber(cacheevents.Options{
					Dial: (&net.Dialer{}).DialContext, Handle: m.handle,
					Endpoint: listeners[0].Events.Addr().String(), Replay: listeners[0].Replays.Addr().String(), Topic: "kv",
				}).Run(ctx)
			}()
			defer func() { stop(); <-done }()
			testkit.Eventually(t, "a subscriber", func() bool { return s.cachePublishers[0].pub.Subscribers() == 1 })
			evicted := 0
			for i := range 20 {
				prompt := strings.Repeat(fmt.Sprintf("word%d ", i%5), 20+15*(i%4))
				var tokenized struct{ Tokens []uint32 }
				post("/tokenize", fmt.Sprintf(`{"prompt":%q}`, prompt), &tokenized)
				var expected int
				// The events of the previous request may be on their way.
				testkit.Eventually(t, "the previous request's events", func() bool {
					expected = m.cachedOf(tokenized.Tokens)
					return expected == s.cachedBlocks(tokenized.Tokens)
				})
				var out struct {
					Usage struct {
						PromptTokensDetails struct {
							CachedTokens int `json:"cached_tokens"`
						} `json:"prompt_tokens_details"`
					}
				}
				post("/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":8}`, DefaultModel, prompt), &out)
				// The engine finds single tokens, and always computes the last one.
				if got := out.Usage.PromptTokensDetails.CachedTokens; got/cacheBlockTokens != min(expected, len(tokenized.Tokens)-1)/cacheBlockTokens {
					t.Errorf("request %d: %d cached tokens by the events, %d by the response", i, expected, got)
				}
				evicted = int(s.driver.loads()[0].EvictedTokens)
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			if evicted == 0 || m.resets != 0 || len(m.ranks) != 1 || !m.ranks[0] {
				t.Errorf("evicted %d, resets %d, ranks %v", evicted, m.resets, m.ranks)
			}
		})
	}
}

// cachedBlocks returns how many leading tokens of a prompt are in full cached blocks.
func (s *Server) cachedBlocks(tokens []uint32) int {
	prompt := make([]engine.Token, len(tokens))
	for i, t := range tokens {
		prompt[i] = engine.Token(t)
	}
	n := make(chan int, 1)
	s.driver.do(func() { n <- s.driver.engine.CachedPrefix(0, prompt) })
	return <-n / cacheBlockTokens * cacheBlockTokens
}

func TestListenCacheEventsRejects(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "127.0.0.1:x", "127.0.0.1:65500", "127.0.0.1:-1"} {
		if l, err := ListenCacheEvents(address, 2); err == nil {
			closeCacheListeners(l)
			t.Errorf("%s: accepted", address)
		}
	}
	listeners, err := ListenCacheEvents("127.0.0.1:0", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{DataParallel: 2, CacheEvents: listeners}); err == nil || !strings.Contains(err.Error(), "each of 2 ranks, got 1") {
		t.Errorf("error %v", err)
	}
}
