package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"skyserve/internal/testkit"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/record"
)

// refusals contains responses that other replicas may not return.
var refusals = map[string]struct {
	status int
	body   string
}{
	"401":                     {401, `{"error":{"message":"invalid token","type":"Unauthorized","code":401}}`},
	"403":                     {403, `{"error":{"message":"not allowed"}}`},
	"404 of the model, vLLM":  {404, `{"object":"error","message":"The model ` + "`x`" + ` does not exist.","type":"NotFoundError","param":null,"code":404}`},
	"404 of the model, newer": {404, `{"error":{"message":"The model ` + "`x`" + ` does not exist.","type":"NotFoundError","param":"model","code":404}}`},
	"404 of the model, code":  {404, `{"error":{"message":"unknown","type":"invalid_request_error","param":null,"code":"model_not_found"}}`},
	"429":                     {429, `{"error":{"message":"slow down","type":"rate_limit_error"}}`},
	"503":                     {503, `{"error":{"message":"overloaded"}}`},
}

// refuse is an engine that sends this response to every request.
func refuse(code int, body string, requested *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		if requested != nil {
			requested.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// startRefusing starts a balancer whose replicas all send this response, and counts their requests.
func startRefusing(t *testing.T, replicas, code int, body string) (b *balancer, requested *atomic.Int64) {
	t.Helper()
	b, requested = start(t, roundRobin(t)), &atomic.Int64{}
	for i := range replicas {
		b.attach(fmt.Sprint("us-", i), engine(t, refuse(code, body, requested)))
	}
	return b, requested
}

// If one of several replicas rejects the request, another one serves it.
func TestRefusalIsRetried(t *testing.T) {
	for name, r := range refusals {
		for _, body := range []string{plainBody, streamBody} {
			t.Run(name, func(t *testing.T) {
				b := start(t, roundRobin(t))
				b.attach("us-0", engine(t, refuse(r.status, r.body, nil)))
				b.attach("us-1", engine(t, speak("fine")))
				resp := b.post(chatPath, body)
				expect(t, resp, http.StatusOK, "")
				if got := resp.Header.Get(headerReplica); got != "us-1" {
					t.Errorf("served by %q", got)
				}
				lawful(t, b.settled())
			})
		}
	}
}

// If all replicas reject the request, the client receives the engine's response, after one attempt
// at each replica.
func TestRefusalByAllIsForwarded(t *testing.T) {
	for name, r := range refusals {
		for replicas := 1; replicas <= 3; replicas++ {
			t.Run(fmt.Sprint(name, " from ", replicas), func(t *testing.T) {
				b, requested := startRefusing(t, replicas, r.status, r.body)
				resp := b.post(chatPath, streamBody, "X-Request-ID: r1")
				if got := read(t, resp); resp.StatusCode != r.status || got != r.body {
					t.Errorf("got %d %s", resp.StatusCode, got)
				}
				if resp.Header.Get("Retry-After") != "7" || resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get(headerRequestID) != "r1" {
					t.Errorf("header %v", resp.Header)
				}
				if int(requested.Load()) != replicas {
					t.Errorf("%d attempts", requested.Load())
				}
				b.free()
				if d, _ := b.Decision("r1"); d.State != record.StateRejected || d.Reason != core.RejectRefused || d.Status != r.status {
					t.Errorf("its record is %+v", d)
				}
			})
		}
	}
}

// clientErrors contains responses that may be about the request.
var clientErrors = map[string]struct {
	status int
	body   string
}{
	"400":                {400, `{"error":{"message":"max_tokens is too large"}}`},
	"402":                {402, `{"error":{"message":"quota"}}`},
	"405":                {405, `{"detail":"Method Not Allowed"}`},
	"413":                {413, `{"error":{"message":"too large"}}`},
	"422":                {422, `{"detail":[{"loc":["body","n"],"msg":"less than 1"}]}`},
	"404 of a response":  {404, `{"error":{"message":"Response with id 'resp_1' not found.","param":"response_id","code":404}}`},
	"404 of a file":      {404, `{"error":{"message":"No such file","param":"file_id","code":"file_not_found"}}`},
	"404 of the path":    {404, `{"detail":"Not Found"}`},
	"404 in plain words": {404, "404 page not found"},
	"404 without reason": {404, `{"error":{"message":"engine"}}`},
}

// A client error of all replicas is forwarded after at most one second opinion, and without one if
// there is a single replica. No circuit breaker opens.
func TestClientErrorsAreForwarded(t *testing.T) {
	for name, r := range clientErrors {
		for replicas := 1; replicas <= 3; replicas++ {
			t.Run(fmt.Sprint(name, " from ", replicas), func(t *testing.T) {
				b, requested := startRefusing(t, replicas, r.status, r.body)
				const n = 30
				for range n {
					resp := b.post(chatPath, plainBody)
					if got := read(t, resp); resp.StatusCode != r.status || got != r.body {
						t.Fatalf("got %d %s", resp.StatusCode, got)
					}
				}
				if got := int(requested.Load()); got > n*3/2 || replicas == 1 && got != n {
					t.Fatalf("%d attempts for %d requests", got, n)
				}
				for _, v := range b.View().Replicas {
					if !v.Ready {
						t.Errorf("%s: %s", v.ID, v.Reason)
					}
				}
				lawful(t, b.settled())
				b.free()
			})
		}
	}
}

// If one of several replicas returns a client error, another one serves the request, from the first
// request on. After the replica has served requests, one client error may reach a client.
func TestClientErrorOfOneReplicaIsRetried(t *testing.T) {
	for name, r := range clientErrors {
		for _, served := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " served before ", served), func(t *testing.T) {
				var broken atomic.Bool
				broken.Store(!served)
				good, bad := speak("fine"), refuse(r.status, r.body, nil)
				b := start(t, roundRobin(t))
				b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
					if broken.Load() {
						bad(w, req)
						return
					}
					good(w, req)
				}))
				b.attach("us-1", engine(t, good))
				allowed := 0
				if served {
					for range 4 {
						expect(t, b.post(chatPath, streamBody), http.StatusOK, "")
					}
					broken.Store(true)
					allowed = 1
				}
				seen := 0
				for range 30 {
					resp := b.post(chatPath, streamBody)
					if read(t, resp); resp.StatusCode != http.StatusOK {
						seen++
					}
				}
				if seen > allowed {
					t.Errorf("%d of 30 requests received the error", seen)
				}
				if v := b.View().Replicas[0]; v.Ready {
					t.Errorf("%s still receives requests", v.ID)
				}
				lawful(t, b.settled())
			})
		}
	}
}

