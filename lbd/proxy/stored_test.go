package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
)

const responsesPath = "/v1/responses"

// responder is an engine that assigns a new id to every response, streamed if requested.
func responder(name string) http.HandlerFunc {
	var requested atomic.Int64
	return func(w http.ResponseWriter, req *http.Request) {
		var lookup struct{ Stream bool }
		body, _ := io.ReadAll(req.Body)
		_ = json.Unmarshal(body, &lookup)
		whole := fmt.Sprintf(`{"id":"resp_%s_%d","object":"response","status":"completed","output":[],"usage":{"input_tokens":5,"output_tokens":7}}`, name, requested.Add(1))
		if !lookup.Stream {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, whole)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"early\"}}\n\n")
		_, _ = io.WriteString(w, "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":"+whole+"}\n\n")
	}
}

func responseBody(previous string, stream bool) string {
	lookup := map[string]any{"model": "chat-small", "input": "x", "stream": stream}
	if previous != "" {
		lookup["previous_response_id"] = previous
	}
	body, _ := json.Marshal(lookup)
	return string(body)
}

var givenID = regexp.MustCompile(`resp_[a-z]+-[0-9]_[0-9]+`)

// respond requests a response that continues previous ("" = none) and returns its id and the replica
// that generated it.
func (b *balancer) respond(previous string, stream bool, headers ...string) (id, replica string) {
	b.t.Helper()
	resp := b.post(responsesPath, responseBody(previous, stream), headers...)
	return givenID.FindString(expect(b.t, resp, http.StatusOK, "")), resp.Header.Get(headerReplica)
}

func (b *balancer) responderAt(ids ...string) {
	for _, id := range ids {
		b.attach(id, engine(b.t, responder(id)))
	}
}

func TestResponseContinuesAtItsHolder(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprintf("stream %v", stream), func(t *testing.T) {
			b := start(t, roundRobin(t))
			b.responderAt("us-0", "us-1", "us-2")
			for range 3 {
				id, first := b.respond("", stream)
				for range 4 {
					b.report("us-0")
					b.report("us-1")
					b.report("us-2")
					next, replica := b.respond(id, stream)
					if replica != first {
						t.Fatalf("%s, which %s holds, was continued at %s", id, first, replica)
					}
					id = next
				}
			}
			lawful(t, b.settled())
		})
	}
}

// slowBody is a body that arrives after a time.
type slowBody struct {
	after time.Duration
	io.Reader
}

func (b *slowBody) Read(p []byte) (int, error) {
	time.Sleep(b.after)
	b.after = 0
	return b.Reader.Read(p)
}

// answering is a transport to an engine that answers at once.
type answering struct{}

func (answering) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, ContentLength: 2, Body: io.NopCloser(strings.NewReader("{}")), Request: req}, nil
}

// The time in which a client sends its body does not count as a time in which the engine does not respond.
func TestSlowBodyIsNoSilenceOfHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(t)
		o.Transport = answering{}
		rt, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		const url = "http://127.0.0.1:1"
		if _, err := rt.AddReplica(service.ReplicaConfig{ID: "us-0", URL: url, Model: testModel}); err != nil {
			t.Fatal(err)
		}
		rt.storedResponses.putResponse(storedAt{responseID{"", "resp_1"}, "us-0", url, testModel})
		req := httptest.NewRequest(http.MethodPost, responsesPath+"/resp_1/cancel", &slowBody{rt.limits.BodyTimeout - time.Second, strings.NewReader("{}")})
		w := httptest.NewRecorder()
		rt.Handler().ServeHTTP(w, req)
		if w.Code != http.StatusOK {
			t.Errorf("got %d: %s", w.Code, w.Body)
		}
	})
}

func TestUnknownResponse(t *testing.T) {
	const gone = "previous_response_not_found"
	b := start(t, roundRobin(t))
	b.responderAt("us-0", "us-1")
	expect(t, b.post(responsesPath, responseBody("resp_never", false)), 400, gone)
	expect(t, b.post(responsesPath, `{"model":"chat-small","input":"x","previous_response_id":["resp_1"]}`), 400, "invalid_previous_response_id")
	expect(t, b.post(responsesPath, `{"model":"chat-small","input":"x","previous_response_id":null}`), 200, "")

	expect(t, b.post(responsesPath, responseBody("early", true)), 400, gone) // started but never complete

	id, replica := b.respond("", false)
	if _, err := b.RemoveReplica(replica, 0); err != nil {
		t.Fatal(err)
	}
	expect(t, b.post(responsesPath, responseBody(id, false)), 400, gone)

	id, replica = b.respond("", false) // by the other replica, which is then replaced by another process
	b.attach(replica, engine(t, responder(replica)))
	expect(t, b.post(responsesPath, responseBody(id, false)), 400, gone)

	// Other endpoints do not have the field.
	b.attach("us-9", engine(t, whole(plainReply)))
	expect(t, b.post("/v1/completions", `{"model":"chat-small","prompt":"x","previous_response_id":"resp_never"}`), 200, "")
	lawful(t, b.settled())
}

