package proxy

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"skyserve/internal/service"
)

// startHolder starts an engine that generates responses and serves requests about them with its name,
// the method and the path.
func startHolder(name string) http.HandlerFunc {
	give := responder(name)
	return func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == responsesPath {
			give(w, req)
			return
		}
		for header := range req.Header {
			if strings.HasPrefix(header, ownPrefix) {
				w.WriteHeader(http.StatusTeapot)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `%s %s %s %s`, name, req.Method, req.URL.RequestURI(), req.Header.Get("Authorization"))
	}
}

func (b *balancer) attachHolder(ids ...string) {
	for _, id := range ids {
		b.attach(id, engine(b.t, startHolder(id)))
	}
}

// about sends a request about a stored response.
func (b *balancer) about(method, rest string, headers ...string) *http.Response {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+pathResponses+rest, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.do(req, headers...)
}

// Every request about a response is sent to the replica that holds it, by the client's balancer or
// through the balancer of the region that served it.
func TestLookupsGoToHolder(t *testing.T) {
	us, eu := pair(t, "secret")
	us.attachHolder("us-0", "us-1")
	eu.attachHolder("eu-0", "eu-1")
	for _, c := range []struct {
		serves *balancer
		region string
	}{{us, "local/us"}, {eu, "local/eu"}} {
		id, holder := c.serves.respond("", false)
		for _, requested := range []*balancer{us, eu, us} { // the second time the location is known
			for _, q := range []struct{ method, rest string }{
				{"GET", id}, {"GET", id + "?include=a&stream=false"}, {"POST", id + "/cancel"}, {"GET", id + "/input_items?limit=2"},
			} {
				resp := requested.about(q.method, q.rest, "X-Request-ID: r7", "Authorization: Bearer theirs")
				want := fmt.Sprintf("%s %s %s%s Bearer theirs", holder, q.method, pathResponses, q.rest)
				if got := expect(t, resp, http.StatusOK, ""); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
				h := resp.Header
				if h.Get(headerReplica) != holder || h.Get(headerRegion) != c.region || h.Get(headerRequestID) != "r7" {
					t.Errorf("%s %s: headers %v", q.method, q.rest, h)
				}
			}
		}
		expect(t, eu.about("DELETE", id), http.StatusOK, "")
		expect(t, eu.about("GET", id), http.StatusNotFound, "response_not_found")
		expect(t, c.serves.about("DELETE", id), http.StatusNotFound, "response_not_found")
		expect(t, c.serves.post(responsesPath, responseBody(id, false)), 400, "previous_response_not_found")
	}
}

func TestLookupsOfUnknownResponses(t *testing.T) {
	us, eu := pair(t, "secret")
	us.attachHolder("us-0")
	eu.attachHolder("eu-0")
	for rest, want := range map[string]struct {
		method string
		status int
		code   string
	}{
		"resp_never":                     {"GET", 404, "response_not_found"},
		"resp_never/cancel":              {"POST", 404, "response_not_found"},
		"resp_never/input_items":         {"GET", 404, "response_not_found"},
		strings.Repeat("r", 1000):        {"GET", 404, "response_not_found"},
		"":                               {"GET", 404, "not_found"},
		"resp_never/":                    {"GET", 404, "not_found"},
		"resp_never/output":              {"GET", 404, "not_found"},
		"resp_never/cancel/again":        {"POST", 404, "not_found"},
		"%2e%2e":                         {"GET", 404, "response_not_found"},
		"resp_never?x=1":                 {"POST", 405, "method_not_allowed"},
		"resp_never/cancel?x=1":          {"GET", 405, "method_not_allowed"},
		"resp_never/input_items?limit=1": {"DELETE", 405, "method_not_allowed"},
	} {
		expect(t, us.about(want.method, rest), want.status, want.code)
	}

	// The holder was removed, or was replaced by another process.
	id, holder := us.respond("", false)
	us.attachHolder(holder)
	expect(t, us.about("GET", id), 404, "response_not_found")
	id, holder = us.respond("", false)
	if _, err := us.RemoveReplica(holder, 0); err != nil {
		t.Fatal(err)
	}
	expect(t, us.about("GET", id), 404, "response_not_found")
	expect(t, eu.about("GET", id), 404, "response_not_found")
}

// The engine's response to a lookup is forwarded. A missing response is an error.
func TestHolderResponses(t *testing.T) {
	b := start(t, roundRobin(t))
	give := responder("us-0")
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		switch {
		case req.URL.Path == responsesPath:
			give(w, req)
		case req.URL.RawQuery == "break":
			panic(http.ErrAbortHandler)
		case req.Method == http.MethodGet:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error":{"message":"Response not found","type":"x","param":null,"code":null}}`)
		default:
			w.WriteHeader(http.StatusMethodNotAllowed)
		}
	}))
	id, _ := b.respond("", false)
	expect(t, b.about("GET", id+"?break"), http.StatusBadGateway, "replica_failed")
	expect(t, b.about("DELETE", id), http.StatusMethodNotAllowed, "") // this status is not about the response
	if got := expect(t, b.about("GET", id+"/input_items"), 404, ""); !strings.Contains(got, "Response not found") {
		t.Errorf("got %q", got)
	}
	b.respond(id, false)
	expect(t, b.about("GET", id), 404, "")
	expect(t, b.about("GET", id), 404, "response_not_found") // the engine is not queried again
}