// A peer gives the second opinion if there is no other replica here. A client error of the peer's only
// replica is forwarded with one attempt there.
func TestPeerConfirmsClientError(t *testing.T) {
	var requested atomic.Int64
	bad := refuse(http.StatusBadRequest, `{"error":{"message":"bad"}}`, &requested)
	us, eu := pair(t, "secret")
	eu.attach("eu-0", engine(t, bad))
	us.receiveReport("lb-eu-0")
	resp := us.post(chatPath, plainBody)
	if got := read(t, resp); resp.StatusCode != http.StatusBadRequest || requested.Load() != 1 {
		t.Errorf("from a single peer: %d %s after %d attempts", resp.StatusCode, got, requested.Load())
	}
	us.settled()
	eu.settled()
	eu.RemoveReplica("eu-0", 0)
	eu.attach("eu-1", engine(t, speak("fine")))
	us.receiveReport("lb-eu-0")
	us.attach("us-0", engine(t, bad))
	for range 10 {
		expect(t, us.post(chatPath, plainBody), http.StatusOK, "")
	}
	lawful(t, us.settled())
}

// A second opinion that no replica can give in time does not change the response.
func TestUnconfirmableClientErrorIsForwarded(t *testing.T) {
	o := roundRobin(t)
	o.Core.RetryBurst, o.Core.RetryShare = 1, 0
	b := start(t, o)
	bad := refuse(http.StatusBadRequest, `{"error":{"message":"bad"}}`, nil)
	b.attach("us-0", engine(t, bad))
	b.attach("us-1", engine(t, func(w http.ResponseWriter, req *http.Request) {
		b.RemoveReplica("us-1", 0)
		panic(http.ErrAbortHandler)
	}))
	for range 4 {
		resp := b.post(chatPath, plainBody)
		if got := read(t, resp); resp.StatusCode != http.StatusBadRequest {
			t.Fatalf("got %d %s", resp.StatusCode, got)
		}
	}
	lawful(t, b.settled())
}

// One of three replicas fails every request at once: under every policy no client is affected, and
// the replica receives almost no requests.
func TestFailingReplicaAttractsNoLoad(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	for _, status := range []int{400, 401, 404, 422, 429, 500} {
		for _, name := range policy.Names() {
			t.Run(fmt.Sprint(status, " ", name), func(t *testing.T) {
				o := testOptions(t)
				p, err := policy.New(name)
				if err != nil {
					t.Fatal(err)
				}
				o.Core.Policy = p
				var requested atomic.Int64
				b := start(t, o)
				body := fmt.Sprintf(`{"error":{"message":"The model does not exist.","code":%d}}`, status)
				b.attach("us-0", engine(t, refuse(status, body, &requested)))
				for _, id := range []string{"us-1", "us-2"} {
					b.attach(id, engine(t, speak("fine")))
				}
				const n = 30
				for i := range n {
					expect(t, b.post(chatPath, strings.Replace(streamBody, "hello", fmt.Sprint("hello ", i), 1)), http.StatusOK, "")
				}
				if got := requested.Load(); got > n/3 {
					t.Errorf("the replica that fails got %d of %d requests", got, n)
				}
				lawful(t, b.settled())
			})
		}
	}
}

// A peer forwards the rejections of its engines, and the origin retries the request or forwards
// them.
func TestRefusalsByPeerEngines(t *testing.T) {
	for name, r := range refusals {
		t.Run(name, func(t *testing.T) {
			us, eu := pair(t, "secret")
			eu.attach("eu-0", engine(t, refuse(r.status, r.body, nil)))
			us.receiveReport("lb-eu-0")
			resp := us.post(chatPath, plainBody)
			if got := read(t, resp); resp.StatusCode != r.status || got != r.body || resp.Header.Get("Retry-After") != "7" {
				t.Errorf("with nobody else: got %d %s, %v", resp.StatusCode, got, resp.Header)
			}
			us.settled()
			us.attach("us-0", engine(t, refuse(500, "", nil)))
			eu.attach("eu-1", engine(t, speak("fine")))
			eu.settled()
			expect(t, us.post(chatPath, plainBody), http.StatusOK, "")
		})
	}
}
