package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// storyWords is the number of words of the story.
const storyWords = 12

// storyBound is the token limit of every client, in words.
const storyBound = 40

// storyTries is the maximum number of attempts for a story: at the first balancer, and for each of
// them at its peer.
const storyTries = 25

// words returns the story from one word to another.
func words(from, to int) []string {
	var list []string
	for i := from; i < to; i++ {
		list = append(list, fmt.Sprintf(" w%d\n", i))
	}
	return list
}

var testStory = strings.Join(words(0, storyWords), "")

// storyEngine is an engine that always continues the same story, and stops in every possible way.
type storyEngine struct {
	t      *testing.T
	mu     sync.Mutex
	random *rand.Rand
}

func (s *storyEngine) drawStory(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.random.IntN(n)
}

// promptReceived returns the number of words that the request already contains; they must be
// correct.
func (s *storyEngine) promptReceived(body []byte) int {
	var requested struct {
		Messages  []struct{ Role, Content string }
		Continue  bool `json:"continue_final_message"`
		MaxTokens int  `json:"max_tokens"`
	}
	if err := json.Unmarshal(body, &requested); err != nil {
		s.t.Errorf("the engine got %q: %v", body, err)
		return 0
	}
	if !requested.Continue {
		return 0
	}
	prior := requested.Messages[len(requested.Messages)-1].Content
	n := strings.Count(prior, "w")
	if strings.TrimRight(strings.Join(words(0, n), ""), "\n ") != prior {
		s.t.Errorf("the engine received the prior text %q", prior)
	}
	if limit := storyBound - n; requested.MaxTokens > limit || requested.MaxTokens < limit-storyTries {
		s.t.Errorf("after %d words the bound is %d, want %d less the line ends that were sent twice", n, requested.MaxTokens, limit)
	}
	return n
}

func (s *storyEngine) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	from := s.promptReceived(body)
	if s.drawStory(8) == 0 {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	to := from + s.drawStory(storyWords-from+1)
	if s.drawStory(4) == 0 {
		to = storyWords
	}
	w.Header().Set("Content-Type", "text/event-stream")
	rest := words(from, to)
	if from > 0 { // the line end was not part of the prior text
		rest = append([]string{"\n"}, rest...)
		if to > from && s.drawStory(2) == 0 {
			rest = append([]string{"\n" + rest[1]}, rest[2:]...)
		}
	}
	for _, value := range rest {
		_, _ = io.WriteString(w, chunk(value))
		_ = http.NewResponseController(w).Flush()
	}
	s.stop(w, req, to)
}

// stop ends the stream after the word before to: regularly if that was the last one, otherwise in one
// of the other ways.
func (s *storyEngine) stop(w http.ResponseWriter, req *http.Request, to int) {
	whole := to == storyWords && s.drawStory(3) > 0
	end := finished + usageEvent(9+to, 0, to) + doneEvent // usage for a prompt without a part of the answer
	switch {
	case whole:
		_, _ = io.WriteString(w, end)
		return
	case to == storyWords:
		_, _ = io.WriteString(w, end[:s.drawStory(len(end))])
	}
	_ = http.NewResponseController(w).Flush()
	switch s.drawStory(5) {
	case 0:
		<-req.Context().Done()
	case 1:
		_, _ = io.WriteString(w, "data: {\"error\":{\"message\":\"dead\",\"code\":500}}\n\n"+doneEvent)
	case 2:
		_, _ = io.WriteString(w, chunk(" never")[:30])
	case 3:
		return
	}
	panic(http.ErrAbortHandler)
}

// listenTo sends requests and compares every response with the story. It returns the number of
// completed responses and the number of closed connections: a client that is blocked for the silence
// timeout of an engine counts as disconnected.
func listenTo(b *balancer, name string, seed uint64, requests int) (whole, cut int64) {
	random := rand.New(rand.NewPCG(seed, 9))
	body := strings.Replace(streamBody, "{", fmt.Sprintf(`{"max_tokens":%d,`, storyBound), 1)
	for i := range requests {
		ctx, leave := context.WithCancel(context.Background())
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, b.url+chatPath, strings.NewReader(body))
		id := fmt.Sprintf("%s-%d", name, i)
		req.Header.Set(headerRequestID, id)
		early := random.IntN(6) == 0
		if early {
			time.AfterFunc(time.Duration(random.IntN(3000))*time.Microsecond, leave)
		}
		resp, err := client.Do(req)
		if err == nil {
			stream, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err == nil && resp.StatusCode == http.StatusOK && checkStory(b, id, string(stream)) {
				whole++
			}
			if err != nil && !early {
				cut++
			}
		} else if !early {
			cut++
		}
		leave()
	}
	return whole, cut
}