func TestResponseHolderIsRemoved(t *testing.T) {
	o := roundRobin(t)
	b := start(t, o)
	b.responderAt("us-0", "us-1")
	id, replica := b.respond("", false)
	if !b.DrainReplica(replica) {
		t.Fatal("it cannot be drained")
	}
	answered := make(chan *http.Response, 1)
	go func() { answered <- b.post(responsesPath, responseBody(id, false)) }()
	b.until(func() bool { return b.View().Counts.Queued == 1 })
	if _, err := b.RemoveReplica(replica, 0); err != nil {
		t.Fatal(err)
	}
	expect(t, <-answered, 400, "previous_response_not_found")
	lawful(t, b.settled())
}

func TestResponsesAreSeparatePerTenant(t *testing.T) {
	o := roundRobin(t)
	o.Keys = apiKeys("sk-one", "sk-two")
	b := start(t, o)
	b.responderAt("us-0")
	id, _ := b.respond("", false, "Authorization: Bearer sk-one")
	expect(t, b.post(responsesPath, responseBody(id, false), "Authorization: Bearer sk-two"), 400, "previous_response_not_found")
	b.respond(id, false, "Authorization: Bearer sk-one")
}

func TestPeerResponseContinuesAtPeer(t *testing.T) {
	us, eu := pair(t, "secret")
	eu.responderAt("eu-0", "eu-1", "eu-2")
	us.receiveReport("lb-eu-0")
	id, first := us.respond("", false)
	if first == "" {
		t.Fatal("no replica gave it")
	}
	us.responderAt("us-0") // idle, and in this region
	for range 4 {
		for _, e := range []string{"eu-0", "eu-1", "eu-2"} {
			eu.report(e)
		}
		us.receiveReport("lb-eu-0")
		next, replica := us.respond(id, true)
		if replica != first {
			t.Fatalf("%s, which %s holds, was continued at %s", id, first, replica)
		}
		id = next
	}
	// The peer's error for the removed response is forwarded to the client.
	if _, err := eu.RemoveReplica(first, 0); err != nil {
		t.Fatal(err)
	}
	us.receiveReport("lb-eu-0")
	expect(t, us.post(responsesPath, responseBody(id, false)), 400, "previous_response_not_found")
	lawful(t, us.settled())
	lawful(t, eu.settled())
}

// The request of a client that now uses another balancer is sent to the location of its response.
func TestResponseIsFoundAtPeer(t *testing.T) {
	us, eu := pair(t, "secret")
	us.responderAt("us-0")
	eu.responderAt("eu-0", "eu-1")
	us.receiveReport("lb-eu-0")
	for range 3 {
		eu.report("eu-0")
		eu.report("eu-1")
		id, first := eu.respond("", false)
		for range 2 {
			us.report("us-0")
			us.receiveReport("lb-eu-0")
			if _, replica := us.respond(id, false); replica != first {
				t.Errorf("%s, which %s holds, was continued at %s", id, first, replica)
			}
		}
	}
	expect(t, us.post(responsesPath, responseBody("resp_never", false)), 400, "previous_response_not_found")
	if code, _ := eu.get(PathHasResponse + "?id=resp_eu-0_1"); code != http.StatusUnauthorized {
		t.Errorf("a client may look up holders: %d", code)
	}
	lawful(t, us.settled())
	lawful(t, eu.settled())
}

// The memory of responses is a list of the most recently used, of limited length.
func TestStoredResponsesAreLimited(t *testing.T) {
	const limit = 5
	s := newResponses(limit)
	var twin []responseID // most recently used first
	random := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		r := responseID{"t", fmt.Sprint(random.IntN(12))}
		at := slices.Index(twin, r)
		if random.IntN(2) == 0 {
			if _, known := s.find(r); known != (at >= 0) {
				t.Fatalf("response %s is known: %v; %v are", r.id, known, twin)
			}
			if at < 0 {
				continue
			}
		} else {
			s.putResponse(storedAt{response: r, target: "us-0"})
		}
		if at >= 0 {
			twin = slices.Delete(twin, at, at+1)
		}
		twin = slices.Insert(twin, 0, r)
		twin = twin[:min(len(twin), limit)]
		if len(s.byID) != len(twin) || s.recent.Len() != len(twin) {
			t.Fatalf("%d are kept, want %d", len(s.byID), len(twin))
		}
	}
}

func TestAdaptersRouteToTheirModel(t *testing.T) {
	o := testOptions(t)
	o.Self.Models = []service.BalancerModel{{Name: testModel, Aliases: []string{"chat-small"}, LoRA: []string{"sql", "poems", "chat-small"}}}
	b := start(t, o)
	requested := make(chan string, 1)
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		var lookup struct{ Model string }
		body, _ := io.ReadAll(req.Body)
		_ = json.Unmarshal(body, &lookup)
		requested <- lookup.Model
		_, _ = io.WriteString(w, plainReply)
	}))
	for name, want := range map[string]string{"sql": "sql", "poems": "poems", "chat-small": testModel, testModel: testModel} {
		expect(t, b.post(chatPath, `{"model":"`+name+`","messages":[]}`), 200, "")
		if got := <-requested; got != want {
			t.Errorf("asked for %s, the engine is asked for %s, want %s", name, got, want)
		}
	}
	expect(t, b.post(chatPath, `{"model":"prose","messages":[]}`), 404, "model_not_found")
	if code, list := b.get("/v1/models"); code != 200 || !contains(list,
		`{"id":"sql","object":"model"`, `"root":"sql","parent":"`+testModel+`"`,
		`{"id":"chat-small","object":"model"`, `"root":"`+testModel+`","parent":null`) {
		t.Errorf("/v1/models returns %d %s", code, list)
	}
}