// A holder that rejects the balancer's key is an error of the service that names the key, not of the client. It is
// logged, because only the operator can correct it.
func TestHolderRejectsKey(t *testing.T) {
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		var log bytes.Buffer
		o := roundRobin(t)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		b := start(t, o)
		give := responder("us-0")
		b.attachKeyed("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodPost {
				give(w, req)
				return
			}
			w.WriteHeader(status)
		}), "sk-engine")
		id, _ := b.respond("", false)
		message, _, _ := apiErrorOf(t, expect(t, b.about("GET", id), http.StatusBadGateway, "replica_failed"))
		if want := fmt.Sprintf("us-0, which holds the response, rejects the API key that the balancer has for it (%d): ask the operator to correct it", status); message != want {
			t.Errorf("got %q, want %q", message, want)
		}
		for _, want := range []string{"level=WARN", "target=us-0", "request=", fmt.Sprintf("(%d)", status)} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %s: %s", want, log.String())
			}
		}
	}
}

// A peer that rejects the peer token is such an error too. The status with which its engine rejects the client's own
// key is forwarded.
func TestHolderAtPeerRejects(t *testing.T) {
	for _, replica := range []string{"", "eu-0"} {
		us, _ := pair(t, "secret")
		us.AddPeer(service.PeerConfig{ID: "lb-eu-1", Region: "local/eu", URL: engine(t, func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path == PathHasResponse {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			if replica != "" {
				w.Header().Set(headerReplica, replica)
			}
			w.WriteHeader(http.StatusUnauthorized)
		})}, nil)
		resp := us.about("GET", "resp_1")
		if replica != "" {
			expect(t, resp, http.StatusUnauthorized, "")
			continue
		}
		message, _, _ := apiErrorOf(t, expect(t, resp, http.StatusBadGateway, "replica_failed"))
		if want := "lb-eu-1, which holds the response, rejects the peer token of the balancer (401): ask the operator to correct it"; message != want {
			t.Errorf("got %q, want %q", message, want)
		}
	}
}

// A request about a response with a body that is too large is rejected with the limit.
func TestLookupBodyIsTooLarge(t *testing.T) {
	b := start(t, roundRobin(t))
	b.attachHolder("us-0")
	id, _ := b.respond("", false)
	body := strings.Repeat("x", maxStoredRequestBody+1)
	message, _, _ := apiErrorOf(t, expect(t, b.post(pathResponses+id+"/cancel", body), http.StatusRequestEntityTooLarge, "request_too_large"))
	if !strings.Contains(message, "at most 65536 bytes") {
		t.Errorf("the limit is missing: %q", message)
	}
}

// A stored response belongs to its tenant, and peers need their token.
func TestLookupsOfOtherTenants(t *testing.T) {
	o := roundRobin(t)
	o.Keys = apiKeys("sk-one", "sk-two")
	o.Self.PeerToken = "secret"
	b := start(t, o)
	b.attachHolder("us-0")
	id, _ := b.respond("", false, "Authorization: Bearer sk-one")
	expect(t, b.about("GET", id), http.StatusUnauthorized, "invalid_api_key")
	expect(t, b.about("DELETE", id, "Authorization: Bearer sk-two"), 404, "response_not_found")
	forged := []string{"X-Skyserve-From: lb-eu-0", "X-Skyserve-Hop: remote", "X-Skyserve-Tenant: " + tenantOf(t, "sk-one")}
	expect(t, b.about("GET", id, forged...), http.StatusUnauthorized, "invalid_api_key")
	expect(t, b.about("GET", id, append(forged, "X-Skyserve-Peer-Token: secret")...), http.StatusOK, "")
	if got := expect(t, b.about("GET", id, "Authorization: Bearer sk-one"), http.StatusOK, ""); strings.Contains(got, "sk-one") {
		t.Errorf("the engine saw the balancer's key: %q", got)
	}
}

// tenantOf returns the tenant of a key without attributes.
func tenantOf(t *testing.T, secret string) string {
	t.Helper()
	for _, k := range apiKeys(secret) {
		return k.Tenant
	}
	return ""
}

// A lookup is forwarded once: a peer that has the location only from another peer does not serve it.
func TestLookupsAreForwardedOnce(t *testing.T) {
	us, eu := pair(t, "secret")
	eu.attachHolder("eu-0")
	id, _ := eu.respond("", false)
	expect(t, us.about("GET", id), 200, "") // us has now stored that eu holds it
	o := roundRobin(t)
	o.Self.ID, o.Self.Region, o.Self.PeerToken = "lb-asia-0", "local/asia", "secret"
	asia := start(t, o)
	asia.AddPeer(service.PeerConfig{ID: "lb-us-0", Region: "local/us", URL: us.url}, nil)
	expect(t, asia.about("GET", id), 404, "response_not_found")
}