// checkStory compares one stream with the story; it reports whether it is complete.
func checkStory(b *balancer, id, stream string) bool {
	got := parseStream(b.t, strings.ReplaceAll(stream, `"c2"`, `"c"`))
	switch {
	case !strings.HasPrefix(testStory, got.text):
		b.t.Errorf("%s received %q", id, got.text)
	case got.broken != "" && got.ends == 0 && got.finishes <= 1:
		return false
	case got.text != testStory || got.ends > 1 || got.finishes != 1 || got.broken != "":
		b.t.Errorf("%s received %+v", id, got)
	}
	return true
}

// Engines stop in every way, clients disconnect, replicas are added and removed and are reached
// through a peer: every completed story is the correct one, once.
func TestContinuedResponsesAreCorrect(t *testing.T) {
	t.Parallel()
	us, eu := pair(t, "")
	for i, b := range []*balancer{us, eu} {
		b.limits.FirstByteTimeout, b.limits.IdleTimeout = 100*time.Millisecond, 50*time.Millisecond
		for n := range 2 {
			teller := &storyEngine{t: t, random: rand.New(rand.NewPCG(uint64(i), uint64(n)))}
			b.attachAs(fmt.Sprintf("%s-r%d", b.self.ID, n), engine(t, (&checkedEngine{next: teller.ServeHTTP}).ServeHTTP), service.EngineVLLM)
		}
	}
	quiet, calm := context.WithCancel(context.Background())
	var reporter, clients sync.WaitGroup
	reporter.Go(func() { gossip(quiet, us, eu) })
	var reported, cut atomic.Int64
	for i := range 6 {
		clients.Go(func() {
			whole, broken := listenTo(us, fmt.Sprint("c", i), uint64(i), 25)
			reported.Add(whole)
			cut.Add(broken)
		})
	}
	clients.Wait()
	calm()
	reporter.Wait()
	us.srv.Close()
	eu.srv.Close()
	here, there := us.settled(), eu.settled()
	lawful(t, here)
	lawful(t, there)
	counts := us.continuations()
	if reported.Load() > here.Finished || reported.Load() == 0 || cut.Load() > here.Cancelled || here.Queued+here.Outstanding+there.Queued+there.Outstanding != 0 || counts["whole"] == 0 {
		t.Errorf("%d stories were completed, %d connections cut; counts %+v and %+v; continuations %v and %v", reported.Load(), cut.Load(), here, there, counts, eu.continuations())
	}
	arrivals := int64(0)
	for _, p := range us.History(0) {
		arrivals += p.Requests
	}
	if arrivals != here.Arrived {
		t.Errorf("the points count %d requests, core %d", arrivals, here.Arrived)
	}
	for _, r := range append(us.View().Replicas, eu.View().Replicas...) {
		if r.Outstanding != 0 {
			t.Errorf("%s has %d outstanding", r.ID, r.Outstanding)
		}
	}
}

// gossip exchanges reports between two balancers until ctx ends, while a replica of the first is added
// and removed.
func gossip(ctx context.Context, us, eu *balancer) {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	list := us.Replicas()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		switch n % 16 {
		case 3:
			_, _ = us.RemoveReplica(list[0].ID, 0)
		case 11:
			_, _ = us.AddReplica(list[0])
		}
		for _, b := range []*balancer{us, eu} {
			for _, r := range b.Replicas() {
				b.report(r.ID)
			}
		}
		us.Step(core.Event{Kind: core.EventPeerReport, Target: "lb-eu-0", PeerReport: &core.PeerReport{Models: eu.ModelLoads()}})
		eu.Step(core.Event{Kind: core.EventPeerReport, Target: "lb-us-0", PeerReport: &core.PeerReport{Models: us.ModelLoads()}})
	}
}
